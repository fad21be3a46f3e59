"""The control chart: its windows and its band."""

import numpy as np
import pytest
from scipy import stats

import nescio as ns
from fixtures.streams import SCORES, Calibrated, continuous, fed, logits_of, not_more_than
from nescio.detectors.assessment import Assessment
from nescio.errors import ParameterError
from nescio.monitor import Monitor
from nescio.monitor.chart import KEPT_WINDOWS, ChartSegment, band
from nescio.monitor.stream import _MAX_POINTS


def test_the_band_is_the_beta_binomial_one():
    exact = stats.betabinom(500, 50, 951)
    expected = (exact.ppf(0.00135), exact.ppf(1 - 0.00135))
    assert band((ChartSegment(500, 50, 50, 1000),), 0.9973) == expected


def test_the_band_of_groups_is_that_of_a_sum(rng):
    parts = (ChartSegment(300, 10, 10, 200), ChartSegment(200, 60, 60, 300))
    drawn = sum(
        rng.binomial(p.n, rng.beta(p.high, p.n_calibration + 1 - p.high, 200_000)) for p in parts
    )
    low, high = band(parts, 0.95)
    # No wider than it must be: one step further in, and the tail is too large.
    assert (drawn < low).mean() < 0.026
    assert (drawn <= low).mean() > 0.024
    assert (drawn > high).mean() < 0.026
    assert (drawn >= high).mean() > 0.024


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::nescio.errors.TiedScoresWarning")
@pytest.mark.parametrize("scores", SCORES)
def test_windows_lie_within_the_band_as_often_as_stated(scores):
    outside = 0
    for seed in range(1000):
        rng = np.random.default_rng(seed)
        calibration = ns.Calibration.from_scores(scores(rng, 150), tpr=0.8)
        threshold = calibration.thresholds["all"]
        stream = scores(rng, 100)
        assessment = Assessment(stream, threshold.p_values(stream), stream >= threshold.value)
        monitor = Monitor(Calibrated(calibration), window=100, coverage=0.9)
        monitor.update(assessment)
        outside += monitor.report().n_outside
    assert not_more_than(outside, 1000, 0.1)
    if scores is continuous:
        assert outside > 40


def test_windows_are_counted_and_kept_up_to_a_number(detector, rng):
    monitor = Monitor(detector, window=10)
    logits = logits_of(rng, 10 * KEPT_WINDOWS + 57)
    fed(monitor, detector, logits)
    report = monitor.report()
    assert report.n_windows == KEPT_WINDOWS + 5
    assert len(report.windows) == KEPT_WINDOWS
    assert report.windows[0].start == 50
    assert report.open_window.n == 7
    assert len(report.trace) <= _MAX_POINTS
    flagged = ~detector.assess(logits).in_distribution
    assert monitor.flagged == flagged.sum()
    assert report.windows[0].flagged == flagged[50:60].sum()
    assert monitor.n_samples == len(logits)


def test_windows_outside_are_marked(detector, rng):
    monitor = fed(Monitor(detector), detector, logits_of(rng, 1000, shift=-2.0))
    assert [window.outside for window in monitor.report().windows] == [True, True]
    assert monitor.report().n_outside == 2


def test_the_expected_band_is_given_for_any_number(detector):
    monitor = Monitor(detector)
    low, high = monitor.flagged_band(500)
    assert 0 < low < 0.05 < high < 0.1
    narrow = monitor.flagged_band(100_000)
    assert low < narrow[0] < 0.05 < narrow[1] < high
    assert monitor.flagged_band(1) == (0, 1)
    with pytest.raises(ParameterError, match="n must be"):
        monitor.flagged_band(0)
