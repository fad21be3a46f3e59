"""Reading of CSV files: first the names of the columns, then the columns that are wanted."""

from __future__ import annotations

import csv
import itertools
import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from nescio._io.files import existing_file
from nescio._validation import Array
from nescio.errors import FileFormatError

UNNAMED_INDEX = "Unnamed: 0"  # pandas' name for the index that it wrote without a name

_LONGEST_CELL = 2**30  # characters; Python's own limit is 131,072, less than a long text
_LONGEST_NUMBER = 18  # digits of the number of a label
_CELLS_AT_ONCE = 20_000  # few enough for the cache of the processor
_FEWEST_ROWS_AT_ONCE = 100
_MISSING = frozenset({"", "nan", "na", "n/a", "null", "none", "<na>", "nat", "#n/a"})
# A sign or a fraction: such a cell in a first line is data, and not the name of a column.
_DATA = re.compile(r"[-+]\d+|[-+]?\d*\.\d+(e[-+]?\d+)?", re.IGNORECASE)

_Row = tuple[int, list[str]]  # line number, cells


class CsvTable:
    """A CSV file with columns of numbers and of text.

    Attributes
    ----------
    names : tuple of str
        The names of the columns; numbers from 0 if the file has no header.
    index : tuple of str
        The first column, if it has no name, as pandas writes an index.
    lists, partitions : frozenset of str
        The columns that hold lists, and those in the names of folders: none.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = existing_file(path)
        with _rows(self.path) as rows:
            self.names = tuple(_split_header(self.path, rows)[0])
        self.index = (UNNAMED_INDEX,) if self.names[0] == UNNAMED_INDEX else ()
        self.lists: frozenset[str] = frozenset()
        self.partitions: frozenset[str] = frozenset()

    def read(
        self, numbers: Collection[str], others: Collection[str]
    ) -> tuple[dict[str, Array], dict[str, str]]:
        """Return columns of numbers and others, and the reason why a column is not of numbers.

        Empty cells among numbers are NaN. The other columns are text, unless they are written
        exactly as Python writes numbers.
        """
        blocks: dict[str, list[Array]] = {name: [] for name in (*numbers, *others)}
        problems: dict[str, str] = {}
        at_once = max(_FEWEST_ROWS_AT_ONCE, _CELLS_AT_ONCE // len(self.names))
        with _rows(self.path) as all_rows:
            _, rows = _split_header(self.path, all_rows)
            while block := list(itertools.islice(rows, at_once)):
                self._check_width(block)
                by_column = zip(*(row for _, row in block), strict=True)
                columns = dict(zip(self.names, by_column, strict=True))
                for name in others:
                    blocks[name].append(np.array(columns[name], dtype=object))
                for name in numbers:
                    if name not in problems:
                        try:
                            blocks[name].append(_numbers(columns[name]))
                        except ValueError:
                            lines = [line for line, _ in block]
                            problems[name] = _problem(lines, columns[name])
        read = {name: _joined(blocks[name], np.float64) for name in numbers if name not in problems}
        return read | {name: _typed(_joined(blocks[name], object)) for name in others}, problems

    def _check_width(self, rows: list[_Row]) -> None:
        for line, row in rows:
            if len(row) != len(self.names):
                raise FileFormatError(
                    f"{self.path}, line {line}: expected {len(self.names)} cells, got {len(row)}. "
                    + (_separator_hint(" ".join([*self.names, *row])) or "Fix the line.")
                )


def csv_reader(stream: IO[str], *, strict: bool = False) -> Any:
    """Return a reader of CSV that also takes cells with long texts.

    Python's limit of the length is a setting of the whole process. To raise it does no harm, so it
    is not set back: another thread may still be reading.
    """
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_CELL))
    return csv.reader(stream, strict=strict)


@contextmanager
def _rows(path: Path) -> Iterator[Iterator[_Row]]:
    """Give the rows of the file that are not empty."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv_reader(stream)
            yield ((reader.line_num, row) for row in reader if row)
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is not UTF-8 text. Save it as CSV in UTF-8.") from error
    except csv.Error as error:
        raise FileFormatError(f"cannot read {path} as CSV: {error}.") from error


