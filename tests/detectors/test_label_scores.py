"""Detectors that are a score of the logits: the numbers of the definition, one sample at a time."""

import numpy as np
import pytest

import nescio as ns
from fixtures.rectified import relu_outputs
from nescio import scores
from nescio.checks import make_outputs
from nescio.detectors import DETECTORS
from nescio.errors import MissingInputError


def test_there_is_a_detector_for_every_score(rng):
    logits = rng.normal(-2, 3, (40, 9))
    for name, score in scores.SCORES.items():
        detector = DETECTORS[name]()
        expected = score(logits, detector.k) if "top_k" in name else score(logits)
        np.testing.assert_array_equal(detector.score_samples(logits), expected)


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


def test_a_masked_label_counts_nothing_for_gen():
    logits = np.array([[1.0, -2.0, -np.inf], [-np.inf] * 3])
    scores = ns.GEN().score_samples(logits)
    np.testing.assert_allclose(scores, [*ns.GEN().score_samples(logits[:1, :2]), 0.0])


@pytest.mark.parametrize("target", [0.0, 0.5, 1])
def test_the_gradient_is_that_of_torch(target):
    torch = pytest.importorskip("torch")
    outputs = relu_outputs(10)
    expected = []
    for row in outputs.features:
        weight = torch.tensor(outputs.head.weight, requires_grad=True)
        logits = weight @ torch.tensor(row) + torch.tensor(outputs.head.bias)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            logits, torch.full_like(logits, target), reduction="sum"
        )
        loss.backward()
        expected.append(weight.grad.abs().sum().item())
    np.testing.assert_allclose(ns.GradNorm(target).score_samples(outputs), expected, rtol=1e-9)


def test_a_masked_label_counts_nothing_for_gradnorm():
    outputs = relu_outputs(10)
    masked = outputs.logits.copy()
    masked[:, 2] = -np.inf
    arrays = {"penultimate": outputs.features}
    fewer = np.delete(outputs.logits, 2, axis=1)
    for target in (0.0, 0.5):
        masked_scores, expected = (
            ns.GradNorm(target).score_samples(ns.Outputs(logits, arrays=arrays))
            for logits in (masked, fewer)
        )
        np.testing.assert_allclose(masked_scores, expected)


@pytest.mark.parametrize("aggregate", ["max", "sum"])
def test_odin_is_the_probability_of_the_perturbed_logits(aggregate, rng):
    arrays = {name: rng.normal(size=(40, 3)) for name in ("odin_max", "odin_sum")}
    outputs = ns.Outputs(rng.normal(size=(40, 3)), arrays=arrays)
    probabilities = 1 / (1 + np.exp(-arrays[f"odin_{aggregate}"]))
    expected = getattr(probabilities, aggregate)(1)
    np.testing.assert_allclose(ns.ODIN(aggregate).score_samples(outputs), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("detector", "reads"),
    [(ns.ODIN(), "odin_max"), (ns.PerturbedMahalanobis("sum"), "mahalanobis_sum")],
)
def test_outputs_without_perturbed_arrays_are_refused(detector, reads):
    full = make_outputs(100)
    plain = ns.Outputs(full.logits, features=full.features, labels=full.labels)
    if detector.learned:
        detector.fit(plain)
    with pytest.raises(MissingInputError, match=f"reads {reads}, which these outputs do not have"):
        detector.calibrate(plain)
