import numpy as np
import pytest

from nescio import metrics
from nescio.errors import ShapeError


def test_delong_agrees_with_the_definition(rng):
    """Against the double sum over pairs of the original paper."""
    id_a, ood_a = rng.normal(1, 1, 25).round(1), rng.normal(0, 1, 20).round(1)
    id_b, ood_b = id_a + rng.normal(0, 1, 25).round(1), ood_a + rng.normal(0, 1, 20).round(1)

    def placements(id_scores, ood_scores):
        wins = (id_scores[:, None] > ood_scores) + 0.5 * (id_scores[:, None] == ood_scores)
        return wins.mean(1), wins.mean(0)

    (v10_a, v01_a), (v10_b, v01_b) = placements(id_a, ood_a), placements(id_b, ood_b)
    variance = np.var(v10_a - v10_b, ddof=1) / 25 + np.var(v01_a - v01_b, ddof=1) / 20
    result = metrics.delong_test(id_a, ood_a, id_b, ood_b)
    assert result.standard_error == pytest.approx(np.sqrt(variance))
    assert result.auroc_a == pytest.approx(metrics.auroc(id_a, ood_a))
    assert result.difference == pytest.approx(v10_a.mean() - v10_b.mean())


def test_delong_tells_detectors_apart_or_not(rng):
    id_scores, ood_scores = rng.normal(2, 1, 300), rng.normal(0, 1, 300)
    same = metrics.delong_test(id_scores, ood_scores, 3 * id_scores, 3 * ood_scores)
    assert same.p_value == 1
    noise = metrics.delong_test(id_scores, ood_scores, rng.normal(size=300), rng.normal(size=300))
    assert noise.p_value < 1e-6
    certain = metrics.delong_test([2.0, 2.0], [1.0, 1.0], [1.0, 1.0], [2.0, 2.0])
    assert (certain.difference, certain.p_value) == (1.0, 0.0)


@pytest.mark.slow
def test_delong_rejects_as_often_as_it_says_when_detectors_are_alike():
    rejected = 0
    for seed in range(1000):
        rng = np.random.default_rng(seed)
        signal = [rng.normal(1, 1, 100), rng.normal(0, 1, 100)]
        a, b = ([part + rng.normal(size=100) for part in signal] for _ in range(2))
        rejected += metrics.delong_test(*a, *b).p_value < 0.05
    assert abs(rejected / 1000 - 0.05) < 0.025


def test_scores_of_other_samples_are_explained():
    with pytest.raises(ShapeError, match="2 and 3 ID scores, 2 and 2 OOD scores"):
        metrics.delong_test([1, 2], [1, 2], [1, 2, 3], [1, 2])
    with pytest.raises(ShapeError, match="at least 2 ID and 2 OOD"):
        metrics.delong_test([1], [1, 2], [1], [1, 2])
