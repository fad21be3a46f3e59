"""The criterion, the pick and the paired test."""

import numpy as np
import pytest
from scipy.stats import ttest_rel

from nescio.choosing.standings import (
    SMALLEST_BASELINE,
    Standing,
    ordered,
    paired_p_value,
    picked,
    with_criterion,
)


def standing(name, criterion, n_parts=1):
    return Standing(name, n_parts, (), {}, tuple(criterion))


JOINT = standing("joint_energy", [1.0, 1.0])


def test_the_criterion_is_the_mean_of_the_ratios_to_the_baseline():
    baseline = Standing("joint_energy", 1, (0.4, 0.6), {"a": (0.2, 0.2), "b": (0.6, 0.6)})
    other = Standing("x", 1, (0.1, 0.2), {"a": (0.1, 0.1), "b": (0.3, 0.5)})
    assert with_criterion(baseline, baseline).mean == pytest.approx(1)
    # near / 0.5 and the mean of a and b / 0.4
    assert with_criterion(other, baseline).criterion == pytest.approx([0.35, 0.575])
    near = Standing("x", 1, (0.1, 0.2), {})
    assert with_criterion(near, baseline).criterion == pytest.approx([0.2, 0.4])


def test_a_baseline_of_zero_divides_by_no_zero():
    baseline = Standing("joint_energy", 1, (0.0, 0.0), {"a": (0.0, 0.0)})
    other = Standing("x", 1, (0.0, 0.05), {"a": (0.0, 0.0)})
    assert with_criterion(baseline, baseline).criterion == (0, 0)
    found = with_criterion(other, baseline).criterion
    assert found == pytest.approx((0, 0.05 / SMALLEST_BASELINE / 2))


def test_of_those_within_one_error_the_fewest_parts_then_the_best_are_picked():
    best = standing("best", [0.50, 0.54, 0.52], n_parts=3)
    near = standing("near", [0.52, 0.53, 0.53], n_parts=1)  # +0.007, and an error of 0.009
    later = standing("later", [0.51, 0.55, 0.52], n_parts=1)  # +0.007, and an error of 0.003
    two = standing("two", [0.50, 0.54, 0.52], n_parts=2)
    sure = standing("worse by little, always", [0.51, 0.55, 0.53], n_parts=1)
    unsure = standing("unsure", [0.55, 0.53, 0.54], n_parts=1)  # +0.02, and an error of 0.017
    assert picked([best, later, sure, unsure], JOINT) is best
    assert picked([best, two, near], JOINT) is near
    assert picked([best, two], JOINT) is two
    also = standing("also", near.criterion)
    assert picked([also, best, near], JOINT) is also
    assert picked([near, best, also], JOINT) is near


def test_with_one_fold_the_best_is_picked():
    found = picked([standing("a", [0.6]), standing("b", [0.5], n_parts=2)], JOINT)
    assert found.name == "b"


def test_the_ranking_has_p_values_of_a_paired_test(rng):
    standings = [standing(name, rng.random(5)) for name in "abcd"]
    found = ordered(standings, standings[2])
    assert [one.mean for one in found] == sorted(one.mean for one in standings)
    for one in found:
        if one.name == "c":
            assert one.p_value is None
        else:
            expected = ttest_rel(one.criterion, standings[2].criterion).pvalue
            assert one.p_value == pytest.approx(expected)


def test_p_values_without_spread():
    assert paired_p_value([0.3, 0.4], [0.3, 0.4]) == 1
    assert paired_p_value([0.3, 0.4], [0.1, 0.2]) == 0
    assert paired_p_value([0.3], [0.1]) is None
    assert np.isfinite(paired_p_value([0.3, 0.4], [0.1, 0.3]))


def test_an_erratic_detector_is_not_picked():
    steady = standing("steady", [0.51, 0.5, 0.5, 0.5, 0.5], n_parts=2)
    erratic = standing("erratic", [0.1, 0.1, 0.1, 0.1, 9.6])  # worse than joint energy
    assert picked([erratic, steady], JOINT) is steady
    # The criterion of joint energy is less than 1 if it finds almost everything.
    milder = standing("milder", [0.1, 0.1, 0.1, 0.1, 4.0])
    assert picked([milder, steady], standing("joint_energy", [0.6, 0.6])) is steady
    assert picked([milder], standing("joint_energy", [0.6, 0.6])) is milder
