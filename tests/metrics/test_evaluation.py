import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

import nescio as ns
from nescio import metrics
from nescio.errors import InputError, ParameterError, ShapeError
from nescio.metrics.comparison import WORSE, chance_note

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


@pytest.mark.parametrize(
    ("id_scores", "ood_scores"),
    [
        (np.arange(10.0, 60), np.arange(-50.0, 0)),  # perfect separation
        (np.arange(-50.0, 0), np.arange(10.0, 60)),  # swapped: AUPR was 31.18 [31.49, 31.88]
        (np.zeros(30), np.zeros(20)),
        (np.repeat([0.0, 1.0], 50), np.repeat([0.0, 1.0, 2.0], 40)),
        (np.arange(2.0), np.arange(2.0)),
        (np.arange(2.0) + 5, np.arange(2.0)),
        (np.arange(500.0), np.array([-1.0, 499.5])),
        (np.full(4, -np.inf), np.array([-np.inf, 0.0])),
    ],
    ids=["separated", "swapped", "equal", "ties", "two", "two-apart", "imbalanced", "infinite"],
)
def test_an_interval_contains_its_estimate_in_extreme_cases(id_scores, ood_scores):
    _check_intervals(ns.evaluate(id_scores, ood_scores, n_bootstrap=200))


@given(
    st.lists(st.integers(-4, 4), min_size=2, max_size=12),
    st.lists(st.integers(-4, 4), min_size=2, max_size=12),
    st.sampled_from([1.0, 0.05]),
    st.sampled_from([0.5, 0.95, 0.999]),
)
def test_an_interval_contains_its_estimate(id_scores, ood_scores, tpr, confidence):
    result = ns.evaluate(id_scores, ood_scores, tpr=tpr, confidence=confidence, n_bootstrap=30)
    _check_intervals(result)


def _check_intervals(result):
    for name in MEASURES:
        estimate = getattr(result, name)
        assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1, (name, estimate)


def test_copies_in_a_resample_are_not_a_tie_of_the_data():
    """All resamples of swapped sets have nearly the same AUPR: that of the data."""
    found = ns.evaluate(np.arange(50.0), np.arange(50.0) + 100).aupr
    assert found.high - found.low < 1e-3


def test_worse_than_chance_is_said(rng):
    good, bad = rng.normal(2, 1, 100), rng.normal(0, 1, 100)
    assert "chance" not in str(ns.evaluate(good, bad))
    swapped = ns.evaluate(bad, good)
    assert swapped.worse_than_chance
    assert "Worse than chance: OOD samples tend to have higher scores" in str(swapped)
    assert "the ID and the OOD data are swapped" in str(swapped)
    without_interval = ns.evaluate(bad, good, n_bootstrap=0)
    assert without_interval.worse_than_chance


def test_chance_is_not_called_worse_than_chance():
    """Two sets from the same source, or two samples, are no reason for an alarm."""
    rng = np.random.default_rng(3)
    found = [ns.evaluate(rng.normal(size=60), rng.normal(size=40), n_bootstrap=0)
             for _ in range(400)]  # fmt: skip
    below = [one for one in found if one.auroc.value < 0.5]
    assert sum(one.worse_than_chance for one in below) / 400 < 0.05
    assert not ns.evaluate([0.0, 1.0], [2.0, 3.0]).worse_than_chance
    assert not ns.evaluate([0.0], [1.0]).worse_than_chance


GOOD = ns.evaluate(range(50, 90), range(40), n_bootstrap=0)
SWAPPED = ns.evaluate(range(40), range(50, 90), n_bootstrap=0)
UNSURE = ns.evaluate([0.0, 1.0], [2.0, 3.0], n_bootstrap=0)


def noted(*evaluations):
    return chance_note({name: [each] for name, each in zip("abcde", evaluations, strict=False)})


def test_a_few_detectors_that_fail_are_not_taken_for_swapped_data():
    assert noted(GOOD, GOOD) == ("", False)
    note, alarming = noted(SWAPPED, SWAPPED, UNSURE, GOOD, GOOD)
    assert "a, b. These fail on this data" in note
    assert not alarming
    assert chance_note({"a": [SWAPPED, UNSURE], "b": [GOOD]}) == ("", False)


def test_nearly_all_detectors_point_at_the_data():
    note, alarming = noted(*[SWAPPED] * 4, UNSURE)
    assert "4 of 5 detectors. The likely cause: the ID and the OOD data are swapped" in note
    assert alarming
    assert noted(SWAPPED) == (WORSE, True)
    assert noted(UNSURE) == ("", False)
