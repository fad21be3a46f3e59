"""Outputs of several sets of samples as one: what they must have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nescio._validation import Array
from nescio.errors import InputError, LabelMismatchError, ShapeError

if TYPE_CHECKING:
    from nescio.outputs.outputs import Outputs


def join_columns(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Join kept columns of several sets of samples; raise if the sets have other columns."""
    if any(part.keys() != parts[0].keys() for part in parts):
        raise InputError("all parts to join must have kept the same columns.")
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def rows_of_index(index: Any, rows: Any) -> Any:
    """Return some rows of the index of a pandas frame; None if there is none."""
    if index is None:
        return None
    return index[rows if isinstance(rows, slice) else np.asarray(rows)]


def join_indexes(parts: Sequence[Any]) -> Any:
    """Join the indexes of several pandas frames; None if one has none, or they are of two kinds."""
    first, *others = parts
    if any(part is None or part.nlevels != parts[0].nlevels for part in parts):
        return None
    return first.append(others)


def check_same_arrays(parts: Sequence[Outputs]) -> None:
    """Raise unless all outputs have the same labels, arrays, columns and head."""
    if not parts:
        raise InputError("there are no outputs to join.")
    first = parts[0]
    for at, part in enumerate(parts):
        ours, theirs = first._rows(), part._rows()
        if ours.keys() != theirs.keys():
            raise InputError(
                f"outputs 0 have {', '.join(ours)}, outputs {at} have {', '.join(theirs)}: they "
                "must have the same arrays to be joined."
            )
        for name in ours:
            if ours[name].shape[1:] != theirs[name].shape[1:]:
                raise ShapeError(
                    f"{name} has {ours[name].shape[1]} columns in outputs 0 and "
                    f"{theirs[name].shape[1]} in outputs {at}."
                )
        if part.label_names != first.label_names:
            raise LabelMismatchError(f"outputs {at} have other label names than outputs 0.")
        same_head = first.head.same_as(part.head) if first.head else part.head is None
        if not same_head:
            raise InputError(f"outputs {at} have another head than outputs 0.")
