"""Local Outlier Factor and Isolation Forest on logits, with the parameters of the paper."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nescio._validation import Array, FloatArray, checked_whole
from nescio.detectors.base import Detector
from nescio.detectors.features import by_blocks
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
    """

    name = "lof"
    paper = "Breunig et al., SIGMOD 2000"
    learns_from = ("logits",)
    learned = {
        "samples_": "float samples features",
        "k_": "int",  # how many neighbours are searched
        "reach_": "float samples",  # the distance of each to its k-th neighbour
        "densities_": "float samples",  # the local reachability density of each
    }
    accepts_masked = False

    n_neighbors: int = 20

    def _check_params(self) -> None:
        super()._check_params()
        checked_whole("n_neighbors", self.n_neighbors, minimum=1)

    def _learn(self, arrays: Arrays) -> None:
        if len(arrays) < 2:
            raise InputError("lof learns from at least 2 samples, got n_samples = 1.")
        self.samples_ = _rounded(arrays.logits)
        self.k_ = np.array(min(self.n_neighbors, len(arrays) - 1))
        self._make_index()
        distances, neighbours = self._index.kneighbors()
        self.reach_ = distances[:, -1].copy()
        self.densities_ = self._density(distances, neighbours)

    def _score(self, arrays: Arrays) -> Array:
        if not hasattr(self, "_index"):  # read from a file
            self._make_index()
        distances, neighbours = self._index.kneighbors(_rounded(arrays.logits) - self._center)
        density = self._density(distances, neighbours)
        return np.asarray(-self.densities_[neighbours].mean(1) / density)

    def _density(self, distances: Array, neighbours: Array) -> Array:
        reachability = np.maximum(distances, self.reach_[neighbours])
        # 1e-10, as in scikit-learn: identical samples have distance 0, which cannot be divided by.
        return np.asarray(1.0 / (reachability.mean(1) + 1e-10))

    def _make_index(self) -> None:
        from sklearn.neighbors import NearestNeighbors

        # Centred: products of logits far from 0 would lose the digits that tell samples apart.
        self._center = np.median(self.samples_, axis=0)
        self._index = NearestNeighbors(n_neighbors=int(self.k_)).fit(self.samples_ - self._center)

    def _check_learned(self) -> None:
        if not 1 <= self.k_ < len(self.samples_):
            raise ValueError("its samples are fewer than its neighbours")


def _rounded(inputs: FloatArray) -> NDArray[np.float64]:
    """Round values to float32: of several neighbours at the same distance, rounding chooses one.

    So a score does not depend on whether the values were stored as float32 or float64.
    """
    largest = np.finfo(np.float32).max
    return np.clip(inputs, -largest, largest).astype(np.float32).astype(np.float64)


