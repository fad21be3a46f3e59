"""The usual terms of each label in the calibration data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from nescio._validation import Array, BoolArray, FloatArray
from nescio.calibration.calibration import ALL

if TYPE_CHECKING:
    from nescio.explain import Terms

# A median of 5,000 values is accurate to about 2 % of their standard deviation. Sorting all rows of
# a large calibration set would take longer than calibrating.
_ROWS = 5_000
_ROWS_OF_A_GROUP = 500


@dataclass(frozen=True, eq=False)
class Medians:
    """Medians over in-distribution data, arrays of shape (n_groups, n_labels).

    `labels` has the median of each label's term, and `ranks` that of a sample's largest term,
    second largest term, and so on. The names of the groups are in ascending order; a single empty
    name if there are no groups. The group "all" has all samples.
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
        group_of: NDArray[np.str_] | None = None,
        groups: Collection[str] | None = None,
    ) -> Self:
        """Compute the medians of the usable rows, within each of the groups if there are any.

        Of many rows, 5,000 are drawn with a fixed seed, but at least 500 of each group.
        """
        names = ("",) if groups is None else tuple(sorted(groups))
        n_rows = max(_ROWS_OF_A_GROUP, _ROWS // len(names))
        labels, ranks = np.empty((2, len(names), logits.shape[1]))
        for row, name in enumerate(names):
            is_whole = group_of is None or name == ALL
            members = np.flatnonzero(usable if is_whole else usable & (group_of == name))
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

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, Array], groups: tuple[str, ...] | None, n_labels: int | None
    ) -> Self:
        """Read what a file keeps; raise a `ValueError` if it makes no sense."""
        names = ("",) if groups is None else tuple(sorted(groups))
        for array in (arrays["labels"], arrays["ranks"]):
            if array.shape != (len(names), n_labels) or np.isnan(array).any():
                raise ValueError("its medians do not fit its labels and groups")
        return cls(names, arrays["labels"], arrays["ranks"])
