"""Local Outlier Factor on logits, with the parameters of the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio._validation import Array, FloatArray, checked_whole
from nescio.detectors.base import Detector
from nescio.detectors.inputs import Arrays
from nescio.errors import InputError


@dataclass(eq=False, repr=False)
class LocalOutlierFactor(Detector):
    """How much lower the density around a sample is than the density around its neighbours.

    This is scikit-learn's estimator with `novelty=True`: neighbours are searched among the training
    samples only. The scores are the same as those of scikit-learn, unless distances are tied and a
    different one of the tied samples is chosen as a neighbour.

    Parameters
    ----------
    n_neighbors : int
        The number of neighbours; 20 by default, as in scikit-learn. If there are fewer training
        samples, all of them are neighbours.

    Attributes
    ----------
    samples_ : array of shape (n_samples, n_labels)
        The training samples.
    k_ : array of shape ()
        The number of neighbours to search.
    reach_ : array of shape (n_samples,)
        The distance of each training sample to its k-th neighbour.
    densities_ : array of shape (n_samples,)
        The local reachability density of each training sample.
    """

    name = "lof"
    paper = "Breunig et al., SIGMOD 2000"
    learns_from = ("logits",)
    learned = {
        "samples_": "float samples features",
        "k_": "int",
        "reach_": "float samples",
        "densities_": "float samples",
    }
    accepts_masked = False

    n_neighbors: int = 20

    def _check_params(self) -> None:
        super()._check_params()
        checked_whole("n_neighbors", self.n_neighbors, minimum=1)

    def _learn(self, arrays: Arrays) -> None:
        inputs = arrays.logits
        if len(inputs) < 2:
            raise InputError("lof learns from at least 2 samples, got n_samples = 1.")
        self.samples_ = _rounded(inputs)
        self.k_ = np.array(min(self.n_neighbors, len(inputs) - 1))
        self._index = self._made_index()
        distances, neighbours = self._neighbours(None)
        self.reach_ = distances[:, -1].copy()
        self.densities_ = self._density(distances, neighbours)

    def _score(self, arrays: Arrays) -> Array:
        inputs: FloatArray = arrays.logits
        if not hasattr(self, "_index"):
            self._index = self._made_index()
        distances, neighbours = self._neighbours(_rounded(inputs))
        density = self._density(distances, neighbours)
        return np.asarray(-self.densities_[neighbours].mean(1) / density)

    def _density(self, distances: Array, neighbours: Array) -> Array:
        reachability = np.maximum(distances, self.reach_[neighbours])
        # 1e-10, as in scikit-learn: identical samples have distance 0, which cannot be divided by.
        return np.asarray(1.0 / (reachability.mean(1) + 1e-10))

    def _made_index(self) -> Any:
        from sklearn.neighbors import NearestNeighbors

        # Centred: products of logits far from 0 would lose the digits that tell samples apart.
        self._center = np.median(self.samples_, axis=0)
        return NearestNeighbors(n_neighbors=int(self.k_)).fit(self.samples_ - self._center)

    def _neighbours(self, new: NDArray[np.float64] | None) -> tuple[Array, Array]:
        """Return distances and positions; without new samples, of the training samples."""
        distances, positions = self._index.kneighbors(None if new is None else new - self._center)
        return distances, positions

    def _check_learned(self) -> None:
        if not 1 <= self.k_ < len(self.samples_):
            raise ValueError("its samples are fewer than its neighbours")


def _rounded(inputs: FloatArray) -> NDArray[np.float64]:
    """Round values to float32: of several neighbours at the same distance, rounding chooses one.

    So a score does not depend on whether the values were stored as float32 or float64.
    """
    largest = np.finfo(np.float32).max
    return np.clip(inputs, -largest, largest).astype(np.float32).astype(np.float64)
