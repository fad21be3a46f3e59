"""The verdict on each sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from nescio._charts.histogram import Batch
from nescio._charts.results import Result, View, first_rows, word
from nescio._charts.style import end_of
from nescio._charts.svg import Markup
from nescio._io.results import write_table
from nescio._validation import BoolArray
from nescio.calibration import Calibration
from nescio.errors import InputError
from nescio.outputs.outputs import join_columns, join_indexes, rows_of_index

COLUMNS = ("id", "score", "p_value", "in_distribution", "group")
"""The columns that a table of verdicts may have."""


class Verdict(NamedTuple):
    """The score, the p-value and the verdict of one sample."""

    score: float
    p_value: float
    in_distribution: bool


@dataclass(frozen=True, eq=False, repr=False)
class Assessment(Result):
    """Scores, p-values and verdicts, one row per sample.

    Attributes
    ----------
    scores : array of shape (n_samples,)
        Higher means more in-distribution.
    p_values : array of shape (n_samples,)
        How often an in-distribution sample scores as low or lower; small means suspicious.
    in_distribution : array of bool of shape (n_samples,)
        The verdict.
    groups : array of str of shape (n_samples,) or None
        The group whose threshold was used, if calibrated by group.
    ids : array of str of shape (n_samples,) or None
        The ids of the samples, if the outputs had any.
    kept : mapping of str to array of shape (n_samples,)
        The columns of the user's table that were passed on; see `Outputs.from_frame`.
    calibration : Calibration or None
        What the scores were compared with, for figures. None if it is not known, or if the verdicts
        were made with `fdr` instead of a threshold.
    index : pandas index or None
        The index of the pandas frame that the samples came from, for `to_pandas`.
    """

    index_column = "id"

    scores: NDArray[np.float64]
    p_values: NDArray[np.float64]
    in_distribution: BoolArray
    groups: NDArray[np.str_] | None = None
    ids: NDArray[np.str_] | None = None
    kept: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    calibration: Calibration | None = None
    index: Any = None

    def __post_init__(self) -> None:
        taken = next((name for name in self.kept if name in COLUMNS), None)
        if taken is not None:
            raise InputError(
                f"the column {taken!r} cannot be kept, because the table of verdicts has a column "
                "of the same name. Rename it."
            )

    @classmethod
    def concat(cls, parts: Sequence[Assessment]) -> Assessment:
        """Join the assessments of several batches by one detector."""
        if not parts:
            raise InputError("there are no assessments to join.")
        columns = [part._verdicts() for part in parts]
        if any(column.keys() != columns[0].keys() for column in columns):
            raise InputError("all assessments to join must have ids and groups, or none.")
        joined = {name: np.concatenate([part[name] for part in columns]) for name in columns[0]}
        same = list({id(part.calibration): part.calibration for part in parts}.values())
        return cls(
            joined["score"],
            joined["p_value"],
            joined["in_distribution"],
            groups=joined.get("group"),
            ids=joined.get("id"),
            kept=join_columns([part.kept for part in parts]),
            calibration=same[0] if len(same) == 1 else None,
            index=join_indexes([part.index for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.scores)

    @overload
    def __getitem__(self, rows: int) -> Verdict: ...
    @overload
    def __getitem__(self, rows: slice | Sequence[int] | NDArray[Any]) -> Assessment: ...
    def __getitem__(self, rows: Any) -> Verdict | Assessment:
        """Return the verdict of one row, or the assessment of several (slice, indices or mask)."""
        scores, p_values, inside = (
            column[rows] for column in (self.scores, self.p_values, self.in_distribution)
        )
        if isinstance(rows, int | np.integer):
            return Verdict(float(scores), float(p_values), bool(inside))
        groups, ids = (
            None if column is None else column[rows] for column in (self.groups, self.ids)
        )
        kept = {name: column[rows] for name, column in self.kept.items()}
        index = rows_of_index(self.index, rows)
        return Assessment(scores, p_values, inside, groups, ids, kept, self.calibration, index)

    def __iter__(self) -> Iterator[Verdict]:
        return (self[row] for row in range(len(self)))

    @property
    def flagged(self) -> NDArray[np.intp]:
        """The positions of the samples that should not be trusted, from 0: for `.iloc`."""
        return np.flatnonzero(~self.in_distribution)

    @property
    def verdicts(self) -> NDArray[np.str_]:
        """The verdicts as words: in or OUT."""
        return np.where(self.in_distribution, "in", "OUT")

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the table: id, score, p_value, in_distribution, group and the kept columns.

        id and group are left out if they are not known.
        """
        return {**self._verdicts(), **self.kept}

    def _verdicts(self) -> dict[str, NDArray[Any]]:
        columns = (self.ids, self.scores, self.p_values, self.in_distribution, self.groups)
        named = zip(COLUMNS, columns, strict=True)
        return {name: column for name, column in named if column is not None}

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the table as .parquet, .csv or .jsonl, atomically."""
        write_table(path, self.columns(), force=force)

    def summary(self) -> str:
        """Return one line: how many samples were assessed, and how many flagged."""
        return f"{len(self):,} assessed, {len(self.flagged):,} flagged"

    def name_of(self, row: int) -> str:
        """Return the id of a sample, or the number of its row if there are no ids."""
        return str(row) if self.ids is None else str(self.ids[row])

    def _view(self) -> View:
        rows = first_rows(len(self))
        return View(
            self.summary(),
            table={
                "sample": [end_of(self.name_of(row), 24) for row in rows],
                "score": [f"{self.scores[row]:.5g}" for row in rows],
                "p_value": [f"{self.p_values[row]:.4f}" for row in rows],
                "verdict": [
                    word(str(self.verdicts[row]), "in" if self.in_distribution[row] else "out")
                    for row in rows
                ],
            },
            n_rows=len(self),
            charts=self._charts,
        )

    def _charts(self) -> list[Markup]:
        if self.calibration is None or not len(self):
            return []
        return [self.calibration.chart(Batch(self.scores, ~self.in_distribution))]

    def plot(self, ax: Any = None, **options: Any) -> Any:
        """Draw the scores on the histogram of the calibration; see `ScoreHistogramDisplay`."""
        from nescio.displays import ScoreHistogramDisplay

        return ScoreHistogramDisplay.from_assessment(self, ax=ax, **options)
