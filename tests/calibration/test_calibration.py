"""Calibration by group, false alarms in a batch, and how often labels fire."""

import numpy as np
import pytest
from scipy import stats

import nescio as ns
from fixtures.streams import logits_of
from nescio.calibration import Calibration, LabelFrequencies, Threshold, benjamini_hochberg
from nescio.errors import (
    InputError,
    MissingInputError,
    ParameterError,
    ShapeError,
    SingleGroupWarning,
    TooFewSamplesError,
)


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
    one = Calibration.from_scores(scores, tpr=0.9)
    alike = scores >= one.threshold_of(None)
    assert alike[groups == "few"].mean() < 0.85  # what one threshold does to them
    p_values = calibration.p_values(scores, names)
    assert np.array_equal(p_values <= 0.1 + 1e-12, ~kept)


def test_label_counts_are_merged_until_each_group_has_enough(rng):
    counts = np.repeat([0, 1, 2, 3, 4, 7], [150, 400, 60, 60, 30, 20])
    scores = rng.normal(counts, 1.0)
    calibration = Calibration.by_label_count(scores, counts, tpr=0.9)
    assert list(calibration.thresholds) == ["0", "1", "2+"]
    sizes = [threshold.n_samples for threshold in calibration.thresholds.values()]
    assert sum(sizes) == 576  # four fifths: the others chose the groups
    assert min(sizes) >= 100
    names = calibration.group_names(4, label_counts=np.array([0, 1, 3, 99]))
    assert names.tolist() == ["0", "1", "2+", "2+"]
    merged = Calibration.by_label_count(scores[:600], np.repeat([0, 1, 2], [40, 300, 260]))
    assert list(merged.thresholds) == ["0-1", "2+"]
    assert "predicted labels 0-1: With" in merged.statement()


def test_with_few_samples_all_label_counts_share_one_group(rng):
    with pytest.warns(SingleGroupWarning, match="50 samples are .* about 125 samples"):
        calibration = Calibration.by_label_count(rng.normal(size=50), rng.integers(0, 4, 50))
    assert list(calibration.thresholds) == ["0+"]
    with pytest.raises(TooFewSamplesError, match=r"at least 23 .*got 22"):
        Calibration.by_label_count(rng.normal(size=22), np.zeros(22, int))
    with pytest.warns(SingleGroupWarning):
        Calibration.by_label_count(rng.normal(size=23), np.zeros(23, int))
    with pytest.raises(
        TooFewSamplesError, match=r"tpr=0.95 with confidence 0.99 needs at least 112"
    ):
        Calibration.by_label_count(rng.normal(size=50), np.zeros(50, int), confidence=0.99)


@pytest.mark.filterwarnings("ignore::nescio.errors.SingleGroupWarning")
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
        values = list(calibration.threshold_values.values())
        rare, other = values[0], values[-1]  # the same if there is one group
        return share * np.clip(1 - rare, 0, 1) + (1 - share) * np.clip(2 - other, 0, 1)

    ours, naive = [], []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        counts = (rng.random(n_samples) >= share).astype(int)
        scores = counts + rng.random(n_samples)
        ours.append(truly_kept(Calibration.by_label_count(scores, counts, tpr=0.9)))
        apart = np.sum(counts == 0) >= limit
        names = np.where(counts == 0, "0", "1+") if apart else ["0+"] * n_samples
        naive.append(truly_kept(Calibration.from_scores(scores, tpr=0.9, groups=names)))
    error = np.std(ours) / np.sqrt(seeds)
    assert np.mean(ours) >= 0.9 - 3 * error
    assert np.mean(naive) < 0.9 - 3 * error


def test_bad_groups_are_explained(rng):
    scores = rng.normal(size=200)
    groups = np.repeat(["a", "b"], [190, 10])
    with pytest.raises(TooFewSamplesError, match=r"group 'b': .*at least 19.*got 10"):
        Calibration.from_scores(scores, groups=groups)
    with pytest.raises(ShapeError, match=r"shape \(200,\), got \(3,\)"):
        Calibration.from_scores(scores, groups=["a", "b", "c"])
    calibration = Calibration.from_scores(scores, groups=["a"] * 100 + ["b"] * 100)
    with pytest.raises(
        InputError, match=r"no threshold for group 'c': .*calibrated on the groups 'a', 'b'"
    ):
        calibration.group_names(2, groups=["a", "c"])
    with pytest.raises(MissingInputError, match="pass groups"):
        calibration.group_names(2)
    with pytest.raises(ParameterError, match="calibrated without groups"):
        Calibration.from_scores(scores).group_names(2, groups=["a", "a"])


@pytest.mark.parametrize("value", [0, 1, -0.1, 1.5, float("nan"), "0.9"])
def test_a_false_discovery_rate_outside_of_zero_and_one_is_refused(value):
    with pytest.raises(ParameterError, match="fdr must lie between 0 and 1"):
        benjamini_hochberg([0.5], value)


# --- firing labels ---


def test_rows_with_nan_or_plus_infinity_do_not_count(rng):
    logits = rng.normal(size=(700, 4)).astype(np.float32)
    logits[5, 1], logits[300, 0], logits[699, 3] = np.nan, -np.inf, np.inf
    clean = np.delete(logits, [5, 699], axis=0)
    firing = LabelFrequencies.from_logits(logits)
    assert firing.n_samples == 698
    assert firing.counts.tolist() == (clean > 0).sum(0).tolist()
    # A sum that overflows is no reason to leave a row out.
    large = np.full((300, 4), 3e38, np.float32)
    assert LabelFrequencies.from_logits(large).counts.tolist() == [300] * 4
    assert LabelFrequencies.from_logits(logits[:0]).n_samples == 0


@pytest.mark.parametrize("beside", [np.nan, np.inf])
def test_minus_infinity_hides_no_bad_value(beside):
    firing = LabelFrequencies.from_logits(np.array([[-np.inf, beside], [-np.inf, 1.0]]))
    assert (firing.n_samples, firing.counts.tolist()) == (1, [0, 1])


def test_firing_is_kept_by_calibrate_and_by_a_file(tmp_path, rng):
    logits = logits_of(rng, 300)
    fitted = ns.JointEnergy().calibrate(logits)
    fitted.save(tmp_path / "a.nescio")
    loaded = ns.load(tmp_path / "a.nescio")
    assert loaded.profile_.label_frequencies.counts.tolist() == (logits > 0).sum(0).tolist()
    assert loaded.profile_.label_frequencies.n_samples == 300
    assert not hasattr(fitted.fit(logits), "profile_")
