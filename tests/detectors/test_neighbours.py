from dataclasses import replace

import numpy as np
import pytest

import nescio as ns
from nescio.detectors import neighbours
from nescio.errors import (
    InputError,
    MissingInputError,
    NonFiniteError,
    ParameterError,
    ShapeError,
    TooFewSamplesError,
)
from nescio.outputs import Outputs


def unit(rows):
    rows = rows.astype(np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def energies(logits):
    return np.log1p(np.exp(logits.astype(np.float64)))


def some(n, seed, dtype=np.float64):
    rng = np.random.default_rng(seed)
    labels = rng.random((n, 4)) < [0.5, 0.3, 0.1, 0.02]
    labels[0], labels[1:, 3] = [1, 0, 0, 1], False  # the last label has one sample
    return Outputs(
        rng.normal(-1, 3, (n, 4)).astype(dtype),
        features=rng.normal(1, 2, (n, 7)).astype(dtype),
        labels=labels,
    )


# --- the distance to the k-th nearest sample ---


def plainly(train, new, k):
    """Every distance between directions, sorted."""
    distances = np.linalg.norm(unit(new)[:, None] - unit(train), axis=2)
    return -np.sort(distances, axis=1)[:, k - 1], np.argsort(distances, axis=1)[:, :k]


@pytest.fixture
def data(rng):
    return rng.normal(1, 2, (200, 7)), rng.normal(0, 5, (60, 7))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["plain", "duplicates", "nearly duplicates"])
def test_distances_are_those_of_float64_differences(dtype, kind, rng):
    base = rng.normal(size=(1500, 30))
    rows = {
        "plain": base,
        "duplicates": np.repeat(base[:15], 100, axis=0),
        "nearly duplicates": base[:1] + 1e-4 * base,
    }[kind]
    bank = unit(rows).astype(dtype)
    queries = unit(bank[:200] + 1e-5)
    every = np.sqrt(((queries[:, None] - bank.astype(np.float64)) ** 2).sum(2))
    distances, _ = neighbours.nearest(bank, queries, 5)
    # Products in float32 cannot rank samples that are nearer to each other than this.
    atol = 1e-3 if (kind, dtype) == ("nearly duplicates", np.float32) else 0
    np.testing.assert_allclose(distances, np.sort(every, axis=1)[:, :5], rtol=1e-9, atol=atol)
    alone = [neighbours.nearest(bank, queries[[row]], 5)[0][0] for row in range(20)]
    np.testing.assert_allclose(alone, distances[:20], rtol=1e-12, atol=atol)


@pytest.mark.parametrize("k", [1, 5, 200])
def test_the_distance_to_the_kth_neighbour(data, k):
    train, new = data
    detector = ns.NearestNeighbours(k=k).fit(train)
    expected, positions = plainly(train, new, k)
    np.testing.assert_allclose(detector.score_samples(new), expected, rtol=1e-12)
    np.testing.assert_array_equal(detector.nearest(new, k), positions)


def test_float32_is_kept_and_small_distances_are_precise(data, rng):
    train, new = (x.astype(np.float32) for x in data)
    detector = ns.NearestNeighbours(k=1).fit(train)
    assert detector.bank_.dtype == np.float32
    expected, _ = plainly(train, new, 1)
    np.testing.assert_allclose(detector.score_samples(new), expected, atol=1e-6)
    # 2 - 2 cos would give multiples of 0.0003
    assert (detector.score_samples(train) == 0).all()
    moved = train + rng.normal(0, 1e-4, train.shape).astype(np.float32)
    expected, _ = plainly(train, moved, 1)
    assert -expected.max() < 1e-4
    np.testing.assert_allclose(detector.score_samples(moved), expected, atol=2e-7)
    np.testing.assert_allclose(
        detector.score_samples(moved.astype(np.float64)), expected, atol=2e-7
    )


def test_the_length_of_features_does_not_matter(data, rng):
    train, new = data
    detector = ns.NearestNeighbours().fit(train)
    expected = detector.score_samples(new)
    for lengths in (rng.uniform(0.1, 10, (60, 1)), 1e-300, 1e300):
        np.testing.assert_allclose(detector.score_samples(new * lengths), expected, rtol=1e-9)


def test_rows_of_zeros_are_at_right_angles_to_all_and_not_learned_from(data):
    train, new = data
    with_zeros = np.concatenate([np.zeros((20, 7)), train])
    detector = ns.NearestNeighbours().fit(with_zeros)
    assert detector.rows_.tolist() == list(range(20, 220))
    np.testing.assert_array_equal(
        detector.score_samples(new), ns.NearestNeighbours().fit(train).score_samples(new)
    )
    assert detector.score_samples(np.zeros((1, 7))) == -np.sqrt(2)
    positions = detector.nearest(np.stack([np.zeros(7), train[3]]), 2)
    assert positions[0].tolist() == [-1, -1]
    assert positions[1, 0] == 23


