import math

import numpy as np
import pytest

import nescio as ns
from nescio import metrics
from nescio.errors import InputError, ParameterError, ShapeError

MEASURES = (
    "fpr", "auroc", "aupr", "aupr_at_ratio", "fpr_ood_positive", "aupr_ood_positive"
)  # fmt: skip


def test_evaluate_gives_intervals_around_its_values(rng):
    result = ns.evaluate(rng.normal(2, 1, 400), rng.normal(0, 1, 300), n_bootstrap=300)
    for name in MEASURES:
        estimate = getattr(result, name)
        assert estimate.low < estimate.value < estimate.high
    assert (result.n_id, result.n_ood, result.fpr_name) == (400, 300, "FPR95")
    assert float(result.auroc) == result.as_dict()["auroc"]["value"]


def test_the_interval_is_as_wide_as_its_confidence_says(rng):
    id_scores, ood_scores = rng.normal(1, 1, 120), rng.normal(0, 1, 100)
    resampled = [
        metrics.auroc(rng.choice(id_scores, 120), rng.choice(ood_scores, 100)) for _ in range(2000)
    ]
    for confidence in (0.5, 0.95):
        found = ns.evaluate(id_scores, ood_scores, confidence=confidence, n_bootstrap=2000).auroc
        low, high = np.quantile(resampled, [(1 - confidence) / 2, (1 + confidence) / 2])
        assert found.high - found.low == pytest.approx(high - low, rel=0.07)


def test_evaluate_is_repeatable_and_can_do_without_intervals(rng):
    id_scores, ood_scores = rng.normal(1, 1, 100), rng.normal(0, 1, 100)
    assert ns.evaluate(id_scores, ood_scores) == ns.evaluate(id_scores, ood_scores)
    assert ns.evaluate(id_scores, ood_scores) != ns.evaluate(id_scores, ood_scores, seed=1)
    bare = ns.evaluate(id_scores, ood_scores, n_bootstrap=0)
    assert bare.fpr.low is None
    assert "interval" not in str(bare)


@pytest.mark.slow
def test_the_bootstrap_interval_covers_the_true_auroc():
    truth = 0.5 * math.erfc(-1 / 2)  # P(N(1,1) > N(0,1))
    covered = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        result = ns.evaluate(rng.normal(1, 1, 80), rng.normal(0, 1, 80), n_bootstrap=100, seed=seed)
        covered += result.auroc.low <= truth <= result.auroc.high
    assert 0.90 < covered / 200 < 0.985


def test_bad_scores_are_explained():
    with pytest.raises(ShapeError, match="ood_scores must have shape"):
        ns.evaluate([1.0], [])
    with pytest.raises(ShapeError, match="id_scores must have shape"):
        ns.evaluate([[1.0]], [1.0])
    with pytest.raises(
        InputError, match="ood_scores must not contain NaN, but the value at index 1"
    ):
        ns.evaluate([1.0], [0.0, np.nan])
    for bad in ({"tpr": 0}, {"tpr": 1.5}, {"id_to_ood": 0}, {"confidence": 1}, {"n_bootstrap": -1},
                {"n_bootstrap": 2.5}):  # fmt: skip
        with pytest.raises(ParameterError, match=next(iter(bad))):
            ns.evaluate([1.0], [0.0], **bad)


def test_a_single_input_has_no_interval():
    found = ns.evaluate([3.0], [1.0, 2.0], n_bootstrap=10)
    assert found.auroc.value == 1
    assert found.auroc.low is None
    assert ns.evaluate([3.0, 4.0], [1.0, 2.0], n_bootstrap=10).auroc.low is not None