# --- the header -------------------------------------------------------------------------------


def _split_header(path: Path, rows: Iterator[_Row]) -> tuple[list[str], Iterator[_Row]]:
    """Return the names of the columns, and the rows that are data."""
    first = next(rows, None)
    if first is None:
        raise FileFormatError(f"{path} is empty.")
    names = [name.strip() for name in first[1]]
    numbered = [[str(start + at) for at in range(len(names))] for start in (0, 1)]
    # pandas names columns 0, 1, 2, ... if they have no names; a single 0 or 1 is rather a logit.
    if all(map(_is_number, names)) and not (names in numbered and len(names) > 1):
        if len(names) > 1 and _may_be_labels(names):
            raise FileFormatError(
                f"the first line of {path} can be read as logits or as the numbers of labels. Add "
                "a header with column names that are not numbers."
            )
        return numbered[0], itertools.chain([first], rows)
    return _checked_names(path, names), rows


def _checked_names(path: Path, names: list[str]) -> list[str]:
    hint = _separator_hint(names[0]) if len(names) == 1 else None
    if hint:
        raise FileFormatError(f"{path} has a single column, {names[0][:80]!r}. {hint}")
    if names[-1] == "":
        raise FileFormatError(
            f"the last column of {path} has no name, or its lines end in a comma. Name the column, "
            "or remove the comma."
        )
    names = [UNNAMED_INDEX if not at and not name else name for at, name in enumerate(names)]
    if "" in names:
        raise FileFormatError(
            f"column {names.index('') + 1} of {path} has no name. Give it a name."
        )
    data = next((name for name in names if _DATA.fullmatch(name)), None)
    if data is not None:
        raise FileFormatError(
            f"the first line of {path} must be a header, but holds the number {data}. Add a line "
            "with the names of the columns."
        )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise FileFormatError(
            f"{path} has two columns of the same name, {twice!r}. Names must be unique."
        )
    return names


def _may_be_labels(names: list[str]) -> bool:
    """Return whether these are distinct whole numbers, as the numbers of labels would be."""
    if not all(name.isdecimal() and len(name) <= _LONGEST_NUMBER for name in names):
        return False
    return len({*map(int, names)}) == len(names)


def _separator_hint(text: str) -> str | None:
    for separator, name in ((";", "semicolons"), ("\t", "tabs")):
        if separator in text:
            return f"Is the file separated by {name}? Save it with commas and decimal points."
    return None


# --- cells ------------------------------------------------------------------------------------


def _numbers(cells: Sequence[str]) -> Array:
    """Return cells as numbers, missing ones as NaN; raise ValueError if a cell is neither."""
    # Python objects rather than fixed-width strings, which take the width of the longest cell.
    try:
        return np.array(cells, dtype=object).astype(np.float64)
    except ValueError:
        filled = [math.nan if _is_missing(cell) else cell for cell in cells]
        return np.array(filled, dtype=object).astype(np.float64)


def _problem(lines: Iterable[int], cells: Sequence[str]) -> str:
    """Describe the first cell that is not a number."""
    line, cell = next(
        (line, cell)
        for line, cell in zip(lines, cells, strict=True)
        if not _is_number(cell) and not _is_missing(cell)
    )
    return f"line {line}: {cell[:40]!r} is not a number"


def _joined(blocks: list[Array], dtype: type) -> Array:
    return np.concatenate(blocks) if blocks else np.empty(0, dtype)


def _typed(cells: Array) -> Array:
    """Return numbers if every cell is written as Python writes that number, else the text."""
    for kind, dtype in ((int, np.int64), (float, np.float64)):
        try:
            if all(str(kind(cell)) == cell for cell in cells):
                return cells.astype(dtype) if len(cells) else cells
        except (ValueError, OverflowError):
            continue
    return cells


def _is_missing(text: str) -> bool:
    return text.strip().lower() in _MISSING


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
