"""Data frames of pandas, polars and pyarrow, read through narwhals."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from nescio._io.columns import Columns
from nescio._io.tables import is_null, require
from nescio._validation import Array, FloatArray, to_float, to_numpy
from nescio.errors import InputError

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


def float_values(value: Any, expected: Sequence[str] | None = None) -> FloatArray:
    """Return the numbers of an array-like, or the labels of a data frame, as floating point.

    Parameters
    ----------
    value : array-like or data frame
    expected : sequence of str, optional
        The label names to look for in a data frame.
    """
    if type(value) is not np.ndarray and is_frame(value):  # an array is the usual case
        value = read_frame(value, expected)["logits"]
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
    """

    def __init__(self, frame: Any) -> None:
        narwhals = require("narwhals", "frames")
        if hasattr(frame, "collect"):
            raise InputError("the data frame is lazy: pass frame.collect().")
        if getattr(getattr(frame, "columns", None), "nlevels", 1) > 1:
            raise InputError("the columns of the data frame have several levels; one is needed.")
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
        self._index = narwhals.maybe_get_index(self._frame)
        self.index: tuple[str, ...] = ()
        if self._index is not None and self._index.nlevels == 1:
            name = self._index.name
            self.index = (_INDEX if name is None or str(name) in names else str(name),)
        self.names = (*names, *self.index)
        nested = (narwhals.List, narwhals.Array)
        self.lists = frozenset(name for name in names if _holds_lists(self._frame[name], nested))

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
