"""The control chart with its band."""

import numpy as np
import pytest
from scipy import stats

import nescio as ns
from fixtures.streams import SCORES, continuous, fed, logits_of, not_more_than
from nescio.monitor import Monitor
from nescio.monitor.martingale import _MAX_POINTS
from nescio.monitor.windows import KEPT_WINDOWS, ChartSegment, band


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
        threshold = ns.Calibration.from_scores(scores(rng, 150), tpr=0.8).thresholds["all"]
        flagged = np.count_nonzero(scores(rng, 100) < threshold.value)
        ranks = threshold.lowest_rank, threshold.rank
        low, high = band((ChartSegment(100, *ranks, threshold.n_samples),), 0.9)
        outside += not low <= flagged <= high
    assert not_more_than(outside, 1000, 0.1)
    if scores is continuous:
        assert outside > 40


def test_windows_are_counted_and_kept_up_to_a_number(detector, rng):
    monitor = Monitor(detector, window=10)
    logits = logits_of(rng, 10 * KEPT_WINDOWS + 57)
    fed(monitor, detector, logits)
    assert monitor.chart.n_windows == KEPT_WINDOWS + 5
    assert len(monitor.windows) == KEPT_WINDOWS + 1
    assert monitor.windows[0].start == 50
    assert monitor.windows[-1].n == 7
    assert len(monitor.trace.points()) <= _MAX_POINTS
    flagged = ~detector.assess(logits).in_distribution
    assert monitor.flagged == flagged.sum()
    assert monitor.windows[0].flagged == flagged[50:60].sum()
    assert monitor.n_samples == len(logits)
