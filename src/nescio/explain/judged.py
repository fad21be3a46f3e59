"""What every explanation has: the verdicts that it explains."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio._validation import Array, BoolArray
from nescio.explain.terms import Floats

_SHOWN_ROWS = 10


@dataclass(frozen=True, repr=False)
class Judged:
    """The verdict on one input.

    Attributes
    ----------
    detector : str
        Name of the detector.
    id, group : str or None
        Id and group of the input, if known.
    score, threshold, p_value : float
        The p-value is None if the detector is fitted but not calibrated.
    in_distribution : bool
        The verdict.
    """

    detector: str
    id: str | None
    group: str | None
    score: float
    threshold: float
    p_value: float | None
    in_distribution: bool

    def headline(self) -> str:
        """Return one line with the verdict, the score and the threshold."""
        verdict = "in-distribution" if self.in_distribution else "OUT"
        against = "at least" if self.in_distribution else "below"
        more = [] if self.p_value is None else [f"p-value {self.p_value:.4f}"]
        more += [] if self.group is None else [f"group {self.group}"]
        return (
            f"{verdict}. {self.detector} {self.score:.5g} is {against} the threshold "
            f"{self.threshold:.5g}" + (f" ({', '.join(more)})." if more else ".")
        )

    def named_headline(self) -> str:
        """Return the headline with the id of the input in front, if it is known."""
        return ("" if self.id is None else f"{self.id}: ") + self.headline()


class JudgedRows:
    """The verdicts on some inputs, as columns."""

    detector: str
    scores: Floats
    thresholds: Floats
    p_values: Floats | None
    groups: NDArray[np.str_] | None
    ids: NDArray[np.str_] | None

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def in_distribution(self) -> BoolArray:
        """The verdicts."""
        return np.asarray(self.scores >= self.thresholds)

    def verdict_at(self, row: int) -> dict[str, Any]:
        """Return what `Judged` holds about one input."""

        def at(column: Array | None) -> Any:
            return None if column is None else column[row].item()

        return {
            "detector": self.detector,
            "id": at(self.ids),
            "group": at(self.groups),
            "score": at(self.scores),
            "threshold": at(self.thresholds),
            "p_value": at(self.p_values),
            "in_distribution": at(self.in_distribution),
        }

    def table(self, title: str, cells: Iterable[str]) -> str:
        """Write the first rows; a cell says what was decisive in one row."""
        lines = [f"{len(self):,} explained, {np.count_nonzero(~self.in_distribution):,} flagged"]
        lines.append(f"{'':>8} {'score':>12} {'threshold':>12}  verdict  {title}")
        for row, cell in zip(range(_SHOWN_ROWS), cells, strict=False):
            word = "in" if self.in_distribution[row] else "OUT"
            name = str(row) if self.ids is None else str(self.ids[row])
            lines.append(
                f"{name:>8.8} {self.scores[row]:>12.5g} {self.thresholds[row]:>12.5g}  "
                f"{word:<7}  {cell}"
            )
        if len(self) > _SHOWN_ROWS:
            lines.append(f"{'...':>8}")
        return "\n".join(lines)


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values for JSON, with None in place of infinity and NaN."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }
