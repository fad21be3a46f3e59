"""Search among training samples that are kept, and the detectors that are made of it.

Products choose candidates, because BLAS computes them fast; distances from differences in float64
decide, and of equal ones the first. So neither the batch nor the order in which a processor adds
changes a distance, unless more samples than the spare candidates are as near up to rounding.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nescio import scores
from nescio._validation import Array, FloatArray, checked_whole
from nescio.detectors import inputs as reading
from nescio.detectors.base import Detector, NotCalibratedError
from nescio.detectors.features import checked_layer, row_blocks, unit_rows
from nescio.detectors.inputs import Arrays
from nescio.errors import ParameterError, TooFewSamplesError

Indices = NDArray[np.int64]

_SPARE = 16  # candidates beyond k: products round, so the k-th nearest may rank a little lower
_AT_RIGHT_ANGLES = np.sqrt(2.0)  # the distance of a row of zeros, which has no direction


class Nearest(NamedTuple):
    """The nearest samples of each query, nearest first: distances and positions."""

    distances: NDArray[np.float64]
    positions: Indices


def nearest(bank: FloatArray, queries: FloatArray, k: int) -> Nearest:
    """Return the k samples of the bank that are nearest to each query; all have length 1."""
    n_candidates = min(k + _SPARE, len(bank))
    result = Nearest(np.empty((len(queries), k)), np.empty((len(queries), k), np.int64))
    for block in row_blocks(len(queries), max(len(bank), n_candidates * bank.shape[1])):
        rows = queries[block]
        similarities = products(rows, bank)
        candidates = largest(similarities, n_candidates)
        distances = euclidean(rows[:, None], bank[candidates])  # (n_rows, n_candidates)
        order = np.lexsort((candidates, distances))[:, :k]
        result.distances[block] = np.take_along_axis(distances, order, axis=1)
        result.positions[block] = np.take_along_axis(candidates, order, axis=1)
    return result


def products(rows: FloatArray, bank: FloatArray) -> FloatArray:
    """Return the product of each row with each sample of the bank, in the bank's precision."""
    # Rows are few and the bank is large, so it is the rows that are converted.
    result: FloatArray = rows.astype(bank.dtype, copy=False) @ bank.T  # (n_rows, n_bank)
    return result


def largest(values: FloatArray, k: int) -> Indices:
    """Return the positions of the k largest values of each row, in no particular order."""
    return np.asarray(np.argpartition(values, values.shape[1] - k, axis=1)[:, -k:])


def euclidean(rows: FloatArray, samples: FloatArray) -> NDArray[np.float64]:
    """Return distances in float64, of rows to samples of the same or a wider shape."""
    difference = rows.astype(np.float64) - samples
    return np.asarray(np.sqrt(np.einsum("...j,...j->...", difference, difference)))


def drawn(n_samples: int, most: int) -> Indices:
    """Return the samples to keep: all, or a random choice with a fixed seed if there are more."""
    if not 0 < most < n_samples:
        return np.arange(n_samples)
    return np.sort(np.random.default_rng(0).choice(n_samples, most, replace=False))


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


def fits(bank: Array, k: int, n_features: int) -> bool:
    """Return whether an array, read from a file, can be a bank for this k."""
    return (
        bank.ndim == 2
        and bank.dtype in (np.float32, np.float64)
        and bank.shape[1] == n_features
        and len(bank) >= k
        and bool(np.isfinite(bank).all())
    )


class BankDetector(Detector):
    """Base class of detectors that search training samples, `bank_`, with positions `rows_`."""

    bank_: Array
    rows_: Indices

    def __init__(
        self,
        k: int = 5,
        layer: str = "features",
        bank: int = 20_000,
        *,
        tpr: float = 0.95,
        nonfinite: str = "raise",
    ) -> None:
        super().__init__(tpr=tpr, nonfinite=nonfinite)
        self.k = k
        self.layer = layer
        self.bank = bank

    def _check_params(self) -> None:
        super()._check_params()
        checked_layer(self.layer)
        check_sizes(self.k, self.bank)

    def nearest(self, X: Any, n: int = 5) -> Indices:
        """Return the positions of the nearest training samples, nearest first.

        They count the rows that were learned from: with nonfinite="out", those without NaN or
        infinity. With a smaller `bank`, only the samples that were kept can be found.

        Parameters
        ----------
        X : array, tensor, data frame or Outputs
            What the detector reads.
        n : int
            How many samples.

        Returns
        -------
        array of shape (n_samples, n)
            -1 for samples that have no neighbours: rows of zeros and, with nonfinite="out", rows
            with NaN or infinity.
        """
        if not hasattr(self, "bank_"):
            raise NotCalibratedError(
                f"{self.name} learns from data: call fit(training_data) first."
            )
        if checked_whole("n", n, minimum=1) > len(self.bank_):
            raise ParameterError(
                f"n must be at most {len(self.bank_):,}, the number of training samples that "
                f"{self.name} keeps, got {n}."
            )
        arrays = self._read(X, self.scores_from).arrays
        inputs: FloatArray = arrays[self.layer]
        positions = np.full((len(inputs), n), -1)
        usable = reading.usable_rows(arrays, self)
        rows = np.flatnonzero(inputs.any(1) if usable is None else usable & inputs.any(1))
        positions[rows] = self.rows_[self._nearest(inputs[rows], n).positions]
        return positions

    def _nearest(self, inputs: FloatArray, k: int) -> Nearest:
        """Return the k samples that are nearest to each row; no row is all zeros."""
        return nearest(self.bank_, unit_rows(inputs), k)


