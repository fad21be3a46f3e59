"""Which of a model's activations are its features, the shape they get, and the layer after them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nescio._validation import Array
from nescio.errors import InputError, ParameterError, ShapeError

POOLED, PENULTIMATE, INPUT, AUTO = "pooled", "penultimate", "input", "auto"
"""Choices of features that are not the name of a layer or of an output."""

PREPARED = "prepared"
"""What a transformer makes of the input of a scikit-learn model."""

FEATURES = "features"
"""The name of the first layer among the arrays of a runner; the others have their own."""

Layers = str | Sequence[str]
"""One layer, or several: "pooled,penultimate" or ["pooled", "penultimate"]."""

HEAD_TOLERANCE = 1e-4
"""How far features @ weight.T + bias may be from the logits, relative to the largest of them."""


def layer_names(features: Layers | None) -> tuple[str, ...]:
    """Return the names of the layers that were chosen; the first are the features.

    >>> layer_names("pooled, penultimate"), layer_names(["fc:input"]), layer_names(None)
    (('pooled', 'penultimate'), ('fc:input',), ())
    """
    if features is None:
        return ()
    parts = features.split(",") if isinstance(features, str) else features
    try:
        names = [str.strip(part) for part in parts]
    except TypeError:
        names = [""]
    if not all(names) or not names:
        raise ParameterError(
            "features must be the name of a layer, or several: 'pooled,penultimate' or "
            f"['pooled', 'penultimate']; got {features!r}."
        )
    first, *others = names
    for name in others:
        if name in ("logits", FEATURES, "labels", "head"):
            raise ParameterError(
                f"{name!r} cannot be the name of a further array of the outputs. Name this layer "
                f"first: features='{name},...'."
            )
    # The first may be repeated: it is then also an array under its own name.
    return (first, *dict.fromkeys(others))


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


def flat_input(values: Any, what: str) -> Any:
    """Return the input of a model as a matrix: pooled if it is an image, else flattened."""
    kind = str(getattr(values, "dtype", type(values).__name__))
    if "float" not in kind:
        raise InputError(
            f"{what} {kind}, not numbers of floating point, which features={INPUT!r} needs. Name a "
            "layer instead."
        )
    if values.ndim in (0, 1, 2, 4):
        return pooled(values, what)
    return values.reshape(len(values), -1)


def is_head(weight: Array, bias: Array, features: Array, logits: Array) -> bool:
    """Return whether features @ weight.T + bias equals the logits, within `HEAD_TOLERANCE`."""
    if weight.shape != (logits.shape[1], features.shape[1]) or bias.shape != (len(weight),):
        return False
    expected = features.astype(np.float64) @ weight.T.astype(np.float64) + bias
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    return bool(np.abs(expected - logits).max(initial=0.0) <= HEAD_TOLERANCE * scale)
