"""The monitor: its promises over many streams, what it finds, and that nothing gets lost."""

import json
import re

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

import nescio as ns
from nescio._io.kinds import digest
from nescio._io.tensors import read_tensors, write_tensors
from nescio.calibration import Firing
from nescio.detectors.assessment import Assessment
from nescio.errors import FileError, FileFormatError, InputError, ParameterError, ShapeError
from nescio.monitor import Monitor
from nescio.monitor.betting import BETS, Bet, Martingale, reserve, share_at
from nescio.monitor.chart import KEPT_WINDOWS, Part, band
from nescio.monitor.figures import write_plot
from nescio.monitor.labels import LabelWatch, holm, two_sided
from nescio.monitor.ranks import Bag
from nescio.monitor.scored import infer_calibration, infer_size, read_scored
from nescio.monitor.trace import MAX_POINTS


def continuous(rng, n):
    return rng.normal(size=n)


def few_values(rng, n):
    return rng.integers(0, 5, n).astype(float)


def saturated(rng, n):
    """As the largest probability: many at the top, and a tail."""
    return np.minimum(rng.normal(size=n), 0.3)


def partly_rounded(rng, n):
    """Atoms and a density side by side."""
    scores = rng.normal(size=n)
    return np.where(rng.random(n) < 0.4, scores.round(), scores)


SCORES = (continuous, few_values, saturated, partly_rounded)


def logits_of(rng, n, n_labels=6, shift=0.0):
    return rng.normal(-1.0 + shift, 2.0, (n, n_labels))


@pytest.fixture(scope="module")
def detector():
    return ns.JointEnergy().calibrate(logits_of(np.random.default_rng(1), 1500))


def fed(monitor, detector, logits, sizes=None, *, labels=True):
    start = 0
    for size in sizes or [len(logits)]:
        block = logits[start : start + size]
        monitor.update(detector.assess(block), block if labels else None)
        start += size
    return monitor


def same_state(a, b):
    """Equal reports, up to the rounding of the evidence."""
    first, second = a.report().as_dict(), b.report().as_dict()
    for name in ("trace", "log10_martingale", "max_log10_martingale"):
        np.testing.assert_allclose(first.pop(name), second.pop(name), rtol=0, atol=1e-9)
    assert first == second


# --- online p-values ----------------------------------------------------------------------------


def p_values_by_definition(calibration, stream, uniform):
    """The rank of each score among all before it, ties broken at random, one by one."""
    seen, found = list(calibration), []
    for score, u in zip(stream, uniform, strict=True):
        below = sum(other < score for other in seen)
        equal = sum(other == score for other in seen) + 1
        seen.append(score)
        found.append((below + u * equal) / len(seen))
    return np.array(found)


@given(st.integers(0, 10_000), st.integers(1, 30), st.integers(0, 300))
def test_where_all_stream_scores_tie_with_calibration_scores_ranks_are_plain(seed, n, length):
    rng = np.random.default_rng(seed)
    calibration = np.sort(few_values(rng, n))
    stream, uniform = rng.choice(calibration, length), rng.random(length)
    expected = p_values_by_definition(calibration, stream, uniform)
    np.testing.assert_allclose(Bag(calibration).add(stream, uniform), expected, rtol=1e-12)


def test_within_a_cell_the_bounds_are_those_of_the_true_ranks(rng):
    calibration, stream = np.sort(rng.normal(size=40)), rng.normal(size=700)
    true = p_values_by_definition(calibration, stream, np.full(700, 0.5))
    low = Bag(calibration).add(stream, np.zeros(700))
    high = Bag(calibration).add(stream, np.ones(700))
    assert (low <= true).all()
    assert (true <= high).all()
    assert (high - low < 1).all()


@given(st.integers(0, 10_000), st.lists(st.integers(0, 400), max_size=5))
def test_p_values_do_not_depend_on_the_blocks(seed, sizes):
    rng = np.random.default_rng(seed)
    calibration = np.sort(partly_rounded(rng, 50))
    stream, uniform = partly_rounded(rng, sum(sizes)), rng.random(sum(sizes))
    whole, parts = Bag(calibration), Bag(calibration)
    cuts = np.cumsum(sizes)[:-1] if sizes else []
    pieces = zip(np.split(stream, cuts), np.split(uniform, cuts), strict=True)
    found = [parts.add(scores, u) for scores, u in pieces]
    assert np.concatenate(found).tolist() == whole.add(stream, uniform).tolist()
    assert parts.counts.tolist() == whole.counts.tolist()
    assert whole.total == 50 + sum(sizes)


def test_a_large_calibration_set_is_cut_at_some_of_its_scores(rng):
    bag = Bag(np.sort(rng.normal(size=100_000)))
    assert len(bag.counts) <= 2048
    assert bag.total == 100_000
    bag.add(rng.normal(size=1000), rng.random(1000))
    assert len(bag.counts) <= 2048
    assert bag.total == 101_000


