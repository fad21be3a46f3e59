"""How often each label fires: a label fires if its logit is above 0 (a masked one does not)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from nescio._validation import Array

__all__ = ["Firing"]

_ROWS_AT_ONCE = 255  # the largest number that a byte can hold


@dataclass(frozen=True, eq=False)
class Firing:
    """The number of samples for which each label fires.

    Attributes
    ----------
    counts : array of int of shape (n_labels,)
        For each label, the number of samples whose logit is above 0.
    n_samples : int
        The number of samples counted. Samples with NaN or +inf are not counted.
    """

    counts: NDArray[np.int64]
    n_samples: int

    @classmethod
    def from_logits(cls, logits: Array) -> Self:
        """Count the labels that fire.

        Examples
        --------
        >>> firing = Firing.from_logits(np.array([[1.0, -2.0], [3.0, 0.5], [np.nan, 1.0]]))
        >>> firing.counts.tolist(), firing.n_samples
        ([2, 1], 2)
        """
        with np.errstate(all="ignore"):
            # NaN and +inf make the sum NaN or +inf, even next to -inf, so one pass finds them. If
            # the sum overflows, the rows are only checked in vain.
            clean = np.add.reduce(logits, axis=None) < np.inf
        if not clean:
            logits = logits[(logits < np.inf).all(1)]
        counts = np.zeros(logits.shape[1], np.int64)
        for start in range(0, len(logits), _ROWS_AT_ONCE):
            above = (logits[start : start + _ROWS_AT_ONCE] > 0).view(np.uint8)
            # Adding bytes is several times faster than counting booleans in whole numbers.
            counts += np.add.reduce(above, axis=0, dtype=np.uint8)
        return cls(counts, len(logits))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:
        """Restore the counts from a file; raise a `ValueError` if they are not valid."""
        counts, n_samples = np.asarray(arrays["counts"]), np.asarray(arrays["n_samples"])
        whole = counts.dtype.kind in "iu" and n_samples.dtype.kind in "iu"
        if not whole or counts.ndim != 1 or not counts.size or n_samples.shape != (1,):
            raise ValueError("its counts of firing labels are not valid")
        if counts.min() < 0 or counts.max() > n_samples[0]:
            raise ValueError(
                "its counts of firing labels are not between 0 and the number of samples"
            )
        return cls(counts.astype(np.int64), int(n_samples[0]))

    def arrays(self) -> dict[str, Any]:
        """Return the arrays to store in a file."""
        return {"counts": self.counts, "n_samples": np.array([self.n_samples], np.int64)}

    def joined(self, other: Firing) -> Firing:
        """Return the counts of both sets of samples together."""
        return Firing(self.counts + other.counts, self.n_samples + other.n_samples)

    @property
    def n_labels(self) -> int:
        """The number of labels."""
        return len(self.counts)
