"""CSV and Parquet: columns in, columns out."""

from __future__ import annotations

import csv
import importlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nescio.arrays import Array
from nescio.errors import FileFormatError, MissingDependencyError, ParameterError
from nescio.files import check_target, existing_file, replacing

WRITABLE = (".parquet", ".csv", ".jsonl")


def read_csv(path: str | Path) -> dict[str, Array]:
    """The columns of a CSV file by name, numbered if it has no header.

    A column named id holds text; every other column must hold numbers.
    """
    path = existing_file(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            first = next(csv.reader(stream), [])
        if not first:
            raise FileFormatError(f"{path} is empty.")
        names = [name.strip() for name in first]
        numbered = [str(number) for number in range(len(first))]
        # pandas numbers unnamed columns from 0; a single 0 is more likely a logit.
        has_header = not all(map(_is_number, names)) or (names == numbered and len(names) > 1)
        names = names if has_header else numbered
        if "" in names:
            raise FileFormatError(
                f"column {names.index('')} of {path} has no name. If it is pandas's index, write "
                "the file with index=False, or name the column id."
            )
        if len(set(names)) != len(names):
            raise FileFormatError(f"{path} has two columns of the same name.")
        is_id = np.array([name.lower() == "id" for name in names])
        columns: dict[str, Array] = {}
        for wanted, dtype in ((is_id, np.str_), (~is_id, np.float64)):
            positions = np.flatnonzero(wanted)
            if positions.size:
                block = _load_columns(path, positions, dtype, skip=int(has_header))
                columns |= {names[at]: block[:, i] for i, at in enumerate(positions)}
    except (ValueError, csv.Error) as error:
        # UnicodeDecodeError is a ValueError, and so is a cell that is not a number.
        raise FileFormatError(
            f"cannot read {path} as CSV: {str(error).rstrip('.')}. Expected a column of logits for "
            "each label and, if you like, a column named id."
        ) from error
    return {name: columns[name] for name in names}


def _load_columns(path: Path, positions: Array, dtype: Any, *, skip: int) -> Array:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "input contained no data": checked later
        return np.loadtxt(
            path,
            dtype=dtype,
            delimiter=",",
            skiprows=skip,
            usecols=positions.tolist(),
            ndmin=2,
            quotechar='"',
            comments=None,
            encoding="utf-8-sig",
        ).reshape(-1, len(positions))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_parquet(path: str | Path) -> dict[str, Array]:
    """The columns of a Parquet file by name; a column of lists becomes a matrix."""
    path = existing_file(path)
    pyarrow = require("pyarrow", "parquet")
    parquet = require("pyarrow.parquet", "parquet")
    try:
        table = parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise FileFormatError(f"cannot read {path} as Parquet: {_first_line(error)}") from error
    return {
        name: _arrow_to_numpy(pyarrow, path, name, table.column(name))
        for name in table.column_names
    }


def _arrow_to_numpy(pyarrow: Any, path: Path, name: str, column: Any) -> Array:
    types = pyarrow.types
    if column.null_count:
        raise FileFormatError(f"column {name!r} of {path} has {column.null_count:,} empty cells.")
    column = column.combine_chunks()
    kind = column.type
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        lengths = set(pyarrow.compute.list_value_length(column).unique().to_pylist())
        if len(lengths) > 1:
            raise FileFormatError(
                f"the lists of column {name!r} of {path} differ in length: "
                f"{min(lengths)} to {max(lengths)}."
            )
        values = column.flatten().to_numpy(zero_copy_only=False)
        return np.asarray(values).reshape(len(column), lengths.pop() if lengths else 0)
    return np.asarray(column.to_numpy(zero_copy_only=False))


def check_table_target(path: str | Path, *, force: bool) -> Path:
    """The path of a table to write; raises before any work is done if it cannot be."""
    path = check_target(path, force=force)
    if path.suffix.lower() not in WRITABLE:
        raise ParameterError(f"cannot write {path}: the name must end in {', '.join(WRITABLE)}.")
    if path.suffix.lower() == ".parquet":
        require("pyarrow", "parquet")
    return path


def write_table(path: str | Path, columns: Mapping[str, Any], *, force: bool = False) -> None:
    """Write columns of equal length as .parquet, .csv or .jsonl, by the ending of the path."""
    path = check_table_target(path, force=force)
    with replacing(path, force=force) as temporary:
        if path.suffix.lower() == ".parquet":
            pyarrow = require("pyarrow", "parquet")
            require("pyarrow.parquet", "parquet").write_table(pyarrow.table(columns), temporary)
            return
        rows = zip(*(np.asarray(column).tolist() for column in columns.values()), strict=True)
        with temporary.open("w", newline="", encoding="utf-8") as stream:
            if path.suffix.lower() == ".csv":
                writer = csv.writer(stream)
                writer.writerow(columns)
                writer.writerows(rows)
            else:
                for row in rows:
                    stream.write(to_json(dict(zip(columns, row, strict=True))) + "\n")


def to_json(value: Any) -> str:
    """Strict JSON: an infinite number or NaN, which JSON does not have, becomes null."""
    return json.dumps(_finite(value), ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def require(module: str, extra: str) -> Any:
    """Import an optional module, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingDependencyError(
            f"this needs {package}, which is not installed: pip install 'nescio[{extra}]'"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
