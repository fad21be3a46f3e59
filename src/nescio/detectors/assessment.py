"""The verdict on each sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from nescio._charts.text import end_of, text_table
from nescio._io.tables import write_table
from nescio._io.tabular import Tabular
from nescio._validation import BoolArray
from nescio.calibration import Calibration
from nescio.errors import InputError
from nescio.outputs.crops import N_CROPS, heat_map
from nescio.outputs.joining import join_columns, join_indexes, rows_of_index

_CROPS = tuple(f"crop_{at}" for at in range(1, 1 + N_CROPS))
COLUMNS = ("id", "score", "p_value", "in_distribution", "group", "mixed", *_CROPS)
"""The columns that a table of verdicts may have."""
START_OF_HEAD = f"{'':>8} {'score':>12} {'p_value':>9}"
"""The titles above `Assessment.start_of_line`, in the text of a result."""


class Verdict(NamedTuple):
    """The score, the p-value and the verdict of one sample."""

    score: float
    p_value: float
    in_distribution: bool


@dataclass(frozen=True, eq=False, repr=False)
class Assessment(Tabular):
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
    mixed : array of bool of shape (n_samples,) or None
        By the detector "mixed": which of the flagged samples show something known too.
    crops : array of shape (n_samples, 9) or None
        By the detector "mixed": the p-values of the crops of each image, row by row.
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
    mixed: BoolArray | None = None
    crops: NDArray[np.float64] | None = None
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
            mixed=joined.get("mixed"),
            crops=np.stack([joined[name] for name in _CROPS], axis=1)
            if "mixed" in joined
            else None,
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
        groups, ids, mixed, crops = (
            None if column is None else column[rows]
            for column in (self.groups, self.ids, self.mixed, self.crops)
        )
        kept = {name: column[rows] for name, column in self.kept.items()}
        some = (scores, p_values, inside, groups, ids, kept, mixed, crops)
        return Assessment(*some, self.calibration, rows_of_index(self.index, rows))

    def __iter__(self) -> Iterator[Verdict]:
        return (self[row] for row in range(len(self)))

    @property
    def flagged(self) -> NDArray[np.intp]:
        """The positions of the samples that should not be trusted, from 0: for `.iloc`."""
        return np.flatnonzero(~self.in_distribution)

    @property
    def verdicts(self) -> NDArray[np.str_]:
        """The verdicts as words: in, OUT or, by the detector "mixed", MIXED."""
        words = np.where(self.in_distribution, "in", "OUT")
        return words if self.mixed is None else np.where(self.mixed, "MIXED", words)

    def heat_map(self, row: int) -> NDArray[np.float64]:
        """Return how suspicious each place of an image is, from 0 to 1, in 4 rows and 4 columns."""
        if self.crops is None:
            raise InputError(
                "a heat map needs the crops of the images, which only the detector mixed assesses."
            )
        return heat_map(self.crops[row])

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the table: id, score, p_value, in_distribution, group and the kept columns.

        id and group are left out if they are not known. With crops, mixed follows, and crop_1 to
        crop_9, the p-values of the crops.
        """
        return {**self._verdicts(), **self.kept}

    def _verdicts(self) -> dict[str, NDArray[Any]]:
        crops = [None] * N_CROPS if self.crops is None else self.crops.T
        first = (self.ids, self.scores, self.p_values, self.in_distribution, self.groups)
        columns = zip(COLUMNS, (*first, self.mixed, *crops), strict=True)
        return {name: column for name, column in columns if column is not None}

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the table as .parquet, .csv or .jsonl, atomically."""
        write_table(path, self.columns(), force=force)

    def __repr__(self) -> str:
        words = self.verdicts

        def row(at: int) -> str:
            return f"{self.start_of_line(at)}  {words[at]}"

        return text_table(self.summary(), f"{START_OF_HEAD}  verdict", row, len(self))

    def start_of_line(self, row: int) -> str:
        """Return the id, the score and the p-value of a sample, below `START_OF_HEAD`."""
        verdict, name = self[row], end_of(self.name_of(row), 8)
        return f"{name:>8} {verdict.score:>12.5g} {verdict.p_value:>9.4f}"

    def summary(self) -> str:
        """Return one line: how many samples were assessed, and how many flagged."""
        return f"{len(self):,} assessed, {len(self.flagged):,} flagged"

    def name_of(self, row: int) -> str:
        """Return the id of a sample, or the number of its row if there are no ids."""
        return str(row) if self.ids is None else str(self.ids[row])

    def _repr_html_(self) -> str:
        from nescio.detectors.showing import assessment_card

        return assessment_card(self)

    def plot(self, ax: Any = None, **options: Any) -> Any:
        """Draw the scores on the histogram of the calibration; see `ScoreHistogramDisplay`."""
        from nescio.displays import ScoreHistogramDisplay

        return ScoreHistogramDisplay.from_assessment(self, ax=ax, **options)
