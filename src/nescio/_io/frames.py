"""Data frames of pandas, polars and pyarrow, read by the same rules as tables in files."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from nescio._io.files import as_ids
from nescio._io.tables import Columns, arrow_errors, check_unique_names, content, stored_index
from nescio._validation import Array, index_of, is_frame
from nescio.errors import InputError, LabelMismatchError, label_difference, require

_COMMAND_LINE = re.compile(r" \(--[^)]*\)")  # the spelling of an option there
_INDEX = "__index_level_0__"  # as in a Parquet file of pandas


def read_frame(frame: Any, columns: Columns) -> dict[str, Any]:
    """Read a data frame; return the arguments of `Outputs`."""
    table = _arrow_table(frame)
    try:
        roles = columns.roles(table.schema)
    except InputError as error:
        raise type(error)(_COMMAND_LINE.sub("", str(error))) from error
    arguments = content(roles, table)
    if roles.ids == next(iter(stored_index(table.schema)), None):  # no ids but the index
        arguments["index"] = index_of(frame)
    return arguments


def read_logits(frame: Any, expected: Sequence[str] | None = None) -> dict[str, Any]:
    """Read a data frame without options, except the names of the labels to look for."""
    try:
        return read_frame(frame, Columns(expected=expected))
    except InputError as error:
        if "=" not in str(error):  # it names no option
            raise
        raise type(error)(
            f"{error} Pass such options to Outputs.from_frame(frame, ...), and its result here."
        ) from error


def read_features(frame: Any, expected: Sequence[str] | None = None) -> dict[str, Any]:
    """Read a data frame of features; they are the logits in the result, as of any table."""
    return read_frame(frame, Columns(expected=expected, of_features=True))


def read_truth(
    frame: Any, names: Sequence[str] | None = None, ids: Sequence[str] | None = None
) -> Array:
    """Read the multi-hot truth from a data frame.

    Its columns are matched by name with the labels, unless none of them has the name of a label.
    It is an error if the frame has other ids than the samples.
    """
    table = _arrow_table(frame)
    columns = [name for name in table.column_names if name not in stored_index(table.schema)]
    shared = [name for name in names or () if name in columns]
    if names and shared and len(shared) < len(names):
        raise LabelMismatchError(f"labels: {label_difference(names, columns, 'the logits')}")
    arguments = read_frame(table, Columns(labels=shared or "*"))
    check_same_rows("labels", arguments.get("ids"), ids)
    return np.asarray(arguments["logits"])


def check_same_rows(name: str, theirs: Sequence[str] | None, ours: Sequence[str] | None) -> None:
    """Raise if the ids of a data frame show that it has other rows than the logits.

    Ids that have nothing in common with the others are of another kind, and show nothing.
    """
    if theirs is None or ours is None or len(theirs) != len(ours):
        return
    row = next((row for row, (a, b) in enumerate(zip(theirs, ours, strict=True)) if a != b), None)
    if row is None or set(theirs).isdisjoint(ours):
        return
    raise InputError(
        f"row {row} of {name} has the id {theirs[row]!r}, but row {row} of the logits has "
        f"{ours[row]!r}. Both must have the same rows in the same order: sort the data frame "
        f"(in pandas with .loc). If only the ids differ, pass {name} as an array."
    )


def index_ids(index: Any) -> list[str] | None:
    """Return the index of a pandas frame or column as ids, if it holds any."""
    return as_ids(np.asarray(index)) if _holds_ids(index) else None


def _holds_ids(index: Any) -> bool:
    """Return whether an index has one level, and does not only count the rows."""
    default = sys.modules["pandas"].RangeIndex(len(index))
    return bool(index.nlevels == 1 and not index.equals(default))


def _arrow_table(frame: Any) -> Any:
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
        with arrow_errors("the data frame", "a table"):
            table.validate(full=True)
    elif frame.columns.nlevels > 1:
        raise InputError("the columns of the data frame have several levels; one is needed.")
    else:
        names = [str(name) for name in frame.columns]
        columns = [_arrow_column(frame.iloc[:, number]) for number in range(len(names))]
        stored: list[str] = []
        if _holds_ids(index):
            plain = index.name is None or str(index.name) in names
            stored = [_INDEX if plain else str(index.name)]
            columns.append(_arrow_column(index.to_series()))
        metadata = {"pandas": json.dumps({"index_columns": stored})}
        table = pyarrow.Table.from_arrays(columns, names=[*names, *stored], metadata=metadata)
    check_unique_names(table.schema)
    return table


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
