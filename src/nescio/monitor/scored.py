"""Scored tables: what `nescio score -o` wrote, and whether outputs belong to the same inputs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nescio._io.addresses import MANY, Files, find_files
from nescio._io.arrow import ArrowFiles
from nescio._io.columns import as_ids
from nescio._io.csv_table import CsvTable
from nescio._io.files import existing_file
from nescio._io.tables import without_quote
from nescio._validation import Array, FloatArray
from nescio.detectors.assessment import Assessment
from nescio.errors import (
    FileFormatError,
    InputError,
    MissingInputError,
    NescioWarning,
    ParameterError,
    ShapeError,
    listed,
    warn,
)
from nescio.outputs.matching import match_labels

if TYPE_CHECKING:
    from nescio.detectors import Detector
    from nescio.outputs import Outputs

Floats = NDArray[np.float64]

_COLUMNS = ("score", "p_value", "in_distribution")
_VERDICTS = {"True": True, "False": False, "true": True, "false": False, "1": True, "0": False}
_SCORE_FIRST = "Pass a table of verdicts, made with 'nescio score DETECTOR DATA -o scored.parquet'."
_ROWS_COMPARED = 16
_CLOSE = 1e-4  # of the largest score; a different order of summation changes less than this


class ScoredBlock(NamedTuple):
    """Verdicts on consecutive rows, and the time of each if it was asked for."""

    assessment: Assessment
    times: list[str] | None


class ScoredTable:
    """The table that `Assessment.save` or `nescio score -o` wrote, read in blocks of rows.

    It may be a .csv or .jsonl file, or Parquet or Arrow files, which may be larger than memory. The
    columns group and id are optional. The ids are in the column id or, if there is none, in
    `id_column`. Other columns are not read.

    Attributes
    ----------
    n_rows : int
    """

    def __init__(
        self, path: str | Path, *, id_column: str | None = None, time_column: str | None = None
    ) -> None:
        self.path = path
        self._files = find_files(path)
        many = self._files.suffix in MANY
        self._table = ArrowFiles(self._files) if many else _open(self._files)
        names = self._table.names
        missing = [name for name in _COLUMNS if name not in names]
        if missing:
            raise FileFormatError(
                f"{path} is not a scored table: it has no column {missing[0]}, but "
                f"{listed(names, 10)}. {_SCORE_FIRST}"
            )
        if time_column is not None and time_column not in names:
            raise ParameterError(
                f"{path} has no column {time_column!r}; it has {listed(names, 10)}. 'nescio score "
                f"--keep {time_column}' copies a column of the outputs to the scored table."
            )
        self._ids = "id" if "id" in names else id_column if id_column in names else None
        self._time = time_column
        wanted = {*_COLUMNS, "group", self._ids, time_column}
        self._columns = [name for name in names if name in wanted]
        if isinstance(self._table, ArrowFiles):
            self.n_rows = self._table.n_rows
        else:
            self.n_rows = len(self._table.read((), ["score"])[0]["score"])
        if not self.n_rows:
            raise InputError(f"{path} has no rows.")

    def blocks(self, size: int) -> Iterator[ScoredBlock]:
        """Give the rows in their order, `size` at once.

        A warning is given at the end if the times are not in order, because a monitor reads rows as
        a stream.
        """
        order = _Order()
        for columns in self._read(size):
            times = None if self._time is None else _as_times(columns[self._time])
            order.add(times or ())
            yield ScoredBlock(self._assessment(columns), times)
        if order.first_earlier is not None:
            row, time = order.first_earlier
            warn(
                f"the rows of {self.path} are not in order of time: row {row} ({time}) is earlier "
                "than a row before it. A monitor reads the rows in their order, so it cannot say "
                f"when a change began. Sort the table by {self._time!r}, and the outputs alike.",
                NescioWarning,
            )

    def _read(self, size: int) -> Iterator[dict[str, Array]]:
        if isinstance(self._table, ArrowFiles):
            for table in self._table.blocks(size, names=self._columns):
                yield table.read((), self._columns)[0]
            return
        columns, _ = self._table.read((), self._columns)
        for start in range(0, self.n_rows, size):
            yield {name: column[start : start + size] for name, column in columns.items()}

    def _assessment(self, columns: Mapping[str, Array]) -> Assessment:
        scores, p_values = (
            _numbers(self.path, name, columns[name]) for name in ("score", "p_value")
        )
        groups, ids = (
            self._texts(columns[name]) if name is not None and name in columns else None
            for name in ("group", self._ids)
        )
        inside = columns["in_distribution"]
        if inside.dtype != np.bool_:
            found = [_verdict(self.path, item) for item in inside.tolist()]
            inside = np.array(found, np.bool_)
        return Assessment(scores, p_values, inside, groups, ids)

    def _texts(self, column: Array) -> Array:
        """Return ids as they were scored: in CSV, a quote keeps formulas from running."""
        texts = as_ids(column)
        return np.array(list(map(without_quote, texts)) if self._files.suffix == ".csv" else texts)


def read_scored(path: str | Path, *, id_column: str | None = None) -> Assessment:
    """Read a scored table as a whole; see `ScoredTable`."""
    table = ScoredTable(path, id_column=id_column)
    return next(table.blocks(table.n_rows)).assessment


def read_times(path: str | Path, column: str) -> list[str]:
    """Read one column of a scored table as text: the time of each row, empty if it is missing.

    A warning is given if the times are not in order.
    """
    table = ScoredTable(path, time_column=column)
    return [time for block in table.blocks(table.n_rows) for time in block.times or ()]


def _as_times(values: Array) -> list[str]:
    """Return times as text, empty if they are missing."""
    if values.dtype.kind == "M":  # without the zeros of nanoseconds
        shown = np.datetime_as_string(values, unit="auto")
        shown[np.isnat(values)] = ""
        values = shown
    return as_ids(values)


class _Order:
    """Whether times are in order, as far as it can be told.

    Attributes
    ----------
    first_earlier : tuple of int and str, or None
        The first row that is earlier than one before it, and its time.
    """

    def __init__(self) -> None:
        self._n_rows = 0
        # All times are numbers, or all are of this form: what fails once is given up.
        self._last: dict[Callable[[str], Any], Any] = {float: None, datetime.fromisoformat: None}
        self._earlier: dict[Callable[[str], Any], tuple[int, str]] = {}

    def add(self, times: Sequence[str]) -> None:
        """Look at the times of the next rows."""
        for parse in list(self._last):
            try:
                self._add(parse, times)
            except (TypeError, ValueError):  # of another form, or only some have a time zone
                del self._last[parse]
        self._n_rows += len(times)

    def _add(self, parse: Callable[[str], Any], times: Sequence[str]) -> None:
        last = self._last[parse]
        for row, text in enumerate(times, self._n_rows):
            if text:
                time = parse(text)
                if last is not None and time < last and parse not in self._earlier:
                    self._earlier[parse] = row, text
                last = time
        self._last[parse] = last

    @property
    def first_earlier(self) -> tuple[int, str] | None:
        return next((self._earlier.get(parse) for parse in self._last), None)


class _JsonLines:
    """A file with one JSON object per line."""

    def __init__(self, path: Path) -> None:
        try:
            lines = path.read_text("utf-8-sig").split("\n")  # texts may hold other line ends
            self._rows = [json.loads(line) for line in lines if line.strip()]
            self.names = tuple(self._rows[0]) if self._rows else _COLUMNS
            if any(row.keys() != self._rows[0].keys() for row in self._rows):
                raise ValueError("its rows have different columns")
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
            raise FileFormatError(f"cannot read {path} as jsonl: {error}.") from error

    def read(
        self, numbers: Collection[str], others: Collection[str]
    ) -> tuple[dict[str, Array], dict[str, str]]:
        """Return columns of Python objects."""
        names = (*numbers, *others)
        return {name: np.array([row[name] for row in self._rows], object) for name in names}, {}


_TABLES: dict[str, Callable[[Path], CsvTable | _JsonLines]] = {
    ".csv": CsvTable,
    ".jsonl": _JsonLines,
}


def _open(files: Files) -> CsvTable | _JsonLines:
    if files.suffix not in _TABLES or files.remote is not None:
        raise ParameterError(
            f"cannot read {files.address}: the name must end in {', '.join((*MANY, *_TABLES))}, "
            f"and only {', '.join(MANY)} may be remote. {_SCORE_FIRST}"
        )
    return _TABLES[files.suffix](existing_file(files.paths[0]))


def _numbers(path: object, name: str, column: Array) -> Floats:
    if column.dtype.kind == "f":
        return column.astype(np.float64)
    # JSON has no infinity: a score of -inf, of a row with NaN in it, was written as null.
    empty = -math.inf if name == "score" else math.nan
    try:
        values = [empty if item is None else float(item) for item in column.tolist()]
    except (TypeError, ValueError, OverflowError) as error:
        raise FileFormatError(f"column {name!r} of {path} must hold numbers: {error}.") from error
    return np.array(values, np.float64)


def _verdict(path: object, item: Any) -> bool:
    if str(item) not in _VERDICTS:
        raise FileFormatError(
            f"column 'in_distribution' of {path} must hold True or False, got {str(item)[:40]!r}."
        )
    return _VERDICTS[str(item)]


def check_same_length(n_outputs: int, n_scored: int) -> None:
    """Raise unless there are as many outputs as inputs were scored."""
    if n_outputs != n_scored:
        raise ShapeError(
            f"the outputs have {n_outputs:,} rows, but {n_scored:,} inputs were scored."
        )


def matching_logits(detector: Detector, assessment: Assessment, outputs: Outputs) -> FloatArray:
    """Return the logits of the assessed inputs; raise if the outputs belong to other inputs."""
    check_same_length(len(outputs), len(assessment))
    if outputs.ids is not None and assessment.ids is not None:
        different = np.flatnonzero(outputs.ids != assessment.ids)
        if len(different):
            row = int(different[0])
            raise InputError(
                f"row {row} of the outputs is {str(outputs.ids[row])!r}, but row {row} of the "
                f"scored table is {str(assessment.ids[row])!r}. Both must have the same rows."
            )
    if outputs.label_names is not None and detector.label_names_ is not None:
        outputs = match_labels(outputs, detector.label_names_, detector.scores_from)
    _check_scores(detector, assessment, outputs)
    return outputs.logits


def _check_scores(detector: Detector, assessment: Assessment, outputs: Outputs) -> None:
    """Raise if some rows of the outputs do not get the scores that they had."""
    rows = np.unique(np.linspace(0, len(assessment) - 1, _ROWS_COMPARED).astype(int))
    try:
        found = np.asarray(detector.score_samples(outputs[rows]), np.float64)
    except MissingInputError:  # the detector scores features, and these outputs have only logits
        return
    expected = np.asarray(assessment.scores, np.float64)[rows]
    largest = np.abs(expected[np.isfinite(expected)]).max(initial=0.0)
    same = np.isclose(found, expected, rtol=0.0, atol=_CLOSE * largest, equal_nan=True)
    if not same.all():
        at = int(np.flatnonzero(~same)[0])
        raise InputError(
            f"row {rows[at]} of the outputs scores {found[at]:g}, but row {rows[at]} of the scored "
            f"table has {expected[at]:g}. Both must have the same rows in the same order."
        )
