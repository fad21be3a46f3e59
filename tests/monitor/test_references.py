"""What a stream is compared with: assessments that do not fit the calibration are rejected."""

import numpy as np
import pytest

import nescio as ns
from fixtures.streams import grouped_detector, logits_of
from nescio.detectors.assessment import Assessment
from nescio.errors import InputError, ShapeError
from nescio.monitor import Monitor


def test_groups_that_do_not_fit_are_refused(rng):
    detector = grouped_detector(rng)
    monitor = Monitor(detector)
    assessment = detector.assess(logits_of(rng, 5), groups=["day"] * 5)
    values = assessment.scores, assessment.p_values, assessment.in_distribution
    with pytest.raises(InputError, match="has no groups"):
        monitor.update(Assessment(*values))
    with pytest.raises(InputError, match="not calibrated for group 'dusk'"):
        monitor.update(Assessment(*values, groups=np.array(["day"] * 4 + ["dusk"])))
    with pytest.raises(ShapeError, match="groups"):
        monitor.update(Assessment(*values, groups=np.array(["day"] * 4)))
    assert monitor.n_samples == 0


def test_verdicts_of_another_detector_change_nothing(detector, rng):
    monitor, logits = Monitor(detector), logits_of(rng, 20)
    other = ns.JointEnergy().calibrate(logits_of(rng, 1500, shift=1.0))
    for strange in (ns.MaxLogit().calibrate(logits_of(rng, 1500)), other):
        with pytest.raises(InputError, match="another detector"):
            monitor.update(strange.assess(logits))
    good = detector.assess(logits)
    bad = np.where(np.arange(20) == 7, np.nan, good.scores)
    ones = np.where(np.arange(20) == 7, 1.0, good.p_values)
    with pytest.raises(InputError, match="does not match"):
        monitor.update(Assessment(bad, ones, good.in_distribution))
    with pytest.raises(ShapeError, match="same shape"):
        monitor.update(Assessment(good.scores[:5], good.p_values, good.in_distribution))
    for wrong in (logits[:5], logits[:, :3]):
        with pytest.raises(ShapeError, match=r"shape \(20, 6\)"):
            monitor.update(good, wrong)
    assert monitor.n_samples == 0
    assert monitor.log10_martingale == 0
    monitor.update(good[:0], logits[:0])
    assert monitor.n_samples == 0
