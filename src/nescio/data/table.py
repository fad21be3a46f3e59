"""Your own multi-label set: a CSV or Parquet table of paths and labels."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nescio._io.csv_table import csv_reader
from nescio._io.files import existing_file
from nescio._io.tables import require
from nescio.data.layout import HOW_TO, checked_presence
from nescio.data.split import BadFile, Split
from nescio.errors import DatasetError, ParameterError

SEPARATOR = ";"
_RESERVED = ("path", "split", "id", "labels")


class _Row(NamedTuple):
    where: str  # "photos.csv, line 3" or "photos.parquet, row 2"
    cells: dict[str, Any]


def load_table(
    path: str | Path,
    split: str = "",
    *,
    label_names: Sequence[str] | None = None,
    skip_bad: bool = False,
) -> Split:
    r"""Index any multi-label set, from a CSV or Parquet table with one row per image.

    The columns are `path`, relative to the table's folder, and the labels: either a column
    `labels` with names separated by semicolons (in Parquet also a list), or one column per label
    that contains 0 or 1. The column `split` is optional and names the split of each row. The
    column `id` is ignored, and so are all other columns if there is a column `labels`. With only
    `path`, the set has no labels. The name of the data set is the file name without its suffix.

    The labels are in the order of the columns, or in alphabetical order for a column `labels`. They
    are collected from all rows, so that all splits of a table have the same labels.

    Parameters
    ----------
    path : path
        A `.csv` (UTF-8, commas, with a header) or `.parquet` file.
    split : str, default ""
        The rows to use, if there is a column `split`.
    label_names : sequence of str, optional
        The labels and their order. Any other label is then an error.
    skip_bad : bool, default False
        Continue without images that are missing and rows that are wrong, and list them in
        `Split.skipped`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "photos.csv"
    ...     _ = path.write_text("path,labels\n1.jpg,cat;dog\n2.jpg,cat\n")
    ...     for name in ("1.jpg", "2.jpg"):
    ...         (Path(folder) / name).touch()  # images are not opened
    ...     split = load_table(path)
    >>> split.label_names, split.labels.tolist()
    (('cat', 'dog'), [[1, 1], [1, 0]])
    """
    path = existing_file(path)
    columns, rows = _read(path)
    if "path" not in columns:
        raise DatasetError(f"{path} has no column 'path'; it has {', '.join(columns)}. {HOW_TO}")
    names = _label_names(path, columns, rows, label_names)
    files: dict[str, str] = {}  # file -> line or row
    labels: list[NDArray[np.uint8]] = []
    skipped: list[BadFile] = []
    for row in _rows_of(path, columns, rows, split):
        file = _file(row)
        try:
            hot = _multi_hot(row, names)
        except DatasetError as error:
            if not skip_bad:
                raise
            skipped.append(BadFile(file, str(error)))
            continue
        if file in files:
            raise DatasetError(
                f"{file} is listed twice, in {files[file]} and in {row.where}. Use one row per "
                f"image, with its labels separated by {SEPARATOR!r}."
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
    """Return the names of the columns, and the rows."""
    readers = {".csv": _read_csv, ".parquet": _read_parquet}
    if path.suffix.lower() not in readers:
        raise DatasetError(f"cannot read {path}: expected a .csv or .parquet file.")
    columns, rows = readers[path.suffix.lower()](path)
    if not rows:
        raise DatasetError(f"{path} has no rows.")
    return columns, rows


def _read_csv(path: Path) -> tuple[list[str], list[_Row]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv_reader(stream, strict=True)
            columns = [name.strip() for name in next(reader, [])]
            if len(set(columns)) != len(columns) or "" in columns:
                raise DatasetError(f"{path}, line 1: every column needs a name of its own.")
            rows = []
            for cells in reader:
                if not cells:
                    continue
                if len(cells) != len(columns):
                    raise DatasetError(
                        f"{path}, line {reader.line_num}: {len(cells)} cells for {len(columns)} "
                        "columns. The separator must be a comma."
                    )
                stripped = (cell.strip() for cell in cells)
                row = dict(zip(columns, stripped, strict=True))
                rows.append(_Row(f"{path}, line {reader.line_num}", row))
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path} is not text in UTF-8. Save it as CSV in UTF-8.") from error
    except csv.Error as error:
        raise DatasetError(f"{path}, line {reader.line_num}: invalid CSV: {error}.") from error
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
    return table.column_names, [_Row(f"{path}, row {at}", row) for at, row in enumerate(cells)]


def _label_names(
    path: Path, columns: list[str], rows: list[_Row], wanted: Sequence[str] | None
) -> tuple[str, ...]:
    if "labels" in columns:
        if wanted is not None:
            return tuple(wanted)
        return tuple(sorted({label for row in rows for label in _listed(row)}))
    present = [name for name in columns if name not in _RESERVED]
    if missing := [name for name in wanted or () if name not in present]:
        raise DatasetError(f"{path} has neither a column 'labels' nor a column {missing[0]!r}.")
    return tuple(present if wanted is None else wanted)


def _listed(row: _Row) -> list[str]:
    """Return the names in a cell of the column labels."""
    cell = row.cells["labels"]
    if cell is None:
        return []
    names = cell.split(SEPARATOR) if isinstance(cell, str) else cell
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise DatasetError(
            f"{row.where}: labels must be names separated by {SEPARATOR!r} or a list of "
            f"names, got {str(cell)[:40]!r}."
        )
    return [name.strip() for name in names if name.strip()]


def _rows_of(path: Path, columns: list[str], rows: list[_Row], split: str) -> Iterator[_Row]:
    """Yield the rows of a split."""
    if "split" not in columns:
        if split:
            raise ParameterError(f"{path} has no column 'split', so it has no split {split!r}.")
        yield from rows
        return
    known = sorted({str(row.cells["split"]) for row in rows})
    if split not in known:
        what = f"there is no split {split!r}" if split else "name a split, as table@SPLIT:PATH"
        raise ParameterError(f"{path}: {what}. Its splits are {', '.join(known)}.")
    yield from (row for row in rows if str(row.cells["split"]) == split)


def _file(row: _Row) -> str:
    file = row.cells["path"]
    if not isinstance(file, str) or not file:
        raise DatasetError(f"{row.where}: the path of the image is missing.")
    return file


def _multi_hot(row: _Row, names: tuple[str, ...]) -> NDArray[np.uint8]:
    if "labels" not in row.cells:
        return np.array([_zero_or_one(row, name) for name in names], dtype=np.uint8)
    listed = _listed(row)
    for label in listed:
        if label not in names:
            raise DatasetError(f"{row.where}: label {label!r} is not one of label_names.")
    return np.array([name in listed for name in names], dtype=np.uint8)


def _zero_or_one(row: _Row, name: str) -> bool:
    cell = row.cells[name]
    if cell in ("0", "1"):
        return bool(cell == "1")
    if isinstance(cell, bool | int | float) and cell in (0, 1):
        return bool(cell)
    raise DatasetError(f"{row.where}, column {name!r}: expected 0 or 1, got {str(cell)[:40]!r}.")
