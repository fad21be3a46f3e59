import numpy as np
import pytest

from nescio.metrics.ranking import Ranking


def test_a_resample_is_the_measure_of_the_samples_drawn(rng):
    """The bootstrap weighs sorted samples; this draws and sorts them anew."""
    id_scores, ood_scores = rng.normal(1, 1, 40).round(1), rng.normal(0, 1, 30).round(1)
    ranking = Ranking.from_scores(id_scores, ood_scores)
    id_draw, ood_draw = rng.integers(0, 40, 40), rng.integers(0, 30, 30)
    weighed = ranking.measures(
        0.9,
        2.0,
        id_weights=np.bincount(id_draw, minlength=40).astype(float),
        ood_weights=np.bincount(ood_draw, minlength=30).astype(float),
    )
    drawn_id, drawn_ood = np.sort(id_scores)[id_draw], np.sort(ood_scores)[ood_draw]
    again = Ranking.from_scores(drawn_id, drawn_ood).measures(0.9, 2.0)
    assert weighed == pytest.approx(again, rel=1e-12)
