"""What every explanation has: the verdicts that it explains."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio._charts.cards import card, short_table, word
from nescio._charts.text import cut, some_rows, text_table
from nescio._io.tabular import Tabular
from nescio._validation import Array, BoolArray
from nescio.explain.terms import Floats

_LONGEST = 42  # characters of what was decisive


@dataclass(frozen=True, repr=False)
class Judged(Tabular):
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

    def short_headline(self) -> str:
        """Return the headline with the id in front, cut if it is long."""
        return ("" if self.id is None else f"{cut(self.id, 40)}: ") + self.headline()

    def named_headline(self) -> str:
        """Return the headline with the id of the input in front, if it is known."""
        return ("" if self.id is None else f"{self.id}: ") + self.headline()


class JudgedRows(Tabular):
    """The verdicts on some inputs, as columns."""

    index_column = "id"

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

    def _ids(self) -> dict[str, Any]:
        return {} if self.ids is None else {"id": self.ids}

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

    def name_of(self, row: int) -> str:
        """Return the id of a sample, or the number of its row if there are no ids."""
        return str(row) if self.ids is None else str(self.ids[row])

    def summary(self) -> str:
        """Return one line: how many samples were explained, and how many of them are flagged."""
        return f"{len(self):,} explained, {np.count_nonzero(~self.in_distribution):,} flagged"

    def table(self, title: str, cell: Callable[[int], str]) -> str:
        """Write the first rows; a cell says what was decisive in one row."""

        def row(at: int) -> str:
            verdict = "in" if self.in_distribution[at] else "OUT"
            return (
                f"{self.name_of(at):>8.8} {self.scores[at]:>12.5g} {self.thresholds[at]:>12.5g}  "
                f"{verdict:<7}  {cut(cell(at), _LONGEST)}"
            )

        head = f"{'':>8} {'score':>12} {'threshold':>12}  verdict  {title}"
        return text_table(self.summary(), head, row, len(self))

    def card(self, title: str, cell: Callable[[int], str]) -> str:
        """Return the same table as HTML."""
        rows = [
            (
                self.name_of(at),
                f"{self.scores[at]:.5g}",
                f"{self.thresholds[at]:.5g}",
                word("in", "in") if self.in_distribution[at] else word("OUT", "out"),
                cell(at),
            )
            for at in some_rows(len(self))
        ]
        titles = ("sample", "score", "threshold", "verdict", title)
        return card(self.summary(), short_table(titles, rows, len(self), n_numbers=2))


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values for JSON, with None in place of infinity and NaN."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }
