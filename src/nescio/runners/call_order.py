"""The layers of a torch module in the order in which a pass calls them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

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
        gives = [at for at, found in self._outputs.items() if _same(found, logits)]
        return self._leaves[: max(gives, default=self._last_linear) + 1]


def _same(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.shape == other.shape and torch.equal(one, other))
