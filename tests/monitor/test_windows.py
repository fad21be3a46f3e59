"""The control chart with its band, and labels that drift."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

import nescio as ns
from fixtures.streams import SCORES, continuous, fed, logits_of, not_more_than
from nescio.calibration import LabelFrequencies
from nescio.monitor import Monitor
from nescio.monitor.martingale import _MAX_POINTS
from nescio.monitor.windows import KEPT_WINDOWS, ChartSegment, DriftWatch, band, holm, two_sided


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
        low, high = band((ChartSegment.of(threshold)._replace(n=100),), 0.9)
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


# --- labels ---------------------------------------------------------------------------------------


@given(st.integers(0, 10_000), st.integers(1, 60), st.integers(1, 300))
def test_the_label_test_is_fishers(seed, n, n_calibration):
    rng = np.random.default_rng(seed)
    rates = rng.random((2, 20))
    window = LabelFrequencies(rng.binomial(n, rates[0]), n)
    calibration = LabelFrequencies(rng.binomial(n_calibration, rates[1]), n_calibration)
    p_values = two_sided(window, calibration)
    for p_value, seen, expected in zip(p_values, window.counts, calibration.counts, strict=True):
        exact = stats.hypergeom(n + n_calibration, seen + expected, n)
        doubled = 2 * min(exact.sf(seen - 1), exact.cdf(seen))
        assert p_value == pytest.approx(min(1, doubled), rel=1e-6) or p_value == 1


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_holm_is_step_down(p_values):
    p_values, alpha = np.array(p_values), 0.05
    rejected = np.zeros(len(p_values), bool)
    for step, label in enumerate(np.argsort(p_values, kind="stable")):
        if p_values[label] * (len(p_values) - step) > alpha:
            break
        rejected[label] = True
    assert ((holm(p_values) <= alpha) == rejected).all()


@pytest.mark.slow
def test_false_alarms_about_labels_stay_below_alpha():
    n_alarms = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        rates = rng.random(30) * 0.5
        firing = LabelFrequencies(rng.binomial(300, rates), 300)
        watch = DriftWatch(firing, tuple(map(str, range(30))), 0.1)
        for window in range(20):
            watch.counts[0], watch.sizes[0] = rng.binomial(50, rates), 50
            watch.close(window)
        n_alarms += bool(watch.drifts)
    assert not_more_than(n_alarms, 400, 0.1)


def test_a_small_lasting_drift_shows_in_several_windows_together(rng):
    firing = LabelFrequencies(rng.binomial(5000, np.full(40, 0.2)), 5000)
    watch = DriftWatch(firing, tuple(map(str, range(40))), 0.01)
    rates = np.where(np.arange(40) == 7, 0.25, 0.2)
    for window in range(64):
        watch.counts[0], watch.sizes[0] = rng.binomial(500, rates), 500
        watch.close(window)
    assert [drift.label for drift in watch.drifts.values()] == ["7"]
    assert watch.drifts["7"].n_inputs > 1000
    assert watch.n_tests == 64 + 32 + 16 + 8 + 4 + 2 + 1
    assert not watch.sizes.any()


def test_a_window_without_logits_is_not_tested(detector, rng):
    monitor = fed(Monitor(detector), detector, logits_of(rng, 500), labels=False)
    assert monitor.n_label_tests == 0
    assert "needs the logits of a full window" in str(monitor)
    fed(monitor, detector, logits_of(rng, 500))
    assert monitor.n_label_tests == 1


def test_a_label_that_fires_more_often_is_found_and_named(rng):
    names = ["cat", "dog", "car", "tree", "boat", "bird"]
    held_out = ns.Outputs(logits_of(rng, 2000), label_names=names)
    detector = ns.JointEnergy().calibrate(held_out)
    after = logits_of(rng, 1700)
    after[500:, 3] += 1.0
    monitor = fed(Monitor(detector), detector, after)
    [drift] = monitor.label_drifts
    assert monitor.label_alarm
    assert drift.label == "tree"
    assert (drift.first_window, drift.last_window, drift.n_inputs) == (1, 2, 500)
    assert drift.rate == pytest.approx((after[1000:1500, 3] > 0).mean())
    assert drift.calibration_rate == pytest.approx((held_out.logits[:, 3] > 0).mean())
    assert drift.p_value <= 0.01
    assert "tree: more often, for" in str(monitor)


def test_labels_are_watched_where_one_is_masked(rng):
    held_out, after = logits_of(rng, 2000), logits_of(rng, 1000)
    held_out[:, 0] = after[:, 0] = -np.inf
    after[:, 3] += 2.0
    detector = ns.JointEnergy().calibrate(held_out)
    assert detector.profile_.label_frequencies.n_samples == 2000
    monitor = fed(Monitor(detector), detector, after)
    assert [drift.label for drift in monitor.label_drifts] == ["label 3"]


def test_without_counts_of_labels_their_drift_is_not_known(rng):
    features = ns.Mahalanobis().fit(rng.normal(size=(200, 3)), np.eye(2)[rng.integers(0, 2, 200)])
    features.calibrate(rng.normal(size=(100, 3)))
    monitor = Monitor(features)
    assert not monitor.watches_labels
    new = rng.normal(size=(600, 3))
    monitor.update(features.assess(new), logits=rng.normal(size=(600, 2)))
    assert monitor.label_drifts is None
    assert not monitor.label_alarm
    assert "not known how often" in str(monitor)
