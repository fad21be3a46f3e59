"""Spectral normalisation: layers whose weights have the spectral norm 1 (Miyato et al., 2018).

A layer's weight, as a matrix with one row per output, is divided by its largest singular value,
which one step of the power method per batch keeps track of. SNoJoE (Mei et al., 2024) trains
networks for joint energy with it: such a layer cannot stretch distances, so an input far from the
training data is less likely to be mapped onto it or to large logits.

Only training needs the parts of such a layer. A saved network has plain weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import spectral_norm

from nescio.errors import ParameterError

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_PARTS = "parametrizations.weight."  # what torch puts before the names of a weight's parts
_STEPS = 100  # of the power method: singular values that are close together need many


class SpectralNorm:
    """Normalises the convolutions and linear layers of a network that are trained.

    Parameters
    ----------
    network : Module
        It is changed.
    trained : Module
        The part of the network that is trained. Layers without gradients are left as they are.
    """

    def __init__(self, network: nn.Module, trained: nn.Module) -> None:
        self.network = network
        parts = set(trained.modules())
        self.layers = {
            path: layer
            for path, layer in network.named_modules()
            # A weight that the user's own module computes is no parameter, and stays as it is.
            if layer in parts
            and isinstance(layer, _LAYERS)
            and isinstance(layer.weight, nn.Parameter)
            and layer.weight.requires_grad
        }
        if not self.layers:
            raise ParameterError(
                "spectral_norm needs a convolution or a linear layer to train, but the network has "
                "none. Leave out spectral_norm."
            )
        for layer in self.layers.values():
            spectral_norm(layer)

    @contextmanager
    def weights(self) -> Iterator[None]:
        """Compute each weight once for the duration of the block, in its own precision."""
        with parametrize.cached():
            for layer in self.layers.values():
                _ = layer.weight
            yield

    def track(self) -> None:
        """Keep track of the singular values even if the network is in evaluation mode."""
        for layer in self.layers.values():
            layer.get_submodule("parametrizations").train()

    @torch.no_grad()
    def settle(self) -> None:
        """Compute the singular values more accurately, before the weights are used."""
        self.track()
        for layer in self.layers.values():
            for _ in range(_STEPS):
                _ = layer.weight  # each access is one step of the power method

    def plain_weights(self) -> dict[str, Tensor]:
        """Return the state dict of the same network without spectral normalisation."""
        parts = tuple(f"{path}.{_PARTS}" for path in self.layers)
        state = self.network.state_dict()
        plain = {name: tensor for name, tensor in state.items() if not name.startswith(parts)}
        return plain | {f"{path}.weight": _weight(layer) for path, layer in self.layers.items()}


@torch.no_grad()
def _weight(layer: nn.Module) -> Tensor:
    """Return the weight as in evaluation mode: training mode would change the singular vectors."""
    parts: nn.Module = layer.parametrizations  # type: ignore[assignment]
    training = parts.training
    parts.eval()
    weight: Tensor = layer.weight  # type: ignore[assignment]
    parts.train(training)
    return weight
