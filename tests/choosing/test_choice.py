"""`nescio.choose`, its criterion and its paired test."""

import inspect
import json
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from scipy.stats import ttest_rel
from threadpoolctl import threadpool_info, threadpool_limits

import nescio as ns
from fixtures.labelled import labelled
from nescio._io.files import to_json
from nescio.choosing.choice import (
    SMALLEST_BASELINE,
    Standing,
    ordered,
    paired_p_value,
    with_criterion,
)
from nescio.errors import (
    InputError,
    LabelMismatchError,
    MissingInputError,
    NonFiniteError,
    ParameterError,
    ProbabilitiesError,
    ShapeError,
)

FEW = ("joint_energy", "max_logit")


@pytest.fixture
def train():
    return labelled()


@pytest.fixture
def held_out():
    return labelled(300, seed=1)


def of_ranking(choice, name):
    return next(each for each in choice.ranking if each.name == name)


def test_it_ranks_and_picks_and_the_pick_can_be_used(train, held_out):
    choice = ns.choose(train, held_out)
    names = [standing.name for standing in choice.ranking]
    assert {"joint_energy", "knn", "combined"} <= set(names)
    assert not choice.skipped
    assert "simulated OOD data: labels left out in 5 folds and, for far data" in str(choice)
    assert "not the FPR95 to expect" in str(choice)
    assert choice.refit == "head"
    assert choice.baseline.mean == pytest.approx(1)
    assert of_ranking(choice, "joint_energy").near == choice.baseline.near
    means = [standing.mean for standing in choice.ranking]
    assert means == sorted(means)
    for standing in choice.ranking:
        assert all(0 <= value <= 1 for value in standing.near)
        assert list(standing.far) == ["shuffled"]
    assert all(fold.map_refitted > 0.9 for fold in choice.folds)
    # Features of which each is shuffled for itself are what distances find.
    assert of_ranking(choice, "knn").mean_far < of_ranking(choice, "joint_energy").mean_far
    detector = choice.detector().fit(train).calibrate(held_out)
    assert len(detector.predict(labelled(20, seed=3))) == 20
    with pytest.raises(ns.NotCalibratedError):
        choice.detector().predict(held_out)  # a new one each time


class Witness(ns.Detector):
    """Notes which samples it learns from and which it scores, by their first feature."""

    name = "witness"
    learned = ("seen_",)
    learns_from = learns_from_held_out = scores_from = ("features",)
    notes: ClassVar = []  # (what, samples) of all clones, in the order of the calls

    def note(self, what, arrays):
        self.notes.append((what, set(arrays.features[:, 0].tolist())))

    def _learn(self, arrays):
        self.note("fit", arrays)

    def _learn_held_out(self, arrays):
        self.note("reference", arrays)
        self.seen_ = np.zeros(1)

    def _score(self, arrays):
        self.note("score", arrays)
        return -np.abs(arrays.features).sum(1)


@pytest.mark.parametrize("refit", ["head", "none"])
def test_detectors_are_tested_on_no_sample_that_they_have_learned_from(train, held_out, refit):
    Witness.notes.clear()
    ns.choose(train, held_out, detectors=[Witness()], refit=refit, n_folds=2)
    assert [what for what, _ in Witness.notes[:2]] == ["fit", "reference"]
    per_fold = 2 + (4 if refit == "head" else 3)  # calibration, ID, near, and far if refitted
    assert len(Witness.notes) == 2 * per_fold
    for start in (0, per_fold):
        (_, fit), (_, reference), (_, other_half), (_, tested), (_, near), *_ = Witness.notes[
            start:
        ]
        learned = fit | reference | other_half
        assert not fit & (reference | other_half)
        assert not learned & tested
        assert not learned & near
        assert not tested & near
        new = set(held_out.features[:, 0].tolist())
        assert tested <= new
        assert (reference <= new) == (refit == "none")


def test_there_is_no_way_to_pass_out_of_distribution_data():
    names = list(inspect.signature(ns.choose).parameters)
    assert names == [
        "train", "held_out", "detectors", "far", "n_folds", "refit", "tpr", "seed", "on_fold"
    ]  # fmt: skip


def test_the_result_depends_on_the_seed_and_on_nothing_else(train, held_out):
    def result(a, b, **options):
        content = ns.choose(a, b, detectors=["joint_energy", "knn"], **options).as_dict()
        return json.loads(to_json(content))

    first = result(train, held_out)
    more = {"ids": [f"sample {i}" for i in range(300)], "kept": {"time": np.arange(300)}}
    assert result(train, replace(held_out, **more, arrays={"own": np.ones((300, 2))})) == first
    assert result(train, held_out, seed=1)["folds"] != first["folds"]
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    result(train, held_out)
    assert np.array_equal(state, np.random.get_state()[1])  # noqa: NPY002