class NearestNeighbours(BankDetector):
    """Minus the distance to the k-th nearest training sample, on features of length 1.

    Features are divided by their Euclidean length. A row of zeros has no direction: it counts as
    orthogonal to every training sample, at the distance sqrt(2), and is not learned from.

    Parameters
    ----------
    k : int
        Which neighbour.
    layer : str
        The array to read: "features", or a name in `Outputs.arrays`.
    bank : int
        How many training samples to keep at most, drawn at random with a fixed seed; 0 for all.
        Memory, the size of the file and the time to score grow with it. With 20,000 samples of
        1,024 features, these are 82 MB, and below 10 % of the time of DenseNet-121, even for one
        image at a time (benchmarks/speed/beside_network.py).

    Attributes
    ----------
    bank_ : array of shape (n_kept, n_features)
        The training samples that are searched, of length 1.
    rows_ : array of shape (n_kept,)
        Their positions in the training data.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> train, held_out = rng.normal(3, 1, (2, 300, 6))
    >>> detector = NearestNeighbours().fit(train).calibrate(held_out)
    >>> detector.predict([[3.0] * 6, [-3.0] * 6])
    array([ 1, -1])
    """

    name = "knn"
    paper = "Sun et al., ICML 2022"
    learned = ("bank_", "rows_")

    @property
    def learns_from(self) -> tuple[str, ...]:
        """The features of the layer."""
        return (self.layer,)

    scores_from = learns_from

    def _learn(self, arrays: Arrays) -> None:
        features: FloatArray = arrays[self.layer]
        directed = np.flatnonzero(features.any(1))
        check_enough(self.k, len(directed), self.name)
        self.rows_ = directed[drawn(len(directed), self.bank)]
        self.bank_ = unit_rows(features, self.rows_)

    def _score(self, arrays: Arrays) -> Array:
        check_enough(self.k, len(self.bank_), self.name)
        inputs: FloatArray = arrays[self.layer]
        result = np.full(len(inputs), -_AT_RIGHT_ANGLES)
        rows = np.flatnonzero(inputs.any(1))
        result[rows] = -self._nearest(inputs[rows], self.k).distances[:, -1]
        return result

    def _check_learned(self) -> None:
        if not (
            fits(self.bank_, self.k, self.n_features_in_)
            and self.rows_.shape == self.bank_.shape[:1]
            and self.rows_.dtype.kind == "i"
        ):
            raise ValueError("its training samples are not consistent")


class NNGuide(Detector):
    """Joint energy times the mean of the k largest products of similarity and training energy.

    The product of a training sample is the cosine similarity of its features to those of the
    sample, times its own joint energy, which takes the place of the paper's log-sum-exp. A row of
    zeros has no direction: its similarity to every sample is 0, and so is its score.

    The search is exact, in the precision of the training features.

    Parameters
    ----------
    k : int
        How many training samples guide a score.
    layer : str
        The array to read: "features", or a name in `Outputs.arrays`.
    bank : int
        How many training samples to keep at most, drawn at random with a fixed seed; 0 for all.
        Memory, the size of the file and the time to score grow with it. With 20,000 samples of
        1,024 features, these are 82 MB, and below 10 % of the time of DenseNet-121, even for one
        image at a time (benchmarks/speed/beside_network.py).

    Attributes
    ----------
    bank_ : array of shape (n_kept, n_features)
        The features of the training samples, scaled to the length of their joint energy.
    """

    name = "nnguide"
    paper = "Park et al., ICCV 2023; with joint energy"
    learned = ("bank_",)

    def __init__(
        self,
        k: int = 50,
        layer: str = "features",
        bank: int = 20_000,
        *,
        tpr: float = 0.95,
        nonfinite: str = "raise",
    ) -> None:
        super().__init__(tpr=tpr, nonfinite=nonfinite)
        self.k = k
        self.layer = layer
        self.bank = bank

    @property
    def learns_from(self) -> tuple[str, ...]:
        """The features of the layer, and logits."""
        return (self.layer, "logits")

    scores_from = learns_from

    def _check_params(self) -> None:
        super()._check_params()
        checked_layer(self.layer)
        check_sizes(self.k, self.bank)

    def _learn(self, arrays: Arrays) -> None:
        features: FloatArray = arrays[self.layer]
        check_enough(self.k, len(features), self.name)
        rows = drawn(len(features), self.bank)
        self.bank_ = unit_rows(features, rows)
        energies: FloatArray = scores.joint_energy(arrays.logits[rows])
        self.bank_ *= energies.astype(self.bank_.dtype)[:, None]

    def _score(self, arrays: Arrays) -> Array:
        check_enough(self.k, len(self.bank_), self.name)
        inputs: FloatArray = arrays[self.layer]
        guidance = np.empty(len(inputs))
        for block in row_blocks(len(inputs), max(self.bank_.shape)):
            found = products(unit_rows(inputs[block]), self.bank_)
            largest = np.partition(found, -self.k, axis=1)[:, -self.k :]
            guidance[block] = largest.mean(1, dtype=np.float64)
        energies: FloatArray = scores.joint_energy(arrays.logits)
        return guidance * energies

    def _check_learned(self) -> None:
        if not fits(self.bank_, self.k, self.n_features_in_):
            raise ValueError("its training samples are not consistent")
