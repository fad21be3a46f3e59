"""The measures against scikit-learn, DeLong's test, resamples and intervals."""

import math
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import bootstrap
from sklearn import metrics as sk

from nescio import metrics
from nescio.errors import InputError, ShapeError
from nescio.metrics import measures
from nescio.metrics.measures import Ranking, bca_levels, interval, resample, resample_bins

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
    measured = metrics.evaluate(id_scores, ood_scores, tpr=tpr, n_bootstrap=0)
    pairs = [
        (metrics.fpr_at_tpr(id_scores, ood_scores, tpr), id_positive["fpr"]),
        (metrics.auroc(id_scores, ood_scores), id_positive["auroc"]),
        (metrics.aupr(id_scores, ood_scores), id_positive["aupr"]),
        (measured.fpr_ood_positive.value, ood_positive["fpr"]),
        (measured.aupr_ood_positive.value, ood_positive["aupr"]),
    ]
    for ours, theirs in pairs:
        assert math.isclose(ours, theirs, rel_tol=1e-9, abs_tol=1e-12)


def test_a_share_that_is_whole_on_paper_is_taken_as_whole():
    """10 * (1 - 0.9) is 0.9999999999999998, and one of ten may be left out all the same."""
    scores = np.arange(10.0)
    assert metrics.fpr_at_tpr(scores, [0.5], tpr=0.9) == 0
    measured = metrics.evaluate([8.5], scores, tpr=0.9, n_bootstrap=0)
    assert measured.fpr_ood_positive.value == 0


@given(tied, tied, st.integers(1, 4))
def test_aupr_at_a_ratio_is_that_of_data_with_this_ratio(id_scores, ood_scores, times):
    ratio = times * len(id_scores) / len(ood_scores)
    repeated = metrics.aupr(np.repeat(id_scores, times), ood_scores)
    assert math.isclose(
        metrics.aupr(id_scores, ood_scores, id_to_ood=ratio), repeated, rel_tol=1e-9
    )


def test_map_is_the_mean_over_labels_with_a_positive(rng):
    labels = rng.integers(0, 2, (80, 6))
    labels[:, 2] = 0
    scores = rng.normal(labels, 1.5).round(1)
    each = metrics.average_precisions(labels, scores)
    for label in (0, 1, 3, 4, 5):
        expected = sk.average_precision_score(labels[:, label], scores[:, label])
        assert each[label] == pytest.approx(expected)
    assert np.isnan(each[2])
    lines = metrics.average_precisions(labels, scores, area="trapezoid")
    precision, recall, _ = sk.precision_recall_curve(labels[:, 0], scores[:, 0])
    assert lines[0] == pytest.approx(sk.auc(recall, precision))
    assert lines[0] != pytest.approx(each[0])
    mean = metrics.mean_average_precision(labels, scores)
    assert mean == pytest.approx(np.nanmean(each))
    assert metrics.mean_average_precision(np.ones((3, 1)), np.zeros((3, 1))) == 1
    with pytest.raises(InputError, match="every value must be 0 or 1"):
        metrics.mean_average_precision(np.full((3, 2), -1), np.zeros((3, 2)))
    with pytest.raises(InputError, match="at least one positive"):
        metrics.mean_average_precision(np.zeros((3, 2)), np.zeros((3, 2)))
    with pytest.raises(ShapeError, match=r"\(3, 2\) and \(3, 1\)"):
        metrics.mean_average_precision(np.zeros((3, 2)), np.zeros((3, 1)))


def test_map_matches_the_columns_of_data_frames_by_name(rng):
    pandas = pytest.importorskip("pandas")
    labels = pandas.DataFrame(rng.integers(0, 2, (80, 3)), columns=["cat", "dog", "fox"])
    scores = labels + rng.normal(size=(80, 3)) * [0.5, 1, 2]
    expected = metrics.average_precisions(labels.to_numpy(), scores.to_numpy())
    for truth in (labels, labels[["fox", "dog", "cat"]], labels == 1, labels.to_numpy()):
        np.testing.assert_array_equal(metrics.average_precisions(truth, scores), expected)
    ids = [f"x{i}" for i in range(80)]
    with pytest.raises(InputError, match="row 0 of labels has the id 'x79'"):
        metrics.mean_average_precision(labels.set_axis(ids)[::-1], scores.set_axis(ids))


def test_minus_infinity_is_a_score_like_any_other():
    assert metrics.auroc([1.0, 2.0], [-np.inf, -np.inf]) == 1.0


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_scores_may_be_columns_of_a_data_frame(library, rng):
    module = pytest.importorskip(library)
    make = module.chunked_array if library == "pyarrow" else module.Series
    id_scores, ood_scores = rng.normal(1, 1, 50), rng.normal(0, 1, 40)
    wrap = [[id_scores], [ood_scores]] if library == "pyarrow" else [id_scores, ood_scores]
    assert metrics.auroc(*map(make, wrap)) == metrics.auroc(id_scores, ood_scores)


# --- DeLong's test ---


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


# --- resamples ---