def test_small_products_are_not_shared_among_threads(train, held_out):
    def blas_threads():
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    with threadpool_limits(2, "blas"):
        before, during = blas_threads(), []
        note = lambda _: during.append(blas_threads())  # noqa: E731
        ns.choose(train, held_out, detectors=FEW, n_folds=2, on_fold=note)
        assert during == [{1}, {1}]
        assert blas_threads() == before


def test_left_out_labels_that_tell_nothing_are_mentioned(train, held_out):
    choice = ns.choose(train, held_out, detectors=FEW, n_folds=2)
    assert "tell little about unknown" not in str(choice)
    easy = replace(choice, baseline=replace(choice.baseline, near=(0.0, 0.01)))
    assert "tell little about unknown" in str(easy)


def test_without_features_the_columns_are_dropped_and_the_result_says_so():
    train, held_out = (labelled(seed=seed, features=False) for seed in (0, 1))
    choice = ns.choose(train, held_out)
    assert choice.refit == "none"
    assert "weaker simulation" in str(choice)
    assert "No far data" in str(choice)
    assert not choice.baseline.far
    assert of_ranking(choice, "max_logit").mean_far == ()
    assert choice.folds[0].map_refitted is None
    assert not any("knn" in standing.name for standing in choice.ranking)
    with pytest.raises(MissingInputError, match="no features to refit"):
        ns.choose(train, held_out, refit="head")
    dropped = ns.choose(labelled(), labelled(seed=1), detectors=FEW, refit="none")
    assert dropped.refit == "none"


def with_arrays(outputs, **arrays):
    """Add arrays that have the same row for all samples."""
    rows = {name: np.repeat([row], len(outputs), axis=0) for name, row in arrays.items()}
    return replace(outputs, head=None, arrays=rows)


def test_detectors_that_cannot_run_are_skipped_with_the_reason(train, held_out):
    a, b = (with_arrays(data, odin_max=[0.0] * 8, own=[1.0, 2.0]) for data in (train, held_out))
    names = ["odin", "react", "knn(layer=own)", "knn(layer=missing)", "knn"]
    choice = ns.choose(a, b, detectors=names)
    assert [standing.name for standing in choice.ranking] == ["knn"]
    assert "perturbed inputs" in choice.skipped["odin"]
    assert "reads penultimate" in choice.skipped["react"]  # though a fold would have it
    assert "manifest={'layers': ['own']}" in choice.skipped["knn(layer=own)"]
    assert "reads missing" in choice.skipped["knn(layer=missing)"]
    with pytest.raises(MissingInputError, match="odin cannot be ranked: it reads odin_max"):
        ns.choose(a, b, detectors=["odin"])


def test_layers_are_compared(train, held_out):
    a, b = (
        replace(data, arrays={"early": data.features[:, :3]}, manifest={"layers": ["early"]})
        for data in (train, held_out)
    )
    ranked = {standing.name for standing in ns.choose(a, b, n_folds=2).ranking}
    both = "combined(detectors=[joint_energy, label_neighbours(layer=early)])"
    assert {"knn", "knn(layer=early)", both} <= ranked
    only_one = ns.choose(a, held_out, n_folds=2).ranking
    assert not any("early" in standing.name for standing in only_one)


def test_corrupted_held_out_samples_are_far_sets(train, held_out):
    noise = replace(held_out, features=held_out.features + 30, labels=None)
    choice = ns.choose(train, held_out, detectors=["knn", *FEW], far={"uniform_noise": noise})
    knn = of_ranking(choice, "knn")
    assert list(knn.far) == ["shuffled", "uniform_noise"]
    assert knn.mean_far == pytest.approx(np.mean([*knn.far.values()], axis=0))
    assert "shuffled, uniform_noise" in str(choice)


def test_far_sets_are_made_from_the_held_out_samples(train, held_out):
    def fails(error, message, name="jigsaw", outputs=held_out, ids=None):
        base = held_out if ids is None else replace(held_out, ids=list(map(str, range(300))))
        with pytest.raises(error, match=message):
            ns.choose(train, base, detectors=FEW, far={name: outputs})

    fails(ShapeError, "made from the held-out samples.*has 299", outputs=held_out[1:])
    other = replace(held_out, ids=[f"texture {i}" for i in range(300)])
    fails(ShapeError, "with other ids", outputs=other, ids=True)
    bare = replace(held_out, features=None, head=None)
    fails(MissingInputError, "jigsaw has no features", outputs=bare)
    fails(ShapeError, "same model", outputs=held_out.select_labels([0, 1]))


