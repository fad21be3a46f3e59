import numpy as np
import pytest

from nescio.metrics.ranking import Ranking


def draw(rng, scores):
    """How often each sorted score was drawn, and the drawn scores."""
    drawn = rng.integers(0, len(scores), len(scores))
    return np.bincount(drawn, minlength=len(scores)).astype(float), np.sort(scores)[drawn]


def test_a_resample_of_tied_scores_is_the_measure_of_the_samples_drawn(rng):
    """The bootstrap weighs sorted samples; this draws and sorts them anew."""
    scores = [np.repeat(rng.normal(mean, 1, 20).round(1), 2) for mean in (1, 0)]
    (id_weights, drawn_id), (ood_weights, drawn_ood) = (draw(rng, one) for one in scores)
    ranking = Ranking.from_scores(*scores)
    weighed = ranking.measures(0.9, 2.0, id_weights=id_weights, ood_weights=ood_weights)
    again = Ranking.from_scores(drawn_id, drawn_ood).measures(0.9, 2.0)
    assert weighed == pytest.approx(again, rel=1e-12)


def test_the_copies_of_an_untied_sample_are_counted_one_after_the_other(rng):
    scores = [rng.normal(mean, 1, 200) for mean in (1, 0)]
    (id_weights, drawn_id), (ood_weights, drawn_ood) = (draw(rng, one) for one in scores)
    ranking = Ranking.from_scores(*scores)
    weighed = ranking.measures(0.9, 2.0, id_weights=id_weights, ood_weights=ood_weights)
    tied = Ranking.from_scores(drawn_id, drawn_ood).measures(0.9, 2.0)
    apart = Ranking.from_scores(*(one + rng.uniform(0, 1e-9, 200) for one in (drawn_id, drawn_ood)))
    expected = apart.measures(0.9, 2.0)
    for name in ("aupr", "aupr_at_ratio", "aupr_ood_positive"):
        # Not equal: the copies in the data are in random order, and the middle stands for all.
        assert abs(weighed[name] - expected[name]) < abs(tied[name] - expected[name]) / 2
    for name in ("auroc", "fpr", "fpr_ood_positive"):
        assert weighed[name] == pytest.approx(tied[name], rel=1e-12)
