"""Checks of what `choose` is given: outputs of one model for in-distribution data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from nescio._validation import Array, checked_choice
from nescio.data.corrupt import CORRUPTIONS
from nescio.detectors import JointEnergy
from nescio.errors import InputError, MissingInputError, NonFiniteError, ShapeError, about
from nescio.metrics.comparison import check_same_labels
from nescio.outputs import Outputs


class Inputs(NamedTuple):
    """The outputs that folds are made of, with the same arrays."""

    train: Outputs
    held_out: Outputs
    far: Mapping[str, Outputs]


def checked_inputs(
    train: Outputs, held_out: Outputs, far: Mapping[str, Outputs], *, refit: bool
) -> Inputs:
    """Return the outputs with what the folds need and nothing else; raise if they cannot be used.

    Layers that only some of them have are left out.
    """
    given = {"the training data": train, "the held-out data": held_out, **far}
    check_same_labels(held_out, given)
    for name, outputs in given.items():
        _check_arrays(name, outputs, labels=name not in far, refit=refit)
    _check_separate(train, held_out)
    for name, outputs in far.items():
        _check_corrupted(name, outputs, held_out)
    layers = [name for name in train.layers if all(name in o.layers for o in given.values())]
    for name in layers:
        _check_columns(name, [outputs.arrays[name] for outputs in given.values()])
    if refit:
        _check_columns("features", [outputs.features for outputs in given.values()])
    plain = [
        replace(
            outputs,
            ids=None,
            kept={},
            manifest={"layers": layers},
            arrays={name: outputs.arrays[name] for name in layers},
        )
        for outputs in given.values()
    ]
    return Inputs(plain[0], plain[1], dict(zip(far, plain[2:], strict=True)))


def _check_arrays(name: str, outputs: Outputs, *, labels: bool, refit: bool) -> None:
    """Raise if labels or features are missing or not finite."""
    if labels and outputs.labels is None:
        raise MissingInputError(
            f"{name} has no labels, and these say which samples carry only left-out labels. Add "
            "the multi-hot truth: Outputs(..., labels=...)."
        )
    with about(name):
        JointEnergy().score_samples(outputs)  # raises for NaN, and warns of probabilities
    if not refit:
        return
    if outputs.features is None:
        raise MissingInputError(
            f"{name} has no features to refit the head on. Add them, or pass refit='none'."
        )
    if not np.isfinite(outputs.features).all():
        raise NonFiniteError(f"{name}: the features hold NaN or infinity. Leave these rows out.")


def _check_separate(train: Outputs, held_out: Outputs) -> None:
    """Raise if most of the held-out samples are training samples."""
    a, b = train.features, held_out.features
    if a is None or b is None:
        a, b = train.logits, held_out.logits
    known = {hash(row.tobytes()) for row in a.astype(np.float32)}
    shared = sum(hash(row.tobytes()) in known for row in b.astype(np.float32))
    if 2 * shared > len(b):
        raise InputError(
            f"{shared:,} of {len(b):,} held-out samples are also in the training data. Pass "
            "in-distribution data that the model was not trained on as held-out data."
        )


def _check_corrupted(name: str, outputs: Outputs, held_out: Outputs) -> None:
    """Raise unless these can be the held-out samples, corrupted."""
    checked_choice("the name of a far set", name, tuple(CORRUPTIONS))
    same_ids = (
        outputs.ids is None
        or held_out.ids is None
        or list(map(str, outputs.ids)) == list(map(str, held_out.ids))
    )
    if len(outputs) != len(held_out) or not same_ids:
        raise ShapeError(
            f"{name} must be made from the held-out samples, one row for each, in the same order: "
            f"there are {len(held_out):,} held-out samples, and {name} has {len(outputs):,}"
            + ("." if same_ids else " with other ids.")
        )


def _check_columns(name: str, arrays: list[Array | None]) -> None:
    widths = {array.shape[1] for array in arrays if array is not None}
    if len(widths) > 1:
        raise ShapeError(
            f"all outputs must come from the same model, but {name} have "
            f"{' and '.join(map(str, sorted(widths)))} columns."
        )
