"""Folds that leave labels out, and heads that are trained anew."""

from dataclasses import replace

import numpy as np
import pytest

from fixtures.labelled import N_LABELS, labelled
from nescio.choosing.folds import FEWEST, label_folds, make_fold, refit_head, shuffled
from nescio.errors import InputError, TooFewSamplesError
from nescio.metrics import mean_average_precision
from nescio.outputs import Outputs

ARRAYS = ("logits", "features", "labels")


def folds_of(train, held_out, n_folds=4, seed=0, *, refit=True):
    return label_folds(train, held_out, n_folds, seed, refit=refit)


def made(train, held_out, rows, far=None, *, refit=True):
    return make_fold(train, held_out, far or {}, rows, np.random.default_rng(5), refit=refit)


def changed(outputs, rows):
    """The same outputs, with other features and logits in some rows."""
    features, logits = outputs.features.copy(), outputs.logits.copy()
    features[rows] += 50
    logits[rows] -= 50
    return replace(outputs, features=features, logits=logits)


def same(a, b):
    return all(np.array_equal(a.get(name), b.get(name)) for name in ARRAYS)


@pytest.mark.parametrize("refit", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_samples_are_where_their_labels_say_and_nowhere_twice(seed, refit):
    train, held_out = labelled(seed=seed), labelled(seed=seed + 10, per_sample=3)
    left_out = []
    for rows in folds_of(train, held_out, seed=seed, refit=refit):
        removed = np.setdiff1d(np.arange(N_LABELS), rows.kept)
        left_out += removed.tolist()
        carries_kept = [outputs.labels[:, rows.kept].any(1) for outputs in (train, held_out)]
        source = 0 if refit else 1  # of the reference
        for part, some in ((0, rows.train), (source, rows.reference), (1, rows.id)):
            assert len(some)
            assert carries_kept[part][some].all()
        for part, some in enumerate((rows.near_train, rows.near_held_out)):
            assert not carries_kept[part][some].any()
        taken = [[*rows.train, *rows.near_train], [*rows.id, *rows.near_held_out]]
        taken[source] += [*rows.reference]
        for some, outputs in zip(taken, (train, held_out), strict=True):
            assert len(set(some)) == len(some)
            if refit:
                assert len(some) == len(outputs)
        assert refit or not len(rows.near_train)
    assert sorted(left_out) == list(range(N_LABELS))


@pytest.mark.parametrize("hidden", [False, True])
def test_left_out_and_tested_samples_reach_neither_the_head_nor_what_detectors_learn(hidden):
    train, held_out = labelled(), labelled(200, seed=1)
    if hidden:
        train, held_out = (
            replace(data, head=None, arrays={"penultimate": data.features})
            for data in (train, held_out)
        )
    rows = folds_of(train, held_out)[0]
    before = made(train, held_out, rows)
    left_out = made(changed(train, rows.near_train), changed(held_out, rows.near_held_out), rows)
    for name in ("train", "reference", "id"):
        assert same(getattr(before, name), getattr(left_out, name))
    assert not same(before.near, left_out.near)
    tested = made(train, changed(held_out, rows.id), rows)
    for name in ("train", "reference", "near"):
        assert same(getattr(before, name), getattr(tested, name))
    learned = made(changed(train, rows.train), held_out, rows)
    assert not np.array_equal(before.id.logits, learned.id.logits)


def test_a_refitted_head_knows_nothing_of_the_left_out_labels_or_of_the_old_logits():
    train, held_out = labelled(), labelled(200, seed=1)
    rows = folds_of(train, held_out)[0]
    removed = np.setdiff1d(np.arange(N_LABELS), rows.kept)
    blind = []
    for outputs in (train, held_out):
        labels = outputs.labels.copy()
        labels[:, removed] = 0
        blind.append(replace(outputs, logits=-outputs.logits, labels=labels, head=None))
    with_labels, without = made(train, held_out, rows), made(*blind, rows)
    for name in ("train", "reference", "id", "near"):
        assert same(getattr(with_labels, name), getattr(without, name))
    assert with_labels.id.n_labels == len(rows.kept)


def test_without_refitting_the_columns_of_the_left_out_labels_are_gone():
    train, held_out = (
        labelled(seed=seed, features=False, arrays={"odin_max": np.zeros((400, 8))})
        for seed in (0, 1)
    )
    rows = folds_of(train, held_out, refit=False)[0]
    far = {"jigsaw": replace(held_out, logits=held_out.logits - 9)}
    fold = made(train, held_out, rows, far, refit=False)
    for name, source, some in (
        ("train", train, rows.train),
        ("reference", held_out, rows.reference),
        ("id", held_out, rows.id),
        ("near", held_out, rows.near_held_out),
    ):
        outputs = getattr(fold, name)
        assert np.array_equal(outputs.logits, source.logits[some][:, rows.kept])
        assert not outputs.arrays
    assert list(fold.far) == ["jigsaw"]
    assert np.array_equal(fold.far["jigsaw"].logits, fold.id.logits - 9)


def test_labels_that_no_sample_or_every_sample_has_are_never_left_out():
    def special(outputs):
        labels = outputs.labels.copy()
        labels[:, 2], labels[:, 5] = 0, 1
        labels[~np.delete(labels, [2, 5], 1).any(1), 0] = 1
        return replace(outputs, labels=labels)

    train, held_out = special(labelled()), special(labelled(seed=1))
    folds = folds_of(train, held_out)
    for rows in folds:
        assert {2, 5} <= set(rows.kept)
        assert rows.usable  # the label that all have makes no sample known
        assert np.isfinite(made(train, held_out, rows).id.logits).all()


def test_samples_without_labels_are_in_no_fold():
    train, held_out = labelled(), labelled(seed=1)
    empty = np.arange(30)
    for outputs in (train, held_out):
        outputs.labels[empty] = 0
    for rows in folds_of(train, held_out):
        for name in ("train", "reference", "id", "near_train", "near_held_out"):
            assert not set(getattr(rows, name)) & set(empty.tolist())


def test_folds_without_enough_samples_say_what_to_do():
    labels = np.ones((50, 4), int)
    labels[0] = [1, 1, 0, 0]
    labels[1] = [0, 0, 1, 1]
    outputs = Outputs(np.zeros((50, 4)), labels=labels)
    with pytest.raises(TooFewSamplesError, match=r"at most 0 samples .* fewer folds.*n_folds=2"):
        label_folds(outputs, outputs, 4, 0, refit=True)
    with pytest.raises(TooFewSamplesError, match="more held-out data"):
        label_folds(labelled(), labelled(FEWEST - 1, seed=1), 4, 0, refit=True)


@pytest.mark.parametrize("labels", [np.ones((30, 3)), np.eye(3)[[0] * 30]])
def test_labels_that_tell_no_samples_apart_are_an_error(labels):
    outputs = Outputs(np.zeros((30, 3)), labels=labels)
    with pytest.raises(InputError, match=r"0 of 3 labels .* at least two"):
        label_folds(outputs, outputs, 5, 0, refit=True)


def test_shuffled_features_have_the_same_values_in_another_order(rng):
    outputs = labelled(100, arrays={"layer": np.arange(200.0).reshape(100, 2)})
    mixed = shuffled(outputs, rng)
    for before, after in (
        (outputs.features, mixed.features),
        (outputs.arrays["layer"], mixed.arrays["layer"]),
    ):
        assert np.array_equal(np.sort(before, 0), np.sort(after, 0))
        assert (before != after).any(1).mean() > 0.9
    layer = mixed.arrays["layer"]
    assert (layer[:, 1] != layer[:, 0] + 1).any()  # each column for itself


KEPT = [0, 2, 3, 6]


def refitted(train, check=None, *, hidden=False):
    if hidden:
        train = replace(train, head=None, arrays={"penultimate": train.features})
    check = check or labelled(100, seed=2)
    return refit_head(train, check, KEPT, rng=np.random.default_rng(0))


@pytest.mark.parametrize("hidden", [False, True])
def test_a_refitted_head_learns_its_labels(hidden):
    test = labelled(300, seed=3, arrays={"odin_max": np.zeros((300, 8))})
    outputs = refitted(labelled(400), hidden=hidden)(test)
    assert mean_average_precision(test.labels[:, KEPT], outputs.logits) > 0.9
    assert np.array_equal(outputs.labels, test.labels[:, KEPT])
    assert outputs.features is test.features
    assert "odin_max" not in outputs.names
    assert ("penultimate" in outputs.arrays) == hidden
    # Detectors that read the head find the logits in it.
    again = outputs.get("penultimate") @ outputs.head.weight.T + outputs.head.bias
    np.testing.assert_allclose(again, outputs.logits, rtol=1e-3, atol=1e-3)


def test_other_layers_are_kept_and_the_old_penultimate_layer_is_not():
    arrays = {"early": np.ones((50, 3)), "penultimate": np.ones((50, 2))}
    test = labelled(50, seed=3, head=None, arrays=arrays, manifest={"layers": ["early"]})
    outputs = refitted(labelled(200), hidden=True)(test)
    assert outputs.arrays["early"] is test.arrays["early"]
    assert outputs.arrays["penultimate"].shape[1] > 2
    assert list(refitted(labelled(200))(test).arrays) == ["early"]


def test_features_of_any_scale_are_learned():
    """Large offsets, tiny and constant features: the head is the same for the same data."""
    train, test = labelled(400), labelled(100, seed=3)
    check = labelled(100, seed=2)

    def moved(outputs):
        scale = np.array([1e3, 1e-3] * 6)
        features = np.column_stack([outputs.features * scale + 1e4, np.full(len(outputs), 7.0)])
        return replace(outputs, features=features, head=None)

    logits = refitted(moved(train), moved(check))(moved(test)).logits
    np.testing.assert_allclose(logits, refitted(train)(test).logits, atol=0.1)


def test_a_label_that_is_never_there_gets_low_logits():
    train = labelled(400)
    train.labels[:, 2] = 0
    logits = refitted(train)(labelled(100, seed=3)).logits
    assert np.isfinite(logits).all()
    assert logits[:, KEPT.index(2)].max() < -2
