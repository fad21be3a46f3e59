"""Reading of Parquet files as columns; writing of Parquet, CSV and JSON lines."""

from __future__ import annotations

import csv
import importlib
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from nescio._io.files import check_target, existing_file, replacing
from nescio._validation import Array
from nescio.errors import (
    FileFormatError,
    InputError,
    MissingDependencyError,
    NescioError,
    ParameterError,
    about,
)

WRITABLE = (".parquet", ".csv", ".jsonl")

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a formula begins in a spreadsheet


class ParquetTable:
    """A Parquet file.

    Attributes
    ----------
    names : tuple of str
        The names of the columns.
    index : tuple of str
        The columns in which pandas stored an index.
    lists : frozenset of str
        The columns that hold lists.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = existing_file(path)
        parquet = require("pyarrow.parquet", "parquet")
        with _parquet_errors(self.path):
            self._table = parquet.read_table(self.path)
            self._table.validate(full=True)  # text that is not UTF-8, and offsets outside the data
            self.names = tuple(self._table.column_names)
            schema = self._table.schema
            self.index = tuple(name for name in self.names if name in _stored_index(schema))
            self.lists = frozenset(field.name for field in schema if _is_list(field.type))
        if len(set(self.names)) != len(self.names):
            raise FileFormatError(f"{path} has two columns of the same name. Names must be unique.")

    def read(
        self, numbers: Collection[str], others: Collection[str]
    ) -> tuple[dict[str, Array], dict[str, str]]:
        """Return columns by name, each in its own type; a column of lists becomes a matrix.

        Nulls among numbers are NaN; among the other columns, whole numbers with nulls are Python
        objects. The second result is empty; it is for files without types.
        """
        with _parquet_errors(self.path):
            read = {name: _arrow_to_numpy(name, self._table.column(name)) for name in numbers}
            return read | {name: _exact(name, self._table.column(name)) for name in others}, {}


@contextmanager
def _parquet_errors(path: Path) -> Iterator[None]:
    """Say that a file is damaged where pyarrow raises its own errors, or text is not UTF-8."""
    pyarrow = require("pyarrow", "parquet")
    try:
        yield
    except NescioError:
        raise
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).partition("\n")[0]
        raise FileFormatError(f"cannot read {path} as Parquet: {reason}") from error


def read_parquet(path: str | Path) -> dict[str, Array]:
    """Return the columns of a Parquet file by name; a column of lists becomes a matrix."""
    table = ParquetTable(path)
    with about(path):
        return table.read(table.names, ())[0]


def _stored_index(schema: Any) -> set[str]:
    """Return the names under which pandas stores an index, with or without its metadata."""
    found = {name for name in schema.names if re.fullmatch(r"__index_level_\d+__", name)}
    try:
        stored = (schema.pandas_metadata or {}).get("index_columns", [])
    except (ValueError, AttributeError):  # not the metadata that pandas writes
        return found
    return found | {name for name in stored if isinstance(name, str)}


def _is_list(kind: Any) -> bool:
    types = require("pyarrow.types", "parquet")
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _exact(name: str, column: Any) -> Array:
    """Return a column without rounding its whole numbers if there are nulls."""
    if column.null_count and require("pyarrow.types", "parquet").is_integer(column.type):
        return np.array(column.to_pylist(), dtype=object)
    return _arrow_to_numpy(name, column)


def _arrow_to_numpy(name: str, column: Any) -> Array:
    pyarrow, types = require("pyarrow", "parquet"), require("pyarrow.types", "parquet")
    column = column.combine_chunks()
    kind = column.type
    if _is_list(kind):
        return _matrix(name, column)
    if types.is_decimal(kind):
        column = column.cast(pyarrow.float64())
    elif types.is_timestamp(kind) and kind.tz is not None:  # NumPy has no time zones
        column = column.cast(pyarrow.string())
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _matrix(name: str, column: Any) -> Array:
    """Return lists of equal length as rows; a null is a row of NaN."""
    lengths = require("pyarrow.compute", "parquet").list_value_length(column).unique().to_pylist()
    known = [length for length in lengths if length is not None]
    check_lengths(name, known)
    values = np.asarray(column.flatten().to_numpy(zero_copy_only=False))
    width = known[0] if known else 0
    if not column.null_count:
        return values.reshape(len(column), width)
    matrix = np.full((len(column), width), np.nan)
    matrix[column.is_valid().to_numpy(zero_copy_only=False)] = values.reshape(-1, width)
    return matrix


def check_lengths(name: str, lengths: Collection[int]) -> None:
    """Raise unless all lists of a column have the same length."""
    if len(lengths) > 1:
        raise InputError(
            f"the lists of column {name!r} must have the same length, got lengths from "
            f"{min(lengths)} to {max(lengths)}."
        )


def check_table_target(path: str | Path, *, force: bool) -> Path:
    """Return the path of a table to write; raise if it cannot be written.

    Call this before a long computation, so that it does not fail at the end.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in WRITABLE:
        raise ParameterError(f"cannot write {path}: the name must end in .parquet, .csv or .jsonl.")
    if suffix == ".parquet":
        require("pyarrow", "parquet")
    return check_target(path, force=force)


def write_table(path: str | Path, columns: Mapping[str, Any], *, force: bool = False) -> None:
    """Write columns of equal length as .parquet, .csv or .jsonl, depending on the file's suffix."""
    check_table_target(path, force=force)
    suffix = Path(path).suffix.lower()
    with replacing(path, force=force) as temporary:
        if suffix == ".parquet":
            pyarrow = require("pyarrow", "parquet")
            require("pyarrow.parquet", "parquet").write_table(pyarrow.table(columns), temporary)
            return
        rows = zip(*map(to_values, columns.values()), strict=True)
        with temporary.open("w", newline="", encoding="utf-8") as stream:
            if suffix == ".csv":
                writer = csv.writer(stream)
                writer.writerow(map(no_formula, columns))
                writer.writerows(map(no_formula, row) for row in rows)
            else:
                for row in rows:
                    stream.write(to_json(dict(zip(columns, row, strict=True))) + "\n")


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


def require(module: str, extra: str) -> Any:
    """Import an optional module, or raise an error that names the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingDependencyError(
            f"this needs {package}, which is not installed. It belongs to the extra {extra!r}: run "
            f"pip install '.[{extra}]' in your copy of nescio's repository."
        ) from error
