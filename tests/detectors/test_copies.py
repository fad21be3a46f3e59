"""Calibration data in which samples are repeated: copies tell nothing new."""

import warnings

import numpy as np
import pytest
from scipy.special import ndtr

import nescio as ns
from nescio.checks import make_outputs
from nescio.errors import GroupWarning, ImplausibleValuesWarning, TooFewSamplesError

copies_are_meant = pytest.mark.filterwarnings("ignore:.* Copies tell nothing new")


def true_tpr(threshold):
    """Return the share kept of normal logits of a single label, whose energy is log(1 + exp)."""
    return 1 - ndtr(np.log(np.expm1(threshold.value)))


@copies_are_meant
@pytest.mark.parametrize("n_copies", [2, 10])
def test_the_interval_covers_as_often_as_it_says(n_copies):
    covered, kept = [], []
    for seed in range(400):
        logits = np.random.default_rng(seed).normal(size=(110, 1)).repeat(n_copies, axis=0)
        threshold = ns.JointEnergy().calibrate(logits).calibration_.first
        low, high = threshold.tpr_interval(0.99)
        kept.append(true_tpr(threshold))
        covered.append(low <= kept[-1] <= high)
    assert np.mean(covered) >= 0.97  # 0.65 with 10 copies that count as samples
    assert np.mean(kept) >= 0.95  # 0.947 in the same case


@copies_are_meant
def test_the_confidence_holds():
    kept = [
        true_tpr(ns.JointEnergy().calibrate(logits, confidence=0.9).calibration_.first)
        for logits in np.random.default_rng(0).normal(size=(400, 100, 1)).repeat(10, axis=1)
    ]
    assert np.mean(np.array(kept) >= 0.95) >= 0.87


@copies_are_meant
def test_copies_of_every_sample_change_nothing(logits, tmp_path):
    for n_copies in (1, 7):
        detector = ns.JointEnergy().calibrate(np.tile(logits, (n_copies, 1)))
        detector.save(tmp_path / f"{n_copies}.nescio")
    assert (tmp_path / "7.nescio").read_bytes() == (tmp_path / "1.nescio").read_bytes()


@copies_are_meant
@pytest.mark.filterwarnings("ignore::nescio.errors.TiedScoresWarning")
@pytest.mark.parametrize("seed", range(5))
def test_samples_that_are_equal_by_nature_keep_their_share(seed):
    """The threshold is no higher than if all rows counted, although common rows score low."""
    rng = np.random.default_rng(seed)
    natural = np.linspace(-5, 5, 200)[rng.geometric(0.02, 1997) % 200][:, None]
    detector = ns.JointEnergy().calibrate(natural)
    distinct = detector.calibration_.first
    every = ns.Threshold.from_scores(detector.score_samples(natural))
    assert distinct.n_samples == len(np.unique(natural)) < 200
    assert distinct.scores[distinct.rank - 1] <= every.scores[every.rank - 1]
    assert distinct.tpr_interval()[0] < every.tpr_interval()[0]


def test_the_warning_says_what_counts(logits):
    with pytest.warns(
        ImplausibleValuesWarning, match=r"the 4,000 cal.* the same logits\. .* of 400 sam"
    ):
        ns.JointEnergy().calibrate(np.repeat(logits, 10, axis=0))
    ns.JointEnergy().calibrate(np.concatenate([logits, logits[:40]]))  # 9 %: no warning


@copies_are_meant
@pytest.mark.filterwarnings("ignore::nescio.errors.TiedScoresWarning")
def test_few_distinct_samples_have_a_threshold_but_no_confidence(logits):
    few = np.tile(logits[:10], (51, 1))
    assert ns.JointEnergy().calibrate(few).calibration_.n_samples == 19
    with pytest.raises(TooFewSamplesError, match="at least 90 calibration samples, got 19"):
        ns.JointEnergy().calibrate(few, confidence=0.99)


def test_every_array_that_is_scored_must_be_equal():
    outputs = make_outputs(400)
    same_features = ns.Outputs(outputs.logits, features=outputs.features[:40].repeat(10, axis=0))
    detector = ns.Combined(["joint_energy", "knn"]).fit(make_outputs(300, seed=1))
    detector.calibrate(same_features)  # the logits differ
    with pytest.warns(ImplausibleValuesWarning, match="same features"):
        ns.NearestNeighbours().fit(make_outputs(300, seed=1)).calibrate(same_features)


def test_a_combination_warns_once():
    held_out = make_outputs(200)[np.arange(200).repeat(4)]
    detector = ns.Combined(["joint_energy", "knn"]).fit(make_outputs(300, seed=1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        detector.calibrate(held_out)
    assert len(caught) == 1
    assert f"of {detector.calibration_.n_samples} samples" in str(caught[0].message)
    assert caught[0].filename == __file__


def test_copies_count_within_groups():
    """The copies of one group are too few to notice among all samples."""
    group = np.r_[np.full(1000, "a"), np.full(100, "b")]
    rng = np.random.default_rng(0)
    mixed = np.concatenate([rng.normal(size=(1000, 3)), rng.normal(size=(25, 3)).repeat(4, axis=0)])
    with pytest.warns(ImplausibleValuesWarning, match="of 1,025 samples"):
        detector = ns.JointEnergy().calibrate(mixed, groups=group)
    assert detector.calibration_.columns()["n_samples"] == [1000, 25, 1025]
    counts = np.where(group == "a", -9.0, 9.0)[:, None]  # as many labels as the group says
    with pytest.warns() as caught:  # 25 samples are too few for a group of their own
        ns.JointEnergy().calibrate(mixed + counts, groups="label_count")
    assert [warning.category for warning in caught] == [
        ImplausibleValuesWarning,
        GroupWarning,
    ]


def test_values_that_float32_does_not_have(logits):
    logits = logits.astype(np.float64)
    logits[0, 0] = 1e39
    assert ns.JointEnergy().calibrate(logits).calibration_.first.n_samples == len(logits)
