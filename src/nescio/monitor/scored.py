"""Scored tables: what `nescio score -o` wrote, and whether outputs belong to the same inputs."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nescio._io.arrow import ArrowTable, open_table
from nescio._io.columns import as_ids
from nescio._io.csv_table import CsvTable
from nescio._io.files import existing_file
from nescio._io.tables import without_quote
from nescio._validation import Array, FloatArray
from nescio.detectors.assessment import Assessment
from nescio.detectors.matching import match_labels
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

if TYPE_CHECKING:
    from nescio.detectors import Detector
    from nescio.outputs import Outputs

Floats = NDArray[np.float64]

_COLUMNS = ("score", "p_value", "in_distribution")
_VERDICTS = {"True": True, "False": False, "true": True, "false": False, "1": True, "0": False}
_SCORE_FIRST = "Pass a table of verdicts, made with 'nescio score DETECTOR DATA -o scored.parquet'."
_ROWS_COMPARED = 16
_CLOSE = 1e-4  # of the largest score; a different order of summation changes less than this


def read_scored(path: str | Path, *, id_column: str | None = None) -> Assessment:
    """Read the table that `Assessment.save` or `nescio score -o` wrote.

    It may be a .parquet, .csv or .jsonl file. The columns group and id are optional. The ids are
    in the column id or, if there is none, in `id_column`. Other columns are not read.
    """
    table, path = _open(path), Path(path)
    missing = [name for name in _COLUMNS if name not in table.names]
    if missing:
        raise FileFormatError(
            f"{path} is not a scored table: it has no column {missing[0]}, but "
            f"{listed(table.names, 10)}. {_SCORE_FIRST}"
        )
    of_ids = "id" if "id" in table.names else id_column
    others = [name for name in ("group", of_ids) if name in table.names and name is not None]
    columns, _ = table.read((), [*_COLUMNS, *others])
    scores, p_values = (_numbers(path, name, columns[name]) for name in ("score", "p_value"))
    if not len(scores):
        raise InputError(f"{path} has no rows.")
    groups, ids = (
        np.array(_texts(path, columns[name])) if name in columns else None
        for name in ("group", of_ids)
    )
    inside = [_verdict(path, item) for item in columns["in_distribution"].tolist()]
    return Assessment(scores, p_values, np.array(inside, np.bool_), groups, ids)


def read_times(path: str | Path, column: str) -> list[str]:
    """Read one column of a scored table as text: the time of each row, empty if it is missing.

    A warning is given if the times are not in order, because a monitor reads rows as a stream.
    """
    table = _open(path)
    if column not in table.names:
        raise ParameterError(
            f"{path} has no column {column!r}; it has {listed(table.names, 10)}. 'nescio score "
            f"--keep {column}' copies a column of the outputs to the scored table."
        )
    values = table.read((), [column])[0][column]
    if values.dtype.kind == "M":  # without the zeros of nanoseconds
        shown = np.datetime_as_string(values, unit="auto")
        shown[np.isnat(values)] = ""
        values = shown
    times = as_ids(values)
    row = _first_earlier(times)
    if row is not None:
        warn(
            f"the rows of {path} are not in order of time: row {row} ({times[row]}) is earlier "
            "than a row before it. A monitor reads the rows in their order, so it cannot say when "
            f"a change began. Sort the table by {column!r}, and the outputs alike.",
            NescioWarning,
        )
    return times


def _first_earlier(times: Sequence[str]) -> int | None:
    """Return the first row that is earlier than one before it; None if it cannot be told."""
    for parse in (float, datetime.fromisoformat):
        try:
            known: list[Any] = [(row, parse(text)) for row, text in enumerate(times) if text]
            pairs = itertools.pairwise(known)
            return next((row for (_, last), (row, time) in pairs if time < last), None)
        except (TypeError, ValueError):  # of another form, or only some have a time zone
            continue
    return None


def _texts(path: Path, column: Array) -> list[str]:
    """Return ids as they were scored: in CSV, a quote keeps formulas from running."""
    texts = as_ids(column)
    return list(map(without_quote, texts)) if path.suffix.lower() == ".csv" else texts


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


_TABLES: dict[str, Callable[[Path], CsvTable | ArrowTable | _JsonLines]] = {
    ".parquet": open_table,
    ".csv": CsvTable,
    ".jsonl": _JsonLines,
}


def _open(path: str | Path) -> CsvTable | ArrowTable | _JsonLines:
    path = existing_file(path)
    suffix = path.suffix.lower()
    if suffix not in _TABLES:
        raise ParameterError(
            f"cannot read {path}: the name must end in {', '.join(_TABLES)}. {_SCORE_FIRST}"
        )
    return _TABLES[suffix](path)


def _numbers(path: Path, name: str, column: Array) -> Floats:
    # JSON has no infinity: a score of -inf, of a row with NaN in it, was written as null.
    empty = -math.inf if name == "score" else math.nan
    try:
        values = [empty if item is None else float(item) for item in column.tolist()]
    except (TypeError, ValueError, OverflowError) as error:
        raise FileFormatError(f"column {name!r} of {path} must hold numbers: {error}.") from error
    return np.array(values, np.float64)


def _verdict(path: Path, item: Any) -> bool:
    if str(item) not in _VERDICTS:
        raise FileFormatError(
            f"column 'in_distribution' of {path} must hold True or False, got {str(item)[:40]!r}."
        )
    return _VERDICTS[str(item)]


def matching_logits(detector: Detector, assessment: Assessment, outputs: Outputs) -> FloatArray:
    """Return the logits of the assessed inputs; raise if the outputs belong to other inputs."""
    if len(outputs) != len(assessment):
        raise ShapeError(
            f"the outputs have {len(outputs):,} rows, but {len(assessment):,} inputs were scored."
        )
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
