"""GradNorm: the closed form is the norm of the gradient that torch computes."""

import numpy as np
import pytest

import nescio as ns
from fixtures.rectified import relu_outputs
from nescio.errors import ParameterError


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


def test_a_masked_label_counts_nothing():
    outputs = relu_outputs(10)
    masked = outputs.logits.copy()
    masked[:, 2] = -np.inf
    arrays = {"penultimate": outputs.features}
    for target in (0.0, 0.5):
        found = ns.GradNorm(target).score_samples(ns.Outputs(masked, arrays=arrays))
        fewer = ns.Outputs(np.delete(outputs.logits, 2, axis=1), arrays=arrays)
        np.testing.assert_allclose(found, ns.GradNorm(target).score_samples(fewer))


@pytest.mark.parametrize("target", [-0.1, 1.1, "zero", np.nan])
def test_targets_that_are_no_probabilities(target):
    with pytest.raises(ParameterError, match="target must be a number of at least 0 and at most 1"):
        ns.GradNorm(target).score_samples(relu_outputs(3))
