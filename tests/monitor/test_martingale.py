"""Online p-values, the martingale and its false alarms over many streams, the start of a change."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

import nescio as ns
from fixtures.streams import (
    SCORES,
    continuous,
    few_values,
    logits_of,
    not_more_than,
    partly_rounded,
    saturated,
)
from nescio.monitor import Monitor, martingale
from nescio.monitor.martingale import BETS, Bag, ChangeFinder, Martingale, Place, reserve, share_at

# --- online p-values ------------------------------------------------------------------------------


def p_values_by_definition(calibration, stream, uniform):
    """The rank of each score among all before it, ties broken at random, one by one."""
    seen, p_values = list(calibration), []
    for score, u in zip(stream, uniform, strict=True):
        below = sum(earlier < score for earlier in seen)
        equal = sum(earlier == score for earlier in seen) + 1
        seen.append(score)
        p_values.append((below + u * equal) / len(seen))
    return np.array(p_values)


@given(st.integers(0, 10_000), st.integers(1, 30), st.integers(0, 300))
def test_where_all_stream_scores_tie_with_calibration_scores_ranks_are_plain(seed, n, length):
    rng = np.random.default_rng(seed)
    calibration = np.sort(few_values(rng, n))
    stream, uniform = rng.choice(calibration, length), rng.random(length)
    expected = p_values_by_definition(calibration, stream, uniform)
    np.testing.assert_allclose(Bag(calibration).add(stream, uniform), expected, rtol=1e-12)


def test_scores_that_differ_by_rounding_share_a_cell(rng):
    calibration, stream, uniform = few_values(rng, 60), few_values(rng, 300), rng.random(300)
    expected = Bag(np.sort(calibration)).add(stream, uniform)
    rounded = [
        scores * (1 + 2.0**-20 * rng.uniform(-1, 1, len(scores)))
        for scores in (calibration, stream)
    ]
    assert Bag(np.sort(rounded[0])).add(rounded[1], uniform).tolist() == expected.tolist()


@given(st.integers(0, 10_000), st.lists(st.integers(0, 400), max_size=5))
def test_p_values_do_not_depend_on_the_blocks(seed, sizes):
    rng = np.random.default_rng(seed)
    calibration = np.sort(partly_rounded(rng, 50))
    stream, uniform = partly_rounded(rng, sum(sizes)), rng.random(sum(sizes))
    whole, parts = Bag(calibration), Bag(calibration)
    cuts = np.cumsum(sizes)[:-1] if sizes else []
    pieces = zip(np.split(stream, cuts), np.split(uniform, cuts), strict=True)
    p_values = [parts.add(scores, u) for scores, u in pieces]
    assert np.concatenate(p_values).tolist() == whole.add(stream, uniform).tolist()
    assert parts.counts.tolist() == whole.counts.tolist()
    assert whole.total == 50 + sum(sizes)


def test_a_large_calibration_set_is_cut_at_some_of_its_scores(rng):
    bag = Bag(np.sort(rng.normal(size=100_000)))
    assert len(bag.counts) == 2049
    assert bag.total == 100_000
    bag.add(rng.normal(size=1000), rng.random(1000))
    assert len(bag.counts) == 2049
    assert bag.total == 101_000


def test_infinite_scores_have_a_rank():
    bag = Bag(np.array([-np.inf, -np.inf, 0.0, 1.0]))
    assert bag.add(np.array([-np.inf, np.inf]), np.array([0.5, 0.5])).tolist() == [0.3, 5.5 / 6]


@pytest.mark.slow
@pytest.mark.parametrize("max_cuts", [1023, 12])
@pytest.mark.parametrize("scores", SCORES)
def test_online_p_values_are_uniform_and_independent(scores, max_cuts, monkeypatch):
    monkeypatch.setattr(martingale, "MAX_CUTS", max_cuts)
    last, before, pooled = [], [], []
    for seed in range(3000):
        rng = np.random.default_rng(seed)
        values = scores(rng, 30 + 60)
        p = Bag(np.sort(values[:30])).add(values[30:], rng.random(60))
        last.append(p[-1])
        before.append(p[:-1].mean())
        pooled.append(p[::13])
    assert stats.kstest(last, "uniform").pvalue > 1e-3
    assert stats.kstest(np.concatenate(pooled), "uniform").pvalue > 1e-3
    assert stats.pearsonr(last, before).pvalue > 1e-3


# --- bets -----------------------------------------------------------------------------------------


def capital_of(p_values):
    gambler = Martingale()
    return gambler.add(gambler.gains(p_values))


def test_shares_add_up_to_what_is_not_in_reserve():
    t = np.arange(1, 100_001)
    np.testing.assert_allclose(1 - np.cumsum(share_at(t)), reserve(t), atol=1e-12)
    assert share_at(10**12) > 0


def test_the_capital_is_that_of_a_gambler_who_plays_one_by_one(rng):
    p_values = rng.random(300) ** 1.3
    stakes, expected = np.zeros(len(BETS)), []
    for t, p in enumerate(p_values, 1):
        gains = [1 - b.stake + b.stake * stats.beta(b.a, b.b).pdf(p) for b in BETS]
        stakes = (stakes + share_at(t) / len(BETS)) * gains
        expected.append(stakes.sum() + reserve(t))
    np.testing.assert_allclose(capital_of(p_values), np.log(expected), atol=1e-9)


def test_p_values_of_0_and_1_are_no_end():
    capital = capital_of(np.array([0.0, 1.0] * 50))
    assert np.isfinite(capital).all()


def alarms(scores, n_calibration, *, online=True, n_streams=400, length=2000, alpha=0.1):
    """In how many streams like their calibration data the capital reaches 1 / alpha."""
    n_alarms = 0
    for seed in range(n_streams):
        rng = np.random.default_rng(seed)
        values = scores(rng, n_calibration + length)
        calibration, stream = np.sort(values[:n_calibration]), values[n_calibration:]
        if online:
            p = Bag(calibration).add(stream, rng.random(length))
        else:
            below = np.searchsorted(calibration, stream, side="right")
            p = (below + rng.random(length)) / (n_calibration + 1)
        n_alarms += bool(capital_of(p).max() >= -np.log(alpha))
    return n_alarms


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
def test_false_alarms_stay_below_alpha(scores, n_calibration, cuts, monkeypatch):
    monkeypatch.setattr(martingale, "MAX_CUTS", cuts)
    assert not_more_than(alarms(scores, n_calibration), 400, 0.1)


@pytest.mark.slow
def test_against_the_calibration_data_alone_they_would_not():
    # The reason for online ranks: a calibration sample has its own deviation, and a long stream
    # gives it away.
    assert not not_more_than(alarms(continuous, 50, online=False), 400, 0.1)
    assert not not_more_than(alarms(few_values, 1000, online=False, n_streams=50), 50, 0.1)


# --- the start of a change ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda p: p**3, "lower"),
        (lambda p: 1 - p**3, "higher"),
        (lambda p: np.where(np.arange(len(p)) % 12, p, 1e-6), "some lower"),
        (lambda p: np.where(np.arange(len(p)) % 12, p, 1 - 1e-6), "some higher"),
        (lambda p: np.where(p < 0.5, p**2, 1 - (1 - p) ** 2), "more extreme"),
        (lambda p: 0.5 + 0.5 * (p - 0.5), "less extreme"),
    ],
)
def test_start_and_kind_of_a_change_are_found(rng, change, kind):
    p_values = rng.random(3000)
    p_values[2000:] = change(p_values[2000:])
    finder = ChangeFinder()
    finder.add(Martingale().gains(p_values), lambda column: Place(column + 1))
    likeliest = finder.likeliest()
    assert likeliest.kind == kind
    assert abs(likeliest.since.number - 2001) <= 100


def test_id_and_time_of_the_start_are_named_also_after_a_restart(detector, rng, tmp_path):
    logits = np.concatenate([logits_of(rng, 400), logits_of(rng, 200, shift=-1.5)])
    ids = [f"photo {row}" for row in range(600)]
    times = np.arange(600).astype("datetime64[h]")
    monitor = Monitor(detector)
    for start in range(0, 600, 50):  # the change begins in another block than the alarm
        rows = slice(start, start + 50)
        outputs = ns.Outputs(logits[rows], ids=ids[rows])
        monitor.update(detector.assess(outputs), times=times[rows])
        monitor.save(tmp_path / "state.safetensors", force=True)
        monitor = Monitor.load(tmp_path / "state.safetensors", detector)
    since = monitor.change.since
    assert since.id == ids[since.number - 1]
    assert since.time == str(times[since.number - 1])
    assert f"since about input {since.number} (id {since.id}, time {since.time}), " in str(monitor)
    monitor.reset()
    assert monitor.change is None


def test_times_of_a_shuffled_frame_belong_to_its_rows(detector, rng):
    pandas = pytest.importorskip("pandas")
    times = pandas.Series(pandas.date_range("2026-01-01", periods=200, freq="h"))
    times = times.sample(frac=1, random_state=0)
    monitor = Monitor(detector)
    monitor.update(detector.assess(logits_of(rng, 200, shift=-1.5)), times=times)
    since = monitor.change.since
    assert since.time == str(times.iloc[since.number - 1])