def test_infinite_scores_have_a_rank():
    bag = Bag(np.array([-np.inf, -np.inf, 0.0, 1.0]))
    assert bag.add(np.array([-np.inf, np.inf]), np.array([0.5, 0.5])).tolist() == [0.3, 5.5 / 6]


@pytest.mark.slow
@pytest.mark.parametrize("max_cuts", [1023, 12])
@pytest.mark.parametrize("scores", SCORES)
def test_online_p_values_are_uniform_and_independent(scores, max_cuts):
    last, before, pooled = [], [], []
    for seed in range(3000):
        rng = np.random.default_rng(seed)
        values = scores(rng, 30 + 60)
        p = Bag(np.sort(values[:30]), max_cuts=max_cuts).add(values[30:], rng.random(60))
        last.append(p[-1])
        before.append(p[:-1].mean())
        pooled.append(p[::13])
    assert stats.kstest(last, "uniform").pvalue > 1e-3
    assert stats.kstest(np.concatenate(pooled), "uniform").pvalue > 1e-3
    assert stats.pearsonr(last, before).pvalue > 1e-3


# --- the martingale -----------------------------------------------------------------------------


def test_shares_add_up_to_what_is_not_in_reserve():
    t = np.arange(1, 100_001)
    np.testing.assert_allclose(1 - np.cumsum(share_at(t)), reserve(t), atol=1e-12)
    assert share_at(10**12) > 0


@pytest.mark.parametrize("bet", BETS, ids=lambda bet: bet.name)
def test_a_bet_is_a_density(bet):
    # In quantiles of the Beta part the density has no poles: E[f(p)] = 1 for p uniform.
    grid = (np.arange(200_000) + 0.5) / 200_000
    density = np.exp(Martingale((bet,))._log_gains(grid)[0])
    expected = 1 - bet.stake + bet.stake * stats.beta(bet.a, bet.b).pdf(grid)
    np.testing.assert_allclose(density, expected, rtol=1e-9)
    assert density.min() >= 1 - bet.stake - 1e-12
    assert density.mean() == pytest.approx(1, abs=0.05)


def test_the_capital_is_that_of_a_gambler_who_plays_one_by_one(rng):
    p_values = rng.random(300) ** 1.3
    stakes, expected = np.zeros(len(BETS)), []
    for t, p in enumerate(p_values, 1):
        gains = [1 - b.stake + b.stake * stats.beta(b.a, b.b).pdf(p) for b in BETS]
        stakes = (stakes + share_at(t) / len(BETS)) * gains
        expected.append(stakes.sum() + reserve(t))
    np.testing.assert_allclose(Martingale().add(p_values), np.log(expected), atol=1e-9)


def test_p_values_of_0_and_1_are_no_end():
    capital = Martingale().add(np.array([0.0, 1.0] * 50))
    assert np.isfinite(capital).all()


def alarms(scores, n_calibration, *, online=True, n_streams=400, length=2000, alpha=0.1, cuts=1023):
    """In how many streams like their calibration data the capital reaches 1 / alpha."""
    found = 0
    for seed in range(n_streams):
        rng = np.random.default_rng(seed)
        values = scores(rng, n_calibration + length)
        calibration, stream = np.sort(values[:n_calibration]), values[n_calibration:]
        if online:
            p = Bag(calibration, max_cuts=cuts).add(stream, rng.random(length))
        else:
            below = np.searchsorted(calibration, stream, side="right")
            p = (below + rng.random(length)) / (n_calibration + 1)
        found += bool(Martingale().add(p).max() >= -np.log(alpha))
    return found


def not_more_than(count, n, share):
    return stats.binomtest(count, n, share, alternative="greater").pvalue > 0.01


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scores", "n_calibration", "cuts"),
    [
        (continuous, 50, 1023),
        (continuous, 1000, 100),
        (few_values, 50, 1023),
        (saturated, 1000, 1023),
        (partly_rounded, 200, 15),
    ],
)
def test_false_alarms_stay_below_alpha(scores, n_calibration, cuts):
    assert not_more_than(alarms(scores, n_calibration, cuts=cuts), 400, 0.1)


@pytest.mark.slow
def test_against_the_calibration_data_alone_they_would_not():
    # The reason for online ranks: a calibration sample has its own deviation, and a long stream
    # gives it away.
    assert not not_more_than(alarms(continuous, 50, online=False), 400, 0.1)
    assert not not_more_than(alarms(few_values, 1000, online=False, n_streams=50), 50, 0.1)


# --- detection ----------------------------------------------------------------------------------


def first_alarm(detector, before, after, **settings):
    monitor = Monitor.for_detector(detector, **settings)
    fed(monitor, detector, before, labels=False)
    assert not monitor.alarm
    fed(monitor, detector, after, labels=False)
    return None if monitor.alarm_at is None else monitor.alarm_at - len(before)


