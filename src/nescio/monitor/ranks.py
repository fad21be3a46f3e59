"""Online conformal p-values: the rank of each new score among the calibration and earlier scores.

If the stream is exchangeable with the calibration data, these p-values are exactly independent and
uniform, however small the calibration set is. p-values against the calibration scores alone are
not: all of them share the deviation of the calibration sample, which shows in a long stream.

A rank needs only counts, not scores. Some calibration scores, chosen by rank, cut the line into
cells: each of these values is a cell, and so is the open interval between two of them. What equals
a value up to the tie tolerance (`nescio.calibration.tie_limits`) is in its cell. Within a
cell every order of its members is equally likely, so the position of a new score among them is
drawn at random. docs/explanation/monitoring.md shows why this is exact, also with ties.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nescio.calibration import tie_limits

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

MAX_CUTS = 1_023  # this gives at most 2,047 cells
_BLOCK = 256  # a byte can count up to the 255 earlier scores of a block
_EARLIER = np.triu(np.ones((_BLOCK, _BLOCK), np.bool_), 1)  # [i, j]: i is earlier than j


class Bag:
    """The number of calibration scores and stream scores so far in each cell.

    "Bag" is the usual name in the literature on conformal prediction for a set with repetitions.

    Parameters
    ----------
    scores : array of shape (n_samples,)
        The calibration scores in ascending order.
    max_cuts : int
        Maximum number of calibration scores that cut the line.
    """

    def __init__(self, scores: Floats, *, max_cuts: int = MAX_CUTS) -> None:
        n = len(scores)
        # Cuts are chosen by rank, never by value: ranks that depend on n alone leave the members
        # of a cell exchangeable.
        ranks = np.arange(1, n + 1)
        if n > max_cuts:
            ranks = np.unique(np.rint(np.linspace(1, n, max_cuts)).astype(np.int64))
        limits = tie_limits(scores)
        self.cuts, first = np.unique(scores[ranks - 1], return_index=True)
        self._lows: Floats = limits[ranks - 1][first]
        self._drop_ties()
        self.calibration: Counts = np.bincount(self.cells(scores), minlength=2 * len(self.cuts) + 1)
        self.counts: Counts = self.calibration.copy()

    def cells(self, scores: Floats) -> NDArray[np.intp]:
        """Return the cell of each score: odd for the value of a cut, even for an interval."""
        place = np.searchsorted(self._lows, scores, side="right")  # cuts at or below the score
        return np.asarray(2 * place - (scores <= self._highs[place]), np.intp)

    def _drop_ties(self) -> None:
        """Keep the first of several cuts that are tied, and find where the cell of each one ends.

        The cell of a cut is as wide above it as below.
        """
        infinite = np.isinf(self.cuts)
        widths = np.subtract(self.cuts, self._lows, out=np.zeros(len(self.cuts)), where=~infinite)
        highs = self.cuts + widths
        kept = [0]
        for at in range(1, len(highs)):
            if self.cuts[at] > highs[kept[-1]]:
                kept.append(at)
        self.cuts, self._lows = self.cuts[kept], self._lows[kept]
        # A place before the first cut has no cell of a cut below it: nothing is at most NaN.
        self._highs: Floats = np.concatenate([[np.nan], highs[kept]])

    @property
    def total(self) -> int:
        """Number of scores, of the calibration and of the stream."""
        return int(self.counts.sum())

    def add(self, scores: Floats, uniform: Floats) -> Floats:
        """Add new scores, in order, and return their online p-values.

        `uniform` holds a random number within [0, 1) for each of them.
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
        """Remove the scores of the stream."""
        self.counts = self.calibration.copy()


def _count(pairs: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return the number of true values in each column, which is at most 255."""
    counted: NDArray[np.uint8] = np.add.reduce(pairs.view(np.uint8), axis=0, dtype=np.uint8)
    return counted
