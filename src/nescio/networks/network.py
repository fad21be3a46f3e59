"""A network is a backbone that gives pooled features and a head that gives logits."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

HIDDEN_UNITS = 1000


class NetworkOutputs(NamedTuple):
    """What one forward pass gives."""

    logits: Tensor  # (n_images, n_labels)
    pooled: Tensor  # (n_images, n_features), what the head reads
    penultimate: Tensor  # (n_images, n_units), what the last layer reads


class TwoLayerHead(nn.Module):
    """The paper's classifier: n_features, 1,000 units with batch norm and ReLU, n_labels logits."""

    def __init__(self, n_features: int, n_labels: int, n_hidden: int = HIDDEN_UNITS) -> None:
        super().__init__()
        self.hidden = nn.Sequential(
            nn.Linear(n_features, n_hidden), nn.BatchNorm1d(n_hidden), nn.ReLU()
        )
        self.labels = nn.Linear(n_hidden, n_labels)

    def forward(self, pooled: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and the penultimate activations they come from."""
        penultimate = self.hidden(pooled)
        return self.labels(penultimate), penultimate


class Network(nn.Module):
    """Images of shape (n, 3, height, width) to logits and both kinds of features.

    Parameters
    ----------
    backbone : Module
        From images to pooled features of shape (n_images, n_features).
    head : Module
        From pooled features to (logits, penultimate activations).
    """

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, images: Tensor) -> NetworkOutputs:
        """One pass for all of them."""
        pooled = self.backbone(images)
        logits, penultimate = self.head(pooled)
        return NetworkOutputs(logits, pooled, penultimate)


def prepared(network: nn.Module, device: torch.device | str) -> nn.Module:
    """The network in eval mode on a device, laid out for convolutions, without gradients."""
    network = network.to(device).to(memory_format=torch.channels_last)
    return network.eval().requires_grad_(False)