def test_a_shift_is_found_early_and_late(detector, rng):
    shifted = logits_of(rng, 3000, shift=-0.8)
    assert first_alarm(detector, logits_of(rng, 10), shifted) < 300
    assert first_alarm(detector, logits_of(rng, 50_000), shifted) < 300


def test_a_shift_to_higher_scores_is_found(detector, rng):
    assert first_alarm(detector, logits_of(rng, 2000), logits_of(rng, 3000, shift=0.5)) < 500


def test_a_few_strange_inputs_among_many_are_found(detector, rng):
    after = logits_of(rng, 5000)
    strange = rng.random(5000) < 0.05
    after[strange] -= 5.0
    assert first_alarm(detector, logits_of(rng, 5000), after) < 1000


def test_a_small_lasting_shift_is_found(detector, rng):
    assert first_alarm(detector, logits_of(rng, 5000), logits_of(rng, 20_000, shift=-0.15)) < 5000


@pytest.mark.parametrize("spread", [0.6, 1.5])
def test_another_spread_is_found(rng, spread):
    stream = np.concatenate([rng.normal(size=2000), spread * rng.normal(size=1000)])
    p_values = Bag(np.sort(rng.normal(size=1000))).add(stream, rng.random(3000))
    capital = Martingale().add(p_values)
    assert capital[:2000].max() < np.log(100) < capital[2000:].max()


def test_evidence_and_alarm_are_told(detector, rng):
    monitor = fed(Monitor.for_detector(detector), detector, logits_of(rng, 2000, shift=-1.0))
    report = monitor.report()
    assert report.alarm
    assert report.alarm_at == monitor.alarm_at
    assert report.max_log10_martingale >= max(2, report.log10_martingale)
    evidence = dict(report.trace)
    assert max(value for at, value in evidence.items() if at < report.alarm_at) < 2
    assert f"ALARM after {monitor.alarm_at:,} inputs" in str(report)


# --- the control chart --------------------------------------------------------------------------


def test_the_band_is_the_beta_binomial_one():
    exact = stats.betabinom(500, 50, 951)
    expected = (exact.ppf(0.00135), exact.ppf(1 - 0.00135))
    assert band((Part(500, 50, 50, 1000),), 0.9973) == expected


def test_the_band_of_groups_is_that_of_a_sum(rng):
    parts = (Part(300, 10, 10, 200), Part(200, 60, 60, 300))
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
        assessment = Assessment(stream, threshold.p_values(stream), stream >= threshold.tau)
        monitor = Monitor.for_detector(_Calibrated(calibration), window=100, coverage=0.9)
        monitor.update(assessment)
        outside += monitor.report().n_outside
    assert not_more_than(outside, 1000, 0.1)
    if scores is continuous:
        assert outside > 40


class _Calibrated:
    """As much of a detector as a monitor asks for."""

    name, label_names_ = "scores", None

    def __init__(self, calibration):
        self.calibration_ = calibration


def test_windows_are_counted_and_kept_up_to_a_number(detector, rng):
    monitor = Monitor.for_detector(detector, window=10)
    logits = logits_of(rng, 10 * KEPT_WINDOWS + 57)
    fed(monitor, detector, logits)
    report = monitor.report()
    assert report.n_windows == KEPT_WINDOWS + 5
    assert len(report.windows) == KEPT_WINDOWS
    assert report.windows[0].start == 50
    assert report.open_window.n == 7
    assert len(report.trace) <= MAX_POINTS
    flagged = ~detector.assess(logits).in_distribution
    assert monitor.flagged == flagged.sum()
    assert report.windows[0].flagged == flagged[50:60].sum()
    assert monitor.n_samples == len(logits)


def test_flagged_is_by_tau_whatever_the_verdicts_are_by(detector, rng):
    logits = logits_of(rng, 400)
    monitor = Monitor.for_detector(detector)
    monitor.update(detector.assess(logits, fdr=0.1))
    assert monitor.flagged == (detector.predict(logits) == -1).sum()


def test_windows_outside_are_marked(detector, rng):
    monitor = fed(Monitor.for_detector(detector), detector, logits_of(rng, 1000, shift=-2.0))
    assert [window.outside for window in monitor.report().windows] == [True, True]
    assert monitor.report().n_outside == 2


def test_the_expected_band_is_given_for_any_number(detector):
    monitor = Monitor.for_detector(detector)
    low, high = monitor.flagged_band(500)
    assert 0 < low < 0.05 < high < 0.1
    narrow = monitor.flagged_band(100_000)
    assert low < narrow[0] < 0.05 < narrow[1] < high
    assert monitor.flagged_band(1) == (0, 1)
    with pytest.raises(ParameterError, match="n must be"):
        monitor.flagged_band(0)


# --- labels -------------------------------------------------------------------------------------


