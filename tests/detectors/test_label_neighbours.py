import numpy as np
import pytest

import nescio as ns
from nescio.errors import InputError, MissingInputError, ShapeError
from nescio.outputs import Outputs


def some(n, seed, dtype=np.float64):
    rng = np.random.default_rng(seed)
    labels = rng.random((n, 4)) < [0.5, 0.3, 0.1, 0.02]
    labels[0], labels[1:, 3] = [1, 0, 0, 1], False  # the last label has one sample
    return Outputs(
        rng.normal(-1, 3, (n, 4)).astype(dtype),
        features=rng.normal(1, 2, (n, 7)).astype(dtype),
        labels=labels,
    )


def plainly(train, new, k):
    """The formula, sample by sample and label by label."""

    def unit(row):
        return row.astype(np.float64) / np.linalg.norm(row.astype(np.float64))

    result = []
    for logits, features in zip(new.logits.astype(np.float64), new.features, strict=True):
        energies = np.log1p(np.exp(logits))
        similarities = [
            np.mean(sorted(unit(other) @ unit(features) for other in train.features[has == 1])[-k:])
            for has in train.labels.T
        ]
        result.append(energies @ similarities / energies.sum())
    return np.array(result)


@pytest.mark.parametrize("k", [1, 5, 500])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_scores_are_the_formula(k, dtype):
    train, new = some(120, 0, dtype), some(30, 1, dtype)
    detector = ns.LabelNeighbours(k=k).fit(train)
    tolerance = 1e-9 if dtype == np.float64 else 1e-5
    np.testing.assert_allclose(
        detector.score_samples(new), plainly(train, new, k), rtol=0, atol=tolerance
    )


def test_labels_of_all_sizes_and_a_second_fit(rng):
    shares = np.array([0.9, 0.5, 0.3, 0.2, 0.1, 0.05, 0.03, 0.02, 0.01])
    detector = ns.LabelNeighbours(k=3)
    for n in (150, 400):
        labels = rng.random((n, 9)) < shares
        labels[0] = True
        train = Outputs(rng.normal(size=(n, 9)), features=rng.normal(size=(n, 5)), labels=labels)
        new = Outputs(rng.normal(size=(20, 9)), features=rng.normal(size=(20, 5)))
        found = detector.fit(train).score_samples(new)
        np.testing.assert_allclose(found, plainly(train, new, 3), rtol=0, atol=1e-12)


def test_a_label_without_samples_counts_nothing():
    train, new = some(120, 0), some(60, 1)
    never = train.labels.copy()
    never[:, 3] = 0
    found = ns.LabelNeighbours().fit(Outputs(train.logits, features=train.features, labels=never))
    known = [0, 1, 2]
    expected = ns.LabelNeighbours().fit(train.select_labels(known))
    np.testing.assert_allclose(
        found.score_samples(new), expected.score_samples(new.select_labels(known)), rtol=1e-12
    )


def test_without_any_energy_labels_count_alike():
    train, new = some(120, 0), some(5, 1)
    detector = ns.LabelNeighbours().fit(train)
    silent, even = (
        Outputs(np.full((5, 4), logit), features=new.features) for logit in (-2000.0, 0.0)
    )
    np.testing.assert_allclose(
        detector.score_samples(silent), detector.score_samples(even), rtol=1e-12
    )


def test_rows_of_zeros_resemble_nothing():
    detector = ns.LabelNeighbours().fit(some(120, 0))
    zeros = Outputs(some(3, 1).logits, features=np.zeros((3, 7)))
    assert (detector.score_samples(zeros) == 0).all()


def test_no_sample_with_a_label_is_an_error():
    train = some(20, 0)
    empty = Outputs(train.logits, features=train.features, labels=np.zeros((20, 4), int))
    with pytest.raises(InputError, match="none of the 20 is such"):
        ns.LabelNeighbours().fit(empty)


def test_nearest_names_training_samples():
    train = some(120, 0)
    detector = ns.LabelNeighbours().fit(train)
    carrying = np.flatnonzero(train.labels.any(1))
    np.testing.assert_array_equal(detector.nearest(train[carrying], 1)[:, 0], carrying)


@pytest.mark.parametrize("y", [None, np.arange(20) % 3])
def test_a_plain_array_is_an_error_that_says_what_to_pass(y):
    with pytest.raises(MissingInputError, match="labels="):
        ns.LabelNeighbours().fit(np.random.default_rng(0).normal(size=(20, 4)), y)


def test_logits_of_other_labels_than_those_of_the_training_data_are_an_error():
    detector = ns.Combined(["label_neighbours", "joint_energy"])
    detector.fit(some(120, 0))
    with pytest.raises(ShapeError, match="has learned 4 labels, but there are logits of 3"):
        detector.calibrate(some(100, 1).select_labels([0, 1, 2]))
