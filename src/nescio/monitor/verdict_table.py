"""Scored tables: what `nescio score -o` wrote."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from nescio._io.files import as_ids, find_files, to_array, without_quote
from nescio._io.tables import VERDICTS, Columns, TableFiles, no_column
from nescio._validation import Array
from nescio.detectors.verdicts import Assessment
from nescio.errors import FileFormatError, InputError, NescioWarning, ParameterError, listed, warn
from nescio.outputs.files import TABLES

_SCORE_FIRST = "Pass a table of verdicts, made with 'nescio score DETECTOR DATA -o scored.parquet'."


class ScoredTable:
    """The table that `Assessment.save` or `nescio score -o` wrote, read in blocks of rows.

    It may be a .csv or .jsonl file, or Parquet or Arrow files, which may be larger than memory. The
    columns group and id are optional. The ids are in `id_column`, or else in the column id. Other
    columns are not read.
    """

    def __init__(
        self, path: str | Path, *, id_column: str | None = None, time_column: str | None = None
    ) -> None:
        self.path, self._time = path, time_column
        self._files = find_files(path)
        if self._files.suffix not in TABLES:
            raise ParameterError(
                f"cannot read {path}: the name must end in {', '.join(TABLES)}. {_SCORE_FIRST}"
            )
        self._table = TableFiles(self._files, Columns(labels=VERDICTS[:2]))
        self.n_rows = self._table.n_rows
        names = self._table.schema.names
        missing = [name for name in VERDICTS if name not in names]
        if missing:
            raise FileFormatError(
                f"{path} is not a scored table: it has no column {missing[0]}, but "
                f"{listed(names, 10)}. {_SCORE_FIRST}"
            )
        for name in filter(None, (id_column, time_column)):
            if name not in names:
                raise ParameterError(
                    f"{path}: {no_column(name, names)} 'nescio score' writes the ids as the column "
                    "id, and copies other columns of the outputs (--keep)."
                )
        if not self.n_rows:
            raise InputError(f"{path} has no rows.")
        self._ids = id_column or "id"
        wanted = {*VERDICTS, "group", self._ids, time_column}
        self._columns = [name for name in names if name in wanted]

    def blocks(self, size: int) -> Iterator[tuple[Assessment, list[str] | None]]:
        """Give the verdicts in their order, `size` rows at once, and the times if asked for.

        A warning is given if the times are not in order, because a monitor reads rows as a stream.
        """
        last: str | None = ""  # the time before a block; None after a warning
        for number, table in enumerate(self._table.blocks(size, 0, self._columns)):
            columns = {name: table.column(name) for name in self._columns}
            times = None if self._time is None else _as_times(columns[self._time])
            if times is not None and last is not None:
                row = _first_unordered([last, *times])
                last = next((time for time in reversed(times) if time), last)
                if row is not None:
                    last = None
                    warn(
                        f"the rows of {self.path} are not in order of time: row "
                        f"{number * size + row - 1} ({times[row - 1]}) is earlier than a row "
                        "before it, or no number or ISO 8601 time like the others. A monitor reads "
                        "the rows in their order, so it cannot say when a change began. Sort the "
                        f"table by {self._time!r}, or name another column.",
                        NescioWarning,
                    )
            yield self._assessment(columns), times

    def _assessment(self, columns: dict[str, Any]) -> Assessment:
        try:
            # JSON has no infinity: a score of -inf, of a row with NaN in it, was written as null.
            scores = np.asarray(columns["score"].cast("float64").fill_null(-math.inf))
            p_values = np.asarray(columns["p_value"].cast("float64").fill_null(math.nan))
            inside = np.asarray(columns["in_distribution"].cast("bool"), np.bool_)
        except (ValueError, TypeError, NotImplementedError) as error:
            raise FileFormatError(
                f"the columns {', '.join(VERDICTS)} of {self.path} must hold two numbers and True "
                f"or False: {error}."
            ) from error
        groups, ids = (self._texts(columns.get(name)) for name in ("group", self._ids))
        return Assessment(scores, p_values, inside, groups, ids)

    def _texts(self, column: Any) -> Array | None:
        """Return ids as they were scored: in CSV, a quote keeps formulas from running."""
        if column is None:
            return None
        texts = as_ids(column)
        return np.array(list(map(without_quote, texts)) if ".csv" in self._files.suffix else texts)


def _as_times(column: Any) -> list[str]:
    """Return times as text, empty if they are missing."""
    values = to_array(column)
    if values.dtype.kind == "M":  # without the zeros of nanoseconds
        shown = np.datetime_as_string(values, unit="auto")
        shown[np.isnat(values)] = ""
        values = shown
    return as_ids(values)


def _first_unordered(times: Sequence[str]) -> int | None:
    """Return the first row whose time, a number or ISO 8601, is before that of an earlier row.

    Times of another form cannot be compared: the first of them counts.
    """
    rows = [row for row, text in enumerate(times) if text]
    parsers: tuple[Callable[[str], Any], ...] = (float, datetime.fromisoformat)
    for parse in parsers:
        try:
            values = [parse(times[row]) for row in rows]
            steps = zip(rows[1:], pairwise(values), strict=True)
            return next((row for row, (before, time) in steps if time < before), None)
        except (TypeError, ValueError):  # of another form, or only some have a time zone
            continue
    return max(1, rows[0]) if rows else None
