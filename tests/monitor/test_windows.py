"""The control chart with its band."""

import numpy as np
import pytest
from scipy import stats

import nescio as ns
from fixtures.streams import SCORES, continuous, fed, logits_of, not_more_than
from nescio.monitor import Monitor
from nescio.monitor.martingale import _MAX_POINTS, Bag
from nescio.monitor.windows import KEPT_WINDOWS, ChartSegment, band, find_difference


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


def test_the_band_of_very_many_inputs_is_that_of_fewer():
    low, high = band((ChartSegment(2_000_000, 50, 50, 1000),))
    fewer = band((ChartSegment(20_000, 50, 50, 1000),))
    assert (low / 100, high / 100) == pytest.approx(fewer, abs=1)
    groups = (ChartSegment(1499, 50, 50, 1000),) * 200  # rounding must not add up
    low, high = band(groups)
    assert low < 200 * 1499 * 50 / 1001 < high
    assert (high - low) / (200 * 1499) < 0.012


# --- all scores, whatever their order ---


def bag_of(scores, n_calibration, rng):
    bag = Bag(np.sort(rng.normal(size=n_calibration)))
    bag.add(scores, rng.random(len(scores)))
    return bag


@pytest.mark.parametrize("n_calibration", [300, 5000])
@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda x: x, None),
        (lambda x: x - 0.8, "lower"),
        (lambda x: x + 0.8, "higher"),
        (lambda x: np.where(np.arange(len(x)) % 10, x, -9.0), "some lower"),
        (lambda x: np.where(np.arange(len(x)) % 10, x, 9.0), "some higher"),
        (lambda x: 2.5 * x, "more extreme"),
        (lambda x: 0.4 * x, "less extreme"),
        (lambda x: np.full(len(x), 1.23), "constant"),
        (lambda x: np.full(len(x), -0.01), "constant"),
        (lambda x: np.where(np.arange(len(x)) % 10, x, -np.inf), "unusable"),
        (lambda x: np.append(np.full(len(x), 0.5), -np.inf), "constant"),
    ],
)
def test_the_difference_has_a_kind(rng, n_calibration, change, kind):
    found = find_difference([bag_of(change(rng.normal(size=300)), n_calibration, rng)])
    assert (found and found.kind) == kind


def test_no_inputs_do_not_differ_and_two_equal_ones_are_no_constant(rng):
    assert find_difference([bag_of(np.empty(0), 300, rng)]) is None
    assert find_difference([bag_of(np.zeros(2), 300, rng)]) is None


def test_calibration_data_with_nan_may_have_as_many_later(rng):
    bag = Bag(np.sort(np.append(rng.normal(size=980), np.full(20, -np.inf))))
    stream = np.append(rng.normal(size=490), np.full(10, -np.inf))
    bag.add(stream, rng.random(500))
    assert find_difference([bag]) is None
    bag.add(np.full(40, -np.inf), rng.random(40))
    assert find_difference([bag]).kind == "unusable"


@pytest.mark.slow
@pytest.mark.parametrize("scores", SCORES)
def test_what_has_not_changed_hardly_ever_differs(scores):
    n_found = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        values = scores(rng, 600)
        bag = Bag(np.sort(values[:400]))
        bag.add(values[400:], rng.random(200))
        n_found += find_difference([bag]) is not None
    assert not_more_than(n_found, 400, 0.0027)