@dataclass(eq=False, repr=False)
class IsolationForest(Detector):
    """The number of random splits that isolate a sample; an outlier needs few.

    scikit-learn grows the trees. They are stored as plain arrays, and this class walks them. So a
    saved forest needs no pickle and gives the same scores with any version of scikit-learn.

    Parameters
    ----------
    n_trees : int
        The number of trees; 100 by default, as in scikit-learn and the original paper.
    max_samples : int
        The number of samples that each tree is grown on (all samples, if there are fewer).
    seed : int
        The seed of the random splits.
    one_stream : bool
        Whether all random numbers come from one stream, as in scikit-learn if its random_state is
        `RandomState(seed)`. By default the forest is that of random_state=seed.
    """

    name = "isolation_forest"
    paper = "Liu et al., ICDM 2008"
    learns_from = ("logits",)
    learned = {
        "features_": "int trees nodes",  # compared with the threshold: at most this goes left
        "thresholds_": "float trees nodes",
        "children_": "int trees nodes sides",  # a leaf is its own child
        "lengths_": "float trees nodes",  # to a leaf, and expected below it in a larger tree
        "scale_": "float",  # the expected length, which normalises the others
    }
    accepts_masked = False

    n_trees: int = 100
    max_samples: int = 256
    seed: int = 0
    one_stream: bool = False

    def _check_params(self) -> None:
        super()._check_params()
        checked_whole("n_trees", self.n_trees, minimum=1)
        checked_whole("max_samples", self.max_samples, minimum=1)
        checked_whole("seed", self.seed, minimum=0)

    def _learn(self, arrays: Arrays) -> None:
        from sklearn.ensemble import IsolationForest as Forest

        n_samples = min(self.max_samples, len(arrays))
        random = np.random.RandomState(self.seed) if self.one_stream else self.seed
        forest = Forest(n_estimators=self.n_trees, max_samples=n_samples, random_state=random)
        forest.fit(arrays.logits)
        trees = [tree.tree_ for tree in forest.estimators_]
        shape = (len(trees), max(tree.node_count for tree in trees))
        self.features_ = np.zeros(shape, np.int32)
        self.thresholds_ = np.zeros(shape, np.float64)
        numbers = np.arange(shape[1], dtype=np.int32)
        self.children_ = np.broadcast_to(numbers[:, None], (*shape, 2)).copy()
        self.lengths_ = np.zeros(shape, np.float64)
        for i, tree in enumerate(trees):
            n = tree.node_count
            leaf = tree.children_left < 0
            self.features_[i, :n] = np.where(leaf, 0, tree.feature)
            self.thresholds_[i, :n] = np.where(leaf, 0.0, tree.threshold)
            for side, children in enumerate((tree.children_left, tree.children_right)):
                self.children_[i, :n, side] = np.where(leaf, numbers[:n], children)
            depths = tree.compute_node_depths() - 1  # that of the root is 1
            self.lengths_[i, :n] = depths + _expected_length(tree.n_node_samples)
        self.scale_ = _expected_length(np.array(n_samples))

    def _score(self, arrays: Arrays) -> Array:
        # The trees were grown in float32, so values are compared in float32.
        values = arrays.logits.astype(np.float32)
        lengths: Array = by_blocks(self._mean_length, values, len(self.features_))
        if self.scale_ == 0:  # a single training sample: all samples get the same score
            return np.full(len(values), -0.5)
        return -(2.0 ** (-lengths / float(self.scale_)))

    def _mean_length(self, values: NDArray[np.float32]) -> Array:
        n_trees, n_nodes = self.features_.shape
        # Nodes are numbered across all trees, so that one flat array serves all of them.
        first = np.arange(n_trees) * n_nodes
        features, thresholds = self.features_.reshape(-1), self.thresholds_.reshape(-1)
        children = (self.children_ + first[:, None, None]).reshape(-1)
        node = np.broadcast_to(first, (len(values), n_trees)).copy()
        rows = np.arange(len(values))[:, None]
        while True:
            right = values[rows, features[node]] > thresholds[node]
            following = children[2 * node + right]
            if np.array_equal(following, node):
                return np.asarray(self.lengths_.reshape(-1)[node].mean(1))
            node = following

    def _check_learned(self) -> None:
        n_nodes, sides = self.children_.shape[1:]
        fits = (
            sides == 2
            and (self.features_ >= 0).all()
            and (self.features_ < self.n_features_in_).all()
            # A child comes after its parent, and a leaf is its own child: no walk is endless.
            and (self.children_ >= np.arange(n_nodes)[:, None]).all()
            and (self.children_ < n_nodes).all()
        )
        if not fits:
            raise ValueError("its trees are not consistent")


def _expected_length(n_samples: Array) -> NDArray[np.float64]:
    """Return the expected path length of an unsuccessful search in a tree of n samples."""
    n = np.asarray(n_samples, dtype=np.float64)
    many = np.maximum(n, 3.0)
    length = 2.0 * (np.log(many - 1.0) + np.euler_gamma) - 2.0 * (many - 1.0) / many
    return np.where(n <= 1, 0.0, np.where(n == 2, 1.0, length))
