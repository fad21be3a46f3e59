"""Histograms of calibration scores, and curves against the metrics that they must agree with."""

import numpy as np
import pytest

from nescio._charts.histogram import Batch, Histogram, roc, score_chart, share_kept
from nescio.metrics import auroc, fpr_at_tpr


def test_shares_of_other_scores_count_all_of_them(rng):
    histogram = Histogram.of(rng.normal(size=500), [0.0])
    shares = histogram.shares(np.array([-1e9, 0.0, np.nan, 1e9]))
    assert shares.sum() == pytest.approx(1)
    assert (shares[0], shares[-1]) == (0.5, 0.25)


def test_energies_have_a_logarithmic_axis(rng):
    energies = 10 ** rng.normal(0, 1, 500)
    histogram = Histogram.of(energies, [0.05])
    assert histogram.log
    steps = histogram.edges[1:] / histogram.edges[:-1]
    np.testing.assert_allclose(steps, steps[0])
    assert histogram.shares(energies).sum() == pytest.approx(1)
    for scores, threshold in ((energies, -0.1), (energies - 10, 0.05), (energies + 50, 50.0)):
        assert not Histogram.of(scores, [threshold]).log


def test_other_scores_widen_the_range_but_not_without_limit(rng):
    scores = rng.normal(size=500)
    alone = Histogram.of(scores, [0.0]).edges
    width = alone[-1] - alone[0]
    near = Histogram.of(scores, [0.0], [rng.normal(-4, 0.1, 50)]).edges
    assert near[0] < -4.2 < -4 < alone[0]
    assert near[-1] == alone[-1]
    far = Histogram.of(scores, [0.0], [np.array([-1e9, -np.inf])]).edges
    assert far[0] == pytest.approx(alone[0] - width)
    np.testing.assert_array_equal(Histogram.of(scores, [0.0], [np.array([np.nan])]).edges, alone)


def test_few_scores_are_lines_and_many_an_outline(rng):
    calibration = rng.normal(size=500)

    def drawn(n):
        scores = np.linspace(-2, 2, n)
        return score_chart(calibration, [-1.5], Batch(scores, scores < -1.5))

    assert drawn(5).count('class="line plain"') == 4
    assert drawn(5).count('class="line out"') == 1
    assert drawn(31).count('class="line') == 1
    assert "threshold −1.5, 1 below" in drawn(5)


def test_a_threshold_far_down_a_long_tail_is_drawn_at_its_place(rng):
    scores = -1 / rng.uniform(size=750)  # as a combination's
    threshold = np.sort(scores)[37]
    edges = Histogram.of(scores, [threshold]).edges
    assert edges[1] < threshold < edges[3]
    batch = Batch(scores[:500] * 3, scores[:500] * 3 < threshold)
    assert f", {batch.flagged.sum()} below<" in score_chart(scores, [threshold], batch)
    alone = score_chart(scores, [threshold])
    assert ", 37 below<" in alone
    beyond = np.count_nonzero(scores < edges[0])
    assert 0 < beyond < 37
    assert f"◀ {beyond} off the axis<" in alone


# --- curves ---


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
    threshold = np.sort(id_scores)[25]
    assert share_kept(np.sort(ood_scores), np.array([threshold])) == fpr_at_tpr(
        id_scores, ood_scores
    )
