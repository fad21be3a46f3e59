"""Online p-values: against their definition, and that they are independent and uniform."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

from fixtures.streams import SCORES, few_values, partly_rounded
from nescio.monitor.ranks import Bag


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


def test_scores_that_differ_by_rounding_share_a_cell(rng):
    calibration, stream, uniform = few_values(rng, 60), few_values(rng, 300), rng.random(300)
    expected = Bag(np.sort(calibration)).add(stream, uniform)
    rounded = [
        scores * (1 + 2.0**-20 * rng.uniform(-1, 1, len(scores)))
        for scores in (calibration, stream)
    ]
    found = Bag(np.sort(rounded[0])).add(rounded[1], uniform)
    assert found.tolist() == expected.tolist()


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
