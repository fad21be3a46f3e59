"""How often each label fires: counts of logits above 0. A masked label (-inf) does not fire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from nescio._validation import Array

__all__ = ["Firing"]


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
        logits = logits[(logits < np.inf).all(1)]
        return cls((logits > 0).sum(0), len(logits))

    @classmethod
    def from_arrays(cls, counts: Array, n_samples: Array) -> Self:
        """Return what a file keeps; raise a `ValueError` if the counts cannot be counts."""
        whole = counts.dtype.kind in "iu" and n_samples.dtype.kind in "iu"
        if not whole or counts.ndim != 1 or not counts.size or n_samples.shape != (1,):
            raise ValueError("its counts of firing labels are not valid")
        if counts.min() < 0 or counts.max() > n_samples[0]:
            raise ValueError(
                "its counts of firing labels are not between 0 and the number of samples"
            )
        return cls(counts.astype(np.int64), int(n_samples[0]))

    def joined(self, other: Firing) -> Firing:
        """Return the counts of both sets of samples together."""
        return Firing(self.counts + other.counts, self.n_samples + other.n_samples)

    @property
    def n_labels(self) -> int:
        """The number of labels."""
        return len(self.counts)
