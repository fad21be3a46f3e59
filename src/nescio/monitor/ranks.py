"""Online conformal p-values: each new score's rank among the calibration scores and all before it.

If the stream is exchangeable with the calibration data, these p-values are independent and
uniform, exactly, however small the calibration set is. p-values against the calibration scores
alone are not: they share the calibration sample's own deviation, and an endless stream of them
gives that away.

A rank needs no scores, only counts. Some calibration scores, chosen by rank, cut the line into
cells: each of these values is a cell, and so is the open stretch between two of them. Within a cell
every order of its members is equally likely, so a new score's place among them is drawn at
random. See docs/explanation/monitoring.md for why that is exact, with ties too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

MAX_CUTS = 1_023  # so that there are at most 2,047 cells
_BLOCK = 256  # a byte can count the 255 scores before the last of a block
_EARLIER = np.triu(np.ones((_BLOCK, _BLOCK), np.bool_), 1)  # [i, j]: i came before j


class Bag:
    """Counts of the calibration scores and of all stream scores so far, by cell.

    Parameters
    ----------
    scores : array of shape (n_samples,)
        The calibration scores, ascending.
    max_cuts : int
        How many calibration scores cut the line, at most.
    """

    def __init__(self, scores: Floats, *, max_cuts: int = MAX_CUTS) -> None:
        n = len(scores)
        # By rank, never by value: ranks that depend on n alone leave what lies within a cell as
        # exchangeable as it was.
        ranks = np.arange(1, n + 1)
        if n > max_cuts:
            ranks = np.unique(np.rint(np.linspace(1, n, max_cuts)).astype(np.int64))
        self.cuts: Floats = np.unique(scores[ranks - 1])
        self._ends = np.append(self.cuts, np.nan)
        self.calibration: Counts = np.bincount(self.cells(scores), minlength=2 * len(self.cuts) + 1)
        self.counts: Counts = self.calibration.copy()

    def cells(self, scores: Floats) -> NDArray[np.intp]:
        """The cell of each score: odd for a cut's own value, even for the stretch below it."""
        place = np.searchsorted(self.cuts, scores, side="left")
        return np.asarray(2 * place + (self._ends[place] == scores), np.intp)

    @property
    def total(self) -> int:
        """How many scores there are: of the calibration and of the stream."""
        return int(self.counts.sum())

    def add(self, scores: Floats, uniform: Floats) -> Floats:
        """The online p-values of new scores, in their order, which then belong to the bag.

        `uniform` holds a random number within [0, 1) for each.
        """
        cells = self.cells(scores)
        result = np.empty(len(cells))
        for start in range(0, len(cells), _BLOCK):
            rows = slice(start, start + _BLOCK)
            result[rows] = self._add_block(cells[rows], uniform[rows])
        return result

    def _add_block(self, cells: NDArray[np.intp], uniform: Floats) -> Floats:
        n = len(cells)
        upto = np.cumsum(self.counts)
        own = self.counts[cells]
        below = upto[cells] - own
        total = upto[-1] + np.arange(1, n + 1)
        if n > 1:
            earlier = _EARLIER[:n, :n]
            short = cells.astype(np.int16)  # a quarter of the memory to compare
            before = short[:, None]
            below += _count((before < short) & earlier)
            own += _count((before == short) & earlier)
        self.counts += np.bincount(cells, minlength=len(self.counts))
        p_values: Floats = (below + uniform * (own + 1)) / total
        return p_values

    def clear(self) -> None:
        """Forget the stream."""
        self.counts = self.calibration.copy()


def _count(pairs: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """How many are true in each column; at most 255."""
    counted: NDArray[np.uint8] = np.add.reduce(pairs.view(np.uint8), axis=0, dtype=np.uint8)
    return counted
