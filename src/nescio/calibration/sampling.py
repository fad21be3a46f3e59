"""Calibration scores of a stream: all of them while they are few, then a random sample.

The guarantees of a threshold hold for any rows that were chosen without looking at them, so a
sample keeps them exactly. Decision 0021 in docs/adr says why it is a sample, and no histogram.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nescio._validation import Array
from nescio.calibration.thresholds import Scores

MAX_SAMPLES = 2**22
"""The most scores that are kept: 32 MB in the file of a detector."""

_ROOM = 1.25  # the share of `max_samples` that is collected before the surplus is removed


class ScoreSample:
    """Scores of consecutive rows, of which at most `max_samples` are kept.

    Each row has a priority, which is a hash of its number, and those with the lowest priorities are
    kept. So the sample does not depend on how the rows were split into parts.

    Attributes
    ----------
    n_rows : int
        The number of rows that were added.

    Examples
    --------
    >>> sample = ScoreSample(max_samples=3)
    >>> for part in ([0.0, 1.0], [2.0, 3.0, 4.0]):
    ...     sample.add(np.array(part), np.array([7] * len(part)))
    >>> sample.n_rows, sample.scores.tolist(), sample.label_counts.tolist()
    (5, [1.0, 2.0, 4.0], [7, 7, 7])
    """

    def __init__(self, max_samples: int = MAX_SAMPLES) -> None:
        self.max_samples = max_samples
        self.n_rows = 0
        self._n_kept = 0
        self._limit = np.uint64(2**64 - 1)  # rows of a higher priority are not kept
        self._parts: list[tuple[Array, ...]] = []

    def add(self, scores: Scores, label_counts: Array | None = None) -> None:
        """Add the scores of the next rows, and how many labels are predicted for each."""
        rows = np.arange(self.n_rows, self.n_rows + len(scores), dtype=np.uint64)
        self.n_rows += len(scores)
        columns: tuple[Array, ...] = (scores,)
        if label_counts is not None:
            columns = (scores, label_counts.astype(np.int32))
        kept = _priorities(rows) <= self._limit
        self._parts.append((rows[kept], *(column[kept] for column in columns)))
        self._n_kept += int(np.count_nonzero(kept))
        if self._n_kept > _ROOM * self.max_samples:
            self._reduce()

    @property
    def scores(self) -> Scores:
        """The scores that are kept, in the order of their rows."""
        return self._joined()[1]

    @property
    def label_counts(self) -> Array:
        """The numbers of predicted labels of the rows that are kept."""
        return self._joined()[2]

    def _joined(self) -> tuple[Array, ...]:
        if self._n_kept > self.max_samples:
            self._reduce()
        if len(self._parts) > 1:
            self._parts = [tuple(map(np.concatenate, zip(*self._parts, strict=True)))]
        return self._parts[0]

    def _reduce(self) -> None:
        """Keep only the rows with the lowest priorities."""
        joined = tuple(map(np.concatenate, zip(*self._parts, strict=True)))
        priorities = _priorities(joined[0])
        self._limit = np.partition(priorities, self.max_samples - 1)[self.max_samples - 1]
        kept = priorities <= self._limit
        self._parts = [tuple(column[kept] for column in joined)]
        self._n_kept = self.max_samples


def _priorities(rows: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a hash of each row's number (splitmix64); different rows have different ones."""
    mixed = (rows + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)), np.uint64)
