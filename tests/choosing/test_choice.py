"""The criterion, the pick and the paired test."""

import numpy as np
import pytest
from scipy.stats import ttest_rel

from nescio.choosing.choice import (
    SMALLEST_BASELINE,
    Standing,
    ordered,
    paired_p_value,
    with_criterion,
)


def standing(name, criterion):
    return Standing(name, (), {}, tuple(criterion))


def test_the_criterion_is_the_mean_of_the_ratios_to_the_baseline():
    baseline = Standing("joint_energy", (0.4, 0.6), {"a": (0.2, 0.2), "b": (0.6, 0.6)})
    other = Standing("x", (0.1, 0.2), {"a": (0.1, 0.1), "b": (0.3, 0.5)})
    assert with_criterion(baseline, baseline).mean == pytest.approx(1)
    # near / 0.5 and the mean of a and b / 0.4
    assert with_criterion(other, baseline).criterion == pytest.approx([0.35, 0.575])
    near = Standing("x", (0.1, 0.2), {})
    assert with_criterion(near, baseline).criterion == pytest.approx([0.2, 0.4])


def test_a_baseline_of_zero_divides_by_no_zero():
    baseline = Standing("joint_energy", (0.0, 0.0), {"a": (0.0, 0.0)})
    other = Standing("x", (0.0, 0.05), {"a": (0.0, 0.0)})
    assert with_criterion(baseline, baseline).criterion == (0, 0)
    found = with_criterion(other, baseline).criterion
    assert found == pytest.approx((0, 0.05 / SMALLEST_BASELINE / 2))


def test_the_ranking_has_p_values_of_a_paired_test(rng):
    standings = [standing(name, rng.random(5)) for name in "abcd"]
    best, *others = ordered(standings)
    assert best.mean == min(one.mean for one in standings)
    assert best.p_value is None
    assert [one.mean for one in others] == sorted(one.mean for one in others)
    for one in others:
        assert one.p_value == pytest.approx(ttest_rel(one.criterion, best.criterion).pvalue)


def test_of_equal_ones_the_first_is_the_best():
    equal = [standing(name, [0.4, 0.6]) for name in "ab"]
    assert [one.name for one in ordered(equal)] == ["a", "b"]
    assert [one.name for one in ordered(equal[::-1])] == ["b", "a"]


def test_p_values_without_spread():
    assert paired_p_value([0.3, 0.4], [0.3, 0.4]) == 1
    assert paired_p_value([0.3, 0.4], [0.1, 0.2]) == 0
    assert paired_p_value([0.3], [0.1]) is None
    assert np.isfinite(paired_p_value([0.3, 0.4], [0.1, 0.3]))
