import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp
from sklearn import metrics as sk

import nescio as ns
from nescio import metrics
from nescio.errors import InputError, ParameterError, ShapeError
from nescio.metrics.ranking import Ranking

MEASURES = (
    "fpr", "auroc", "aupr", "aupr_at_ratio", "fpr_ood_positive", "aupr_ood_positive"
)  # fmt: skip

tied = hnp.arrays(np.float64, st.integers(1, 60), elements=st.integers(-5, 5).map(float))
smooth = hnp.arrays(np.float64, st.integers(1, 60), elements=st.floats(-1e3, 1e3))


def by_sklearn(positive, negative, tpr=0.95):
    truth = np.r_[np.ones(len(positive)), np.zeros(len(negative))]
    scores = np.r_[positive, negative]
    fpr, recall, _ = sk.roc_curve(truth, scores, drop_intermediate=False)
    return {
        "fpr": fpr[np.argmax(recall >= tpr - 1e-12)],
        "auroc": sk.roc_auc_score(truth, scores),
        "aupr": sk.average_precision_score(truth, scores),
    }


@given(st.one_of(tied, smooth), st.one_of(tied, smooth), st.sampled_from([0.5, 0.9, 0.95, 1.0]))
def test_all_measures_are_scikit_learns(id_scores, ood_scores, tpr):
    id_positive = by_sklearn(id_scores, ood_scores, tpr)
    ood_positive = by_sklearn(-ood_scores, -id_scores, tpr)
    pairs = [
        (metrics.fpr_at_tpr(id_scores, ood_scores, tpr), id_positive["fpr"]),
        (metrics.auroc(id_scores, ood_scores), id_positive["auroc"]),
        (metrics.aupr(id_scores, ood_scores), id_positive["aupr"]),
        (metrics.fpr_at_tpr_ood_positive(id_scores, ood_scores, tpr), ood_positive["fpr"]),
        (metrics.aupr_ood_positive(id_scores, ood_scores), ood_positive["aupr"]),
    ]
    for ours, theirs in pairs:
        assert math.isclose(ours, theirs, rel_tol=1e-9, abs_tol=1e-12)


def test_a_share_that_is_whole_on_paper_is_taken_as_whole():
    """10 * (1 - 0.9) is 0.9999999999999998, and one of ten may be left out all the same."""
    scores = np.arange(10.0)
    assert metrics.fpr_at_tpr(scores, [0.5], tpr=0.9) == 0
    assert metrics.fpr_at_tpr_ood_positive([8.5], scores, tpr=0.9) == 0


def test_the_two_conventions_of_fpr95_differ(rng):
    id_scores, ood_scores = rng.normal(2, 1, 5000), rng.normal(0, 2, 5000)
    id_positive = metrics.fpr_at_tpr(id_scores, ood_scores)
    ood_positive = metrics.fpr_at_tpr_ood_positive(id_scores, ood_scores)
    assert ood_positive > 1.8 * id_positive


@given(tied, tied, st.integers(1, 4))
def test_aupr_at_a_ratio_is_that_of_data_with_this_ratio(id_scores, ood_scores, times):
    ratio = times * len(id_scores) / len(ood_scores)
    repeated = metrics.aupr(np.repeat(id_scores, times), ood_scores)
    assert math.isclose(
        metrics.aupr(id_scores, ood_scores, id_to_ood=ratio), repeated, rel_tol=1e-9
    )


def test_a_resample_is_the_measure_of_the_samples_drawn(rng):
    """The bootstrap weighs sorted samples; this draws and sorts them anew."""
    id_scores, ood_scores = rng.normal(1, 1, 40).round(1), rng.normal(0, 1, 30).round(1)
    ranking = Ranking.of(id_scores, ood_scores)
    id_draw, ood_draw = rng.integers(0, 40, 40), rng.integers(0, 30, 30)
    weighed = ranking.measures(
        0.9,
        2.0,
        id_weights=np.bincount(id_draw, minlength=40).astype(float),
        ood_weights=np.bincount(ood_draw, minlength=30).astype(float),
    )
    drawn_id, drawn_ood = np.sort(id_scores)[id_draw], np.sort(ood_scores)[ood_draw]
    again = Ranking.of(drawn_id, drawn_ood).measures(0.9, 2.0)
    assert weighed == pytest.approx(again, rel=1e-12)


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


def test_map_is_the_mean_over_labels_with_a_positive(rng):
    labels = rng.integers(0, 2, (80, 6))
    labels[:, 2] = 0
    scores = rng.normal(labels, 1.5).round(1)
    each = metrics.average_precisions(labels, scores)
    for label in (0, 1, 3, 4, 5):
        expected = sk.average_precision_score(labels[:, label], scores[:, label])
        assert each[label] == pytest.approx(expected)
    assert np.isnan(each[2])
    mean = metrics.mean_average_precision(labels, scores)
    assert mean == pytest.approx(np.nanmean(each))
    assert metrics.mean_average_precision(np.ones((3, 1)), np.zeros((3, 1))) == 1
    with pytest.raises(InputError, match="every value 0 or 1"):
        metrics.mean_average_precision(np.full((3, 2), -1), np.zeros((3, 2)))
    with pytest.raises(InputError, match="at least one positive"):
        metrics.mean_average_precision(np.zeros((3, 2)), np.zeros((3, 2)))
    with pytest.raises(ShapeError, match=r"\(3, 2\) and \(3, 1\)"):
        metrics.mean_average_precision(np.zeros((3, 2)), np.zeros((3, 1)))


def test_bad_scores_are_explained():
    with pytest.raises(ShapeError, match="ood_scores must have shape"):
        ns.evaluate([1.0], [])
    with pytest.raises(ShapeError, match="id_scores must have shape"):
        ns.evaluate([[1.0]], [1.0])
    with pytest.raises(InputError, match="ood_scores hold NaN, first at index 1"):
        ns.evaluate([1.0], [0.0, np.nan])
    for bad in ({"tpr": 0}, {"tpr": 1.5}, {"id_to_ood": 0}, {"confidence": 1}, {"n_bootstrap": -1},
                {"n_bootstrap": 2.5}):  # fmt: skip
        with pytest.raises(ParameterError, match=next(iter(bad))):
            ns.evaluate([1.0], [0.0], **bad)
    with pytest.raises(ShapeError, match="same samples"):
        metrics.delong_test([1, 2], [1, 2], [1, 2, 3], [1, 2])
    with pytest.raises(ShapeError, match="two samples a side"):
        metrics.delong_test([1], [1, 2], [1], [1, 2])


def test_minus_infinity_is_a_score_like_any_other():
    assert metrics.auroc([1.0, 2.0], [-np.inf, -np.inf]) == 1.0


def test_a_single_input_has_no_interval():
    found = ns.evaluate([3.0], [1.0, 2.0], n_bootstrap=10)
    assert found.auroc.value == 1
    assert found.auroc.low is None
    assert ns.evaluate([3.0, 4.0], [1.0, 2.0], n_bootstrap=10).auroc.low is not None
