"""A network of the user's own: its logits, and the output of a layer that it names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor, nn

from nescio.errors import ParameterError, ShapeError
from nescio.networks.network import NetworkOutputs


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint at names that look alike, for an error."""
    matches = difflib.get_close_matches(name, list(known), cutoff=0.4)
    return f" Nearest: {', '.join(matches)}." if matches else ""


class _Tap:
    """A layer whose output one forward pass waits for."""

    def __init__(self, layer: nn.Module, name: str) -> None:
        self.layer = layer
        self.name = name
        self.features: Tensor | None = None  # (n_images, n_features)


# Not on the network: a pass that runs in another thread, or within this one, has taps of its own,
# and a network that holds no tensors of a pass can be copied and pickled.
_OPEN_TAPS: ContextVar[tuple[_Tap, ...]] = ContextVar("open taps", default=())


@contextmanager
def _open(tap: _Tap) -> Iterator[None]:
    token = _OPEN_TAPS.set((*_OPEN_TAPS.get(), tap))
    try:
        yield
    finally:
        _OPEN_TAPS.reset(token)


def _fill_taps(layer: nn.Module, inputs: object, output: object) -> None:
    """Forward hook: give the output to the passes that wait for it."""
    for tap in _OPEN_TAPS.get():
        if tap.layer is layer:
            tap.features = _pooled(output, tap.name)


def _pooled(output: object, layer: str) -> Tensor:
    """A copy, (n_images, n_features), as a next layer may work in place."""
    if isinstance(output, Tensor) and output.ndim == 4:
        return output.mean((2, 3))
    if isinstance(output, Tensor) and output.ndim == 2:
        return output.clone()
    raise ShapeError(
        f"layer {layer!r} must give features of shape (n_images, n_features) or (n_images, "
        f"n_features, height, width), got {_described(output)}. Name another layer."
    )


def _described(output: object) -> str:
    if isinstance(output, Tensor):
        return f"shape {tuple(output.shape)}"
    return f"a {type(output).__name__}"


class TappedNetwork(nn.Module):
    """A module from images to logits, with the output of one of its layers as the features.

    Gives what a `Network` gives, `pooled` and `penultimate` being the same.

    Parameters
    ----------
    model : Module
        From images to logits of shape (n_images, n_labels).
    layer : str
        Dotted name of the layer, as `model.named_modules()` has it. Its output must have shape
        (n_images, n_features), or (n_images, n_features, height, width), which is averaged over
        height and width. If the layer runs more than once in a pass, the last output counts.
    n_labels : int, optional
        Number of logits that the model must give.

    Examples
    --------
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 2))
    >>> network = TappedNetwork(model, "2")
    >>> import torch
    >>> [tuple(output.shape) for output in network(torch.zeros(4, 3, 2, 2))]
    [(4, 2), (4, 5), (4, 5)]
    """

    def __init__(self, model: nn.Module, layer: str, *, n_labels: int | None = None) -> None:
        super().__init__()
        parts = dict(model.named_modules())
        if not layer or layer not in parts:
            raise ParameterError(f"the network has no layer {layer!r}.{nearest(layer, parts)}")
        self.model = model
        self.layer = layer
        self.n_labels = n_labels
        parts[layer].register_forward_hook(_fill_taps)

    def forward(self, images: Tensor) -> NetworkOutputs:
        """One pass for logits and features."""
        tap = _Tap(self.model.get_submodule(self.layer), self.layer)
        with _open(tap):
            logits = self.model(images)
        self._check_logits(logits)
        if tap.features is None:
            raise ParameterError(
                f"layer {self.layer!r} was not called in the forward pass. Name one that is."
            )
        if len(tap.features) != len(logits):
            raise ShapeError(
                f"layer {self.layer!r} gave features of {len(tap.features)} images, and there are "
                f"logits of {len(logits)}. Name a layer with one row per image."
            )
        return NetworkOutputs(logits, tap.features, tap.features)

    def _check_logits(self, logits: object) -> None:
        if not isinstance(logits, Tensor) or logits.ndim != 2:
            raise ShapeError(
                "the network must give logits of shape (n_images, n_labels), got "
                f"{_described(logits)}."
            )
        if self.n_labels is not None and logits.shape[1] != self.n_labels:
            raise ShapeError(
                f"the network gives {logits.shape[1]} logits per image, and there are "
                f"{self.n_labels} labels. Change its last layer."
            )
