"""The layers of a model: their names, which ones a detector reads, and the shape they get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nescio._validation import Array
from nescio.detectors import Detector
from nescio.errors import (
    InputError,
    LabelMismatchError,
    MissingInputError,
    ParameterError,
    ShapeError,
    label_difference,
)

if TYPE_CHECKING:
    from nescio.models.base import Runner

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
    names = [str(part or "").strip() for part in parts] if isinstance(parts, Sequence) else []
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


def _read_by(detector: Detector) -> set[str]:
    """Return the names of all arrays that a detector reads."""
    return {*detector.scores_from, *detector.learns_from, *detector.learns_from_held_out}


def with_layers(runner: Runner, detector: Detector) -> Runner:
    """Return a runner that also gives what the detector reads, if the model has the layers."""
    reads = _read_by(detector) - {"logits", "labels"}
    if not reads:
        return runner
    named = sorted(reads - {FEATURES, "head", *runner.array_names})
    missing = tuple(name for name in named if runner.has_layer(name))
    layers = runner.layers
    if FEATURES in reads and (not layers or runner.layers_are_default):
        layers = (*(_features_of(runner, detector) or layers[:1]), *layers[1:])
    elif not layers:
        layers = missing[:1] or (AUTO,)
    layers += missing
    return runner if layers == runner.layers else runner.changed(features=layers)


def _features_of(runner: Runner, detector: Detector) -> tuple[str, ...]:
    """Return the layer that the features are if the caller chose none; nothing if not known."""
    made_with: tuple[str, ...] = getattr(detector, "layers_", ())[:1]
    outputs: tuple[str, ...] = tuple(getattr(runner, "output_names", ()))
    if FEATURES in outputs:  # an ONNX file that names them
        return (FEATURES,)
    # "pooled" of a graph may be another layer than that of the module it was exported from.
    in_a_graph = bool(outputs) and made_with == (POOLED,)
    if made_with and not in_a_graph and runner.has_layer(made_with[0]):
        return made_with
    reads_head = "head" in detector.scores_from and PENULTIMATE not in detector.scores_from
    if reads_head and runner.has_layer(PENULTIMATE):  # it takes the features as the head's input
        return (PENULTIMATE,)
    unknown = hasattr(detector, "n_columns_")  # made with features, but not known which
    return () if unknown or runner.layers else (AUTO,)


def with_only_layer(runner: Runner, detector: Detector) -> Runner:
    """Return a runner whose features are the only layer that the detector scores, if it is one."""
    scored = [name for name in detector.scores_from if name in runner.array_names[1:]]
    if FEATURES in detector.scores_from or len(scored) != 1 or scored[0] == runner.features:
        return runner
    return runner.changed(features=scored * 2)  # under its own name too


def check_detector(runner: Runner, detector: Detector) -> None:
    """Raise if the model cannot give what the detector reads."""
    reads = _read_by(detector)
    if reads & {FEATURES, "head", PENULTIMATE} and not runner.layers:
        why = "the model has no layer that is known to be suitable. Choose one"
        outputs = ", ".join(getattr(runner, "output_names", ()))
        listed = f" The file has the outputs {outputs}." if outputs else ""
        if hasattr(detector, "n_columns_"):
            why = "of which layer is not known. Choose the one that it was made with"
        raise MissingInputError(
            f"{detector.name} reads {' and '.join(sorted(reads))}, and {why} (features=..., "
            f"--features).{listed}"
        )
    # The features may be the input of the head, under another name.
    known = {"logits", FEATURES, "head", "labels", PENULTIMATE, *runner.array_names}
    others = sorted(reads - known)
    if others:
        raise MissingInputError(
            f"{detector.name} reads {', '.join(others)}, which a wrapped model does not give. "
            "Use Outputs with this array; for perturbed inputs, see nescio extract --tuned."
        )
    ours, theirs = runner.label_names, getattr(detector, "label_names_", None)
    if ours is not None and theirs is not None and ours != theirs:
        raise LabelMismatchError(label_difference(theirs, ours).replace("the data", "the model"))
