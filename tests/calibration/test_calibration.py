"""Thresholds and their guarantees, groups, and false alarms in a batch."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from nescio.calibration import (
    Calibration,
    Threshold,
    benjamini_hochberg,
    conformal_rank,
    required_samples,
)
from nescio.errors import (
    GroupWarning,
    InputError,
    MissingInputError,
    ParameterError,
    ShapeError,
    TiedScoresWarning,
    TooFewSamplesError,
)

tied_scores = hnp.arrays(np.float64, st.integers(100, 300), elements=st.integers(0, 30).map(float))
shares = st.sampled_from([0.5, 0.8, 0.9, 0.95, 0.99])


ties_are_meant = pytest.mark.filterwarnings("ignore::nescio.errors.TiedScoresWarning")


@ties_are_meant
@given(tied_scores, shares)
def test_at_least_the_share_asked_is_kept_ties_included(scores, tpr):
    threshold = Threshold.from_scores(scores, tpr=tpr)
    assert (scores >= threshold.value).mean() >= tpr


@ties_are_meant
@given(tied_scores, shares, st.integers(0, 1000))
def test_scores_that_differ_by_rounding_are_tied(scores, tpr, seed):
    threshold = Threshold.from_scores(scores, tpr=tpr)
    noise = 2.0**-20 * np.random.default_rng(seed).uniform(-1, 1, (2, len(scores)))
    first, other = scores + noise * np.maximum(scores, np.median(scores))
    noisy = Threshold.from_scores(first, tpr=tpr)
    np.testing.assert_array_equal(noisy.p_values(other), threshold.p_values(scores))
    np.testing.assert_array_equal(other >= noisy.value, scores >= threshold.value)
    assert noisy.tpr_interval() == threshold.tpr_interval()


@ties_are_meant
@given(tied_scores, shares)
def test_an_input_is_flagged_exactly_when_its_p_value_is_small(scores, tpr):
    threshold = Threshold.from_scores(scores, tpr=tpr)
    new = np.linspace(-1, 31, 129)
    p_values = threshold.p_values(new)
    assert np.array_equal(new < threshold.value, p_values <= 1 - tpr + 1e-12)
    assert (np.diff(p_values) >= 0).all()
    assert p_values.min() == 1 / (len(scores) + 1)
    assert p_values.max() == 1


@pytest.mark.parametrize("n", [19, 20, 99, 100, 500, 4999])
def test_the_rank_is_the_largest_that_keeps_the_promise(n):
    rank = conformal_rank(n, 0.95)
    assert 1 - rank / (n + 1) >= 0.95 - 1e-12
    assert 1 - (rank + 1) / (n + 1) < 0.95


@pytest.mark.parametrize("confidence", [0.05, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("n", [300, 1000, 20_000])
def test_the_rank_with_confidence_is_the_largest_that_keeps_it(n, confidence):
    rank = conformal_rank(n, 0.95, confidence)
    assert stats.beta.cdf(0.05, rank, n + 1 - rank) >= confidence
    assert stats.beta.cdf(0.05, rank + 1, n - rank) < confidence


@pytest.mark.parametrize(
    ("tpr", "confidence", "needed"),
    [
        (0.95, None, 19),
        (0.99, None, 99),
        (0.5, None, 1),
        (0.95, 0.99, 90),
        (0.9, 0.95, 29),
        (0.6, 0.92224, 5),
    ],
)
def test_too_few_samples_say_how_many_are_needed(tpr, confidence, needed):
    assert required_samples(tpr, confidence) == needed
    Threshold.from_scores(np.arange(float(needed)), tpr=tpr, confidence=confidence)
    if needed > 1:
        with pytest.raises(TooFewSamplesError, match=rf"at least {needed} .*got {needed - 1}"):
            Threshold.from_scores(np.arange(needed - 1.0), tpr=tpr, confidence=confidence)


def test_the_interval_is_the_beta_distributions():
    threshold = Threshold.from_scores(np.arange(2000.0), tpr=0.95)
    low, high = threshold.tpr_interval(0.99)
    kept = stats.beta(threshold.rank, 2001 - threshold.rank)
    np.testing.assert_allclose([1 - high, 1 - low], kept.ppf([0.005, 0.995]), rtol=1e-9)
    assert f"[{low:.4f}, {high:.4f}]" in threshold.statement()
    assert "2,000" in threshold.statement()
    assert "99 %" in threshold.statement()


@pytest.mark.slow
@pytest.mark.parametrize("n", [60, 500])
def test_the_promised_share_is_kept_on_average_over_many_seeds(n):
    """Scores are uniform, so the share kept in the long run is exactly 1 - threshold."""
    seeds = 4000
    kept = np.array(
        [
            1 - Threshold.from_scores(np.random.default_rng(seed).random(n), tpr=0.9).value
            for seed in range(seeds)
        ]
    )
    error = kept.std() / np.sqrt(seeds)
    assert kept.mean() >= 0.9 - 3 * error
    rank = conformal_rank(n, 0.9)
    assert abs(kept.mean() - (1 - rank / (n + 1))) < 4 * error


@pytest.mark.slow
def test_the_promised_share_is_kept_with_the_promised_confidence():
    seeds, confidence = 4000, 0.9
    kept = np.array(
        [
            1
            - Threshold.from_scores(
                np.random.default_rng(seed).random(400), tpr=0.95, confidence=confidence
            ).value
            for seed in range(seeds)
        ]
    )
    held = (kept >= 0.95).mean()
    assert held >= confidence - 3 * np.sqrt(confidence * (1 - confidence) / seeds)
    assert held <= confidence + 0.05  # not by being needlessly cautious


@pytest.mark.slow
def test_the_interval_covers_the_true_share_as_often_as_it_says():
    seeds = 4000
    covered = 0
    for seed in range(seeds):
        threshold = Threshold.from_scores(np.random.default_rng(seed).random(300), tpr=0.95)
        low, high = threshold.tpr_interval(0.9)
        covered += low <= 1 - threshold.value <= high
    assert abs(covered / seeds - 0.9) < 4 * np.sqrt(0.09 / seeds)


@ties_are_meant
@pytest.mark.slow
@pytest.mark.parametrize("decimals", [None, 1])
def test_p_values_of_in_distribution_inputs_are_valid(decimals):
    """P(p <= a) <= a over calibration sets and inputs, with ties and without."""
    draws = np.random.default_rng(0).normal(size=(20_000, 51))
    if decimals is not None:
        draws = draws.round(decimals)
    p_values = np.array(
        [Threshold.from_scores(row[:50], tpr=0.9).p_values(row[50]) for row in draws]
    )
    for level in (0.02, 0.1, 0.3, 0.5):
        tolerance = 4 * np.sqrt(level * (1 - level) / len(draws))
        assert (p_values <= level).mean() <= level + tolerance


def test_a_threshold_that_many_scores_tie_with_gets_a_warning():
    with pytest.warns(TiedScoresWarning, match=r"^all 100 calibration scores are 3, so") as caught:
        Threshold.from_scores(np.full(100, 3.0))
    assert caught[0].filename == __file__  # it points here, not into nescio
    with pytest.warns(TiedScoresWarning, match="group 'b': all 50 cal") as caught:
        Calibration.from_scores(
            np.r_[np.arange(50.0), np.zeros(50)], groups=["a"] * 50 + ["b"] * 50
        )
    assert caught[0].filename == __file__
    Threshold.from_scores(np.r_[5.0, 5.0, np.arange(5.5, 205)], tpr=0.99)  # two: no warning
    with pytest.warns(TiedScoresWarning, match="70 of 100 .* a share of 0.98 .* instead of 0.95"):
        Threshold.from_scores(np.r_[0.0, 1.0, np.full(70, 2.0), np.arange(3.0, 31)])
    with pytest.warns(TiedScoresWarning, match="all 99 calibration scores are 3"):
        Threshold.from_scores(np.r_[-np.inf, np.full(99, 3.0)])


@ties_are_meant
def test_the_interval_includes_the_scores_tied_with_the_threshold():
    constant = Threshold.from_scores(np.zeros(1000))
    assert constant.tpr_interval()[1] == 1.0
    assert "[0.9307, 1.0000]" in constant.statement()
    rng = np.random.default_rng(0)
    for decimals in (0, 1, 2):
        population = np.sort(rng.normal(size=200_000).round(decimals))
        missed = [0, 0]
        for _ in range(300):
            threshold = Threshold.from_scores(rng.choice(population, 300), tpr=0.9)
            low, high = threshold.tpr_interval(0.9)
            true = 1 - np.searchsorted(population, threshold.value) / len(population)
            missed[0] += true < low
            missed[1] += true > high
        assert max(missed) <= 300 * (0.05 + 4 * np.sqrt(0.05 * 0.95 / 300))


def test_calibrations_can_be_compared_and_hashed():
    first, second = (Threshold.from_scores(np.arange(100.0)) for _ in range(2))
    assert first != second
    assert len({first, second}) == 2


@pytest.mark.parametrize("value", [0, 1, -0.1, 1.5, float("nan"), "0.9"])
def test_shares_outside_of_zero_and_one_are_refused(value):
    with pytest.raises(ParameterError, match="tpr must lie between 0 and 1"):
        Threshold.from_scores(np.arange(100.0), tpr=value)
    with pytest.raises(ParameterError, match="confidence must lie between 0 and 1"):
        Threshold.from_scores(np.arange(100.0), confidence=value)
    with pytest.raises(ParameterError, match="fdr must lie between 0 and 1"):
        benjamini_hochberg([0.5], value)


def test_scores_that_cannot_be_ranked_are_refused():
    with pytest.raises(InputError, match="the value at index 2 is NaN"):
        Threshold.from_scores([0.0, 1.0, np.nan])
    with pytest.raises(ShapeError):
        Threshold.from_scores([])
    bad = np.r_[np.full(10, -np.inf), np.arange(90.0)]
    with pytest.raises(InputError, match="10 of 100 rows have no finite score"):
        Threshold.from_scores(bad, tpr=0.95)
    assert Threshold.from_scores(bad, tpr=0.8).value == pytest.approx(9.0, rel=1e-4)


@pytest.mark.slow
def test_benjamini_hochberg_bounds_the_false_alarms():
    false_shares = []
    for seed in range(600):
        rng = np.random.default_rng(seed)
        threshold = Threshold.from_scores(rng.normal(size=1000), tpr=0.9)
        batch = np.concatenate([rng.normal(size=180), rng.normal(-4, 1, 20)])
        flagged = benjamini_hochberg(threshold.p_values(batch), fdr=0.2)
        false_shares.append(flagged[:180].sum() / max(flagged.sum(), 1))
    mean, error = np.mean(false_shares), np.std(false_shares) / np.sqrt(600)
    assert mean <= 0.2 + 3 * error
    assert mean > 0.05  # it does flag


def test_benjamini_hochberg_is_the_textbook_procedure(rng):
    p_values = rng.random(50) ** 3
    for fdr in (0.01, 0.1, 0.5):
        reference = stats.false_discovery_control(p_values, method="bh") <= fdr
        assert np.array_equal(benjamini_hochberg(p_values, fdr), reference)
    assert benjamini_hochberg([], 0.1).shape == (0,)
    # p-values of 99 calibration samples that meet the line exactly, but for rounding
    on_the_line = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]) * 3 / 100
    assert benjamini_hochberg(on_the_line, 0.3).all()
    assert not benjamini_hochberg(on_the_line, 0.29).any()
    with pytest.raises(ShapeError):
        benjamini_hochberg(np.zeros((2, 2)))


def test_every_group_keeps_its_share(rng):
    groups = np.repeat(["few", "many"], 400)
    scores = rng.normal(np.where(groups == "few", 0.0, 5.0), 1.0)
    calibration = Calibration.from_scores(scores, tpr=0.9, groups=groups)
    names = calibration.group_names(800, groups=groups)
    kept = scores >= calibration.threshold_of(names)
    for name in ("few", "many"):
        assert kept[groups == name].mean() >= 0.9
    first = Calibration.from_scores(scores, tpr=0.9)
    alike = scores >= first.threshold_of(None)
    assert alike[groups == "few"].mean() < 0.85  # what one threshold does to them
    p_values = calibration.p_values(scores, names)
    assert np.array_equal(p_values <= 0.1 + 1e-12, ~kept)


def by_label_count(scores, counts, **options):
    """Calibrate on logits of which as many are positive as the counts say."""
    return Calibration.from_logits(scores, logits_with(counts), "label_count", **options)


def logits_with(counts):
    return np.where(np.arange(100) < np.asarray(counts)[:, None], 1.0, -1.0)


def test_label_counts_are_merged_until_each_group_has_enough(rng):
    counts = np.repeat([0, 1, 2, 3, 4, 7], [150, 400, 60, 60, 30, 20])
    scores = rng.normal(counts, 1.0)
    calibration = by_label_count(scores, counts, tpr=0.9)
    assert list(calibration.thresholds) == ["0", "1", "2+"]
    sizes = [threshold.n_samples for threshold in calibration.thresholds.values()]
    assert sum(sizes) == 576  # four fifths: the others chose the groups
    assert min(sizes) >= 100
    names = calibration.group_names(4, logits=logits_with([0, 1, 3, 99]))
    assert names.tolist() == ["0", "1", "2+", "2+"]
    merged = by_label_count(scores[:600], np.repeat([0, 1, 2], [40, 300, 260]))
    assert list(merged.thresholds) == ["0-1", "2+"]
    assert "predicted labels 0-1: With" in merged.statement()


def test_with_few_samples_all_label_counts_share_one_group(rng):
    with pytest.warns(GroupWarning, match="50 samples are .* about 125 samples"):
        calibration = by_label_count(rng.normal(size=50), rng.integers(0, 4, 50))
    assert list(calibration.thresholds) == ["0+"]
    with pytest.raises(TooFewSamplesError, match=r"at least 23 .*got 22"):
        by_label_count(rng.normal(size=22), np.zeros(22, int))
    with pytest.warns(GroupWarning):
        by_label_count(rng.normal(size=23), np.zeros(23, int))
    with pytest.raises(
        TooFewSamplesError, match=r"tpr=0.95 with confidence 0.99 needs at least 112"
    ):
        by_label_count(rng.normal(size=50), np.zeros(50, int), confidence=0.99)


@pytest.mark.filterwarnings("ignore::nescio.errors.GroupWarning")
@pytest.mark.slow
@pytest.mark.parametrize("n_samples", [500, 1000])
def test_every_label_count_keeps_its_share_though_the_data_chose_the_groups(n_samples):
    """The rare count is right at the limit, so that half of the draws merge it with the other.

    Had the samples that set the thresholds chosen the groups too, less would be kept than promised.
    """
    limit = 125  # a group needs 100 samples in four fifths
    seeds, share = 4000, limit / n_samples

    def truly_kept(calibration):
        """Scores are uniform on [0, 1] for the rare count and on [1, 2] for the other."""
        values = [v for name, v in calibration.threshold_values.items() if name != "all"]
        rare, other = values[0], values[-1]  # the same if there is one group
        return share * np.clip(1 - rare, 0, 1) + (1 - share) * np.clip(2 - other, 0, 1)

    ours, naive = [], []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        counts = (rng.random(n_samples) >= share).astype(int)
        scores = counts + rng.random(n_samples)
        logits = counts[:, None] - 0.5
        ours.append(truly_kept(Calibration.from_logits(scores, logits, "label_count", tpr=0.9)))
        apart = np.sum(counts == 0) >= limit
        names = np.where(counts == 0, "0", "1+") if apart else ["0+"] * n_samples
        naive.append(truly_kept(Calibration.from_scores(scores, tpr=0.9, groups=names)))
    error = np.std(ours) / np.sqrt(seeds)
    assert np.mean(ours) >= 0.9 - 3 * error
    assert np.mean(naive) < 0.9 - 3 * error


@pytest.mark.parametrize("kind", [int, float, str, lambda name: f"{name}.0", np.float32])
def test_whole_numbers_are_the_same_groups_however_they_are_written(rng, kind):
    """A missing value turns a column of whole numbers into floats."""
    numbers = np.repeat([0, 1, -20], 100)
    for own, later in ((int, kind), (kind, int)):
        calibration = Calibration.from_scores(
            rng.normal(size=300), groups=np.array([own(number) for number in numbers])
        )
        assert list(calibration.thresholds) == ["-20", "0", "1", "all"]
        groups = np.array([later(number) for number in (1, -20, 0)])
        assert calibration.group_names(3, groups=groups).tolist() == ["1", "-20", "0"]
    versions = Calibration.from_scores(rng.normal(size=60), groups=np.repeat(["v1.0", "1.10"], 30))
    assert list(versions.thresholds) == ["1.10", "v1.0", "all"]


def test_a_group_without_a_threshold_gets_that_of_all_samples(rng):
    scores = rng.normal(size=400)
    groups = np.repeat(["a", "b", "tiny"], [200, 190, 10])
    with pytest.warns(GroupWarning, match=r"too few samples in 1 group: 'tiny' .*needs 19"):
        calibration = Calibration.from_scores(scores, groups=groups)
    assert list(calibration.thresholds) == ["a", "b", "all"]
    assert calibration.n_samples == 400
    together = Calibration.from_scores(scores)
    with pytest.warns(
        GroupWarning,
        match=r"3 groups: '.no name.', 'new', 'tiny', with 3 rows; calibrated are 'a', 'b'\. The",
    ):
        names = calibration.group_names(4, groups=["a", "new", "tiny", None])
    assert names.tolist() == ["a", "all", "all", "all"]
    sites = Calibration.from_scores(scores, groups=np.repeat(["Graz", "Oslo"], 200))
    hint = r"with all 2 rows; calibrated are 'Graz', 'Oslo'\. Did you mean 'Graz' by 'Gratz'\? The"
    with pytest.warns(GroupWarning, match=hint):
        sites.group_names(2, groups=["Bern", "Gratz"])
    cameras = Calibration.from_scores(scores, groups=np.repeat(["cam1", "cam2"], 200))
    with pytest.warns(GroupWarning, match=r"calibrated are 'cam1', 'cam2'\. The threshold"):
        cameras.group_names(1, groups=["cam5"])  # another camera, and no typing error
    assert calibration.threshold_of(names)[1:].tolist() == [together.threshold_of(None)] * 3
    new = rng.normal(size=4)
    p_values = calibration.p_values(new, names)
    assert p_values[1:].tolist() == together.p_values(new[1:], None).tolist()
    assert p_values[0] == calibration.thresholds["a"].p_values(new[:1])


def test_labels_of_similar_frequency_share_a_threshold(rng):
    top = np.repeat([2, 0, 3, 1], [900, 400, 40, 30])  # label 2 is the most frequent
    logits = np.eye(5)[top] - 3.0
    scores = rng.normal(np.where(top == 2, 0.0, 3.0), 1.0)
    calibration = Calibration.from_logits(scores, logits, "top_label", tpr=0.9)
    assert list(calibration.thresholds) == ["rank 1", "rank 2+"]
    assert calibration.ranks[2] == 0
    assert calibration.ranks[4] == 4  # never seen
    names = calibration.group_names(3, logits=np.eye(5)[[2, 0, 4]])
    assert names.tolist() == ["rank 1", "rank 2+", "rank 2+"]
    low, high = calibration.threshold_values.values()
    assert high - low > 2
    assert "most likely label rank 1: With" in calibration.statement()


def test_bad_groups_are_explained(rng):
    scores = rng.normal(size=200)
    with pytest.raises(TooFewSamplesError, match=r"19 samples in a group.*largest has 10"):
        Calibration.from_scores(scores, groups=np.arange(200) // 10)
    with pytest.raises(InputError, match="'all', which stands for all samples"):
        Calibration.from_scores(scores, groups=["all"] * 200)
    with pytest.raises(InputError, match="row 7 has no group"):
        Calibration.from_scores(scores, groups=["a"] * 7 + [None] + ["a"] * 192)
    with pytest.raises(ShapeError, match=r"shape \(200,\), got \(3,\)"):
        Calibration.from_scores(scores, groups=["a", "b", "c"])
    calibration = Calibration.from_scores(scores, groups=["a"] * 100 + ["b"] * 100)
    with pytest.raises(MissingInputError, match="pass groups"):
        calibration.group_names(2)
    with pytest.raises(ParameterError, match="calibrated without groups"):
        Calibration.from_scores(scores).group_names(2, groups=["a", "a"])
