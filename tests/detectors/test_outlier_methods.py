"""Local Outlier Factor and Isolation Forest give scikit-learn's own numbers."""

import numpy as np
import pytest
import sklearn.ensemble
import sklearn.neighbors

import nescio as ns
from nescio.errors import ParameterError


@pytest.mark.parametrize("n_labels", [2, 7, 8, 30])
@pytest.mark.parametrize("n_neighbors", [5, 20])
def test_lof_is_scikit_learns(n_labels, n_neighbors, rng):
    train, new = rng.normal(size=(300, n_labels)), rng.normal(0, 2, (100, n_labels))
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


@pytest.mark.parametrize("n_samples", [1, 2, 3, 100, 1000])
def test_isolation_forest_is_scikit_learns(n_samples, rng):
    train, new = rng.normal(size=(n_samples, 6)), rng.normal(0, 2, (5000, 6))
    theirs = sklearn.ensemble.IsolationForest(max_samples=min(256, n_samples), random_state=3).fit(
        train
    )
    ours = ns.IsolationForest(seed=3).fit(train)
    expected = theirs.score_samples(new)
    np.testing.assert_allclose(ours.score_samples(new), expected, rtol=1e-12)


def test_isolation_forest_repeats_itself(rng):
    train = rng.normal(size=(300, 4))
    first, again = (ns.IsolationForest().fit(train).score_samples(train) for _ in range(2))
    assert np.array_equal(first, again)
    other = ns.IsolationForest(seed=1).fit(train).score_samples(train)
    assert not np.array_equal(first, other)


def test_bad_parameters_are_refused(rng):
    train = rng.normal(size=(30, 4))
    with pytest.raises(ParameterError, match="n_neighbors must be at least 1"):
        ns.LocalOutlierFactor(n_neighbors=0).fit(train)
    with pytest.raises(ParameterError, match="n_trees must be at least 1"):
        ns.IsolationForest(n_trees=0).fit(train)
    with pytest.raises(ParameterError, match="n_samples = 1"):
        ns.LocalOutlierFactor().fit(train[:1])
