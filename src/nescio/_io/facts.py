"""What the checks of doubtful columns need to know about a column, gathered block by block.

A file may be larger than memory, so a column is seen in blocks of rows. The facts of all blocks are
those of the whole column.
"""

from __future__ import annotations

import math

import numpy as np

from nescio._validation import Array

SOME_ROWS = 100  # usually they show what the column holds
_REMEMBERED = 1 << 16  # values that are compared with those of other blocks


class ColumnFacts:
    """What is known about a column of a table.

    Attributes
    ----------
    kind : str
        The kind of its NumPy dtype.
    n_rows : int
    all_nan : bool
    fraction : bool
        Whether a finite value is not a whole number.
    hundredths : bool
        Whether every finite value has at most two digits after the point, as prices have.
    nonzero : bool
        Whether a value is not 0.
    low, high : float
        The smallest and the largest value, NaN left out; NaN if there is none.
    distinct : bool
        Whether all values differ. Values of different blocks are compared for 65,536 rows.
    rising, falling : bool
        Whether the values are sorted; NaN is not.
    constant : bool
        Whether all finite values are equal, or there are none.
    finite_rising, finite_falling : bool
        Whether the finite values are sorted.

    Facts that no check needs are not kept up to date: a column with a fraction and a negative value
    is one of logits, whatever else it holds.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.n_rows = 0
        self.all_nan = self.distinct = self.constant = self.hundredths = True
        self.rising = self.falling = self.finite_rising = self.finite_falling = True
        self.fraction = self.nonzero = False
        self.low = self.high = math.nan
        self._head: list[Array] = []
        self._some_finite = False
        self._values: Array = np.empty(0)
        self._last = self._last_finite = self._first_finite = math.nan

    @property
    def is_number(self) -> bool:
        """Whether the column holds numbers."""
        return self.kind in "fiu"

    @property
    def whole(self) -> bool:
        """Whether all finite values are whole numbers, and there are some."""
        return self._some_finite and not self.fraction

    @property
    def settled(self) -> bool:
        """Whether these are surely logits, whatever the following rows hold."""
        return self.fraction and self.low < 0 and self.n_rows >= SOME_ROWS

    def finite_head(self) -> Array:
        """Return the finite values among the first rows."""
        head: Array = np.concatenate([np.empty(0), *self._head])[:SOME_ROWS]
        return np.asarray(head[np.isfinite(head)])

    def add(self, column: Array) -> None:
        """Take the next rows of the column into account."""
        if not self.is_number:
            self.n_rows += len(column)
            return
        if self.n_rows < SOME_ROWS:
            self._head.append(column[:SOME_ROWS].astype(np.float64))
        self.n_rows += len(column)
        # Usually the first rows show that these are logits: most columns are not read further.
        for part in (column[:SOME_ROWS], column):
            if self.fraction and self.low < 0:
                return
            self._see_values(part)
        if len(column) and not (self.fraction and self.low < 0):
            self._see_order(column)

    def _see_values(self, part: Array) -> None:
        """See what single values show; it does no harm to see them twice."""
        if not len(part):
            return
        low, high = (float(find.reduce(part)) for find in (np.fmin, np.fmax))
        self.low, self.high = float(np.fmin(self.low, low)), float(np.fmax(self.high, high))
        self.all_nan = math.isnan(self.low)
        self.nonzero = self.nonzero or bool(part.any())
        finite = part[np.isfinite(part)]
        self._some_finite = self._some_finite or len(finite) > 0
        self.fraction = self.fraction or (not is_whole(part) and len(finite) > 0)
        self.hundredths = self.hundredths and _in_hundredths(finite)

    def _see_order(self, column: Array) -> None:
        """See what consecutive values show."""
        values = column.astype(np.float64)
        if not self.fraction:
            before = values[0] if self.n_rows == len(values) else self._last
            rising, falling = _sorted(before, values)
            self.rising, self.falling = self.rising and rising, self.falling and falling
            self._last = float(values[-1])
            self._see_distinct(column)
        finite = values[np.isfinite(values)]
        if not len(finite):
            return
        if math.isnan(self._first_finite):
            self._first_finite = self._last_finite = float(finite[0])
        rising, falling = _sorted(self._last_finite, finite)
        self.finite_rising = self.finite_rising and rising
        self.finite_falling = self.finite_falling and falling
        self.constant = self.constant and bool((finite == self._first_finite).all())
        self._last_finite = float(finite[-1])

    def _see_distinct(self, column: Array) -> None:
        if not self.distinct:
            return
        known = column
        if 0 < len(self._values) < _REMEMBERED:
            known = np.concatenate([self._values, column])
        self.distinct = len(np.unique(known)) == len(known)
        if len(self._values) < _REMEMBERED:
            self._values = known


def _sorted(before: float, values: Array) -> tuple[bool, bool]:
    """Return whether values never fall, and whether they never rise, from the one before them."""
    earlier = np.concatenate([[before], values[:-1]])
    return bool((values >= earlier).all()), bool((values <= earlier).all())


def _in_hundredths(finite: Array) -> bool:
    """Return whether the values have at most two digits after the point, up to rounding."""
    for part in (finite[:SOME_ROWS], finite):
        values = part.astype(np.float64)
        if not np.allclose(np.round(values, 2), values, rtol=5e-7, atol=0):  # also of float32
            return False
    return True


def is_whole(column: Array) -> bool:
    """Return whether all finite values are whole numbers, and there are some."""
    if column.dtype.kind in "iu":
        return len(column) > 0
    for part in (column[:SOME_ROWS], column):
        finite = part[np.isfinite(part)]
        if not np.array_equal(finite, np.floor(finite)):
            return False
    return len(finite) > 0
