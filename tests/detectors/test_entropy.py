"""Entropy: the numbers of the definition."""

import numpy as np

import nescio as ns


def test_the_sum_of_the_entropies_of_the_labels(rng):
    logits = rng.normal(-2, 3, (40, 9))
    p = 1 / (1 + np.exp(-logits))
    expected = (p * np.log(p) + (1 - p) * np.log(1 - p)).sum(1)
    np.testing.assert_allclose(ns.Entropy().score_samples(logits), expected, rtol=1e-9)


def test_logits_far_from_zero_keep_their_digits():
    scores = ns.Entropy().score_samples(np.array([[-50.0, 60.0], [-1e4, 1e4]]))
    np.testing.assert_allclose(scores, [-51 * np.exp(-50.0) - 61 * np.exp(-60.0), 0.0], rtol=1e-12)


def test_a_masked_label_counts_nothing():
    logits = np.array([[1.0, -2.0, -np.inf], [-np.inf] * 3])
    scores = ns.Entropy().score_samples(logits)
    np.testing.assert_allclose(scores, [*ns.Entropy().score_samples(logits[:1, :2]), 0.0])
