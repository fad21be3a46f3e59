"""A network is a backbone that gives pooled features and a head that gives logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nescio.errors import ShapeError

HIDDEN_UNITS = 1000


class TwoLayerHead(nn.Module):
    """The paper's classifier: n_features, 1,000 units with batch norm and ReLU, n_labels logits.

    Examples
    --------
    >>> TwoLayerHead(8, 3, n_hidden=16).eval()(torch.zeros(2, 8)).shape
    torch.Size([2, 3])
    """

    def __init__(self, n_features: int, n_labels: int, n_hidden: int = HIDDEN_UNITS) -> None:
        super().__init__()
        self.hidden = nn.Sequential(
            nn.Linear(n_features, n_hidden), nn.BatchNorm1d(n_hidden), nn.ReLU()
        )
        self.labels = nn.Linear(n_hidden, n_labels)

    def forward(self, pooled: Tensor) -> Tensor:
        """Return the logits of pooled features."""
        logits: Tensor = self.labels(self.hidden(pooled))
        return logits


class Network(nn.Module):
    """A module from images of shape (n, 3, height, width) to logits.

    Parameters
    ----------
    backbone : Module
        From images to pooled features of shape (n_images, n_features).
    head : Module
        From pooled features to logits; its last layer is called `labels`.
    """

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images."""
        logits: Tensor = self.head(self.backbone(images))
        return logits


def prepared(network: nn.Module, device: torch.device | str) -> nn.Module:
    """Put a network in eval mode on a device, without gradients, laid out for convolutions."""
    network = network.to(device).to(memory_format=torch.channels_last)
    return network.eval().requires_grad_(False)


def checked_logits(given: object, n_labels: int) -> Tensor:
    """Return what a network gave if these are logits for `n_labels` labels; otherwise raise."""
    if not isinstance(given, Tensor) or given.ndim != 2:
        what = f"shape {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
        raise ShapeError(
            f"the network must return logits of shape (n_images, n_labels), got {what}."
        )
    if given.shape[1] != n_labels:
        raise ShapeError(
            f"the network returns {given.shape[1]} logits per image, but there are {n_labels} "
            "labels. Change its last layer."
        )
    return given
