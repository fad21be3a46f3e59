"""Curves against the metrics that they must agree with."""

import numpy as np
import pytest

from nescio._charts.curves import density, roc, share_kept, visible_range
from nescio.calibration import empirical_threshold
from nescio.metrics import auroc, fpr_at_tpr


def test_the_area_under_the_curve_is_the_auroc(rng):
    id_scores, ood_scores = rng.normal(1, 1, 3000), rng.normal(0, 1, 2000)
    fpr, tpr = roc(id_scores, ood_scores)
    assert (fpr[0], tpr[0], fpr[-1], tpr[-1]) == (0, 0, 1, 1)
    assert len(fpr) <= 162
    assert np.trapezoid(tpr, fpr) == pytest.approx(auroc(id_scores, ood_scores), abs=2e-3)


def test_ties_and_rows_out_are_one_step():
    fpr, tpr = roc(np.array([-np.inf, 1.0, 1.0]), np.array([-np.inf, -np.inf, 1.0]))
    np.testing.assert_allclose(fpr, [0, 1 / 3, 1])
    np.testing.assert_allclose(tpr, [0, 2 / 3, 1])


def test_share_kept_at_the_threshold_is_the_fpr(rng):
    id_scores, ood_scores = rng.normal(1, 1, 500), rng.normal(0, 1, 400)
    threshold = empirical_threshold(id_scores, 0.95)
    assert share_kept(np.sort(ood_scores), np.array([threshold])) == fpr_at_tpr(
        id_scores, ood_scores
    )


def test_density_is_that_of_a_normal(rng):
    grid, heights = density(rng.normal(0, 1, 50_000), -4, 4)
    expected = np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi)
    assert np.abs(heights - expected).max() < 0.02


def test_rows_out_are_not_drawn():
    _, heights = density(np.array([-np.inf, -np.inf]), 0, 1)
    assert not heights.any()
    grid, heights = density(np.array([-np.inf, 0.5, 0.5]), 0, 1)
    assert np.trapezoid(heights, grid) == pytest.approx(1, abs=0.05)


def test_an_outlier_does_not_stretch_the_axis(rng):
    values = np.append(rng.normal(0, 1, 10_000), 1e9)
    low, high = visible_range(values)
    assert -6 < low < -2
    assert 2 < high < 6


def test_the_axis_of_equal_scores_has_a_width():
    low, high = visible_range(np.ones(3), np.array([-np.inf]))
    assert low < 1 < high
    assert visible_range(np.array([-np.inf])) is None
