"""The user's own multi-label set: a CSV or Parquet table of paths and labels."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nescio._io.files import existing_file
from nescio._io.tables import require
from nescio.data.layout import HOW_TO, checked_presence
from nescio.data.split import BadFile, Split
from nescio.errors import DatasetError, ParameterError

SEPARATOR = ";"
_RESERVED = ("path", "split", "id", "labels")


class _Row(NamedTuple):
    where: str  # "line 3" or "row 2"
    cells: dict[str, Any]


def load_table(
    path: str | Path,
    split: str = "",
    *,
    label_names: Sequence[str] | None = None,
    skip_bad: bool = False,
) -> Split:
    """Any multi-label set, from a CSV or Parquet table with one row an image.

    The columns are `path`, relative to the table's folder, and the labels: either a column
    `labels` with names separated by semicolons (in Parquet also a list), or one column a label
    that holds 0 or 1. A column `split` says which part a row is of, a column `id` is left out of
    account, and so is everything but these where there is a column `labels`. With `path` alone
    the set has no labels. The data set's name is the file's, without its ending.

    The order of the labels is that of the columns, or of the alphabet for a column `labels`. It
    is made from all rows, so that the parts of a table agree.

    Parameters
    ----------
    path : path
        A `.csv` (UTF-8, commas, with a header) or `.parquet` file.
    split : str, default ""
        Which rows, if there is a column `split`.
    label_names : sequence of str, optional
        The labels and their order. Any other label is then an error.
    skip_bad : bool, default False
        Go on without images that are missing and rows that are wrong; `Split.skipped` has them.
    """
    path = existing_file(path)
    columns, rows = _read(path)
    if "path" not in columns:
        raise DatasetError(f"{path} has no column 'path'; it has {', '.join(columns)}. {HOW_TO}")
    names = _label_names(path, columns, rows, label_names)
    files: dict[str, str] = {}  # file -> where it is listed
    labels: list[NDArray[np.uint8]] = []
    skipped: list[BadFile] = []
    for row in _rows_of(path, columns, rows, split):
        file = _file(path, row)
        try:
            hot = _multi_hot(path, columns, row, names)
        except DatasetError as error:
            if not skip_bad:
                raise
            skipped.append(BadFile(file, str(error)))
            continue
        if file in files:
            raise DatasetError(
                f"{path}: {file} is listed twice, in {files[file]} and {row.where}. Give an image "
                f"one row, with its labels separated by {SEPARATOR!r}."
            )
        files[file] = row.where
        labels.append(hot)
    indexed = Split(
        dataset=path.stem,
        name=split,
        root=path.parent,
        files=tuple(files),
        labels=np.array(labels) if names and labels else None,
        label_names=names or None,
        skipped=tuple(skipped),
    )
    return checked_presence(indexed, skip_bad=skip_bad)


def _read(path: Path) -> tuple[list[str], list[_Row]]:
    """The names of the columns, and the rows."""
    readers = {".csv": _read_csv, ".parquet": _read_parquet}
    if path.suffix.lower() not in readers:
        raise DatasetError(f"cannot read {path}: the name must end in .csv or .parquet.")
    columns, rows = readers[path.suffix.lower()](path)
    if not rows:
        raise DatasetError(f"{path} has no rows.")
    return columns, rows


def _read_csv(path: Path) -> tuple[list[str], list[_Row]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream, strict=True)
            columns = [name.strip() for name in next(reader, [])]
            if len(set(columns)) != len(columns) or "" in columns:
                raise DatasetError(f"{path}, line 1: two columns have one name, or one has none.")
            rows = []
            for cells in reader:
                if not cells:
                    continue
                if len(cells) != len(columns):
                    raise DatasetError(
                        f"{path}, line {reader.line_num}: {len(cells)} cells, and {len(columns)} "
                        "columns. Is it separated by commas?"
                    )
                stripped = (cell.strip() for cell in cells)
                row = dict(zip(columns, stripped, strict=True))
                rows.append(_Row(f"line {reader.line_num}", row))
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path} is not UTF-8 text. Save it as CSV in UTF-8.") from error
    except csv.Error as error:
        raise DatasetError(f"{path}, line {reader.line_num}: it is no CSV: {error}.") from error
    return columns, rows


def _read_parquet(path: Path) -> tuple[list[str], list[_Row]]:
    pyarrow = require("pyarrow", "parquet")
    parquet = require("pyarrow.parquet", "parquet")
    try:
        table = parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise DatasetError(f"cannot read {path} as Parquet: {reason}") from error
    cells = table.to_pylist()
    return table.column_names, [_Row(f"row {at}", row) for at, row in enumerate(cells)]


def _label_names(
    path: Path, columns: list[str], rows: list[_Row], wanted: Sequence[str] | None
) -> tuple[str, ...]:
    if "labels" in columns:
        if wanted is not None:
            return tuple(wanted)
        return tuple(sorted({label for row in rows for label in _listed(path, row)}))
    present = [name for name in columns if name not in _RESERVED]
    if missing := [name for name in wanted or () if name not in present]:
        raise DatasetError(f"{path} has neither a column 'labels' nor one of label {missing[0]!r}.")
    return tuple(present if wanted is None else wanted)


def _listed(path: Path, row: _Row) -> list[str]:
    """The names in a cell of the column labels."""
    cell = row.cells["labels"]
    if cell is None:
        return []
    names = cell.split(SEPARATOR) if isinstance(cell, str) else cell
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise DatasetError(
            f"{path}, {row.where}: labels must be names separated by {SEPARATOR!r} or a list of "
            f"names, got {str(cell)[:40]!r}."
        )
    return [name.strip() for name in names if name.strip()]


def _rows_of(path: Path, columns: list[str], rows: list[_Row], split: str) -> Iterator[_Row]:
    """The rows of a part."""
    if "split" not in columns:
        if split:
            raise ParameterError(f"{path} has no column 'split', so there is no {split!r} in it.")
        yield from rows
        return
    there = sorted({str(row.cells["split"]) for row in rows})
    if split not in there:
        what = f"there is no split {split!r}" if split else "say which split"
        raise ParameterError(f"{path}: {what}. Its column 'split' has: {', '.join(there)}.")
    yield from (row for row in rows if str(row.cells["split"]) == split)


def _file(path: Path, row: _Row) -> str:
    file = row.cells["path"]
    if not isinstance(file, str) or not file:
        raise DatasetError(f"{path}, {row.where}: the path of the image is missing.")
    return file


def _multi_hot(
    path: Path, columns: list[str], row: _Row, names: tuple[str, ...]
) -> NDArray[np.uint8]:
    if "labels" not in columns:
        return np.array([_zero_or_one(path, row, name) for name in names], dtype=np.uint8)
    listed = _listed(path, row)
    for label in listed:
        if label not in names:
            raise DatasetError(f"{path}, {row.where}: label {label!r} is outside of the label set.")
    return np.array([name in listed for name in names], dtype=np.uint8)


def _zero_or_one(path: Path, row: _Row, name: str) -> bool:
    cell = row.cells[name]
    if cell in ("0", "1"):
        return bool(cell == "1")
    if isinstance(cell, bool | int | float) and cell in (0, 1):
        return bool(cell)
    raise DatasetError(
        f"{path}, {row.where}, column {name!r}: expected 0 or 1, got {str(cell)[:40]!r}."
    )
