"""The layers of a torch module: the order of their calls, and where features are taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.modules import activation, dropout

from nescio.errors import ParameterError, ShapeError, nearest
from nescio.models.base import INPUT, PENULTIMATE, POOLED, flat_input, pooled

Leaves = Sequence[tuple[str, nn.Module]]
"""Layers without layers inside, by name and in an order."""


def registered_leaves(model: nn.Module) -> Leaves:
    """Return the leaves in the order of `named_modules()`; a pass may call them in another."""
    return [(path, part) for path, part in model.named_modules() if not any(part.children())]


class CallOrder:
    """Notes which layers a pass calls. A leaf is a layer that calls no other one.

    Use it as a context in which the model is called once.
    """

    def __init__(self, model: nn.Module) -> None:
        self._paths = {part: path for path, part in model.named_modules()}
        self._leaves: list[tuple[str, nn.Module]] = []
        self._last_linear = -1  # its place among the leaves
        # What linear layers gave and may be the logits, by their place. The others, such as the
        # tokens of a transformer, would fill the memory.
        self._outputs: dict[int, Tensor] = {}
        self._calls_others: list[bool] = []  # of each layer that is running

    def __enter__(self) -> Self:
        self._handles = [part.register_forward_pre_hook(self._before) for part in self._paths]
        self._handles += [part.register_forward_hook(self._after) for part in self._paths]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, part: nn.Module, inputs: Any) -> None:
        if self._calls_others:
            self._calls_others[-1] = True
        self._calls_others.append(False)

    def _after(self, part: nn.Module, inputs: Any, output: Any) -> None:
        if self._calls_others.pop():
            return
        if isinstance(part, nn.Linear) and isinstance(output, Tensor):
            self._last_linear = len(self._leaves)
            if output.ndim == 2:
                self._outputs[self._last_linear] = output
        self._leaves.append((self._paths[part], part))

    def leaves(self, logits: Tensor) -> Leaves:
        """Return the leaves until the linear layer that gives the logits.

        Without such a layer (a sigmoid may follow it), until the last linear layer.
        """
        gives = [
            place
            for place, output in self._outputs.items()
            if output is logits or torch.equal(output, logits)
        ]
        return self._leaves[: max(gives, default=self._last_linear) + 1]


_READ = ":input"
# What these take and return has shape (n_samples, channels, time). Of other layers, three
# dimensions may as well be one row per token.
_OVER_TIME = (
    nn.Conv1d,
    nn.ConvTranspose1d,
    nn.BatchNorm1d,
    nn.AvgPool1d,
    nn.MaxPool1d,
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveMaxPool1d,
)
_SHOWN_LAYERS = 5


class Tap(NamedTuple):
    """Where features are taken: the output of a layer, or its input."""

    layer: str  # empty for the model itself
    reads: bool
    sought: str = ""  # "pooled" or "penultimate" as long as no pass has shown that it is that

    @classmethod
    def parse(cls, name: str, model: nn.Module) -> Tap:
        """Return the tap for a layer, "layer:input", or one of the names that any model has.

        "input" is the model's input, "penultimate" the input of its last linear layer, "pooled"
        what `find_pooled` finds. Layers are in the order of `named_modules()`, so the tap is to be
        `confirmed` once the model has been called.
        """
        layers = dict(model.named_modules())
        if name in layers and name:
            return cls(name, reads=False)
        if name == INPUT:
            return cls("", reads=True)
        if name in (PENULTIMATE, POOLED):
            return _found(name, model, registered_leaves(model))._replace(sought=name)
        layer = name.removesuffix(_READ)
        if not layer or layer not in layers:
            raise ParameterError(f"the model has no layer {layer!r}.{nearest(layer, layers)}")
        return cls(layer, reads=True)

    def confirmed(self, model: nn.Module, called: Leaves) -> Tap:
        """Return the tap for what is sought, given the leaves that a pass called until the logits.

        A head may have been registered before what it is called after.
        """
        return _found(self.sought, model, called) if self.sought and called else self

    def __str__(self) -> str:
        return f"layer {self.layer!r}" if self.layer else "the model"


def _found(name: str, model: nn.Module, leaves: Leaves) -> Tap:
    linear = [path for path, part in leaves if isinstance(part, nn.Linear)]
    tap = Tap(linear[-1], reads=True) if linear else None
    if name == POOLED:
        tap = find_pooled(model, leaves)
    if tap is None:
        why = "before its last linear layers, nothing has weights" if linear else "none is linear"
        paths = [path for path, _ in leaves if path][-_SHOWN_LAYERS:]
        raise ParameterError(
            f"the model has no layer {name!r}: {why}. Choose 'penultimate', 'input' or the name of "
            f"a layer. Its last layers are {', '.join(paths)}."
        )
    return tap


def find_pooled(model: nn.Module, leaves: Leaves) -> Tap | None:
    """Return where a model has its representation, before its task head; None if not found.

    The task head is the last linear layer together with the linear layers right before it, with
    nothing but activations, dropout and batch norm between them. Its input is the representation,
    and the output of an adaptive average pooling if that comes right before it (so maps that are
    flattened for the head, as in VGG, are averaged instead). If nothing before the head has
    weights, the model is its own head, and there is no representation.
    """
    linear = [place for place, (_, part) in enumerate(leaves) if isinstance(part, nn.Linear)]
    if not linear:
        return None
    place = first = linear[-1]
    while place >= 0 and _within_head(leaves[place][1], leaves[first][1]):
        first = place if isinstance(leaves[place][1], nn.Linear) else first
        place -= 1
    if not _has_weights(model, leaves[: place + 1]):
        return None
    while place >= 0 and isinstance(leaves[place][1], nn.Flatten | nn.Dropout | nn.Identity):
        place -= 1
    if place >= 0 and isinstance(leaves[place][1], nn.AdaptiveAvgPool1d | nn.AdaptiveAvgPool2d):
        return Tap(leaves[place][0], reads=False)
    return Tap(leaves[first][0], reads=True)


def _has_weights(model: nn.Module, before: Leaves) -> bool:
    """Return whether layers before the head, or the model outside of its leaves, have weights."""
    if any(True for _, part in before for _ in part.parameters()):
        return True
    of_leaves = {weight for _, part in registered_leaves(model) for weight in part.parameters()}
    return any(weight not in of_leaves for weight in model.parameters())


def _within_head(part: nn.Module, after: Any) -> bool:
    """Return whether a layer belongs to a task head, of which `after` is the first linear layer."""
    if part is after:
        return True
    if type(part) is nn.Linear:  # its subclass in an attention layer is not called
        return bool(part.out_features == after.in_features)
    if isinstance(part, nn.BatchNorm1d):
        return bool(part.num_features == after.in_features)
    between = type(part).__module__ in (activation.__name__, dropout.__name__)
    return between or isinstance(part, nn.Identity)


class Recorder:
    """A forward hook that keeps the output or input of a layer. A class, so it can be copied."""

    def __init__(self, tap: Tap, model: nn.Module) -> None:
        self.tap = tap
        self.kept: list[Tensor] = []
        layer = model.get_submodule(tap.layer)
        self.over_time = isinstance(layer, _OVER_TIME)
        if tap.reads:
            self.handle = layer.register_forward_pre_hook(self.before, with_kwargs=True)
        else:
            self.handle = layer.register_forward_hook(self.after)

    def before(self, layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Keep the input of the layer."""
        self._keep(inputs[0] if inputs else next(iter(named.values()), None), "takes")

    def after(self, layer: nn.Module, inputs: Any, output: Any) -> None:
        """Keep the output of the layer."""
        self._keep(output, "returns")

    def _keep(self, value: Any, verb: str) -> None:
        if self.over_time and isinstance(value, Tensor) and value.ndim == 3:
            value = value[..., None]  # (n_samples, channels, time, 1)
        as_matrix = pooled if self.tap.layer else flat_input
        features = as_matrix(value, f"{self.tap} {verb}")
        # A copy, because a later layer may work in place.
        same = features is value or not self.tap.layer  # flattened inputs share their memory
        self.kept.append(features.clone() if same else features)

    def features(self, n_samples: int) -> Tensor:
        """Return the features of the last pass; of the last call, if the layer ran repeatedly."""
        if not self.kept:
            raise ParameterError(
                f"{self.tap} was not called in the forward pass. Name a layer that is."
            )
        features = self.kept[-1]
        self.kept.clear()
        if features.shape[0] != n_samples:
            raise ShapeError(
                f"{self.tap} has features of {features.shape[0]} rows, but there are logits of "
                f"{n_samples}. Name a layer with one row per sample."
            )
        return features
