"""Results as tables: data frames, plain Python values, and Parquet, CSV and JSON lines files."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from nescio._io.files import check_target, replacing
from nescio.errors import InputError, ParameterError, require

WRITABLE = (".parquet", ".csv", ".jsonl")

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)  # a Path has one slash of two
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a formula begins in a spreadsheet


class Tabular:
    """A result that is a table: a subclass writes `columns`, and the rest follows."""

    index_column: ClassVar[str | None] = None
    """The column that names the rows, which becomes the index of a pandas frame."""

    def columns(self) -> dict[str, Any]:
        """Return the table: columns of equal length, arrays or lists, by name."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the columns of the table by name, as lists of plain Python values."""
        return {
            name: column if isinstance(column, list) else to_values(column)
            for name, column in self.columns().items()
        }

    def to_pandas(self) -> Any:
        """Return the table as a pandas frame; the names of the rows, if any, are its index.

        If the rows came from a pandas frame or column, it is their index, so that
        `frame.join(result.to_pandas())` puts each row where it belongs.
        """
        columns, own = self.columns(), getattr(self, "index", None)
        # Without ids, a column of this name is something else, such as a label.
        is_named = self.index_column in columns and getattr(self, "ids", ()) is not None
        frame = require("pandas", None).DataFrame(columns)
        if is_named:
            frame = frame.set_index(self.index_column)
        return frame if own is None else frame.set_axis(own)

    def to_polars(self) -> Any:
        """Return the table as a polars frame."""
        polars = require("polars", None)
        return polars.DataFrame({name: _plain(column) for name, column in self.columns().items()})


def _plain(column: Any) -> Any:
    """Return a column as polars takes it: objects and tuples as lists."""
    if isinstance(column, list):
        return [list(one) if isinstance(one, tuple) else one for one in column]
    array = np.asarray(column)
    return array.tolist() if array.dtype.kind == "O" else array


def by_name(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the columns of records that all have the same names."""
    return {name: [record[name] for record in records] for name in records[0]} if records else {}


def label_columns(names: Sequence[str] | None, values: Any) -> dict[str, Any]:
    """Return the columns of an array of shape (n_samples, n_labels), by the names of the labels."""
    found = names or [f"label {at}" for at in range(values.shape[1])]
    return dict(zip(found, values.T, strict=True))


def joined(*groups: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of several groups; raise if two have the same name."""
    columns: dict[str, Any] = {}
    for group in groups:
        both = next((name for name in group if name in columns), None)
        if both is not None:
            raise InputError(
                f"the table would have two columns named {both!r}. Rename the label or the kept "
                "column of this name."
            )
        columns |= group
    return columns


# --- files -----------------------------------------------------------------------------------


def check_table_target(path: str | Path, *, force: bool) -> Path:
    """Return the path of a table to write; raise if it cannot be written.

    Call this before a long computation, so that it does not fail at the end.
    """
    if _ADDRESS.match(str(path)):
        raise ParameterError(
            f"cannot write {path}: the output must be a local file. Copy it when it is complete."
        )
    suffix = Path(path).suffix.lower()
    if suffix not in WRITABLE:
        raise ParameterError(f"cannot write {path}: the name must end in .parquet, .csv or .jsonl.")
    if suffix == ".parquet":
        require("pyarrow", "files")
    return check_target(path, force=force)


def write_table(path: str | Path, columns: Mapping[str, Any], *, force: bool = False) -> None:
    """Write columns of equal length as .parquet, .csv or .jsonl, depending on the file's suffix."""
    with TableWriter(path, force=force) as writer:
        writer.write(columns)


class TableWriter:
    """Writes a table in blocks of rows, atomically: the file is there once all are written.

    Columns are arrays of NumPy or of pyarrow. All blocks must have the same columns and types.
    """

    def __init__(self, path: str | Path, *, force: bool = False) -> None:
        check_table_target(path, force=force)
        self._suffix = Path(path).suffix.lower()
        self._replacing = replacing(path, force=force)
        self._parquet: Any = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._temporary = self._open.enter_context(self._replacing)
        if self._suffix != ".parquet":
            stream = self._temporary.open("w", newline="", encoding="utf-8")
            self._stream = self._open.enter_context(stream)
            self._csv = csv.writer(self._stream)
        self._n_blocks = 0
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    def write(self, columns: Mapping[str, Any]) -> None:
        """Append rows."""
        if self._suffix == ".parquet":
            table = require("pyarrow", "files").table(dict(columns))
            if not self._n_blocks:
                self._parquet = self._open.enter_context(
                    require("pyarrow.parquet", "files").ParquetWriter(
                        self._temporary, table.schema, use_dictionary=_repeated(table.schema)
                    )
                )
            self._parquet.write_table(table)
        else:
            rows = zip(*map(to_values, columns.values()), strict=True)
            if self._suffix == ".csv":
                if not self._n_blocks:
                    self._csv.writerow(map(no_formula, columns))
                self._csv.writerows(map(_cell, row) for row in rows)
            else:
                for row in rows:
                    self._stream.write(to_json(dict(zip(columns, row, strict=True))) + "\n")
        self._n_blocks += 1


def _repeated(schema: Any) -> list[str]:
    """Return the columns to write with a dictionary: p-values, and all but numbers like scores.

    A dictionary of numbers that hardly repeat takes more time and room than the numbers.
    """
    is_floating = require("pyarrow.types", "files").is_floating
    return [f.name for f in schema if f.name == "p_value" or not is_floating(f.type)]


def _cell(value: Any) -> Any:
    """Return a cell of a CSV file; lists become JSON."""
    return to_json(value) if isinstance(value, list | dict) else no_formula(value)


def no_formula(cell: Any) -> Any:
    """Return a cell of a CSV file; text that a spreadsheet would run as a formula gets a quote.

    Examples
    --------
    >>> no_formula("=1+1"), no_formula("-1.5"), no_formula("a=b")
    ("'=1+1", '-1.5', 'a=b')
    """
    if not isinstance(cell, str) or not cell.startswith(_FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def without_quote(cell: str) -> str:
    """Return the text that `no_formula` was given."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(_FORMULA) else cell


def to_values(column: Any) -> list[Any]:
    """Return a column as values that CSV and JSON can hold; times become text."""
    if hasattr(column, "to_pylist"):  # of pyarrow
        from nescio._io.arrow import to_array

        column = to_array(column)
    array = np.asarray(column)
    if array.dtype.kind in "mM":
        return [None if np.isnat(value) else str(value) for value in array]
    return list(array.tolist())


def is_null(value: Any) -> bool:
    """Return whether a value is missing: None, NaN, or what pandas has for it."""
    # NaN and pandas.NaT differ from themselves; pandas.NA has no truth value.
    return (
        value is None
        or type(value).__name__ in ("NAType", "NaTType")
        or (isinstance(value, float) and value != value)
    )


def to_json(value: Any) -> str:
    """Return strict JSON; infinity and NaN, which JSON does not support, become null."""
    return json.dumps(_finite(value), ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