def draw(rng, scores):
    """How often each sorted score was drawn, and the drawn scores."""
    drawn = rng.integers(0, len(scores), len(scores))
    return np.bincount(drawn, minlength=len(scores)).astype(float), np.sort(scores)[drawn]


def test_a_resample_of_tied_scores_is_the_measure_of_the_samples_drawn(rng):
    """The bootstrap weighs sorted samples; this draws and sorts them anew."""
    scores = [np.repeat(rng.normal(mean, 1, 20).round(1), 2) for mean in (1, 0)]
    (id_weights, drawn_id), (ood_weights, drawn_ood) = (draw(rng, values) for values in scores)
    ranking = Ranking.from_scores(*scores)
    weighed = ranking.measures(0.9, 2.0, id_weights=id_weights, ood_weights=ood_weights)
    again = Ranking.from_scores(drawn_id, drawn_ood).measures(0.9, 2.0)
    assert weighed == pytest.approx(again, rel=1e-12)


def test_the_copies_of_an_untied_sample_are_counted_one_after_the_other(rng):
    scores = [rng.normal(mean, 1, 200) for mean in (1, 0)]
    (id_weights, drawn_id), (ood_weights, drawn_ood) = (draw(rng, values) for values in scores)
    ranking = Ranking.from_scores(*scores)
    weighed = ranking.measures(0.9, 2.0, id_weights=id_weights, ood_weights=ood_weights)
    tied = Ranking.from_scores(drawn_id, drawn_ood).measures(0.9, 2.0)
    apart = Ranking.from_scores(
        *(values + rng.uniform(0, 1e-9, 200) for values in (drawn_id, drawn_ood))
    )
    expected = apart.measures(0.9, 2.0)
    for name in ("aupr", "aupr_at_ratio", "aupr_ood_positive"):
        # Not equal: the copies in the data are in random order, and the middle stands for all.
        assert abs(weighed[name] - expected[name]) < abs(tied[name] - expected[name]) / 2
    for name in ("auroc", "fpr", "fpr_ood_positive"):
        assert weighed[name] == pytest.approx(tied[name], rel=1e-12)


# --- intervals ---


def test_the_interval_of_a_mean_is_that_of_scipy(rng):
    """SciPy takes the acceleration from a jackknife, and nescio from the resamples."""
    data = rng.exponential(size=60)
    samples = rng.choice(data, (20_000, 60)).mean(axis=1)
    theirs = bootstrap(
        (data,), np.mean, n_resamples=20_000, method="BCa", random_state=np.random.default_rng(1)
    ).confidence_interval
    ours = interval(samples, data.mean(), 0.95)
    assert ours == pytest.approx(theirs, abs=0.02)
    assert ours[1] - np.quantile(samples, 0.975) > 0.02  # the correction of a skewed mean


@pytest.mark.parametrize("value", [0.0, 0.3, 0.5, 1.0])
def test_resamples_on_one_side_of_the_estimate(value):
    low, high = interval(np.full(50, 0.5), value, 0.95)
    assert (low, high) == (min(0.5, value), max(0.5, value))


def test_a_single_odd_resample_does_not_break_the_formula():
    samples = np.append(np.full(999, 0.9), 0.1)
    levels = bca_levels(samples, 0.9, [0.0005, 0.9995])
    assert all(0 <= level <= 1 for level in levels)
    assert interval(samples, 0.9, 0.999) == (0.1, 0.9)


@pytest.mark.parametrize("decimals", [None, 1], ids=["untied", "tied"])
@pytest.mark.parametrize(("n", "m"), [(900, 700), (3_000, 40), (40, 3_000)])
def test_the_resamples_have_the_spread_of_those_drawn_one_by_one(n, m, decimals):
    rng = np.random.default_rng(5)
    scores = rng.normal(1.5, 1, n), rng.normal(0, 1, m)
    if decimals is not None:
        scores = tuple(values.round(decimals) for values in scores)
    ranking = Ranking.from_scores(*scores)
    values = ranking.measures(0.9, 1.0)
    one_by_one = resample(ranking, 0.9, 1.0, 400, np.random.default_rng(0))
    by_bin = resample_bins(ranking, values, 0.9, 1.0, 800, np.random.default_rng(1))
    for name in values:
        expected, spread = one_by_one[name], one_by_one[name].std()
        # The standard error of a mean and of a spread of 400 is 0.05 and 0.04 of the spread.
        assert abs(by_bin[name].mean() - expected.mean()) < 0.25 * spread + 1e-12, name
        assert by_bin[name].std() == pytest.approx(spread, rel=0.2, abs=1e-9), name


def test_more_than_a_million_samples_are_drawn_by_bin(rng, monkeypatch):
    draws = Mock(wraps=resample_bins)
    monkeypatch.setattr(measures, "resample_bins", draws)
    result = metrics.evaluate(rng.normal(1, 1, 600_000), rng.normal(0, 1, 500_000), n_bootstrap=20)
    for estimate in (result.fpr, result.auroc, result.aupr):
        assert estimate.low <= estimate.value <= estimate.high
        assert estimate.high - estimate.low < 0.01
    draws.assert_called_once()