@given(st.integers(0, 10_000), st.integers(1, 60), st.integers(1, 300))
def test_the_label_test_is_fishers(seed, n, n_calibration):
    rng = np.random.default_rng(seed)
    rates = rng.random((2, 20))
    window = Firing(rng.binomial(n, rates[0]), n)
    calibration = Firing(rng.binomial(n_calibration, rates[1]), n_calibration)
    for at, found in enumerate(two_sided(window, calibration)):
        fired = window.counts[at] + calibration.counts[at]
        exact = stats.hypergeom(n + n_calibration, fired, n)
        seen = window.counts[at]
        doubled = 2 * min(exact.sf(seen - 1), exact.cdf(seen))
        assert found == pytest.approx(min(1, doubled), rel=1e-6) or found == 1


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_holm_is_step_down(p_values):
    p_values, alpha = np.array(p_values), 0.05
    rejected = np.zeros(len(p_values), bool)
    for step, at in enumerate(np.argsort(p_values, kind="stable")):
        if p_values[at] * (len(p_values) - step) > alpha:
            break
        rejected[at] = True
    assert ((holm(p_values) <= alpha) == rejected).all()


@pytest.mark.slow
def test_false_alarms_about_labels_stay_below_alpha():
    found = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        rates = rng.random(30) * 0.5
        firing = Firing(rng.binomial(300, rates), 300)
        watch = LabelWatch(firing, tuple(map(str, range(30))), 0.1)
        for window in range(20):
            watch.open = Firing(rng.binomial(50, rates), 50)
            watch.close(window)
        found += bool(watch.found)
    assert not_more_than(found, 400, 0.1)


def test_a_small_lasting_drift_shows_in_several_windows_together(rng):
    firing = Firing(rng.binomial(5000, np.full(40, 0.2)), 5000)
    watch = LabelWatch(firing, tuple(map(str, range(40))), 0.01)
    rates = np.where(np.arange(40) == 7, 0.25, 0.2)
    for window in range(64):
        watch.open = Firing(rng.binomial(500, rates), 500)
        watch.close(window)
    assert [drift.label for drift in watch.found.values()] == ["7"]
    assert watch.found[7].n_inputs > 1000
    assert watch.n_tests == 64 + 32 + 16 + 8 + 4 + 2 + 1
    assert not watch.waiting


def test_a_window_without_logits_is_not_tested(detector, rng):
    monitor = fed(Monitor.for_detector(detector), detector, logits_of(rng, 500), labels=False)
    assert monitor.report().n_label_tests == 0
    assert "no full window with logits" in str(monitor.report())
    fed(monitor, detector, logits_of(rng, 500))
    assert monitor.report().n_label_tests == 1


def test_a_label_that_fires_more_often_is_found_and_named(rng):
    names = ["cat", "dog", "car", "tree", "boat", "bird"]
    held_out = ns.Outputs(logits_of(rng, 2000), label_names=names)
    detector = ns.JointEnergy().calibrate(held_out)
    after = logits_of(rng, 1700)
    after[500:, 3] += 1.0
    monitor = fed(Monitor.for_detector(detector), detector, after)
    [drift] = monitor.report().labels
    assert monitor.label_alarm
    assert drift.label == "tree"
    assert (drift.first_window, drift.last_window, drift.n_inputs) == (1, 2, 500)
    assert drift.rate == pytest.approx((after[1000:1500, 3] > 0).mean())
    assert drift.calibration_rate == pytest.approx((held_out.logits[:, 3] > 0).mean())
    assert drift.p_value <= 0.01
    assert "tree: fires for" in str(monitor.report())


def test_rows_with_nan_or_plus_infinity_do_not_count(rng):
    logits = rng.normal(size=(700, 4)).astype(np.float32)
    logits[5, 1], logits[300, 0], logits[699, 3] = np.nan, -np.inf, np.inf
    clean = np.delete(logits, [5, 699], axis=0)
    firing = Firing.from_logits(logits)
    assert firing.n_samples == 698
    assert firing.counts.tolist() == (clean > 0).sum(0).tolist()
    # A sum that overflows is no reason to leave a row out.
    large = np.full((300, 4), 3e38, np.float32)
    assert Firing.from_logits(large).counts.tolist() == [300] * 4
    assert Firing.from_logits(logits[:0]).n_samples == 0


@pytest.mark.parametrize("beside", [np.nan, np.inf])
def test_minus_infinity_hides_no_bad_value(beside):
    firing = Firing.from_logits(np.array([[-np.inf, beside], [-np.inf, 1.0]]))
    assert (firing.n_samples, firing.counts.tolist()) == (1, [0, 1])


def test_labels_are_watched_where_one_is_masked(rng):
    held_out, after = logits_of(rng, 2000), logits_of(rng, 1000)
    held_out[:, 0] = after[:, 0] = -np.inf
    after[:, 3] += 2.0
    detector = ns.JointEnergy().calibrate(held_out)
    assert detector.firing_.n_samples == 2000
    report = fed(Monitor.for_detector(detector), detector, after).report()
    assert [drift.label for drift in report.labels] == ["label 3"]


