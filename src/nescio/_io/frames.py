"""Data frames of pandas, polars and pyarrow, read through narwhals."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from nescio._io.columns import Columns, as_ids, counts_rows
from nescio._io.tables import is_null, require
from nescio._validation import Array, FloatArray, to_float, to_numpy
from nescio.errors import InputError, LabelMismatchError, label_difference

_FRAMES = (
    ("pandas", "DataFrame"),
    ("polars", "DataFrame"),
    ("polars", "LazyFrame"),  # `FrameTable` says what to do with it
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
    """Read a data frame where nothing can be said about its columns, except the labels to look for.

    Returns the arguments of `Outputs`.
    """
    try:
        return Columns(expected=expected).read(FrameTable(frame))
    except InputError as error:
        raise type(error)(
            f"{error} Pass such options to Outputs.from_frame(frame, ...), and its result here."
        ) from error


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
    if index is None or index.nlevels > 1 or counts_rows(np.asarray(index)):
        return None
    return as_ids(np.asarray(index))


def read_features(frame: Any, expected: Sequence[str] | None = None) -> dict[str, Any]:
    """Read a data frame of features; they are the logits in the result, as of any table."""
    return Columns(expected=expected, of_features=True).read(FrameTable(frame))


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
    table = FrameTable(frame, truth=True)
    columns = set(table.names) - set(table.index)
    known = [name for name in names or () if name in columns]
    if names and known and len(known) < len(names):
        others = [name for name in table.names if name in columns]
        raise LabelMismatchError(f"labels: {label_difference(names, others, 'the logits')}")
    found = Columns(labels=known or "*").read(table)
    check_same_rows("labels", found.get("ids"), ids)
    return np.asarray(found["logits"])


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


class FrameTable:
    """A data frame.

    Attributes
    ----------
    names : tuple of str
        The names of the columns, and of the index of a pandas frame.
    index : tuple of str
        The name of the index, if there is one.
    lists : frozenset of str
        The columns that hold lists.
    partitions : frozenset of str
        The columns in the names of folders: none.
    own_index : pandas index or None
        The index itself, of any number of levels.

    Parameters
    ----------
    frame : data frame
    truth : bool
        Whether true and false count as 1 and 0.
    """

    def __init__(self, frame: Any, *, truth: bool = False) -> None:
        narwhals = require("narwhals", "frames")
        if hasattr(frame, "collect"):
            raise InputError("the data frame is lazy: pass frame.collect().")
        if getattr(getattr(frame, "columns", None), "nlevels", 1) > 1:
            raise InputError("the columns of the data frame have several levels; one is needed.")
        self.own_index = index_of(frame)
        if type(frame).__module__.startswith("pandas"):
            frame = _with_text_names(frame)
        try:
            self._frame = narwhals.from_native(frame, eager_only=True)
            names = tuple(self._frame.columns)
        except (TypeError, ValueError, narwhals.exceptions.NarwhalsError) as error:
            raise InputError(
                f"expected a data frame of pandas, polars or pyarrow with distinct column names, "
                f"got {type(frame).__name__}: {error}"
            ) from error
        if truth:
            booleans = require("narwhals.selectors", "frames").boolean()
            self._frame = self._frame.with_columns(booleans.cast(narwhals.Int8))
        self._index = narwhals.maybe_get_index(self._frame)
        self.index: tuple[str, ...] = ()
        if self._index is not None and self._index.nlevels == 1:
            name = self._index.name
            self.index = (_INDEX if name is None or str(name) in names else str(name),)
        self.names = (*names, *self.index)
        nested = (narwhals.List, narwhals.Array)
        self.lists = frozenset(name for name in names if _holds_lists(self._frame[name], nested))
        self.partitions: frozenset[str] = frozenset()

    def read(
        self, numbers: Collection[str], others: Collection[str]
    ) -> tuple[dict[str, Array], dict[str, str]]:
        """Return columns by name, each in its own type. The second result is always empty."""
        read = {name: self._column(name) for name in numbers}
        return read | {name: self._column(name, exact=True) for name in others}, {}

    def _column(self, name: str, *, exact: bool = False) -> Array:
        if name in self.index:
            return np.asarray(self._index.to_numpy())
        series = self._frame[name]
        if getattr(series.dtype, "time_zone", None) is not None:  # NumPy has no time zones
            times = [None if is_null(time) else str(time) for time in series.to_list()]
            return np.array(times, dtype=object)
        if exact and series.dtype.is_integer() and series.null_count():  # NumPy has no nulls
            return np.array(series.to_list(), dtype=object)
        return np.asarray(series.to_numpy())


def _with_text_names(frame: Any) -> Any:
    """Return a pandas frame whose column names are text."""
    return frame.set_axis([str(name) for name in frame.columns], axis=1)


def _holds_lists(series: Any, nested: tuple[type, ...]) -> bool:
    if series.dtype in nested:
        return True
    first = next(iter(series.drop_nulls().head(1).to_list()), None) if _is_object(series) else None
    return isinstance(first, list | tuple | np.ndarray)


def _is_object(series: Any) -> bool:
    return str(series.dtype) == "Object"
