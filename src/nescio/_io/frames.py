"""Data frames of pandas, polars and pyarrow, read as tables of pyarrow."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from nescio._io.arrow import ArrowTable, as_ids
from nescio._io.columns import Columns
from nescio._optional import require
from nescio._validation import Array, FloatArray, to_float, to_numpy
from nescio.errors import InputError, LabelMismatchError, label_difference

_FRAMES = (
    ("pandas", "DataFrame"),
    ("polars", "DataFrame"),
    ("polars", "LazyFrame"),  # `frame_table` says what to do with it
    ("pyarrow", "Table"),
)
_INDEX = "__index_level_0__"  # as in a Parquet file of pandas


def is_frame(value: object) -> bool:
    """Return whether `value` is a data frame, without importing a library of data frames."""
    return any(
        isinstance(value, getattr(sys.modules[module], name, ()))
        for module, name in _FRAMES
        if sys.modules.get(module) is not None
    )


def float_values(value: Any) -> FloatArray:
    """Return the numbers of an array-like, or the labels of a data frame, as floating point."""
    if type(value) is not np.ndarray and is_frame(value):  # an array is the usual case
        value = read_frame(value)["logits"]
    return to_float(to_numpy(value))


def read_frame(frame: Any, expected: Sequence[str] | None = None) -> dict[str, Any]:
    """Read a data frame without options, except the names of the labels to look for.

    Returns the arguments of `Outputs`.
    """
    try:
        return Columns(expected=expected).read(frame_table(frame))
    except InputError as error:
        raise type(error)(
            f"{error} Pass such options to Outputs.from_frame(frame, ...), and its result here."
        ) from error


def read_features(frame: Any, expected: Sequence[str] | None = None) -> dict[str, Any]:
    """Read a data frame of features; they are the logits in the result, as of any table."""
    return Columns(expected=expected, of_features=True).read(frame_table(frame))


def read_truth(
    frame: Any, names: Sequence[str] | None = None, ids: Sequence[str] | None = None
) -> Array:
    """Read the multi-hot truth from a data frame.

    Its columns are matched by name with the labels, unless none of them has the name of a label.

    Parameters
    ----------
    frame : data frame
    names : sequence of str, optional
        The names of the labels.
    ids : sequence of str, optional
        The ids of the samples. It is an error if the frame has other ids.
    """
    table = frame_table(frame)
    columns = [name for name in table.names if name not in table.index]
    shared = [name for name in names or () if name in columns]
    if names and shared and len(shared) < len(names):
        raise LabelMismatchError(f"labels: {label_difference(names, columns, 'the logits')}")
    content = Columns(labels=shared or "*").read(table)
    check_same_rows("labels", content.get("ids"), ids)
    return np.asarray(content["logits"])


def check_same_rows(
    name: str, theirs: Sequence[str] | None, ours: Sequence[str] | None, owner: str = "the logits"
) -> None:
    """Raise if the ids of a data frame show that it has other rows than the owner of `ours`.

    Ids that have nothing in common with the others are of another kind, and show nothing.
    """
    if theirs is None or ours is None or len(theirs) != len(ours):
        return
    row = next((row for row, (a, b) in enumerate(zip(theirs, ours, strict=True)) if a != b), None)
    if row is None or set(theirs).isdisjoint(ours):
        return
    raise InputError(
        f"row {row} of {name} has the id {theirs[row]!r}, but row {row} of {owner} has "
        f"{ours[row]!r}. Both must have the same rows in the same order: sort the data frame "
        f"(in pandas with .loc). If only the ids differ, pass {name} as an array."
    )


def index_of(value: object) -> Any:
    """Return the index of a pandas frame or column; None for others."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(value, (pandas.DataFrame, pandas.Series)):
        return None
    return value.index


def index_ids(value: object) -> list[str] | None:
    """Return the index of a pandas frame or column as ids; None for others.

    An index that only counts the rows, or has several levels, gives no ids.
    """
    index = index_of(value)
    return None if index is None or not _holds_ids(index) else as_ids(np.asarray(index))


def _holds_ids(index: Any) -> bool:
    """Return whether an index has one level, and is not the one that pandas makes by default."""
    default = sys.modules["pandas"].RangeIndex(len(index))
    return bool(index.nlevels == 1 and not index.equals(default))


def frame_table(frame: Any) -> ArrowTable:
    """Return a data frame as a table of pyarrow; the index of a pandas frame is a column."""
    pyarrow = require("pyarrow", "files")
    if hasattr(frame, "collect"):
        raise InputError("the data frame is lazy: pass frame.collect().")
    if not is_frame(frame):
        raise InputError(
            f"expected a data frame of pandas, polars or pyarrow, got {type(frame).__name__}."
        )
    index = index_of(frame)
    if index is None:
        table = frame if isinstance(frame, pyarrow.Table) else frame.to_arrow()
        return ArrowTable(table, "the data frame")
    if frame.columns.nlevels > 1:
        raise InputError("the columns of the data frame have several levels; one is needed.")
    names = [str(name) for name in frame.columns]
    columns = [_arrow_column(frame.iloc[:, at]) for at in range(len(names))]
    index_name: tuple[str, ...] = ()
    if _holds_ids(index):
        plain = index.name is None or str(index.name) in names
        index_name = (_INDEX if plain else str(index.name),)
        columns.append(_arrow_column(index.to_series()))
    table = pyarrow.Table.from_arrays(columns, names=[*names, *index_name])
    return ArrowTable(table, "the data frame", index=index_name, own_index=index)


def _arrow_column(series: Any) -> Any:
    """Return a column of pandas as pyarrow has it; objects that it does not know become text."""
    pyarrow = require("pyarrow", "files")
    try:
        column = pyarrow.array(series, from_pandas=True)
    except (pyarrow.ArrowException, TypeError):
        texts = [
            None if missing else str(value)
            for value, missing in zip(series, series.isna(), strict=True)
        ]
        return pyarrow.array(texts, pyarrow.string())
    if isinstance(column.type, pyarrow.BaseExtensionType):
        column = column.storage
    return column.combine_chunks() if hasattr(column, "chunks") else column
