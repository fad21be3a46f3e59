"""NumPy and torch in, checked NumPy out; and row-wise work in cache-sized blocks over threads.

torch is never imported here: a tensor can only come from a process that has it already.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio.errors import InputError, ShapeError

Array = NDArray[Any]
FloatArray = NDArray[np.floating[Any]]
BoolArray = NDArray[np.bool_]

# (rows of the input, work space of the same shape, one result per row)
RowKernel = Callable[[Array, FloatArray, FloatArray], None]

# 1 MiB of float32: small enough for a second-level cache, large enough that the interpreter's
# share of a block is below a percent.
_BLOCK_ELEMENTS = 1 << 18

# A row or two of true logits may well lie within [0, 1]; this many values do not.
_ENOUGH_TO_TELL = 50


def is_torch(value: object) -> bool:
    """Whether `value` is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def to_numpy(value: Any) -> Array:
    """A NumPy array of anything array-like; tensors come off their device and out of autograd.

    bfloat16, which NumPy does not have, becomes float32.
    """
    if is_torch(value):
        value = value.detach()
        if str(value.dtype) == "torch.bfloat16":
            value = value.float()
        return np.asarray(value.cpu().numpy())
    if isinstance(value, np.ma.MaskedArray):
        raise InputError(
            "masked arrays are not taken: fill the masked labels, logits.filled(-np.inf)."
        )
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InputError(f"expected an array of numbers: {error}") from error
    # Its kind first: the name of a dtype is made anew each time it is asked for.
    bfloat16 = array.dtype.kind in "Vf" and array.dtype.num > 255 and array.dtype.name == "bfloat16"
    return array.astype(np.float32) if bfloat16 else array


def to_float(array: Array) -> FloatArray:
    """`array` as floating point; float16, float32 and float64 stay what they are."""
    if array.dtype.kind == "f" and array.dtype.itemsize <= 8:
        return array
    if array.dtype.kind not in "fiub":
        raise InputError(f"logits must be real numbers, got an array of dtype {array.dtype}.")
    return array.astype(np.float64)


def check_matrix(array: Any, name: str = "logits") -> None:
    """Raise unless `array` has two dimensions and at least one column."""
    shape = tuple(array.shape)
    columns = "n_labels" if name == "logits" else "n_features"
    if len(shape) == 1:
        raise ShapeError(
            f"{name} must have shape (n_samples, {columns}), got {shape}. "
            f"Reshape your data: for one sample, pass {name}[None, :]."
        )
    if len(shape) != 2 or shape[1] == 0:
        raise ShapeError(f"{name} must have shape (n_samples, {columns}), got {shape}.")


def looks_like_probabilities(logits: Array, *, at_least: int = _ENOUGH_TO_TELL) -> bool:
    """Whether every value (but NaN) lies within [0, 1], and there are at least so many values."""
    if logits.size < max(at_least, 1):
        return False
    first = logits.flat[0]
    if first < 0 or first > 1:  # most often one value tells
        return False
    low, high = np.fmin.reduce(logits, axis=None), np.fmax.reduce(logits, axis=None)
    return bool(low >= 0 and high <= 1)


def check_multi_hot(labels: Array) -> None:
    """Raise unless every value is 0 or 1."""
    if labels.dtype != np.bool_ and not np.isin(labels, (0, 1)).all():
        raise InputError("labels must be multi-hot: every value 0 or 1.")


def accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The precision to compute in: 16-bit input is widened to float32."""
    return np.dtype(np.float64) if dtype.itemsize > 4 else np.dtype(np.float32)


def available_cpus() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def map_rows(kernel: RowKernel, matrix: FloatArray) -> FloatArray:
    """Run `kernel` over blocks of rows on every available processor; one result per row.

    A kernel must treat each row alone, so that the result does not depend on the blocks.
    """
    n_rows, n_columns = matrix.shape
    result = np.empty(n_rows, accumulator(matrix.dtype))
    block = max(1, _BLOCK_ELEMENTS // n_columns)
    starts = range(0, n_rows, block)
    workers = min(available_cpus(), len(starts))

    def run(worker: int) -> None:
        work = np.empty((min(block, n_rows), n_columns), result.dtype)
        with np.errstate(all="ignore"):
            for start in starts[worker::workers]:
                rows = slice(start, min(start + block, n_rows))
                kernel(matrix[rows], work[: rows.stop - start], result[rows])

    if workers == 1:
        run(0)
    elif workers > 1:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(run, range(workers)))
    return result
