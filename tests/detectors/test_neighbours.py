import numpy as np
import pytest

import nescio as ns
from nescio.detectors import neighbours
from nescio.errors import NonFiniteError, ParameterError, ShapeError, TooFewSamplesError

RIGHT_ANGLE = -np.sqrt(2)


def plainly(train, new, k):
    """Every distance between directions, sorted."""
    train, new = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (train, new))
    distances = np.linalg.norm(new[:, None] - train, axis=2)
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
    bank = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(dtype)
    queries = bank[:200].astype(np.float64) + 1e-5
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    every = np.sqrt(((queries[:, None] - bank.astype(np.float64)) ** 2).sum(2))
    found = neighbours.nearest(bank, queries, 5)
    # Products in float32 cannot rank samples that are nearer to each other than this.
    atol = 1e-3 if (kind, dtype) == ("nearly duplicates", np.float32) else 0
    np.testing.assert_allclose(found.distances, np.sort(every, axis=1)[:, :5], rtol=1e-9, atol=atol)
    alone = [neighbours.nearest(bank, queries[[row]], 5).distances[0] for row in range(20)]
    np.testing.assert_allclose(alone, found.distances[:20], rtol=1e-12, atol=atol)


@pytest.mark.parametrize("k", [1, 5, 200])
def test_the_distance_to_the_kth_neighbour(data, k):
    train, new = data
    detector = ns.NearestNeighbours(k=k).fit(train)
    expected, neighbours_of = plainly(train, new, k)
    np.testing.assert_allclose(detector.score_samples(new), expected, rtol=1e-12)
    np.testing.assert_array_equal(detector.nearest(new, k), neighbours_of)


def test_float32_is_kept_and_small_distances_are_precise(data, rng):
    train, new = (x.astype(np.float32) for x in data)
    detector = ns.NearestNeighbours(k=1).fit(train)
    assert detector.bank_.dtype == np.float32
    expected, _ = plainly(train.astype(np.float64), new.astype(np.float64), 1)
    np.testing.assert_allclose(detector.score_samples(new), expected, atol=1e-6)
    # 2 - 2 cos would give multiples of 0.0003
    assert (detector.score_samples(train) == 0).all()
    moved = train + rng.normal(0, 1e-4, train.shape).astype(np.float32)
    expected, _ = plainly(train.astype(np.float64), moved.astype(np.float64), 1)
    assert -expected.max() < 1e-4
    np.testing.assert_allclose(detector.score_samples(moved), expected, atol=2e-7)
    np.testing.assert_allclose(
        detector.score_samples(moved.astype(np.float64)), expected, atol=2e-7
    )


def test_the_length_of_features_does_not_matter(data, rng):
    train, new = data
    detector = ns.NearestNeighbours().fit(train)
    expected = detector.score_samples(new)
    for lengths in (
        rng.uniform(0.1, 10, (60, 1)),
        np.full((60, 1), 1e-300),
        np.full((60, 1), 1e300),
    ):
        np.testing.assert_allclose(detector.score_samples(new * lengths), expected, rtol=1e-9)


def test_rows_of_zeros_are_at_right_angles_to_all_and_not_learned_from(data):
    train, new = data
    with_zeros = np.concatenate([np.zeros((20, 7)), train])
    detector = ns.NearestNeighbours().fit(with_zeros)
    assert detector.rows_.tolist() == list(range(20, 220))
    np.testing.assert_array_equal(
        detector.score_samples(new), ns.NearestNeighbours().fit(train).score_samples(new)
    )
    assert detector.score_samples(np.zeros((1, 7))) == RIGHT_ANGLE
    found = detector.nearest(np.stack([np.zeros(7), train[3]]), 2)
    assert found[0].tolist() == [-1, -1]
    assert found[1, 0] == 23


def test_a_bank_is_a_fixed_random_choice(data):
    train, new = data
    detector = ns.NearestNeighbours(bank=50).fit(train)
    assert len(detector.bank_) == 50
    assert (np.diff(detector.rows_) > 0).all()
    np.testing.assert_array_equal(ns.NearestNeighbours(bank=50).fit(train).rows_, detector.rows_)
    expected, at = plainly(train[detector.rows_], new, 5)
    np.testing.assert_allclose(detector.score_samples(new), expected, rtol=1e-12)
    np.testing.assert_array_equal(detector.nearest(new), detector.rows_[at])
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


def test_too_few_training_samples(data):
    train, new = data
    with pytest.raises(
        TooFewSamplesError, match="at least 201 training samples, got n_samples = 200"
    ):
        ns.NearestNeighbours(k=201).fit(train)
    detector = ns.NearestNeighbours(bank=50).fit(train)
    with pytest.raises(TooFewSamplesError, match="n_samples = 50"):
        detector.set_params(k=51, bank=0).score_samples(new)