def test_where_no_row_could_be_counted_labels_are_not_watched(rng):
    held_out, after = logits_of(rng, 300), logits_of(rng, 600)
    detector = ns.JointEnergy().calibrate(held_out)
    detector.firing_ = Firing(np.zeros(6, np.int64), 0)
    monitor = fed(Monitor.for_detector(detector), detector, after)
    assert not monitor.watches_labels
    assert monitor.report().labels is None
    assert "labels: not watched" in str(monitor.report())


def test_numbers_in_the_report_are_as_one_would_write_them(detector, rng):
    monitor = Monitor.for_detector(detector, window=10)
    assert "stands at 1, at most it was 1; alarm at 100" in str(monitor.report())
    fed(monitor, detector, logits_of(rng, 1))
    assert "1 input, " in str(monitor.report())
    monitor.log10_martingale = -0.01
    assert "stands at 1," in str(monitor.report())
    monitor.log10_martingale = 2.0
    assert "stands at 10^2," in str(monitor.report())
    fed(monitor, detector, logits_of(rng, 9))
    assert str(monitor.report()).endswith("no drift in 1 test")


def test_without_counts_of_labels_their_drift_is_not_known(rng):
    features = ns.Mahalanobis().fit(rng.normal(size=(200, 3)), np.eye(2)[rng.integers(0, 2, 200)])
    features.calibrate(rng.normal(size=(100, 3)))
    monitor = Monitor.for_detector(features)
    assert not monitor.watches_labels
    new = rng.normal(size=(600, 3))
    monitor.update(features.assess(new), logits=rng.normal(size=(600, 2)))
    assert monitor.report().labels is None
    assert not monitor.label_alarm
    assert "not known how often" in str(monitor.report())


def test_firing_is_kept_by_calibrate_and_by_a_file(detector, tmp_path, rng):
    logits = logits_of(rng, 300)
    fitted = ns.JointEnergy().calibrate(logits)
    fitted.save(tmp_path / "a.nescio")
    loaded = ns.load(tmp_path / "a.nescio")
    assert loaded.firing_.counts.tolist() == (logits > 0).sum(0).tolist()
    assert loaded.firing_.n_samples == 300
    assert not hasattr(fitted.fit(logits), "firing_")


@pytest.mark.parametrize(
    ("counts", "n_samples"),
    [([-1, 2], [3]), ([1, 4], [3]), ([0.5, 1.0], [3]), ([], [3]), ([1, 2], [3, 4])],
)
def test_counts_that_cannot_be_are_refused(detector, tmp_path, counts, n_samples):
    detector.save(tmp_path / "a.nescio")
    tensors, metadata = read_tensors(tmp_path / "a.nescio")
    tensors["firing.counts"], tensors["firing.n_samples"] = np.array(counts), np.array(n_samples)
    del metadata["sha256"]
    metadata["sha256"] = digest(tensors, metadata)
    write_tensors(tmp_path / "b.nescio", tensors, metadata)
    with pytest.raises(FileFormatError, match="damaged"):
        ns.load(tmp_path / "b.nescio")


# --- groups -------------------------------------------------------------------------------------


def grouped_detector(rng):
    logits = logits_of(rng, 600)
    names = np.array(["day", "night"])[(np.arange(600) % 3 == 0).astype(int)]
    return ns.JointEnergy().calibrate(logits + (names == "night")[:, None], groups=names)


def test_groups_have_their_own_bags(rng):
    detector = grouped_detector(rng)
    monitor = Monitor.for_detector(detector)
    groups = np.array(["night"] * 900 + ["day"] * 300)
    logits = logits_of(rng, 1200) + (groups == "night")[:, None]
    monitor.update(detector.assess(logits, groups=groups))
    # Another mix of groups is no change.
    assert not monitor.alarm
    assert [bag.total for bag in monitor.bags.values()] == [400 + 300, 200 + 900]
    swapped = np.array(["night", "day"] * 500)
    monitor.update(detector.assess(logits_of(rng, 1000) - 1, groups=swapped))
    assert monitor.alarm


def test_by_label_count_works_and_the_split_does_not_matter(rng):
    detector = ns.JointEnergy().calibrate(logits_of(rng, 3000), groups="label_count")
    assert len(detector.calibration_.thresholds) > 2
    logits = logits_of(rng, 1500)
    whole = fed(Monitor.for_detector(detector), detector, logits)
    parts = fed(Monitor.for_detector(detector), detector, logits, [1, 499, 3, 997])
    same_state(whole, parts)
    assert whole.flagged == (detector.predict(logits) == -1).sum()