def test_a_bank_is_a_fixed_random_choice(data):
    train, new = data
    detector = ns.NearestNeighbours(bank=50).fit(train)
    assert len(detector.bank_) == 50
    assert (np.diff(detector.rows_) > 0).all()
    np.testing.assert_array_equal(ns.NearestNeighbours(bank=50).fit(train).rows_, detector.rows_)
    expected, positions = plainly(train[detector.rows_], new, 5)
    np.testing.assert_allclose(detector.score_samples(new), expected, rtol=1e-12)
    np.testing.assert_array_equal(detector.nearest(new), detector.rows_[positions])
    for enough in (0, 200, 1000):
        assert len(ns.NearestNeighbours(bank=enough).fit(train).bank_) == 200
    assert np.bincount(detector.rows_ // 50, minlength=4).min() > 5  # from everywhere


def test_nearest_takes_what_scoring_takes(data):
    train, new = data
    new = new.copy()
    new[4, 2] = np.nan
    with pytest.raises(NonFiniteError, match="rows: 4"):
        ns.NearestNeighbours().fit(train).nearest(new)
    detector = ns.NearestNeighbours(nonfinite="out").fit(train)
    assert (detector.nearest(new) < 0).any(1).nonzero()[0].tolist() == [4]
    with pytest.raises(ShapeError, match="7 columns"):
        detector.nearest(new[:, :3])
    with pytest.raises(ParameterError, match="n must be at most 200"):
        detector.nearest(new, 201)
    with pytest.raises(ns.NotCalibratedError, match="call fit"):
        ns.NearestNeighbours().nearest(new)


@pytest.mark.parametrize("kind", [ns.NearestNeighbours, ns.NNGuide])
def test_too_few_training_samples(kind):
    train = some(40, 0)
    with pytest.raises(TooFewSamplesError, match=r"k = 50 .* at least 50 .*, got n_samples = 40"):
        kind(k=50).fit(train)
    detector = kind(k=3, bank=30).fit(train)
    with pytest.raises(TooFewSamplesError, match="n_samples = 30"):
        detector.set_params(k=31, bank=0).score_samples(train)


# --- energy guided by neighbours ---


def guided(train, new, k):
    """The paper's formula: every similarity times the energy of its training sample, sorted."""
    similarities = unit(new.features) @ unit(train.features).T
    guides = np.sort(similarities * energies(train.logits).sum(1), axis=1)
    return guides[:, -k:].mean(1) * energies(new.logits).sum(1)


def test_a_bank_is_the_same_choice_as_that_of_knn():
    train, new = some(200, 0), some(20, 1)
    rows = ns.NearestNeighbours(bank=80).fit(train).rows_
    np.testing.assert_allclose(
        ns.NNGuide(bank=80).fit(train).score_samples(new), guided(train[rows], new, 50), rtol=1e-9
    )
    train = replace(train, labels=np.eye(4, dtype=int)[np.arange(200) % 4])  # all are of use
    detector = ns.LabelNeighbours(bank=80).fit(train)
    np.testing.assert_array_equal(detector.rows_, rows)
    np.testing.assert_allclose(
        detector.score_samples(new), by_label(train[rows], new, 5), rtol=0, atol=1e-12
    )
    np.testing.assert_array_equal(detector.nearest(train[rows], 1)[:, 0], rows)


def test_by_default_neighbours_by_label_keep_few_samples_because_one_image_takes_long():
    train = Outputs(np.zeros((6001, 1)), features=np.ones((6001, 2)), labels=np.ones((6001, 1)))
    assert len(ns.LabelNeighbours().fit(train).bank_) == 6000
    assert len(ns.LabelNeighbours(bank=0).fit(train).bank_) == 6001


@pytest.mark.parametrize("kind", [ns.NNGuide, ns.LabelNeighbours])
def test_rows_of_zeros_score_0(kind):
    detector = kind().fit(some(200, 0))
    zeros = Outputs(some(3, 1).logits, features=np.zeros((3, 7)))
    assert (detector.score_samples(zeros) == 0).all()


# --- neighbours of each label ---


def by_label(train, new, k):
    """The formula, label by label."""
    similarities = unit(new.features) @ unit(train.features).T
    means = [
        np.sort(similarities[:, carried == 1], axis=1)[:, -k:].mean(1) for carried in train.labels.T
    ]
    weights = energies(new.logits)
    return (weights * np.transpose(means)).sum(1) / weights.sum(1)


@pytest.mark.parametrize(
    ("kind", "formula"), [(ns.NNGuide, guided), (ns.LabelNeighbours, by_label)]
)
@pytest.mark.parametrize("k", [1, 5, 200])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_scores_are_the_formula(kind, formula, k, dtype):
    train, new = some(200, 0, dtype), some(60, 1, dtype)
    detector = kind(k=k).fit(train)
    assert detector.bank_.dtype == dtype
    tolerance = 1e-9 if dtype == np.float64 else 1e-5
    expected = formula(train, new, k)
    np.testing.assert_allclose(
        detector.score_samples(new), expected, rtol=tolerance, atol=tolerance
    )


def test_labels_of_all_sizes_and_a_second_fit(rng):
    shares = np.array([0.9, 0.5, 0.3, 0.2, 0.1, 0.05, 0.03, 0.02, 0.01])
    detector = ns.LabelNeighbours(k=3)
    for n in (150, 400):
        labels = rng.random((n, 9)) < shares
        labels[0] = True
        train = Outputs(rng.normal(size=(n, 9)), features=rng.normal(size=(n, 5)), labels=labels)
        new = Outputs(rng.normal(size=(20, 9)), features=rng.normal(size=(20, 5)))
        scores = detector.fit(train).score_samples(new)
        np.testing.assert_allclose(scores, by_label(train, new, 3), rtol=0, atol=1e-12)


def test_a_label_without_samples_counts_nothing():
    train, new = some(120, 0), some(60, 1)
    never = train.labels.copy()
    never[:, 3] = 0
    detector = ns.LabelNeighbours().fit(replace(train, labels=never))
    expected = ns.LabelNeighbours().fit(train.select_labels([0, 1, 2]))
    np.testing.assert_allclose(
        detector.score_samples(new),
        expected.score_samples(new.select_labels([0, 1, 2])),
        rtol=1e-12,
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


def test_no_sample_with_a_label_is_an_error():
    train = some(20, 0)
    with pytest.raises(InputError, match="none of the 20 is such"):
        ns.LabelNeighbours().fit(replace(train, labels=np.zeros((20, 4), int)))


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
