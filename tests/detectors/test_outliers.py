"""Local Outlier Factor and Isolation Forest give scikit-learn's own numbers."""

import numpy as np
import pytest
import sklearn.ensemble
import sklearn.neighbors

import nescio as ns
from nescio.errors import InputError


def plainly(samples, queries, k, own=False):
    """Every distance from the differences, sorted; equal ones by position."""
    samples, queries = samples.astype(np.float64), queries.astype(np.float64)
    distances, positions = [], []
    for row, query in enumerate(queries):
        difference = query - samples
        squares = np.einsum("ij,ij->i", difference, difference)
        if own:
            squares[row] = np.inf
        order = np.argsort(squares, kind="stable")[:k]
        distances.append(np.sqrt(squares[order]))
        positions.append(order)
    return np.array(distances), np.array(positions)


@pytest.mark.parametrize("n_labels", [2, 7, 8, 30])
@pytest.mark.parametrize("n_neighbors", [5, 20])
def test_lof_is_scikit_learns(n_labels, n_neighbors, rng):
    # Numbers of float32, which is what the detector rounds to.
    train, new = (
        rng.normal(0, scale, (n, n_labels)).astype(np.float32).astype(np.float64)
        for scale, n in ((1, 300), (2, 100))
    )
    theirs = sklearn.neighbors.LocalOutlierFactor(n_neighbors=n_neighbors, novelty=True).fit(train)
    ours = ns.LocalOutlierFactor(n_neighbors=n_neighbors).fit(train)
    np.testing.assert_allclose(
        ours.score_samples(new), theirs.score_samples(new), rtol=1e-9, atol=1e-9
    )


def test_lof_with_fewer_samples_than_neighbours(rng):
    train = rng.normal(size=(10, 3))
    theirs = sklearn.neighbors.LocalOutlierFactor(n_neighbors=9, novelty=True).fit(train)
    ours = ns.LocalOutlierFactor(n_neighbors=20).fit(train)
    np.testing.assert_allclose(ours.score_samples(train + 1), theirs.score_samples(train + 1))


def test_lof_of_samples_that_coincide_is_finite(rng):
    train = np.repeat(rng.normal(size=(5, 3)), 30, axis=0)
    scores = ns.LocalOutlierFactor().fit(train).score_samples(np.vstack([train[:3], train[:3] + 9]))
    assert np.isfinite(scores).all()
    assert scores[:3].min() > scores[3:].max()


def test_lof_keeps_the_neighbours_it_was_fitted_with(rng, tmp_path):
    train, new = rng.normal(size=(100, 3)), rng.normal(size=(10, 3))
    detector = ns.LocalOutlierFactor().fit(train).calibrate(rng.normal(size=(50, 3)))
    before = detector.score_samples(new)
    detector.set_params(n_neighbors=3).save(tmp_path / "x.nescio")
    assert np.array_equal(detector.score_samples(new), before)
    assert np.array_equal(ns.load(tmp_path / "x.nescio").score_samples(new), before)


def test_lof_of_large_logits_in_float64_is_that_of_the_formula(rng):
    train = rng.normal(size=(400, 9)).astype(np.float32) - np.float32(4096)
    new = train[:60] + rng.normal(size=(60, 9)).astype(np.float32)
    distances, positions = plainly(train, train, 10, own=True)
    reach = distances[:, -1]
    density = 1 / (np.maximum(distances, reach[positions]).mean(1) + 1e-10)
    distances, positions = plainly(train, new, 10)
    own = 1 / (np.maximum(distances, reach[positions]).mean(1) + 1e-10)
    scores = ns.LocalOutlierFactor(10).fit(train).score_samples(new)
    np.testing.assert_allclose(scores, -density[positions].mean(1) / own, rtol=1e-9)


def test_trees_compare_in_float32(rng):
    """float64 values next to a threshold may round across it."""
    train = rng.integers(-3, 3, (300, 4)).astype(float)
    theirs = sklearn.ensemble.IsolationForest(max_samples=256, random_state=0).fit(train)
    ours = ns.IsolationForest().fit(train)
    on_thresholds = ours.thresholds_.reshape(-1)[: 4 * 500].reshape(500, 4)
    above = np.nextafter(on_thresholds.astype(np.float32).astype(float), np.inf)
    for new in (train, on_thresholds, above):
        np.testing.assert_allclose(ours.score_samples(new), theirs.score_samples(new), rtol=1e-12)


@pytest.mark.parametrize("n_samples", [1, 2, 3, 100, 1000])
def test_isolation_forest_is_scikit_learns(n_samples, rng):
    train, new = rng.normal(size=(n_samples, 6)), rng.normal(0, 2, (5000, 6))
    theirs = sklearn.ensemble.IsolationForest(max_samples=min(256, n_samples), random_state=3).fit(
        train
    )
    ours = ns.IsolationForest(seed=3).fit(train)
    expected = theirs.score_samples(new)
    np.testing.assert_allclose(ours.score_samples(new), expected, rtol=1e-12)


def test_one_stream_is_scikit_learns_forest_for_a_random_state(rng):
    """The authors' code passes RandomState(42), which fit advances before it grows the trees."""
    train, new = rng.normal(size=(400, 6)), rng.normal(0, 2, (500, 6))
    random = np.random.RandomState(42)
    theirs = sklearn.ensemble.IsolationForest(random_state=random).fit(train).score_samples(new)
    for one_stream in (True, False):
        ours = ns.IsolationForest(seed=42, one_stream=one_stream).fit(train).score_samples(new)
        assert np.allclose(ours, theirs, rtol=1e-12) == one_stream


def test_lof_learns_from_at_least_two_samples():
    with pytest.raises(InputError, match="n_samples = 1"):
        ns.LocalOutlierFactor().fit([[1.0, 2.0]])