@pytest.mark.slow
def test_false_alarms_by_group_stay_below_alpha():
    found = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        names = np.array(["a", "b"])[rng.integers(0, 2, 80)]
        values = rng.normal(size=80) + 2 * (names == "b")
        calibration = ns.Calibration.from_scores(values, tpr=0.8, groups=names)
        groups = np.array(["a", "b"])[(rng.random(1500) < 0.9).astype(int)]
        stream = rng.normal(size=1500) + 2 * (groups == "b")
        assessment = Assessment(
            stream, calibration.p_values(stream, groups), stream > 0, groups=groups
        )
        monitor = Monitor.for_detector(_Calibrated(calibration), alpha=0.1, seed=seed)
        monitor.update(assessment)
        found += monitor.alarm
    assert not_more_than(found, 300, 0.1)


def test_groups_that_do_not_fit_are_refused(rng):
    detector = grouped_detector(rng)
    monitor = Monitor.for_detector(detector)
    assessment = detector.assess(logits_of(rng, 5), groups=["day"] * 5)
    values = assessment.scores, assessment.p_values, assessment.in_distribution
    with pytest.raises(InputError, match="must hold each input's group"):
        monitor.update(Assessment(*values))
    with pytest.raises(InputError, match="no calibration of group 'dusk'"):
        monitor.update(Assessment(*values, groups=np.array(["day"] * 4 + ["dusk"])))
    with pytest.raises(ShapeError, match="groups"):
        monitor.update(Assessment(*values, groups=np.array(["day"] * 4)))
    assert monitor.n_samples == 0


# --- state --------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [[1] * 30 + [970, 4000], [500, 4500], [256, 255, 257, 4232]])
def test_one_call_or_many_give_the_same(detector, rng, sizes):
    logits = np.concatenate([logits_of(rng, 3000), logits_of(rng, 2000, shift=-0.5)])
    whole = fed(Monitor.for_detector(detector), detector, logits)
    assert whole.alarm
    same_state(whole, fed(Monitor.for_detector(detector), detector, logits, sizes))


def test_a_saved_monitor_goes_on_exactly(detector, rng, tmp_path):
    logits = np.concatenate([logits_of(rng, 2300), logits_of(rng, 1500, shift=-0.5)])
    straight = fed(Monitor.for_detector(detector, window=300), detector, logits, [1000, 2000, 800])
    monitor, start = Monitor.for_detector(detector, window=300), 0
    for size in (1000, 2000, 800):
        fed(monitor, detector, logits[start : start + size])
        start += size
        monitor.save(tmp_path / "state.safetensors", force=True)
        monitor = Monitor.load(tmp_path / "state.safetensors", detector)
    assert monitor.report() == straight.report()
    assert monitor.report().alarm
    assert monitor.report().labels
    new = logits_of(rng, 700)
    assert fed(monitor, detector, new).report() == fed(straight, detector, new).report()


def test_the_seed_decides_the_random_ranks(detector, rng):
    logits = logits_of(rng, 500)
    first, same, other = (
        fed(Monitor.for_detector(detector, seed=seed), detector, logits) for seed in (0, 0, 1)
    )
    assert first.log10_martingale == same.log10_martingale != other.log10_martingale


def test_a_state_is_of_one_detector(detector, rng, tmp_path):
    path = tmp_path / "state.safetensors"
    fed(Monitor.for_detector(detector), detector, logits_of(rng, 50)).save(path)
    other = ns.JointEnergy().calibrate(logits_of(rng, 1500))
    with pytest.raises(InputError, match="another detector"):
        Monitor.load(path, other)
    with pytest.raises(InputError, match="pass the detector"):
        Monitor.load(path)
    with pytest.raises(FileError, match="exists already"):
        Monitor.for_detector(detector).save(path)


def test_a_state_that_is_none_is_refused(detector, tmp_path):
    path = tmp_path / "state.safetensors"
    Monitor.for_detector(detector).save(path)
    tensors, metadata = read_tensors(path)
    detector.save(tmp_path / "a.nescio")
    with pytest.raises(FileFormatError, match=r"not a saved monitor: it holds 'nescio.detector'"):
        Monitor.load(tmp_path / "a.nescio", detector)
    write_tensors(tmp_path / "newer.safetensors", tensors, metadata | {"schema": 99})
    with pytest.raises(FileFormatError, match="newer nescio"):
        Monitor.load(tmp_path / "newer.safetensors", detector)
    write_tensors(tmp_path / "changed.safetensors", tensors, metadata | {"trace_step": 7})
    with pytest.raises(FileFormatError, match="checksum"):
        Monitor.load(tmp_path / "changed.safetensors", detector)
    for name, broken in {
        "counts.0": np.zeros(3, np.int64),
        "log_stakes": np.zeros(2),
        "labels.counts": np.zeros((1, 2), np.int64),
    }.items():
        content = tensors | {name: broken}
        stored = {key: value for key, value in metadata.items() if key != "sha256"}
        stored["sha256"] = digest(content, stored)
        write_tensors(tmp_path / "broken.safetensors", content, stored, force=True)
        with pytest.raises(FileFormatError, match="damaged"):
            Monitor.load(tmp_path / "broken.safetensors", detector)


