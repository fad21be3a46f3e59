"""What methods that read features share: the layer, row-wise arithmetic, and torch beside NumPy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from nescio._validation import FloatArray, check_multi_hot, is_torch, to_numpy
from nescio.detectors.base import Detector
from nescio.errors import InputError, ParameterError, ShapeError

_LARGEST_BLOCK = 2**23  # elements of 8 bytes: 64 MB
_MOST_ROWS = 1024
# Kernels of BLAS take 2 to 24 rows at a time: with this number no rest remains, which they would
# add in another order. More rows would cost time for a single one, fewer for a large batch.
_PRODUCT_ROWS = 24
# Relative to the largest variance, for each feature: rounding to float32 leaves a variance of up to
# 2 ** -48 in directions that have none. Whether the values were stored as float32 or as float64
# must not decide which directions count.
SMALLEST_VARIANCE = 2.0**-46
_NO_LAYERS = ("logits", "labels", "head")


class FeatureDetector(Detector):
    """Base class of detectors that read the features of one layer, `layer`."""

    layer: str

    learns_with: ClassVar[tuple[str, ...]] = ()
    """The arrays that `_learn` gets beside the features of the layer."""

    scores_with: ClassVar[tuple[str, ...]] = ()
    """The arrays that `_score` gets beside the features of the layer."""

    @property
    def learns_from(self) -> tuple[str, ...]:
        """The features of the layer, and `learns_with`."""
        return (self.layer, *self.learns_with)

    @property
    def scores_from(self) -> tuple[str, ...]:
        """The features of the layer, and `scores_with`."""
        return (self.layer, *self.scores_with)

    def _check_params(self) -> None:
        super()._check_params()
        if not isinstance(self.layer, str) or not self.layer or self.layer in _NO_LAYERS:
            raise ParameterError(
                "layer must be 'features' or the name of another array of features in "
                f"Outputs.arrays, got {self.layer!r}."
            )


def row_blocks(n_rows: int, width: int) -> Iterator[slice]:
    """Give blocks of rows so small that a temporary array of this width has at most 64 MB."""
    step = min(_MOST_ROWS, max(1, _LARGEST_BLOCK // width))
    for start in range(0, n_rows, step):
        yield slice(start, start + step)


def unit_rows(rows: FloatArray, chosen: NDArray[np.int64] | None = None) -> FloatArray:
    """Return the rows scaled to length 1, in their own precision; a row of zeros stays as it is.

    With `chosen`, only these rows, without a copy of them in between.

    Examples
    --------
    >>> unit_rows(np.array([[3.0, 4.0], [0.0, 0.0], [1e200, 0.0]]))
    array([[0.6, 0.8],
           [0. , 0. ],
           [1. , 0. ]])
    """
    n_rows = len(rows) if chosen is None else len(chosen)
    result = np.empty((n_rows, rows.shape[1]), rows.dtype)
    for block in row_blocks(n_rows, rows.shape[1]):
        wide = rows[block if chosen is None else chosen[block]].astype(np.float64)
        wide /= _or_one(np.abs(wide).max(1))  # so that no square overflows
        wide /= _or_one(np.sqrt(np.einsum("ij,ij->i", wide, wide)))
        result[block] = wide
    return result


def _or_one(divisors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return divisors as a column, with 1 in place of 0."""
    return np.where(divisors > 0, divisors, 1.0)[:, None]


def centred(rows: FloatArray, center: NDArray[np.float64]) -> FloatArray:
    """Return rows minus a centre, in the precision of the rows.

    The centre is split in two, so that features far from zero lose no precision in float32.
    """
    coarse = center.astype(rows.dtype)
    moved = rows - coarse
    moved -= (center - coarse).astype(rows.dtype)
    return moved


def product(rows: FloatArray, matrix: FloatArray) -> FloatArray:
    """Return the product; a row of it is the same alone and in any batch.

    BLAS adds in an order that depends on the number of rows, so it always gets the same number of
    them. What remains is that some processors round by the position in the block, in float32 or
    with several threads.
    """
    result = np.empty((len(rows), matrix.shape[1]), rows.dtype)
    padded = np.zeros((_PRODUCT_ROWS, rows.shape[1]), rows.dtype)
    for start in range(0, len(rows), _PRODUCT_ROWS):
        block = rows[start : start + _PRODUCT_ROWS]
        padded[: len(block)] = block
        result[start : start + len(block)] = (padded @ matrix)[: len(block)]
    return result


def memberships(labels: Any, n_samples: int) -> NDArray[np.float64]:
    """Return multi-hot labels as floats; one class per sample is one-hot, no labels one class."""
    if labels is None:
        return np.ones((n_samples, 1))
    array = to_numpy(labels)
    if array.ndim == 1:
        array = (array[:, None] == np.unique(array)).astype(np.float64)
    if array.ndim != 2 or len(array) != n_samples:
        raise ShapeError(
            f"labels must have shape ({n_samples}, n_labels), multi-hot, got {array.shape}."
        )
    check_multi_hot(array)
    if not array.any():
        raise InputError("labels are all 0: no sample has a label to learn from.")
    return array.astype(np.float64)


# --- what NumPy and torch name differently, for scores that can be exported -------------------


def exp(x: Any) -> Any:
    """Return e to the power of each value."""
    return x.exp() if is_torch(x) else np.exp(x)


def where(condition: Any, x: Any, y: Any) -> Any:
    """Return x where the condition holds, else y."""
    return (sys.modules["torch"] if is_torch(condition) else np).where(condition, x, y)


def like(array: Any, x: Any) -> Any:
    """Return an array in the precision of x: torch multiplies no matrices of two precisions."""
    return array.to(x.dtype) if is_torch(x) else array.astype(x.dtype, copy=False)


def largest(x: Any, k: int) -> Any:
    """Return the k largest values of each row (all if there are fewer), the smallest one first.

    The others are in no particular order.

    Examples
    --------
    >>> largest(np.array([[3.0, 1.0, 2.0]]), 2)
    array([[2., 3.]])
    """
    k = min(k, x.shape[1])
    if is_torch(x):
        return x.topk(k, dim=1).values.flip(1)
    first = x.shape[1] - k
    return np.partition(x, first, axis=1)[:, first:]
