"""GEN: the numbers of the definition, one sample at a time."""

import numpy as np
import pytest

import nescio as ns
from nescio.errors import ParameterError


@pytest.mark.parametrize(("gamma", "k"), [(0.1, 100), (0.5, 3), (0.01, 1)])
def test_the_generalised_entropy_of_the_most_probable_labels(gamma, k, rng):
    logits = rng.normal(-2, 3, (40, 9))
    probs = -np.sort(-1 / (1 + np.exp(-logits)), axis=1)[:, :k]
    expected = [-sum((p * (1 - p)) ** gamma for p in row) for row in probs]
    np.testing.assert_allclose(ns.GEN(gamma, k).score_samples(logits), expected, rtol=1e-9)


def test_logits_far_from_zero_keep_their_digits():
    logits = np.array([[-200.0, 300.0]], np.float32)
    expected = -np.exp(-20.0) - np.exp(-30.0)
    np.testing.assert_allclose(ns.GEN().score_samples(logits), [expected], rtol=1e-5)


def test_a_masked_label_counts_nothing():
    logits = np.array([[1.0, -2.0, -np.inf], [-np.inf] * 3])
    scores = ns.GEN().score_samples(logits)
    np.testing.assert_allclose(scores, [*ns.GEN().score_samples(logits[:1, :2]), 0.0])


@pytest.mark.parametrize("settings", [{"gamma": 0}, {"gamma": 1}, {"k": 0}])
def test_parameters_outside_of_what_is_allowed(settings, rng):
    with pytest.raises(ParameterError, match=next(iter(settings))):
        ns.GEN(**settings).score_samples(rng.normal(size=(4, 3)))