def test_reset_starts_again_with_the_same_calibration(detector, rng):
    monitor = fed(Monitor.for_detector(detector), detector, logits_of(rng, 1000, shift=-2.0))
    assert monitor.alarm
    assert monitor.label_alarm
    monitor.reset()
    assert not monitor.alarm
    assert not monitor.label_alarm
    assert (monitor.n_samples, monitor.flagged, monitor.log10_martingale) == (0, 0, 0.0)
    assert [bag.total for bag in monitor.bags.values()] == [1500]
    fed(monitor, detector, logits_of(rng, 2000))
    assert not monitor.alarm


def test_memory_does_not_grow_with_the_stream(detector, rng, tmp_path):
    monitor, sizes = Monitor.for_detector(detector, window=20), []
    for _ in range(3):
        for _ in range(25):
            fed(monitor, detector, logits_of(rng, 1000))
        monitor.save(tmp_path / "state.safetensors", force=True)
        sizes.append((tmp_path / "state.safetensors").stat().st_size)
    assert sizes[2] < 1.3 * sizes[0]


# --- bad input ----------------------------------------------------------------------------------


def test_a_detector_without_calibration_is_refused(rng):
    with pytest.raises(ns.NotCalibratedError, match="not calibrated"):
        Monitor.for_detector(ns.JointEnergy())
    with pytest.raises(ns.NotCalibratedError, match="not calibrated"):
        Monitor.for_detector(ns.JointEnergy().fit(logits_of(rng, 100)))


@pytest.mark.parametrize(
    "settings", [{"alpha": 0}, {"alpha": 1.5}, {"window": 3}, {"seed": -1}, {"coverage": 1}]
)
def test_parameters_are_checked(detector, settings):
    with pytest.raises(ParameterError, match=next(iter(settings))):
        Monitor.for_detector(detector, **settings)


def test_verdicts_of_another_detector_change_nothing(detector, rng):
    monitor, logits = Monitor.for_detector(detector), logits_of(rng, 20)
    other = ns.JointEnergy().calibrate(logits_of(rng, 1500, shift=1.0))
    for strange in (ns.MaxLogit().calibrate(logits_of(rng, 1500)), other):
        with pytest.raises(InputError, match="another detector"):
            monitor.update(strange.assess(logits))
    good = detector.assess(logits)
    bad = np.where(np.arange(20) == 7, np.nan, good.scores)
    ones = np.where(np.arange(20) == 7, 1.0, good.p_values)
    with pytest.raises(InputError, match="does not fit"):
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


# --- p-values alone -----------------------------------------------------------------------------


def test_from_p_values_is_the_same_where_nothing_ties(detector, rng):
    assessment = detector.assess(logits_of(rng, 1200, shift=-0.3))
    threshold = detector.calibration_.thresholds["all"]
    full = Monitor.for_detector(detector)
    alone = Monitor.from_p_values(threshold.n_samples, rank=threshold.rank)
    for monitor in (full, alone):
        monitor.update(assessment)
    assert alone.log10_martingale == full.log10_martingale
    assert alone.flagged == full.flagged
    assert alone.report().windows == full.report().windows


def test_from_p_values_by_group_and_saved(tmp_path, rng):
    monitor = Monitor.from_p_values({"a": 99, "b": 19}, rank={"a": 5, "b": 1})
    groups = np.array(["a", "b"] * 50)
    below = rng.integers(0, 20, 100)
    p_values = np.where(groups == "a", (below + 1) / 100, (below + 1) / 20)
    nothing = np.full(100, np.nan)
    monitor.update(Assessment(nothing, p_values, nothing > 0, groups=groups))
    assert monitor.flagged == ((groups == "a") & (below < 5) | (groups == "b") & (below < 1)).sum()
    monitor.save(tmp_path / "state.safetensors")
    loaded = Monitor.load(tmp_path / "state.safetensors")
    assert loaded.report() == monitor.report()
    with pytest.raises(InputError, match="does not fit"):
        monitor.update(Assessment(nothing, p_values + 0.001, nothing > 0, groups=groups))


@pytest.mark.parametrize(("n", "rank"), [(0, 1), (10, 0), (10, 11), ({"a": 5}, {"b": 1}), ({}, {})])
def test_sizes_that_do_not_fit_are_refused(n, rank):
    with pytest.raises(ParameterError):
        Monitor.from_p_values(n, rank=rank)


@given(st.integers(19, 5000), st.integers(0, 1000))
def test_the_number_of_calibration_scores_is_found_again(n, seed):
    below = np.random.default_rng(seed).integers(0, n + 1, 200)
    found = infer_size((below + 1.0) / (n + 1.0))
    assert (n + 1) % (found + 1) == 0
    assert found == n or n > 200


