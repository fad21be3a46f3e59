"""Local Outlier Factor and Isolation Forest give scikit-learn's own numbers."""

import numpy as np
import pytest
import sklearn.ensemble
import sklearn.neighbors

import nescio as ns
from nescio.errors import InputError, ParameterError


def test_trees_compare_in_float32(rng):
    """float64 values next to a threshold may round across it."""
    train = rng.integers(-3, 3, (300, 4)).astype(float)
    theirs = sklearn.ensemble.IsolationForest(max_samples=256, random_state=0).fit(train)
    ours = ns.IsolationForest().fit(train)
    on_thresholds = ours.thresholds_.reshape(-1)[: 4 * 500].reshape(500, 4)
    above = np.nextafter(on_thresholds.astype(np.float32).astype(float), np.inf)
    for new in (train, on_thresholds, above):
        np.testing.assert_allclose(ours.score_samples(new), theirs.score_samples(new), rtol=1e-12)


def test_a_value_on_the_threshold_goes_left():
    stump = ns.IsolationForest(n_trees=1, max_samples=2).fit([[0.0], [1.0]])
    stump.thresholds_[:] = 0.5
    left = stump.children_[0, 0, 0]
    stump.lengths_[0, left] = 7.0
    below, on, above = stump.score_samples([[0.4], [0.5], [0.6]])
    assert below == on != above


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
    with pytest.raises(ParameterError, match="n_neighbors must be a whole number of at least 1"):
        ns.LocalOutlierFactor(n_neighbors=0).fit(train)
    with pytest.raises(ParameterError, match="n_trees must be a whole number of at least 1"):
        ns.IsolationForest(n_trees=0).fit(train)
    for bad in (1.5, "5", True):
        with pytest.raises(ParameterError, match="must be a whole number"):
            ns.LocalOutlierFactor(n_neighbors=bad).fit(train)
    with pytest.raises(ParameterError, match="seed must be a whole number of at least 0"):
        ns.IsolationForest(seed=-1).fit(train)
    with pytest.raises(InputError, match="n_samples = 1"):
        ns.LocalOutlierFactor().fit(train[:1])
