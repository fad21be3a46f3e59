"""Local Outlier Factor on logits, as the paper fits it."""

from __future__ import annotations

from typing import Any

import numpy as np

from nescio._validation import Array, FloatArray, checked_whole
from nescio.detectors.arrays import Arrays
from nescio.detectors.base import Detector
from nescio.errors import InputError

# Up to here a k-d tree beats a blocked matrix product for exact neighbours: measured at 5,000 and
# 40,000 samples. scikit-learn's own choice changes at 15, where the tree is 6 to 7 times slower.
_MAX_COLUMNS_FOR_TREE = 7


class LocalOutlierFactor(Detector):
    """How much sparser an input's surroundings are than those of its neighbours.

    The novelty form of scikit-learn's estimator: neighbours are sought among the training samples,
    never among the inputs assessed. The numbers are scikit-learn's, unless distances tie and
    another of the tied samples is taken as the neighbour.

    Parameters
    ----------
    n_neighbors : int
        20, as in scikit-learn (fewer, if there are not as many training samples).

    Attributes
    ----------
    samples_ : array of shape (n_samples, n_labels)
        The training samples.
    k_ : array of shape ()
        How many neighbours are sought.
    reach_ : array of shape (n_samples,)
        Each one's distance to its k-th neighbour.
    densities_ : array of shape (n_samples,)
        Each one's local reachability density.
    """

    name = "lof"
    paper = "Breunig et al., SIGMOD 2000"
    learns_from = ("logits",)
    learned = ("samples_", "k_", "reach_", "densities_")
    accepts_masked = False

    def __init__(
        self, n_neighbors: int = 20, *, tpr: float = 0.95, nonfinite: str = "raise"
    ) -> None:
        super().__init__(tpr=tpr, nonfinite=nonfinite)
        self.n_neighbors = n_neighbors

    def _check_params(self) -> None:
        super()._check_params()
        checked_whole("n_neighbors", self.n_neighbors, minimum=1)

    def _learn(self, arrays: Arrays) -> None:
        inputs = arrays.logits
        if len(inputs) < 2:
            raise InputError("lof learns from at least 2 samples, got n_samples = 1.")
        self.samples_ = np.array(inputs, dtype=np.float64)
        self.k_ = np.array(min(self.n_neighbors, len(inputs) - 1))
        self._index = self._neighbour_index()
        distances, neighbours = self._index.kneighbors()  # a sample is not its own neighbour
        self.reach_ = distances[:, -1].copy()
        self.densities_ = self._density(distances, neighbours)

    def _score(self, arrays: Arrays) -> Array:
        inputs: FloatArray = arrays.logits
        if not hasattr(self, "_index"):
            self._index = self._neighbour_index()
        distances, neighbours = self._index.kneighbors(inputs.astype(np.float64, copy=False))
        density = self._density(distances, neighbours)
        return np.asarray(-self.densities_[neighbours].mean(1) / density)

    def _density(self, distances: Array, neighbours: Array) -> Array:
        reachability = np.maximum(distances, self.reach_[neighbours])
        # 1e-10: samples that coincide have no distance to divide by (scikit-learn's constant).
        return np.asarray(1.0 / (reachability.mean(1) + 1e-10))

    def _neighbour_index(self) -> Any:
        from sklearn.neighbors import NearestNeighbors

        n_columns = self.samples_.shape[1]
        return NearestNeighbors(
            n_neighbors=int(self.k_),
            algorithm="kd_tree" if n_columns <= _MAX_COLUMNS_FOR_TREE else "brute",
        ).fit(self.samples_)

    def _check_learned(self) -> None:
        n_samples = len(np.atleast_1d(self.samples_))
        fits = (
            self.samples_.shape == (n_samples, self.n_features_in_)
            and n_samples > 1
            and self.reach_.shape == self.densities_.shape == (n_samples,)
            and self.k_.shape == ()
            and self.k_.dtype.kind == "i"
            and 1 <= self.k_ < n_samples
        )
        arrays = (self.samples_, self.reach_, self.densities_)
        if not fits or not all(np.isfinite(array).all() for array in arrays):
            raise ValueError("its samples and densities do not fit each other")
