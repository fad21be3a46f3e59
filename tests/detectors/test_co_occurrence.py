"""Co-occurrence: the numbers of the definition, and the bound that it is."""

import itertools

import numpy as np
import pytest

import nescio as ns
from nescio.errors import ImplausibleValuesWarning, InputError, ParameterError, ShapeError


@pytest.fixture
def data(rng):
    """Logits and labels; the labels 0 and 1 occur together, 2 and 3 never do, 4 has no sample."""
    labels = (rng.random((300, 5)) < 0.3).astype(int)
    labels[:, 1] = labels[:, 0]
    labels[labels[:, 2] == 1, 3] = 0
    labels[:, 4] = 0
    return np.where(labels == 1, 2.0, -2.0) + rng.normal(size=labels.shape), labels


def plain_lift(labels, i, j):
    n_i, n_j, both = labels[:, i].sum(), labels[:, j].sum(), (labels[:, i] * labels[:, j]).sum()
    return np.log((both + 1) / (n_i * n_j / len(labels) + 1))


@pytest.mark.parametrize("weight", [1.0, 2.5])
def test_joint_energy_and_the_lifts_of_the_pairs(data, weight, rng):
    logits, labels = data
    new = rng.normal(-1, 3, (30, 5))
    p = ns.scores.label_prob(new)
    expected = ns.scores.joint_energy(new)
    for i, j in itertools.combinations(range(5), 2):
        expected = expected + weight * p[:, i] * p[:, j] * plain_lift(labels, i, j)
    detector = ns.CoOccurrence(weight).fit(logits, labels)
    np.testing.assert_allclose(detector.score_samples(new), expected, rtol=1e-12)
    assert detector.lift_[0, 1] > 0.5
    assert detector.lift_[2, 3] < -0.5
    assert (detector.lift_[4] == 0).all()


def test_it_is_a_lower_bound_of_the_joint_energy_of_labels_with_pairs(data, rng):
    logits, labels = data
    new = rng.normal(-1, 3, (30, 5))
    detector = ns.CoOccurrence().fit(logits, labels)
    sets = np.array(list(itertools.product((0, 1), repeat=5)))  # (32, n_labels)
    pairs = np.einsum("si,ij,sj->s", sets, detector.lift_, sets) / 2
    exact = np.logaddexp.reduce(new @ sets.T + pairs, axis=1)
    scores = detector.score_samples(new)
    assert (scores <= exact + 1e-9).all()
    assert np.corrcoef(scores, exact)[0, 1] > 0.99


def test_without_weight_it_is_joint_energy(data):
    logits, labels = data
    found = ns.CoOccurrence(0).fit(logits, labels).score_samples(logits)
    np.testing.assert_array_equal(found, ns.scores.joint_energy(logits))


def test_without_labels_it_learns_from_the_predicted_ones(data):
    logits, labels = data
    expected = ns.CoOccurrence().fit(logits, logits > 0).lift_
    np.testing.assert_array_equal(ns.CoOccurrence().fit(logits).lift_, expected)
    with pytest.warns(ImplausibleValuesWarning, match="y has one class per sample"):
        found = ns.CoOccurrence().fit(logits, labels.argmax(1))
    np.testing.assert_array_equal(found.lift_, expected)


def test_bad_labels_and_weights_are_explained(data):
    logits, labels = data
    with pytest.raises(ShapeError, match=r"multi-hot, of shape \(300, 5\), got \(300, 4\)"):
        ns.CoOccurrence().fit(logits, labels[:, :4])
    with pytest.raises(InputError, match="every value must be 0 or 1"):
        ns.CoOccurrence().fit(logits, 2 * labels)
    for weight in (-1, np.inf, "1"):
        with pytest.raises(ParameterError, match="weight must be a number of at least 0"):
            ns.CoOccurrence(weight).fit(logits, labels)