def test_a_fold_without_unknown_samples_is_left_out_and_counted():
    """Nearly every sample has label 0, so only the fold that leaves it out has unknown samples."""
    train, held_out = labelled(), labelled(seed=1)
    for outputs in (train, held_out):
        outputs.labels[:, 0] = 1
        outputs.labels[:20, 0] = 0
    choice = ns.choose(train, held_out, detectors=FEW)
    used = [fold for fold in choice.folds if fold.used]
    assert 0 < len(used) < len(choice.folds) == 5
    assert f"{5 - len(used)} of 5 folds were not used" in str(choice)
    assert len(choice.baseline.near) == len(used)
    assert all(fold.map_refitted is None for fold in choice.folds if not fold.used)


def test_what_cannot_be_used_is_an_error(train, held_out):
    def fails(error, message, a=train, b=held_out, **options):
        with pytest.raises(error, match=message):
            ns.choose(a, b, **{"detectors": FEW, **options})

    bare = replace(held_out, labels=None)
    fails(MissingInputError, "held-out data has no labels.*labels=", b=bare)
    fails(InputError, "300 of 300 held-out samples are also in the training data", b=train[:300])
    fails(ShapeError, "same model", b=held_out.select_labels([1, 2, 3]))
    names = [f"label {i}" for i in range(8)]
    fails(
        LabelMismatchError,
        "the training data: the labels are in another order",
        a=replace(train, label_names=names),
        b=replace(held_out, label_names=names[::-1]),
    )
    narrow = replace(held_out, features=held_out.features[:, :3], head=None)
    fails(ShapeError, "features have 3 and 12", b=narrow)
    broken = held_out.features.copy()
    broken[4, 2] = np.nan
    fails(NonFiniteError, "held-out data: the features", b=replace(held_out, features=broken))
    logits = held_out.logits.copy()
    logits[4, 2] = np.nan
    fails(NonFiniteError, "held-out data", b=replace(held_out, logits=logits))
    fails(ParameterError, "n_folds", n_folds=1)
    fails(ParameterError, "refit must be", refit="all")
    fails(ParameterError, "tpr", tpr=1.0)
    fails(ParameterError, "list of at least one", detectors=[])
    fails(ParameterError, "list of at least one", detectors="joint_energy")
    fails(ParameterError, "no detector 'jointenergy'", detectors=["jointenergy"])
    a, b = (replace(data, logits=1 / (1 + np.exp(-data.logits))) for data in (train, held_out))
    fails(ProbabilitiesError, "probabilities", a=a, b=b)


# --- the criterion ---


def standing(name, criterion):
    return Standing(name, (), {}, tuple(criterion))


def test_the_criterion_is_the_mean_of_the_ratios_to_the_baseline():
    baseline = Standing("joint_energy", (0.4, 0.6), {"a": (0.2, 0.2), "b": (0.6, 0.6)})
    other = Standing("x", (0.1, 0.2), {"a": (0.1, 0.1), "b": (0.3, 0.5)})
    assert with_criterion(baseline, baseline).mean == pytest.approx(1)
    # near / 0.5 and the mean of a and b / 0.4
    assert with_criterion(other, baseline).criterion == pytest.approx([0.35, 0.575])
    near = Standing("x", (0.1, 0.2), {})
    assert with_criterion(near, baseline).criterion == pytest.approx([0.2, 0.4])


def test_a_baseline_of_zero_divides_by_no_zero():
    baseline = Standing("joint_energy", (0.0, 0.0), {"a": (0.0, 0.0)})
    other = Standing("x", (0.0, 0.05), {"a": (0.0, 0.0)})
    assert with_criterion(baseline, baseline).criterion == (0, 0)
    expected = pytest.approx((0, 0.05 / SMALLEST_BASELINE / 2))
    assert with_criterion(other, baseline).criterion == expected


def test_the_ranking_has_p_values_of_a_paired_test(rng):
    standings = [standing(name, rng.random(5)) for name in "abcd"]
    best, *rest = ordered(standings)
    assert best.p_value is None
    assert [s.mean for s in (best, *rest)] == sorted(s.mean for s in standings)
    for s in rest:
        assert s.p_value == pytest.approx(ttest_rel(s.criterion, best.criterion).pvalue)


def test_of_equal_ones_the_first_is_the_best():
    equal = [standing(name, [0.4, 0.6]) for name in "ab"]
    assert [s.name for s in ordered(equal)] == ["a", "b"]
    assert [s.name for s in ordered(equal[::-1])] == ["b", "a"]


def test_p_values_without_spread():
    assert paired_p_value([0.3, 0.4], [0.3, 0.4]) == 1
    assert paired_p_value([0.3, 0.4], [0.1, 0.2]) == 0
    assert paired_p_value([0.3], [0.1]) is None
    assert np.isfinite(paired_p_value([0.3, 0.4], [0.1, 0.3]))
