"""The medians of the terms of labels in the calibration data."""

import numpy as np
import pytest

import nescio as ns
from nescio.calibration import Medians
from nescio.checks import make_outputs
from nescio.errors import ParameterError
from nescio.explain import Terms
from nescio.scores import label_energy


def test_of_many_rows_some_are_drawn_and_always_the_same(rng):
    logits = rng.normal(-3, 3, (20_000, 4)).astype(np.float32)
    first, again = (ns.JointEnergy().calibrate(logits).medians_ for _ in range(2))
    np.testing.assert_array_equal(first.labels, again.labels)
    # 3.5 % of the rows to either side of the middle: five standard errors of 5,000
    low, high = np.quantile(label_energy(logits), [0.465, 0.535], axis=0)
    assert ((low < first.labels[0]) & (first.labels[0] < high)).all()
    exact = np.median(label_energy(logits).astype(np.float64), axis=0)
    assert (first.labels[0] != exact).all()


def test_groups_may_come_in_any_order(rng):
    logits = rng.normal(size=(6, 2))
    names = np.array(["9", "10+", "9", "10+", "9", "10+"])  # as label counts do
    terms = Terms("logit", np.asarray)
    usual = Medians.from_logits(terms, logits, np.ones(6, bool), names, ["9", "10+"])
    stored = {"labels": usual.labels, "ranks": usual.ranks}
    for read in (usual, Medians.from_arrays(stored, ("9", "10+"), 2)):
        medians, _ = read.of_samples(names[:2], 2)
        np.testing.assert_array_equal(medians[0], np.median(logits[::2], axis=0))
        np.testing.assert_array_equal(medians[1], np.median(logits[1::2], axis=0))


def test_calibrating_again_replaces_the_medians_and_failing_keeps_them():
    detector = ns.JointEnergy().calibrate(make_outputs(100, shift=3.0))
    before = detector.medians_
    with pytest.raises(ParameterError):
        detector.calibrate(make_outputs(100), groups="colour")
    assert detector.medians_ is before
    detector.calibrate(make_outputs(100), groups=["a", "b"] * 50)
    assert detector.medians_.labels.shape == (3, 6)  # a, b and all
    detector.calibrate(make_outputs(100))
    np.testing.assert_array_equal(
        detector.medians_.labels,
        ns.JointEnergy().calibrate(make_outputs(100)).medians_.labels,
    )
