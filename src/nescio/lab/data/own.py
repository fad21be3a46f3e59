"""Data of your own: a folder of images, or a CSV or Parquet table of paths and labels."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio._io.files import existing_file
from nescio._io.tables import arrow_errors
from nescio.errors import DatasetError, ParameterError, require
from nescio.lab.data.split import HOW_TO, BadFile, Split, check_split, checked_presence, find_folder
from nescio.models.images import IMAGE_SUFFIXES

_SEPARATOR = ";"
_RESERVED = ("path", "split", "id", "labels")

Rows = dict[str, dict[str, Any]]  # cells by "photos.csv, line 3" or "photos.parquet, row 2"


def load_folder(root: str | Path, split: str = "", *, skip_bad: bool = False) -> Split:
    """Index a folder of class folders: each image has one label, the name of its class folder.

    Folders inside a class folder belong to the class. A folder without images is not a class.
    Images are recognised by their suffix; hidden files and other files are ignored. Classes and
    files are in alphabetical order. If there are images but no class folders, the split has no
    labels. The name of the data set is the name of the folder.

    With `skip_bad`, images that are beside the class folders are left out, and listed in
    `Split.skipped`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("anchor", "lobster"):
    ...         (Path(folder) / name).mkdir()
    ...         (Path(folder) / name / "1.jpg").touch()  # images are not opened
    ...     split = load_folder(folder)
    >>> split.files, split.label_names
    (('anchor/1.jpg', 'lobster/1.jpg'), ('anchor', 'lobster'))
    """
    check_split("folder", split, ())
    root = find_folder("the folder of images", Path(root))
    name = root.resolve().name or "folder"
    loose = sorted(path.name for path in root.iterdir() if is_image(path.name) and path.is_file())
    files_of_class = class_folders(root)
    if not files_of_class:
        if not loose:
            raise DatasetError(f"{root} contains neither images nor folders of images. {HOW_TO}")
        return Split(name, "", root, tuple(loose), labels=None, label_names=None)
    if loose and not skip_bad:
        raise DatasetError(
            f"{root / loose[0]} is beside the class folders, so it has no class ({len(loose):,} "
            "such images). Move it into a class folder, or pass skip_bad=True."
        )
    skipped = tuple(BadFile(file, "in no class folder") for file in loose)
    return replace(split_of_classes(name, "", root, files_of_class), skipped=skipped)


def class_folders(root: Path) -> dict[str, list[str]]:
    """Return the images of every folder in `root` that has any, relative to `root`."""
    folders = sorted(
        path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")
    )
    images = {folder.name: images_under(folder) for folder in folders}
    return {name: [f"{name}/{file}" for file in files] for name, files in images.items() if files}


def images_under(folder: Path) -> list[str]:
    """Return all images below a folder, sorted and relative to it; hidden files are ignored."""
    images = []
    for where, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        inside = Path(where).relative_to(folder)
        images += [(inside / name).as_posix() for name in files if is_image(name)]
    return sorted(images)


def is_image(name: str) -> bool:
    """Whether a file name has the suffix of an image; hidden files do not count."""
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def split_of_classes(
    dataset: str, name: str, root: Path, files_of_class: Mapping[str, Sequence[str]]
) -> Split:
    """Return a split in which each image has one label: its class."""
    counts = [len(files) for files in files_of_class.values()]
    of_image = np.repeat(np.arange(len(counts)), counts)
    return Split(
        dataset=dataset,
        name=name,
        root=root,
        files=tuple(file for files in files_of_class.values() for file in files),
        labels=np.eye(len(counts), dtype=np.uint8)[of_image],
        label_names=tuple(files_of_class),
    )


# --- tables ---------------------------------------------------------------------------------------


def load_table(path: str | Path, split: str = "", *, skip_bad: bool = False) -> Split:
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
    rows = _read(path)
    columns = list(next(iter(rows.values()), ()))
    if "path" not in columns:
        raise DatasetError(
            f"{path} has no rows with a column 'path'; its columns are {', '.join(columns)}. "
            f"{HOW_TO}"
        )
    names = [name for name in columns if name not in _RESERVED]
    if "labels" in columns:
        names = sorted({name for where, row in rows.items() for name in _listed(where, row)})
    files: dict[str, str] = {}  # file -> line or row
    labels: list[NDArray[np.uint8]] = []
    for where, row in _rows_of(path, rows, split).items():
        file = row["path"]
        if not isinstance(file, str) or not file:
            raise DatasetError(f"{where}: the path of the image is missing.")
        if file in files:
            raise DatasetError(
                f"{file} is listed twice, in {files[file]} and in {where}. Use one row per image."
            )
        files[file] = where
        labels.append(_multi_hot(where, row, names))
    indexed = Split(
        dataset=path.stem,
        name=split,
        root=path.parent,
        files=tuple(files),
        labels=np.array(labels) if names else None,
        label_names=tuple(names) or None,
    )
    return checked_presence(indexed, skip_bad=skip_bad)


def _read(path: Path) -> Rows:
    if path.suffix.lower() == ".parquet":
        parquet = require("pyarrow.parquet", "files")
        with arrow_errors(path):
            cells = parquet.read_table(path).to_pylist()
        return {f"{path}, row {number}": row for number, row in enumerate(cells)}
    if path.suffix.lower() != ".csv":
        raise DatasetError(f"cannot read {path}: expected a .csv or .parquet file.")
    rows: Rows = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream, strict=True)
            columns = [name.strip() for name in next(reader, [])]
            if len(set(columns)) != len(columns):
                raise DatasetError(f"{path}, line 1: every column needs a name of its own.")
            for row in filter(None, reader):
                where = f"{path}, line {reader.line_num}"
                if len(row) != len(columns):
                    raise DatasetError(
                        f"{where}: {len(row)} cells for {len(columns)} columns. The separator "
                        "must be a comma."
                    )
                rows[where] = dict(zip(columns, (cell.strip() for cell in row), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DatasetError(f"{path} is not CSV in UTF-8: {error}.") from error
    return rows


def _listed(where: str, row: dict[str, Any]) -> list[str]:
    """Return the names in a cell of the column labels."""
    cell = row["labels"] or []
    names = cell.split(_SEPARATOR) if isinstance(cell, str) else cell
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise DatasetError(
            f"{where}: labels must be names separated by {_SEPARATOR!r} or a list of "
            f"names, got {str(cell)[:40]!r}."
        )
    return [name.strip() for name in names if name.strip()]


def _rows_of(path: Path, rows: Rows, split: str) -> Rows:
    """Return the rows of a split; without a column split, there is one without a name."""
    splits = sorted({str(row.get("split", "")) for row in rows.values()})
    if split not in splits:
        raise ParameterError(
            f"{path} has no split {split!r}. Its column 'split' has {', '.join(splits)}. Name one."
        )
    return {where: row for where, row in rows.items() if str(row.get("split", "")) == split}


def _multi_hot(where: str, row: dict[str, Any], names: list[str]) -> NDArray[np.uint8]:
    if "labels" in row:
        return np.isin(names, _listed(where, row)).astype(np.uint8)
    for name in names:
        if row[name] not in ("0", "1", 0, 1):
            raise DatasetError(
                f"{where}, column {name!r}: expected 0 or 1, got {str(row[name])[:40]!r}."
            )
    return np.array([int(row[name]) for name in names], np.uint8)