def test_what_is_not_of_one_calibration_is_refused(rng):
    with pytest.raises(InputError, match="rounded"):
        infer_size(rng.random(50))
    with pytest.raises(InputError, match="above 0"):
        infer_size(np.array([0.0, 0.5]))


def test_the_calibration_is_inferred_from_verdicts(detector, rng):
    assessment = detector.assess(logits_of(rng, 5000))
    threshold = detector.calibration_.thresholds["all"]
    n, rank = infer_calibration(assessment)
    assert n == threshold.n_samples
    assert rank == pytest.approx(threshold.rank, abs=2)
    with pytest.raises(InputError, match="--fdr"):
        infer_calibration(
            Assessment(assessment.scores, assessment.p_values, ~assessment.in_distribution)
        )
    with pytest.raises(InputError, match="equal another"):
        infer_calibration(
            Assessment(assessment.scores.round(), assessment.p_values, assessment.in_distribution)
        )


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_verdicts_are_read_as_they_were_written(tmp_path, rng, suffix):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    detector = ns.JointEnergy(nonfinite="out").calibrate(logits_of(rng, 800), groups="label_count")
    logits = logits_of(rng, 30)
    logits[4, 2] = np.nan
    written = detector.assess(ns.Outputs(logits, ids=[f"photo {at}" for at in range(30)]))
    written.save(tmp_path / f"scored{suffix}")
    read = read_scored(tmp_path / f"scored{suffix}")
    for name, column in written.columns().items():
        assert read.columns()[name].tolist() == column.tolist()


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.csv", "score\n1\n", "no column p_value"),
        ("a.csv", "p_value\n", "no rows"),
        ("a.csv", "p_value\nlow\n", "must hold numbers"),
        ("a.csv", "p_value,in_distribution\n0.5,maybe\n", "True or False"),
        ("a.csv", "p_value,score\n0.5,1,2\n", "differ in their columns"),
        ("a.jsonl", '{"p_value": 0.5}\n{"score": 1}\n', "differ in their columns"),
        ("a.jsonl", "[1]\n", "cannot read"),
        ("a.jsonl", "{\n", "cannot read"),
        ("a.txt", "", "must end in"),
    ],
)
def test_files_that_are_no_verdicts_are_refused(tmp_path, name, text, reason):
    (tmp_path / name).write_text(text)
    with pytest.raises((InputError, FileError, ParameterError), match=reason):
        read_scored(tmp_path / name)


# --- report -------------------------------------------------------------------------------------


def test_the_report_is_json(detector, rng):
    report = fed(Monitor.for_detector(detector), detector, logits_of(rng, 1234)).report()
    content = json.loads(json.dumps(report.as_dict()))
    assert content["n_samples"] == 1234
    assert content["windows"][0]["low"] <= 0.05 <= content["windows"][0]["high"]
    assert content["open_window"]["n"] == 234
    assert content["labels"] == []


def test_a_report_of_nothing_is_one_too(detector, tmp_path):
    report = Monitor.for_detector(detector).report()
    assert "0 inputs" in str(report)
    assert report.trace == ()
    write_plot(report, tmp_path / "a.html")
    assert "nan" not in (tmp_path / "a.html").read_text("utf-8").lower()


@pytest.mark.parametrize("suffix", [".html", ".svg"])
def test_the_plot_shows_alarm_windows_and_labels(tmp_path, rng, suffix):
    names = ["cat", "<script>alert(1)</script>", "c", "d", "e", "f"]
    detector = ns.JointEnergy().calibrate(ns.Outputs(logits_of(rng, 1500), label_names=names))
    monitor = fed(Monitor.for_detector(detector), detector, logits_of(rng, 1500, shift=-1.5))
    write_plot(monitor.report(), tmp_path / f"plot{suffix}")
    text = (tmp_path / f"plot{suffix}").read_text("utf-8")
    assert "<script" not in text
    assert "&lt;script" in text
    assert text.count('class="dot out"') == 3
    assert f"alarm, input {monitor.alarm_at:,}" in text
    assert "Labels that drift" in text
    if suffix == ".html":
        [summary] = re.findall("<pre>(.*?)</pre>", text, re.DOTALL)
        assert re.search(r"p = [\d.]+e\N{MINUS SIGN}\d", summary)  # else it may break after e-
        assert "pre { white-space: pre-wrap; font: inherit; }" in text
    with pytest.raises(FileError, match="exists already"):
        write_plot(monitor.report(), tmp_path / f"plot{suffix}")
    with pytest.raises(ParameterError, match=r"\.html or \.svg"):
        write_plot(monitor.report(), tmp_path / "plot.png")


def test_a_bet_of_ones_own_can_be_tried(rng):
    capital = Martingale((Bet("low", 0.5, 0.5, 1.0),)).add(rng.random(500) ** 2)
    assert capital[-1] > np.log(100)
