"""Search among training samples that are kept: which of them, and the largest products."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nescio._validation import Array, FloatArray, checked_whole
from nescio.errors import ParameterError, TooFewSamplesError

Indices = NDArray[np.int64]


def check_sizes(k: int, bank: int) -> None:
    """Raise unless k is a number of neighbours, and the bank 0 (all samples) or at least k."""
    checked_whole("k", k, minimum=1)
    if 0 < checked_whole("bank", bank, minimum=0) < k:
        raise ParameterError(
            f"bank must be 0 (all training samples) or at least k = {k}, got {bank}."
        )


def check_enough(k: int, n_samples: int, what: str) -> None:
    """Raise if there are fewer than k samples to search."""
    if k > n_samples:
        raise TooFewSamplesError(
            f"{what} with k = {k} searches at least {k} training samples, got n_samples = "
            f"{n_samples}. Learn from more samples, or choose a smaller k."
        )


def drawn(n_samples: int, most: int) -> Indices:
    """Return the samples to keep: all, or a random choice with a fixed seed if there are more."""
    if not 0 < most < n_samples:
        return np.arange(n_samples)
    return np.sort(np.random.default_rng(0).choice(n_samples, most, replace=False))


def products(rows: FloatArray, bank: FloatArray) -> FloatArray:
    """Return the product of each row with each sample of the bank, in the bank's precision."""
    # Rows are few and the bank is large, so it is the rows that are converted.
    found: FloatArray = rows.astype(bank.dtype, copy=False) @ bank.T  # (n_rows, n_bank)
    return found


def largest(values: FloatArray, k: int) -> Indices:
    """Return the positions of the k largest values of each row, the smallest of them first."""
    return np.asarray(np.argpartition(values, -k, axis=1)[:, -k:])


def distances(rows: FloatArray, samples: FloatArray) -> NDArray[np.float64]:
    """Return Euclidean distances in float64, of rows to samples of the same or a wider shape."""
    difference = rows.astype(np.float64) - samples
    return np.asarray(np.sqrt(np.einsum("...j,...j->...", difference, difference)))


def fits(bank: Array, k: int, n_features: int) -> bool:
    """Return whether an array, read from a file, can be a bank for this k."""
    return (
        bank.ndim == 2
        and bank.dtype in (np.float32, np.float64)
        and bank.shape[1] == n_features
        and len(bank) >= k
        and bool(np.isfinite(bank).all())
    )
