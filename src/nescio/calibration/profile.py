"""What the calibration data looked like: how often each label fires, and its usual terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from nescio._validation import Array, BoolArray, FloatArray

if TYPE_CHECKING:
    from nescio.explain import Terms

# A median of 5,000 values is accurate to about 2 % of their standard deviation. Sorting all rows of
# a large calibration set would take longer than calibrating.
_ROWS = 5_000
_ROWS_OF_A_GROUP = 500


@dataclass(frozen=True, eq=False)
class LabelFrequencies:
    """The number of samples for which each label fires: those with a logit above 0.

    A masked label (-inf) does not fire.

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
        >>> logits = np.array([[1.0, -2.0], [3.0, 0.5], [np.nan, 1.0]])
        >>> frequencies = LabelFrequencies.from_logits(logits)
        >>> frequencies.counts.tolist(), frequencies.n_samples
        ([2, 1], 2)
        """
        logits = logits[(logits < np.inf).all(1)]
        return cls((logits > 0).sum(0), len(logits))

    def joined(self, other: LabelFrequencies) -> LabelFrequencies:
        """Return the counts of both sets of samples together."""
        return LabelFrequencies(self.counts + other.counts, self.n_samples + other.n_samples)

    @property
    def n_labels(self) -> int:
        """The number of labels."""
        return len(self.counts)


@dataclass(frozen=True, eq=False)
class Medians:
    """Medians over in-distribution data, one row per group of samples.

    Attributes
    ----------
    groups : tuple of str
        The names of the groups in ascending order; a single empty name if there are no groups.
    labels : array of shape (n_groups, n_labels)
        The median of each label's term.
    ranks : array of shape (n_groups, n_labels)
        The median of a sample's largest term, second largest term, and so on.
    """

    groups: tuple[str, ...]
    labels: NDArray[np.float64]
    ranks: NDArray[np.float64]

    @classmethod
    def from_logits(
        cls,
        terms: Terms,
        logits: FloatArray,
        usable: BoolArray,
        groups: NDArray[np.str_] | None = None,
    ) -> Self:
        """Compute the medians of the usable rows, within each group if there are any.

        Of many rows, 5,000 are drawn with a fixed seed; with groups, 5,000 in total but at least
        500 of each group.
        """
        names = ("",) if groups is None else tuple(np.unique(groups).tolist())
        n_rows = max(_ROWS_OF_A_GROUP, _ROWS // len(names))
        labels, ranks = np.empty((2, len(names), logits.shape[1]))
        for row, name in enumerate(names):
            members = np.flatnonzero(usable if groups is None else usable & (groups == name))
            n_drawn = min(len(members), n_rows)
            drawn = np.random.default_rng(0).choice(len(members), n_drawn, replace=False)
            values = np.asarray(terms.of(logits[members[np.sort(drawn)]]), dtype=np.float64)
            labels[row] = np.median(values, axis=0)
            ranks[row] = np.median(np.sort(values, axis=1), axis=0)[::-1]
        return cls(names, labels, ranks)

    def of_samples(
        self, groups: NDArray[np.str_] | None, n_samples: int
    ) -> tuple[FloatArray, FloatArray]:
        """Return the medians of each sample's group: label by label, and rank by rank."""
        rows = np.zeros(n_samples, int) if groups is None else np.searchsorted(self.groups, groups)
        return self.labels[rows], self.ranks[rows]


@dataclass(frozen=True, eq=False)
class Profile:
    """What the calibration data looked like.

    Attributes
    ----------
    label_frequencies : LabelFrequencies or None
        How often each label fired, which `nescio.monitor` compares with. None without logits.
    medians : Medians or None
        The medians of the score's terms, which `explain` compares with. None if the score is not
        made of labels.
    """

    label_frequencies: LabelFrequencies | None = None
    medians: Medians | None = None

    @classmethod
    def from_logits(
        cls,
        logits: Array | None,
        terms: Terms | None,
        usable: BoolArray,
        groups: NDArray[np.str_] | None = None,
    ) -> Self:
        """Summarise the logits of the calibration data, within groups if there are any."""
        if logits is None:
            return cls()
        medians = None if terms is None else Medians.from_logits(terms, logits, usable, groups)
        return cls(LabelFrequencies.from_logits(logits), medians)

    def arrays(self) -> dict[str, Array]:
        """Return what a file keeps."""
        kept: dict[str, Array] = {}
        if self.label_frequencies is not None:
            kept["firing.counts"] = self.label_frequencies.counts
            kept["firing.n_samples"] = np.array([self.label_frequencies.n_samples], np.int64)
        if self.medians is not None:
            kept["medians.labels"] = self.medians.labels
            kept["medians.ranks"] = self.medians.ranks
        return kept

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, Array], groups: tuple[str, ...] | None, n_labels: int | None
    ) -> Self:
        """Read what a file keeps; raise a `ValueError` if it makes no sense."""
        frequencies = medians = None
        if "firing.counts" in arrays:
            counts, n_samples = arrays["firing.counts"], arrays["firing.n_samples"]
            whole = counts.dtype.kind in "iu" and n_samples.dtype.kind in "iu"
            if not whole or counts.ndim != 1 or not counts.size or n_samples.shape != (1,):
                raise ValueError("its counts of firing labels are not valid")
            if counts.min() < 0 or counts.max() > n_samples[0]:
                raise ValueError("its counts of firing labels exceed the number of samples")
            frequencies = LabelFrequencies(counts.astype(np.int64), int(n_samples[0]))
        if "medians.labels" in arrays:
            names = ("",) if groups is None else tuple(sorted(groups))
            medians = Medians(names, arrays["medians.labels"], arrays["medians.ranks"])
            for array in (medians.labels, medians.ranks):
                if array.shape != (len(names), n_labels) or np.isnan(array).any():
                    raise ValueError("its medians do not fit its labels and groups")
        return cls(frequencies, medians)
