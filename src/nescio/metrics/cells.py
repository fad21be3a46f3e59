"""Scores of a stream: exact while they are few, then counted in cells.

A cell is a range of scores with the same sign, exponent and first 18 bits of the mantissa, so its
ends differ by at most 2 ** -18 of their size: as much as scores may differ and still count as tied
(`nescio.calibration.TIE_TOLERANCE`). For each cell, the count, the lowest and the highest score are
kept. Nothing is random, and neither the order of the scores nor how they were split into parts
matters. Decision 0021 in docs/adr says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio.calibration import Scores, checked_scores

Counts = NDArray[np.int64]

_MANTISSA = 52  # the bits of a float64
CELL_BITS = 18  # of the mantissa, that tell cells apart
MAX_EXACT = 2**23  # scores that are kept one by one: 64 MB
MAX_CELLS = 2**21  # 48 MB
_BUFFER = 2**16  # scores that are collected before they are counted, at least


@dataclass(frozen=True, eq=False)
class Cells:
    """Cells in ascending order: the lowest and the highest score of each, and the count.

    `bits` of the mantissa tell cells apart.
    """

    low: Scores
    high: Scores
    counts: Counts
    bits: int

    @classmethod
    def of(cls, scores: Scores, bits: int) -> Cells:
        """Count scores."""
        ordered = np.sort(scores)
        return cls(ordered, ordered, np.ones(len(ordered), np.int64), bits).united()

    def numbers(self) -> Counts:
        """Return the number of each cell; a higher one has higher scores."""
        return _numbers(self.low, self.bits)

    def united(self) -> Cells:
        """Join neighbours that are in the same cell."""
        numbers = self.numbers()
        starts = np.flatnonzero(np.concatenate([[True], numbers[1:] != numbers[:-1]]))
        if len(starts) == len(numbers):
            return self
        return Cells(
            self.low[starts],
            np.maximum.reduceat(self.high, starts),
            np.add.reduceat(self.counts, starts),
            self.bits,
        )

    def merged(self, other: Cells) -> Cells:
        """Return the counts of both together, in the wider cells of the two."""
        # Two ascending runs: a stable sort only merges them.
        low, high = np.append(self.low, other.low), np.append(self.high, other.high)
        order = np.argsort(low, kind="stable")
        counts = np.append(self.counts, other.counts)[order]
        return Cells(low[order], high[order], counts, min(self.bits, other.bits)).united()

    def at_most(self, n_cells: int) -> Cells:
        """Double the width of cells until there are at most so many."""
        found = self
        while len(found.low) > n_cells and found.bits > 0:
            found = Cells(found.low, found.high, found.counts, found.bits - 1).united()
        return found


def _numbers(scores: Scores, bits: int) -> Counts:
    """Return the leading bits of scores as whole numbers that ascend with the scores."""
    whole = (scores + 0.0).view(np.int64)  # + 0.0: minus zero is zero
    # The bits of negative numbers ascend with their size.
    ascending = whole ^ ((whole >> 63) & np.int64(2**63 - 1))
    return np.asarray(ascending >> (_MANTISSA - bits), np.int64)


class ScoreCells:
    """The scores of one data set, added part by part, in bounded memory.

    Up to `max_exact` scores are kept one by one. From then on they are counted in cells, which get
    wider if there are more than `max_cells`.

    Examples
    --------
    >>> few, many = ScoreCells(), ScoreCells(max_exact=2)
    >>> for part in ([3.0, 1.0], [1.0, -2.5]):
    ...     few.add(part)
    ...     many.add(part)
    >>> few.exact, few.scores.tolist(), many.exact, many.cells.counts.tolist()
    (True, [3.0, 1.0, 1.0, -2.5], False, [1, 2, 1])
    """

    def __init__(self, *, max_exact: int = MAX_EXACT, max_cells: int = MAX_CELLS) -> None:
        self.max_exact = max_exact
        self.max_cells = max_cells
        self.n_samples = 0
        self._cells: Cells | None = None
        self._parts: list[Scores] = []  # not counted yet
        self._n_waiting = 0

    def add(self, scores: Any) -> None:
        """Add scores; NaN is an error."""
        if not len(scores):
            return
        self._parts.append(checked_scores(scores).copy())
        self.n_samples += len(scores)
        self._n_waiting += len(scores)
        enough = self.max_exact
        if self._cells is not None:
            enough = max(_BUFFER, len(self._cells.low))
        if self._n_waiting > enough:
            self._count()

    def merge(self, other: ScoreCells) -> None:
        """Add all scores of another one."""
        for part in other._parts:
            self.add(part)
        if other._cells is not None:
            self._count(other._cells)
            self.n_samples += int(other._cells.counts.sum())

    @property
    def exact(self) -> bool:
        """Whether all scores are kept one by one."""
        return self._cells is None

    @property
    def scores(self) -> Scores:
        """All scores in the order in which they were added; only while they are exact."""
        if self._cells is not None:
            raise ValueError("the scores were counted in cells and are not kept")
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0] if self._parts else np.empty(0)

    @property
    def cells(self) -> Cells:
        """The scores counted in cells, also if all of them are kept."""
        if self._cells is None:
            return Cells.of(self.scores, CELL_BITS).at_most(self.max_cells)
        self._count()
        return self._cells

    def _count(self, further: Cells | None = None) -> None:
        """Count what waits, and cells of another one."""
        found = [one for one in (self._cells, further) if one is not None]
        if self._parts:
            bits = min((one.bits for one in found), default=CELL_BITS)
            found.append(Cells.of(np.concatenate(self._parts), bits))
            self._parts, self._n_waiting = [], 0
        joined = found[0]
        for one in found[1:]:
            joined = joined.merged(one)
        self._cells = joined.at_most(self.max_cells)
