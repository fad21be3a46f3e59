"""Resamples by bin have the distribution of resamples by sample."""

import numpy as np
import pytest

from nescio.metrics import evaluate, intervals
from nescio.metrics.binned import resample_bins
from nescio.metrics.cells import ScoreCells
from nescio.metrics.ranking import Ranking


@pytest.mark.parametrize("decimals", [None, 1], ids=["untied", "tied"])
@pytest.mark.parametrize(("n", "m"), [(900, 700), (3_000, 40), (40, 3_000)])
def test_the_resamples_have_the_spread_of_those_drawn_one_by_one(n, m, decimals):
    rng = np.random.default_rng(5)
    scores = rng.normal(1.5, 1, n), rng.normal(0, 1, m)
    if decimals is not None:
        scores = tuple(one.round(decimals) for one in scores)
    ranking = Ranking.from_scores(*scores)
    one_by_one = intervals.resample(ranking, 0.9, 1.0, 400, np.random.default_rng(0))
    found = resample_bins(ranking, 0.9, 1.0, 800, np.random.default_rng(1))
    for name, value in ranking.measures(0.9, 1.0).items():
        expected, spread = one_by_one[name], one_by_one[name].std()
        moved = found.samples[name] + value - found.values[name]
        # The standard error of a mean and of a spread of 400 is 0.05 and 0.04 of the spread.
        assert abs(moved.mean() - expected.mean()) < 0.25 * spread + 1e-12, name
        assert found.samples[name].std() == pytest.approx(spread, rel=0.2, abs=1e-9), name
        if decimals is None:  # the samples of a tie are spread over its bin
            assert abs(found.values[name] - value) < 0.25 * spread + 1e-12, name


def test_the_same_samples_counted_have_the_same_intervals(rng, monkeypatch):
    """Tied scores, kept or counted: the same bins, and so the same draws."""
    monkeypatch.setattr(intervals, "_DRAWN_ONE_BY_ONE", 0)
    scores = rng.normal(1, 1, 800).round(1), rng.normal(0, 1, 500).round(1)
    counted = [ScoreCells(max_exact=0) for _ in scores]
    for one, values in zip(counted, scores, strict=True):
        one.add(values)
    kept, found = evaluate(*scores, n_bootstrap=100), evaluate(*counted, n_bootstrap=100)
    for name in ("fpr", "auroc", "aupr", "fpr_ood_positive", "aupr_ood_positive"):
        for end in ("low", "value", "high"):
            expected = getattr(getattr(kept, name), end)
            assert getattr(getattr(found, name), end) == pytest.approx(expected, abs=1e-9)


def test_more_than_a_million_samples_are_drawn_by_bin(rng, monkeypatch):
    monkeypatch.setattr(intervals, "resample", None)  # would raise a TypeError
    found = evaluate(rng.normal(1, 1, 600_000), rng.normal(0, 1, 500_000), n_bootstrap=20)
    for one in (found.fpr, found.auroc, found.aupr):
        assert one.low <= one.value <= one.high
        assert one.high - one.low < 0.01


def test_an_interval_contains_the_error_of_the_cells(rng):
    cells = [ScoreCells(max_exact=0, max_cells=20) for _ in range(2)]
    for one, mean in zip(cells, (6, 4), strict=True):
        one.add(rng.normal(mean, 1, 20_000))
    found = evaluate(*cells, n_bootstrap=50)
    assert found.auroc.error > 0.001
    assert found.auroc.low <= found.auroc.value - found.auroc.error
    assert found.auroc.high >= found.auroc.value + found.auroc.error
