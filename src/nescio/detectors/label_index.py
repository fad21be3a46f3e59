"""The labels of a head in cells of similar weights, so that a search can leave most of them out.

The logit of a label in a cell is at most

    features . center + |features| * radius + the largest bias of the cell,

by the Cauchy-Schwarz inequality. The mean and the variance of all logits of a sample follow from
the mean and the covariance of the weights. So much is known of labels that are not looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nescio import scores
from nescio._validation import FloatArray
from nescio.detectors.features import row_blocks
from nescio.detectors.label_cells import divide
from nescio.detectors.neighbours import Indices
from nescio.errors import InputError
from nescio.outputs import Head

Values = NDArray[np.float64]

# float32 adds up to so many products without float64, which bounds its rounding.
_LABELS_AT_ONCE = 1024
_LOGITS_AT_ONCE = 2**21
# Beyond this, float32 may overflow in a product.
_LARGEST_FLOAT32 = 1e30


@dataclass(eq=False)
class LabelIndex:
    """The labels of a head in the order of their cells.

    Parameters
    ----------
    weight : array of shape (n_labels, n_units)
    bias : array of shape (n_labels,)
    labels : array of shape (n_labels,)
        The position of each label in the head. Masked labels, with a bias of -inf, are left out.
    starts : array of shape (n_cells + 1,)
        Where each cell starts, and the last one ends.
    """

    weight: FloatArray
    bias: FloatArray
    labels: Indices
    starts: Indices

    @classmethod
    def of(cls, head: Head) -> LabelIndex:
        """Make the index of a head."""
        kept = np.flatnonzero(~np.isneginf(head.bias))
        if not len(kept):
            raise InputError("every label of the head is masked: every bias is -inf.")
        wide = np.result_type(head.weight.dtype, head.bias.dtype, np.float32)
        weight = head.weight if len(kept) == len(head.bias) else head.weight[kept]
        weight = weight.astype(wide, copy=False)
        if not (np.isfinite(weight).all() and np.isfinite(head.bias[kept]).all()):
            raise InputError(
                "the head holds NaN or infinity. Only a bias may be -inf, for a masked label."
            )
        order, starts = divide(weight)
        labels = kept[order]
        return cls(weight[order], head.bias[labels].astype(wide), labels, starts)

    def check(self, n_units: int) -> None:
        """Raise a `ValueError` if the arrays, read from a file, do not fit each other."""
        n_labels = self.labels.size
        fits = (
            n_labels > 0
            and self.weight.shape == (n_labels, n_units)
            and self.bias.shape == self.labels.shape == (n_labels,)
            and self.weight.dtype in (np.float32, np.float64)
            and self.bias.dtype == self.weight.dtype
            and self.labels.dtype == self.starts.dtype == np.int64
            and self.starts.ndim == 1
            and self.starts.size > 1
            and (self.starts[0], self.starts[-1]) == (0, n_labels)
            and bool((np.diff(self.starts) > 0).all())
            and self.labels.min() >= 0
            and len(np.unique(self.labels)) == n_labels
            and bool(np.isfinite(self.weight).all() and np.isfinite(self.bias).all())
        )
        if not fits:
            raise ValueError("its labels and its cells do not fit each other")

    def __len__(self) -> int:
        return len(self.weight)

    # --- computed at first use ---

    @cached_property
    def sizes(self) -> Indices:
        """The number of labels of each cell."""
        return np.diff(self.starts)

    @cached_property
    def centers(self) -> FloatArray:
        """The mean weight of each cell."""
        sums = np.add.reduceat(self.weight, self.starts[:-1], axis=0)
        return np.asarray(sums / self.sizes[:, None].astype(self.weight.dtype))

    @cached_property
    def radii(self) -> FloatArray:
        """The largest distance of a label of each cell from its centre."""
        squares = np.empty(len(self))
        cell_of = np.repeat(np.arange(len(self.sizes)), self.sizes)
        for part in self._parts():
            away = self.weight[part] - self.centers[cell_of[part]]
            # In float64: a square in float32 would be 0 for weights below 1e-23.
            squares[part] = np.einsum("ij,ij->i", away, away, dtype=np.float64)
        return np.sqrt(np.maximum.reduceat(squares, self.starts[:-1])).astype(self.weight.dtype)

    @cached_property
    def largest_bias(self) -> FloatArray:
        """The largest bias of each cell."""
        return np.asarray(np.maximum.reduceat(self.bias, self.starts[:-1]))

    @cached_property
    def _sizes_of_terms(self) -> tuple[float, float]:
        """Return a length that no weight exceeds, and the largest size of a bias."""
        squares = np.einsum("ij,ij->i", self.centers, self.centers, dtype=np.float64)
        longest = float((np.sqrt(squares) + self.radii).max())
        return longest, float(np.abs(self.bias).max())

    @cached_property
    def moments(self) -> tuple[Values, Values]:
        """The mean and the covariance of the weights and the bias, over all labels."""
        mean = np.append(self.weight.mean(0, dtype=np.float64), self.bias.mean(dtype=np.float64))
        covariance = np.zeros((len(mean), len(mean)))
        # Columns are scaled to about 1, so that no square is too small for float32.
        columns = np.append(self.weight.max(0) - self.weight.min(0), np.ptp(self.bias))
        scales = np.where(columns > 0, columns, columns.dtype.type(1))
        for part in self._parts():
            away = np.column_stack([self.weight[part], self.bias[part]])
            away -= mean.astype(away.dtype)
            away /= scales
            covariance += away.T @ away
        return mean, covariance * np.outer(scales, scales.astype(np.float64)) / len(self)

    def _parts(self) -> list[slice]:
        starts = range(0, len(self), _LABELS_AT_ONCE)
        return [slice(start, start + _LABELS_AT_ONCE) for start in starts]

    # --- logits ---

    def prepared(self, features: FloatArray) -> tuple[FloatArray, Values, Values]:
        """Return features in the precision to search in, their lengths, and how far logits may err.

        That is the precision of the weights, unless float32 might overflow.
        """
        wide = features.astype(np.float64)
        lengths = np.abs(wide).max(1, initial=0.0)
        units = wide / np.where(lengths > 0, lengths, 1.0)[:, None]  # so that no square overflows
        with np.errstate(over="ignore"):
            lengths = lengths * np.sqrt(np.einsum("ij,ij->i", units, units))
            longest, largest_bias = self._sizes_of_terms
            sizes = lengths * longest + largest_bias
        if not np.isfinite(sizes).all():
            raise InputError(
                "the features are too large for the head: a logit is beyond the largest number. "
                "Check that they are the input of the model's last layer."
            )
        dtype = self.weight.dtype if sizes.max(initial=0.0) < _LARGEST_FLOAT32 else wide.dtype
        errors = 2 * (features.shape[1] + 8) * np.finfo(dtype).eps * sizes
        return wide.astype(dtype, copy=False), lengths, errors

    def logits_at(self, features: FloatArray, places: Indices) -> Values:
        """Return the logits of some labels of each sample in float64; -inf for a place of -1."""
        weight = self.weight[places].astype(np.float64)  # (n_samples, k, n_units)
        logits = np.einsum("nj,nkj->nk", features.astype(np.float64), weight) + self.bias[places]
        return np.where(places >= 0, logits, -np.inf)

    def joint_energy(self, features: FloatArray) -> Values:
        """Return the joint energy of all labels; logits are formed in parts of 16 MB at most."""
        result = np.zeros(len(features))
        for rows in row_blocks(len(features), 1):
            inputs = self.prepared(features[rows])[0]
            step = max(1, _LOGITS_AT_ONCE // len(inputs))
            for start in range(0, len(self), step):
                part = slice(start, start + step)
                result[rows] += scores.joint_energy(inputs @ self.weight[part].T + self.bias[part])
        return result
