"""The arithmetic of the scores in NumPy: rows of logits in, one number per row out.

A kernel takes a block of rows, work space of the same shape in the precision of the computation,
and the result to fill. It handles each row separately and in the same order of operations, so that
a score does not depend on the batch or the block that the row is in.
"""

from __future__ import annotations

import functools

import numpy as np

from nescio._threads import RowKernel
from nescio._validation import Array, FloatArray

# Labels multiplied into one factor by the portable energy kernel. Their product stays below
# float32's largest number as long as the positive logits among them sum to less than 88.
_LABELS_PER_PRODUCT = 64

# Above this many labels, row sums of float32 are accumulated in float64.
_LABELS_PER_FLOAT32_SUM = 256


def softplus(f: FloatArray) -> FloatArray:
    """Compute log(1 + exp(f)) as max(f, 0) + log1p(exp(-|f|)), without overflow or cancellation."""
    result: FloatArray = np.abs(f)
    np.exp(np.negative(result, out=result), out=result)
    np.log1p(result, out=result)
    result += np.maximum(f, 0)
    return result


def sigmoid(f: FloatArray) -> FloatArray:
    """Compute 1 / (1 + exp(-f)); where exp(-f) overflows, 1 / infinity = 0 is correct."""
    result: FloatArray = np.exp(np.negative(f))
    result += 1
    return np.reciprocal(result, out=result)


def joint_energy(rows: Array, work: FloatArray, result: FloatArray) -> None:
    """Sum log(1 + exp(f)) with the faster of the two kernels on this machine."""
    kernel = joint_energy_direct if _has_vectorised_log1p() else joint_energy_by_products
    kernel(rows, work, result)


def joint_energy_direct(rows: Array, work: FloatArray, result: FloatArray) -> None:
    """Sum log1p(exp(f)): the fastest way where NumPy has a vectorised log1p."""
    np.exp(rows, out=work, dtype=work.dtype)
    np.log1p(work, out=work)
    _sum_rows(work, result)
    _redo_overflow(rows, result)


def joint_energy_by_products(rows: Array, work: FloatArray, result: FloatArray) -> None:
    """Compute log1p of (product of (1 + exp(f)) minus 1): one scalar log1p per 64 labels.

    With q = (product of (1 + e)) - 1, two groups combine as q = a + b + ab, which keeps the
    relative precision of the smallest terms. Label-major, so that all work is on contiguous memory.
    """
    n_rows, n_labels = rows.shape
    n_groups = n_labels // _LABELS_PER_PRODUCT
    whole = n_groups * _LABELS_PER_PRODUCT
    total = np.zeros(n_rows)
    if n_groups:
        # All groups at once: (64, n_rows, n_groups). With few rows, one group would be too short.
        groups = rows[:, :whole].reshape(n_rows, n_groups, _LABELS_PER_PRODUCT).transpose(2, 0, 1)
        for logarithms in np.log1p(_products(groups, work)).T:
            total += logarithms
    if whole < n_labels:
        total += np.log1p(_products(rows[:, whole:].T, work))
    result[:] = total
    _redo_overflow(rows, result)


def _products(labels: Array, work: FloatArray) -> FloatArray:
    """Return the product of 1 + exp(f) over the first axis, minus 1."""
    q: FloatArray = work.reshape(-1)[: labels.size].reshape(labels.shape)
    np.exp(labels, out=q, dtype=q.dtype)
    width = len(q)
    while width > 1:
        half = width // 2
        a, b = q[:half], q[width - half : width]
        product = a * b
        product += b
        a += product
        width -= half
    return np.asarray(q[0])


def max_logit(rows: Array, work: FloatArray, result: FloatArray) -> None:
    """Find the largest logit."""
    np.max(rows, axis=1, out=result)


def sum_logit(rows: Array, work: FloatArray, result: FloatArray) -> None:
    """Sum the logits that are not -inf."""
    np.copyto(work, rows)
    _sum_rows(work, result)
    masked = np.flatnonzero(~np.isfinite(result))
    if masked.size:
        again = np.empty(len(masked), result.dtype)
        _sum_rows(np.where(np.isneginf(work[masked]), 0, work[masked]), again)
        result[masked] = again


def sum_prob(rows: Array, work: FloatArray, result: FloatArray) -> None:
    """Sum the label probabilities."""
    np.negative(rows, out=work)
    np.exp(work, out=work)
    work += 1
    np.reciprocal(work, out=work)
    _sum_rows(work, result)


def msp(rows: Array, work: FloatArray, result: FloatArray) -> None:
    """Find the largest softmax probability; 0 if every label is masked."""
    top = np.max(rows, axis=1, keepdims=True)
    np.subtract(rows, top, out=work, dtype=work.dtype)
    np.exp(work, out=work)
    _sum_rows(work, result)
    np.reciprocal(result, out=result)
    result[np.isneginf(top[:, 0])] = 0


def of_top_k(kernel: RowKernel, k: int) -> RowKernel:
    """Apply `kernel` to the k largest logits of each row: every term grows with the logit."""

    def top_k_kernel(rows: Array, work: FloatArray, result: FloatArray) -> None:
        split = rows.shape[1] - k
        top = np.partition(rows, split, axis=1)[:, split:]
        kernel(top, work.reshape(-1)[: top.size].reshape(top.shape), result)

    return top_k_kernel


def _sum_rows(work: FloatArray, result: FloatArray) -> None:
    if work.shape[1] <= _LABELS_PER_FLOAT32_SUM:
        np.einsum("ij->i", work, out=result)
    else:
        result[:] = work.sum(1, dtype=np.float64)


def _redo_overflow(rows: Array, result: FloatArray) -> None:
    """Compute rows in which exp overflowed again, in the form that cannot overflow."""
    overflown = np.flatnonzero(~np.isfinite(result))
    if overflown.size:
        again = np.empty(len(overflown), result.dtype)
        _sum_rows(softplus(np.ascontiguousarray(rows[overflown], dtype=result.dtype)), again)
        result[overflown] = again


@functools.cache
def _has_vectorised_log1p() -> bool:
    """Return whether NumPy has a vectorised log1p here (a scalar one costs 20 times as much)."""
    from numpy.lib.introspect import opt_func_info

    found = opt_func_info(func_name="^log1p$", signature="float32")
    current = [entry["current"] for entry in found.get("log1p", {}).values()]
    return any("AVX512" in target or "X86_V4" in target for target in current)
