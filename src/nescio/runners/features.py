"""Which of a model's activations are its features, the shape they get, and the layer after them."""

from __future__ import annotations

from typing import Any

import numpy as np

from nescio._validation import Array
from nescio.errors import ShapeError

POOLED, PENULTIMATE, INPUT = "pooled", "penultimate", "input"
"""Choices of features that are not the name of a layer or of an output."""

HEAD_TOLERANCE = 1e-4
"""How far features @ weight.T + bias may be from the logits, relative to the largest of them."""


def pooled(values: Any, what: str) -> Any:
    """Return features, an array or tensor, as a matrix; average maps over height and width.

    `what` starts the error message, such as "layer 'norm' returns".
    """
    n_dimensions = getattr(values, "ndim", 0)
    if n_dimensions == 4:
        return values.mean((2, 3))
    if n_dimensions == 2:
        return values
    found = f"shape {tuple(values.shape)}" if hasattr(values, "shape") else type(values).__name__
    raise ShapeError(
        f"{what} {found}; features must have shape (n_samples, n_features), or (n_samples, "
        "n_features, height, width). Name another layer, or the input of the last one, such as "
        "'classifier:input'."
    )


def is_head(weight: Array, bias: Array, features: Array, logits: Array) -> bool:
    """Return whether features @ weight.T + bias equals the logits, within `HEAD_TOLERANCE`."""
    if weight.shape != (logits.shape[1], features.shape[1]) or bias.shape != (len(weight),):
        return False
    expected = features.astype(np.float64) @ weight.T.astype(np.float64) + bias
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    return bool(np.abs(expected - logits).max(initial=0.0) <= HEAD_TOLERANCE * scale)
