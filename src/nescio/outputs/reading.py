"""Outputs of one model in several files: the labels of the first are looked for in the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nescio._io.addresses import find_files
from nescio._io.columns import Columns
from nescio._validation import largest_of_non_negative
from nescio.errors import InputError, about
from nescio.outputs import Outputs
from nescio.outputs.files import TABLES, load_outputs
from nescio.outputs.matching import match_labels
from nescio.outputs.streams import refuse_probabilities

ANY_COLUMNS = Columns()


def read_outputs(
    path: str | Path, *, from_probs: bool | None, columns: Columns = ANY_COLUMNS
) -> Outputs:
    """Read outputs; reject what looks like probabilities unless the user said which it is."""
    outputs = load_outputs(path, columns, from_probs=bool(from_probs))
    if not len(outputs):
        raise InputError(f"{path} has no rows.")
    if from_probs is None:
        largest = largest_of_non_negative(outputs.logits, at_least=1)
        if largest is not None:
            refuse_probabilities(path, largest, outputs.logits.size)
    return outputs


def read_others(
    path: str | Path, first: Outputs, *, from_probs: bool | None, columns: Columns
) -> Outputs:
    """Read further outputs of the same model, with the labels that the first file has."""
    known = columns_of_others(path, columns, first.label_names)
    outputs = read_outputs(path, from_probs=from_probs, columns=known)
    if find_files(path).suffix in TABLES:
        return outputs
    with about(path):
        return matched(outputs, first, columns)


def columns_of_others(path: str | Path, columns: Columns, names: Sequence[str] | None) -> Columns:
    """Return what is known about the columns of a further file of the same model."""
    return of_others(columns, names) if find_files(path).suffix in TABLES else ANY_COLUMNS


def of_others(
    columns: Columns, names: Sequence[str] | None, owner: str = "the first file"
) -> Columns:
    """Return what is known about the columns of a further table, if `owner` has these labels."""
    if names is not None:
        columns = Columns(columns.id_column, keep=columns.keep, expected=names, expected_by=owner)
    return replace(columns, id_required=False)


def matched(outputs: Outputs, first: Outputs, columns: Columns) -> Outputs:
    """Return outputs that are no table with the labels that the first file has."""
    names = first.label_names
    if names is None or outputs.label_names is None:
        return outputs
    if columns.labels is not None:
        return outputs.select_labels(names)
    if set(outputs.label_names) != set(names):  # of another model, which the caller reports
        return outputs
    return match_labels(outputs, names, tuple(first.arrays))
