import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from nescio.metrics import auroc, evaluate
from nescio.metrics.bounds import common_cells, measure_bounds
from nescio.metrics.cells import Cells, ScoreCells
from nescio.metrics.ranking import Ranking

MEASURES = ("fpr", "auroc", "aupr", "aupr_at_ratio", "fpr_ood_positive", "aupr_ood_positive")
# Hundredths: some are tied, and cells of a few bits hold several of them.
SCORES = hnp.arrays(
    float,
    st.integers(1, 60),
    elements=st.integers(-300, 300).map(lambda whole: whole / 100) | st.just(-np.inf),
)


def cells_of(scores, **limits):
    found = ScoreCells(max_exact=0, **limits)
    found.add(scores)
    return found


@settings(max_examples=40)
@given(SCORES, SCORES, st.integers(0, 9), st.floats(0.05, 1.0), st.floats(0.1, 9.0))
def test_the_bounds_contain_the_measures_of_the_scores(id_, ood, bits, tpr, ratio):
    pair = common_cells(Cells.of(id_, bits), Cells.of(ood, bits + 2))
    low, high = measure_bounds(*pair, tpr, ratio)
    for name, value in Ranking.from_scores(id_, ood).measures(tpr, ratio).items():
        assert low[name] - 1e-12 <= value <= high[name] + 1e-12, name


@settings(max_examples=40)
@given(SCORES, SCORES)
def test_scores_that_are_tied_or_far_apart_have_exact_measures(id_, ood):
    found = evaluate(cells_of(id_), cells_of(ood), n_bootstrap=0)
    exact = evaluate(id_, ood, n_bootstrap=0)
    for name in MEASURES:
        assert getattr(found, name).value == pytest.approx(getattr(exact, name).value, abs=1e-12)
        assert getattr(found, name).error < 1e-12


def test_the_error_is_stated_and_small(rng):
    id_, ood = rng.normal(6, 1, 100_000), rng.normal(4, 1, 70_000)
    found = evaluate(cells_of(id_), cells_of(ood, max_cells=5_000), n_bootstrap=0)
    exact = evaluate(id_, ood, n_bootstrap=0)
    assert (found.n_id, found.n_ood) == (100_000, 70_000)
    for name in MEASURES:
        estimate = getattr(found, name)
        assert abs(estimate.value - getattr(exact, name).value) <= estimate.error
        assert 0 < estimate.error < 2e-3
    fine = evaluate(cells_of(id_), cells_of(ood), n_bootstrap=0)
    assert max(getattr(fine, name).error for name in MEASURES) < 1e-4
    assert "exact to" in str(found)
    assert "exact to" not in str(exact)


def test_one_side_may_be_counted_and_the_other_not(rng):
    id_, ood = rng.normal(1, 1, 500), rng.normal(0, 1, 300)
    kept = ScoreCells()
    kept.add(ood)
    first, second = (evaluate(cells_of(id_), one, n_bootstrap=20) for one in (kept, ood))
    assert first == second
    assert first.auroc.value == pytest.approx(auroc(id_, ood), abs=1e-4)


def test_scores_that_were_kept_give_the_very_same_result(rng):
    id_, ood = rng.normal(1, 1, 300), rng.normal(0, 1, 200)
    kept = ScoreCells(), ScoreCells()
    for one, scores in zip(kept, (id_, ood), strict=True):
        one.add(scores)
    assert evaluate(*kept, n_bootstrap=50) == evaluate(id_, ood, n_bootstrap=50)
