"""Reading of CSV and Parquet files as columns; writing of Parquet, CSV and JSON lines."""

from __future__ import annotations

import csv
import importlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nescio._io.files import check_target, existing_file, replacing
from nescio._validation import Array
from nescio.errors import FileFormatError, MissingDependencyError, ParameterError

WRITABLE = (".parquet", ".csv", ".jsonl")
_CSV_ROWS_AT_ONCE = 10_000

_Row = tuple[int, list[str]]  # line number, cells


def read_csv(path: str | Path) -> dict[str, Array]:
    """Return the columns of a CSV file by name, or by number if the file has no header.

    A column named id contains text. All other columns must contain numbers.
    """
    path = existing_file(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream)
            names, rows = _split_header(path, ((reader.line_num, row) for row in reader if row))
            at_id = next((at for at, name in enumerate(names) if name.lower() == "id"), None)
            ids: list[str] = []
            blocks = [np.empty((0, len(names) - (at_id is not None)))]
            while block := list(itertools.islice(rows, _CSV_ROWS_AT_ONCE)):
                blocks.append(_parse_rows(path, names, at_id, block, ids))
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is not UTF-8 text. Save it as CSV in UTF-8.") from error
    except csv.Error as error:
        raise FileFormatError(f"cannot read {path} as CSV: {error}.") from error
    numbers = iter(np.concatenate(blocks).T)
    return {
        name: np.array(ids, dtype=object) if at == at_id else next(numbers)
        for at, name in enumerate(names)
    }


def _split_header(path: Path, rows: Iterator[_Row]) -> tuple[list[str], Iterator[_Row]]:
    """Return the names of the columns, and the rows that are data."""
    first = next(rows, None)
    if first is None:
        raise FileFormatError(f"{path} is empty.")
    names = [name.strip() for name in first[1]]
    numbered = [[str(start + at) for at in range(len(names))] for start in (0, 1)]
    # pandas names columns 0, 1, 2, ... if they have no names; a single 0 or 1 is rather a logit.
    if all(map(_is_number, names)) and not (names in numbered and len(names) > 1):
        if len(names) > 1 and _count_up(names):
            raise FileFormatError(
                f"the first line of {path} can be read as logits or as the numbers of labels. Add "
                "a header with column names that are not numbers."
            )
        return numbered[0], itertools.chain([first], rows)
    if names[-1] == "":
        raise FileFormatError(
            f"the last column of {path} has no name, or its lines end in a comma. Name the column, "
            "or remove the comma."
        )
    if "" in names:
        raise FileFormatError(
            f"column {names.index('') + 1} of {path} has no name. If it is the index of a pandas "
            "data frame, write the file with index=False, or name the column id."
        )
    if len(set(names)) != len(names):
        raise FileFormatError(f"{path} has two columns of the same name. Names must be unique.")
    return names, rows


def _parse_rows(
    path: Path, names: list[str], at_id: int | None, rows: list[_Row], ids: list[str]
) -> Array:
    """Return the numbers of some rows, and append their ids to `ids`."""
    for line, row in rows:
        if len(row) != len(names):
            raise FileFormatError(
                f"{path}, line {line}: expected {len(names)} cells, got {len(row)}. "
                + _hint(" ".join([*names, *row]))
            )
        if at_id is not None:
            ids.append(row.pop(at_id))
    try:
        # Python objects rather than fixed-width strings, which take the width of the longest cell.
        return np.array([row for _, row in rows], dtype=object).astype(np.float64)
    except ValueError:
        pass
    numeric = [name for at, name in enumerate(names) if at != at_id]
    line, name, cell = next(
        (line, name, cell)
        for line, row in rows
        for name, cell in zip(numeric, row, strict=True)
        if not _is_number(cell)
    )
    what = f"{cell[:40]!r} is not a number" if cell.strip() else "the cell is empty"
    hint = _hint(name + cell)
    raise FileFormatError(f"{path}, line {line}, column {name[:40]!r}: {what}. {hint}")


def _hint(text: str) -> str:
    for separator, name in ((";", "semicolons"), ("\t", "tabs")):
        if separator in text:
            return f"Is the file separated by {name}? Save it with commas and decimal points."
    return "Every column except id must contain the logits of one label (nan and -inf are allowed)."


def _count_up(names: list[str]) -> bool:
    """Return whether these are whole numbers in ascending order, as label numbers would be."""
    return all(name.isdigit() for name in names) and all(
        int(a) < int(b) for a, b in itertools.pairwise(names)
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_parquet(path: str | Path) -> dict[str, Array]:
    """Return the columns of a Parquet file by name; a column of lists becomes a matrix."""
    path = existing_file(path)
    pyarrow = require("pyarrow", "parquet")
    parquet = require("pyarrow.parquet", "parquet")
    require("pyarrow.compute", "parquet")
    try:
        table = parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise FileFormatError(f"cannot read {path} as Parquet: {reason}") from error
    names = table.column_names
    if len(set(names)) != len(names):
        raise FileFormatError(f"{path} has two columns of the same name. Names must be unique.")
    return {name: _arrow_to_numpy(path, name, table.column(name)) for name in names}


def _arrow_to_numpy(path: Path, name: str, column: Any) -> Array:
    types = require("pyarrow.types", "parquet")
    if column.null_count:
        raise FileFormatError(
            f"column {name!r} of {path} has {column.null_count:,} empty cells (nulls). "
            "Fill or remove them."
        )
    column = column.combine_chunks()
    kind = column.type
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        compute = require("pyarrow.compute", "parquet")
        lengths = set(compute.list_value_length(column).unique().to_pylist())
        if len(lengths) > 1:
            raise FileFormatError(
                f"the lists of column {name!r} of {path} must have the same length, got lengths "
                f"from {min(lengths)} to {max(lengths)}."
            )
        values = column.flatten().to_numpy(zero_copy_only=False)
        return np.asarray(values).reshape(len(column), lengths.pop() if lengths else 0)
    return np.asarray(column.to_numpy(zero_copy_only=False))


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
        rows = zip(*(np.asarray(column).tolist() for column in columns.values()), strict=True)
        with temporary.open("w", newline="", encoding="utf-8") as stream:
            if suffix == ".csv":
                writer = csv.writer(stream)
                writer.writerow(columns)
                writer.writerows(rows)
            else:
                for row in rows:
                    stream.write(to_json(dict(zip(columns, row, strict=True))) + "\n")


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
