"""Samples to search for neighbours, and how far rounded products are from their similarities."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio._validation import FloatArray

Float64s = NDArray[np.float64]

_SAMPLES_FOR_CENTER = 4096
_ROWS = 4096
_EPS = float(np.finfo(np.float64).eps)


class Space(ABC):
    """Samples in a form that is multiplied with queries.

    Attributes
    ----------
    samples : array of shape (n_samples, n_columns)
        As they were given: distances are computed to these.
    precisions : tuple of type
        The precisions of the products, ascending: the next one is for queries that have too many
        candidates.
    """

    samples: FloatArray
    precisions: tuple[Any, ...]

    @abstractmethod
    def moved(self, queries: FloatArray) -> FloatArray:
        """Return queries as they are multiplied."""

    @abstractmethod
    def norms(self, moved: FloatArray) -> Float64s:
        """Return the length of each of these."""

    @abstractmethod
    def columns(self, columns: slice, dtype: Any) -> FloatArray:
        """Return a block of samples as they are multiplied."""

    @abstractmethod
    def error(self, lower: Float64s, norms: Float64s, dtype: Any) -> Float64s:
        """Return the largest error of the products of samples whose similarity is `lower` or more.

        It holds for any order of addition, and covers the rounding of what is multiplied.
        """

    def longest_query(self, dtype: Any) -> float:
        """Return the length of queries from which on products might overflow."""
        return 1e15 if dtype == np.float32 else np.inf


class UnitSpace(Space):
    """Samples of length 1, and queries of length 1: products are similarities, up to a constant.

    The samples are multiplied as they are, without a copy.
    """

    def __init__(self, samples: FloatArray) -> None:
        self.samples = samples
        single = samples.dtype == np.float32
        self.precisions = (np.float32, np.float64) if single else (np.float64,)

    def moved(self, queries: FloatArray) -> FloatArray:
        """Return queries of length 1 as they are."""
        return queries

    def norms(self, moved: FloatArray) -> Float64s:
        """Return 1 for each."""
        return np.ones(len(moved))

    def columns(self, columns: slice, dtype: Any) -> FloatArray:
        """Return a block of samples in this precision."""
        return self.samples[columns].astype(dtype, copy=False)

    def error(self, lower: Float64s, norms: Float64s, dtype: Any) -> Float64s:
        """Return a bound for lengths of 1."""
        # Lengths are 1 up to the rounding of the samples themselves, in float64 too.
        own = float(np.finfo(self.samples.dtype).eps)
        n_columns = self.samples.shape[1] + 8
        return np.full(
            len(norms), n_columns * float(np.finfo(dtype).eps) + 4 * own + 4 * n_columns * _EPS
        )


class FreeSpace(Space):
    """Samples of any length: beside them is a copy in float32, centred and scaled."""

    def __init__(self, samples: FloatArray) -> None:
        self.samples = samples
        self.precisions = (np.float32, np.float64)
        # The median, because one sample far away moves the mean of all.
        some = samples[:: len(samples) // _SAMPLES_FOR_CENTER + 1]
        self.center = np.median(some, axis=0).astype(np.float64)
        spread = max(np.abs(edge - self.center).max() for edge in (samples.min(0), samples.max(0)))
        self.scale = 2.0 ** -np.ceil(np.log2(spread)) if spread > 0 else 1.0
        self.coarse = np.empty((len(samples), samples.shape[1] + 1), np.float32)
        largest = 0.0
        for start in range(0, len(samples), _ROWS):
            block = self._wide(slice(start, start + _ROWS))
            self.coarse[start : start + _ROWS] = block
            largest = max(largest, -2 * block[:, -1].min())
        self.longest = np.sqrt(largest)

    def moved(self, queries: FloatArray) -> FloatArray:
        """Return queries centred and scaled, with a further column of 1 for the squares."""
        result = np.ones((len(queries), queries.shape[1] + 1))  # the 1 takes the squares
        np.subtract(queries, self.center, out=result[:, :-1])
        result[:, :-1] *= self.scale
        return result

    def norms(self, moved: FloatArray) -> Float64s:
        """Return the length of each, without the further column."""
        return np.asarray(np.sqrt(np.einsum("ij,ij->i", moved[:, :-1], moved[:, :-1])))

    def columns(self, columns: slice, dtype: Any) -> FloatArray:
        """Return a block, with minus half of the squared length as a further column."""
        return self.coarse[columns] if dtype == np.float32 else self._wide(columns)

    def _wide(self, columns: slice) -> Float64s:
        block = np.asarray(self.moved(self.samples[columns]), np.float64)
        block[:, -1] = -0.5 * np.einsum("ij,ij->i", block[:, :-1], block[:, :-1])
        return block

    def error(self, lower: Float64s, norms: Float64s, dtype: Any) -> Float64s:
        """Return a bound that grows with the lengths of the query and of the samples near it."""
        # With a similarity s, |a - b| = sqrt(|a|^2 - 2 s). So such a sample is not far away, and
        # not long: |b| <= |a| + |a - b|. `slack` is for a similarity that is rounded itself.
        n_columns = self.samples.shape[1] + 8
        share = 1.01 * n_columns * float(np.finfo(dtype).eps)
        slack = np.sqrt(2 * share)
        reach = np.sqrt(np.maximum(norms**2 - 2 * lower, 0.0))
        longest = np.minimum(((1 + slack) * norms + reach) / (1 - slack), self.longest)
        tiny = 4 * n_columns * float(np.finfo(dtype).tiny) * (1 + norms)
        # The last term: differences round too.
        return np.asarray(
            share * (norms + longest / 2) * longest + tiny + n_columns * _EPS * reach**2
        )
