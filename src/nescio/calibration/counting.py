"""Count how many ascending numbers lie at or below new ones: `np.searchsorted`, but faster.

A binary search among thousands of numbers takes a dozen steps for each new number, and half of them
surprise the processor's branch prediction. Here equal cells divide the range of the numbers. One
multiplication finds the cell of a new number, a table says how many numbers lie in lower cells, and
a few steps for all new numbers at once count those in the same cell.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.intp]

# For fewer new numbers, a binary search is as fast.
_FEWEST_NEW = 256

_CELLS_PER_NUMBER = 4
_MOST_CELLS = 1 << 16  # 512 kB
_BEYOND = 0.0005  # the share of the numbers below the first cell, and of those above the last one
_MOST_STEPS = 6  # up to 63 numbers in a cell can be counted
_IN_REACH = 0.95  # or else of this share; new numbers in fuller cells are searched for

# Larger numbers are no index on every processor.
_LARGEST_PLACE = 2.0**53


class Counter:
    """Counts the numbers at or below each new number, exactly as `np.searchsorted` does.

    Parameters
    ----------
    ordered : array of shape (n,)
        Ascending, with ties and infinities if there are any, but without NaN.

    Examples
    --------
    >>> Counter(np.array([1.0, 2.0, 2.0, 5.0])).at_or_below(np.array([0.0, 2.0, 9.0]))
    array([0, 3, 4])
    """

    def __init__(self, ordered: Floats) -> None:
        self._ordered = ordered
        self._ready = self._useful = False  # the table is made when it is first of use

    def at_or_below(self, values: Floats) -> Counts:
        """Return how many numbers are at or below each value; for NaN, all of them."""
        many = values.ndim == 1 and len(values) >= _FEWEST_NEW
        if many and not self._ready:
            self._useful = self._make_table()
            self._ready = True
        place = self._places(values) if many and self._useful else None
        # Without a table, and for values that are NaN, inf or too large for an index:
        if place is None or not np.maximum.reduce(place) < _LARGEST_PLACE:
            return self._ordered.searchsorted(values, "right")
        count = self._starts.take(place.astype(np.intp), mode="clip")
        full = np.flatnonzero(count < 0) if self._has_full_cells else None
        if full is not None:
            count[full] = 0
        for step, ahead in self._steps:
            # Numbers of the next cells are larger than the value, so a step never goes too far.
            count += step * (ahead.take(count) <= values)
        if full is not None and len(full):
            count[full] = self._ordered.searchsorted(values[full], "right")
        return count

    def _make_table(self) -> bool:
        """Return whether a table is of use: not for numbers that are mostly tied."""
        finite = self._ordered[np.isfinite(self._ordered)]
        if not len(finite):
            return False
        beyond = int(_BEYOND * len(finite))
        n_cells = min(_CELLS_PER_NUMBER * len(finite), _MOST_CELLS)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            self._scale = n_cells / (finite[-1 - beyond] - finite[beyond])
            self._shift = 1.0 - self._scale * finite[beyond]
        if not (0 < self._scale < np.inf and np.isfinite(self._shift)):
            return False
        # Cells 0 and n + 1 are for what lies beyond the others.
        cells = np.minimum(self._places(self._ordered), n_cells + 1).astype(np.intp)
        members = np.bincount(cells, minlength=n_cells + 2)
        neighbours = members[cells]  # of each number, with itself
        shares = [np.mean(neighbours < 1 << n) for n in range(1, _MOST_STEPS + 1)]
        if shares[-1] < _IN_REACH:
            return False
        wanted = 1.0 if shares[2] == 1 else _IN_REACH
        n_steps = 1 + next(n for n, share in enumerate(shares) if share >= wanted)
        starts = np.cumsum(members) - members
        full = members >= 1 << n_steps
        starts[full] = -1
        self._starts = starts  # complete: another thread may have made the same table, and use it
        self._has_full_cells = bool(full.any())
        padded = np.concatenate([self._ordered, np.full(1 << n_steps, np.inf)])
        self._steps = [(1 << i, padded[(1 << i) - 1 :]) for i in reversed(range(n_steps))]
        return True

    def _places(self, values: Floats) -> Floats:
        """Return the cell of each value, with a fraction; 0 for what lies below the first one.

        Every operation keeps the order of the values, also where it rounds. So values in different
        cells are in the order of their cells.
        """
        with np.errstate(over="ignore"):
            place: Floats = values * self._scale
            place += self._shift
        np.maximum(place, 0.0, out=place)
        return place
