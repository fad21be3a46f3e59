"""Input perturbation: a step that makes the network a little more certain of what it says.

ODIN and Mahalanobis score x - epsilon * sign(gradient of the loss at x), where the loss is the
binary cross-entropy of the network's own prediction: of its top label, taken as positive, for the
max; of every label against what is predicted for it (logit above 0 or not), for the sum. The sign
is divided by the input's standard deviation, so that epsilon counts on the scale of pixels from 0
to 1. (The paper prints a second minus before the gradient, reading its loss as a log-likelihood;
either way the step raises the confidence.)

The temperature divides the logits only when they are scored. So one backward pass serves every
temperature and epsilon, and one forward pass per epsilon every temperature.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from nescio._validation import checked_choice
from nescio.data.preprocessing import Preprocessing
from nescio.errors import ParameterError
from nescio.networks.network import NetworkOutputs

AGGREGATES = ("max", "sum")
TEMPERATURES = (1.0, 10.0, 100.0, 1000.0)
ODIN_EPSILONS = tuple(round(0.0002 * step, 4) for step in range(21))
MAHALANOBIS_EPSILONS = (0.0, 0.0005, 0.001, 0.0014, 0.002, 0.005)


class Perturbation(NamedTuple):
    """What one forward and the backward passes give for a batch."""

    outputs: NetworkOutputs  # of the inputs as they are
    directions: dict[str, Tensor]  # by aggregate; a step of epsilon is subtracted


def find_directions(
    network: nn.Module,
    inputs: Tensor,
    preprocessing: Preprocessing,
    aggregates: Sequence[str] = AGGREGATES,
) -> Perturbation:
    """Which way to change normalised inputs, for each aggregate.

    The network must be in eval mode, so that an image's direction depends on that image alone; its
    parameters get no gradient.
    """
    if network.training:
        raise ParameterError("put the network in eval mode first: network.eval().")
    with torch.enable_grad():
        inputs = inputs.detach().requires_grad_(True)
        outputs = network(inputs)
        losses = [_loss(outputs.logits, aggregate) for aggregate in aggregates]
        directions = {}
        std = preprocessing.per_colour(preprocessing.std, inputs)
        for at, (aggregate, loss) in enumerate(zip(aggregates, losses, strict=True)):
            more = at + 1 < len(losses)
            (gradient,) = torch.autograd.grad(loss, inputs, retain_graph=more)
            directions[aggregate] = gradient.sign_().div_(std)
    return Perturbation(NetworkOutputs(*(part.detach() for part in outputs)), directions)


def _loss(logits: Tensor, aggregate: str) -> Tensor:
    """A loss whose gradient has the sign of the binary cross-entropy's.

    The cross-entropy of a positive label falls with its logit and with nothing else, so minus the
    logit points the same way, also where the cross-entropy's own gradient has rounded to zero.
    """
    if checked_choice("aggregate", aggregate, AGGREGATES) == "max":
        return -logits.amax(1).sum()
    predicted = (logits > 0).to(logits.dtype)
    return functional.binary_cross_entropy_with_logits(logits, predicted, reduction="sum")


def step(
    network: nn.Module, inputs: Tensor, found: Perturbation, aggregate: str, epsilon: float
) -> NetworkOutputs:
    """The network's outputs after a step of epsilon; those at hand already if it is 0."""
    if epsilon == 0:
        return found.outputs
    with torch.inference_mode():
        outputs: NetworkOutputs = network(inputs - epsilon * found.directions[aggregate])
    return outputs
