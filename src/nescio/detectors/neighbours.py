"""Nearest-neighbour search among stored training samples, and the detectors that use it.

Matrix products select candidates, because BLAS computes them fast. Distances from differences in
float64 then decide; of tied samples, the first is the nearest. So a distance depends neither on the
batch nor on the order of summation, unless more samples than the spare candidates are tied up to
rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio import scores
from nescio._validation import Array, FloatArray, checked_whole
from nescio.detectors.features import FeatureDetector, by_blocks, row_blocks, unit_rows
from nescio.detectors.inputs import Arrays, usable_rows
from nescio.errors import (
    InputError,
    MissingInputError,
    ParameterError,
    ShapeError,
    TooFewSamplesError,
)

Indices = NDArray[np.int64]

_SPARE = 16  # candidates beyond k: products round, so the k-th nearest may rank a little lower


def nearest(bank: FloatArray, inputs: FloatArray, k: int) -> tuple[NDArray[np.float64], Indices]:
    """Return distances and positions of the k nearest samples of the bank, nearest first.

    The samples of the bank have length 1, and the inputs are scaled to it. An input of zeros has no
    direction: every distance is sqrt(2), as at right angles, and every position is -1.
    """
    n_candidates = min(k + _SPARE, len(bank))
    all_distances = np.full((len(inputs), k), np.sqrt(2.0))
    positions = np.full((len(inputs), k), -1)
    directed = np.flatnonzero(inputs.any(1))
    for block in row_blocks(len(directed), max(len(bank), n_candidates * bank.shape[1])):
        rows = directed[block]
        queries = unit_rows(inputs[rows])
        # The queries are few and the bank is large, so it is the queries that are converted.
        similarities = queries.astype(bank.dtype, copy=False) @ bank.T  # (n_rows, n_bank)
        candidates = np.argpartition(similarities, -n_candidates, axis=1)[:, -n_candidates:]
        # In float64: (n_rows, n_candidates, n_features), then (n_rows, n_candidates)
        differences = queries[:, None].astype(np.float64) - bank[candidates]
        distances = np.sqrt(np.einsum("...j,...j->...", differences, differences))
        order = np.lexsort((candidates, distances))[:, :k]
        all_distances[rows] = np.take_along_axis(distances, order, axis=1)
        positions[rows] = np.take_along_axis(candidates, order, axis=1)
    return all_distances, positions


@dataclass(eq=False, repr=False)
class BankDetector(FeatureDetector):
    """Base class of detectors that keep training samples, `bank_`."""

    bank_: FloatArray = field(init=False)

    k: int = 5
    layer: str = "features"
    bank: int = 20_000

    def _check_params(self) -> None:
        super()._check_params()
        checked_whole("k", self.k, minimum=1)
        if 0 < checked_whole("bank", self.bank, minimum=0) < self.k:
            raise ParameterError(
                f"bank must be 0 (all training samples) or at least k = {self.k}, got {self.bank}."
            )

    def _drawn(self, n_samples: int) -> Indices:
        """Return the samples to keep: all, or a random choice with a fixed seed if too many."""
        if not 0 < self.bank < n_samples:
            return np.arange(n_samples)
        return np.sort(np.random.default_rng(0).choice(n_samples, self.bank, replace=False))

    def _check_enough(self, n_samples: int) -> None:
        """Raise if there are fewer than k samples to search."""
        if self.k > n_samples:
            raise TooFewSamplesError(
                f"{self.name} with k = {self.k} searches at least {self.k} training samples, got "
                f"n_samples = {n_samples}. Learn from more samples, or choose a smaller k."
            )

    def _check_learned(self) -> None:
        self._check_enough(len(self.bank_))


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
    # The samples that are searched, of length 1, and their positions in the training data.
    learned = {"bank_": "float bank features", "rows_": "int bank"}

    rows_: Indices

    def _learn(self, arrays: Arrays) -> None:
        features: FloatArray = arrays[self.layer]
        directed = np.flatnonzero(features.any(1))
        self._check_enough(len(directed))
        self.rows_ = directed[self._drawn(len(directed))]
        self.bank_ = unit_rows(features, self.rows_)

    def _score(self, arrays: Arrays) -> Array:
        self._check_enough(len(self.bank_))  # k may have been set since
        distances, _ = nearest(self.bank_, arrays[self.layer], self.k)
        return -distances[:, -1]

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
        arrays = self._read_to_score(X).arrays
        if checked_whole("n", n, minimum=1) > len(self.bank_):
            raise ParameterError(
                f"n must be at most {len(self.bank_):,}, the number of training samples that "
                f"{self.name} keeps, got {n}."
            )
        inputs: FloatArray = arrays[self.layer]
        usable = usable_rows(arrays, self)
        if usable is not None:
            inputs = np.where(usable[:, None], inputs, 0.0)
        _, positions = nearest(self.bank_, inputs, n)
        return np.where(positions < 0, -1, self.rows_[positions])


@dataclass(eq=False, repr=False)
class NNGuide(BankDetector):
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
        How many training samples to keep at most, as for `NearestNeighbours`.
    """

    name = "nnguide"
    paper = "Park et al., ICCV 2023; with joint energy"
    learns_with = scores_with = ("logits",)
    learned = {"bank_": "float bank features"}  # each has the length of its joint energy

    k: int = 50

    def _learn(self, arrays: Arrays) -> None:
        features: FloatArray = arrays[self.layer]
        self._check_enough(len(features))
        rows = self._drawn(len(features))
        self.bank_ = unit_rows(features, rows)
        energies: FloatArray = scores.joint_energy(arrays.logits[rows])
        self.bank_ *= energies.astype(self.bank_.dtype)[:, None]

    def _score(self, arrays: Arrays) -> Array:
        self._check_enough(len(self.bank_))  # k may have been set since

        def guidance(rows: FloatArray) -> Any:
            similarities = unit_rows(rows).astype(self.bank_.dtype, copy=False) @ self.bank_.T
            return scores.largest(similarities, self.k).mean(1, dtype=np.float64)

        guided: FloatArray = by_blocks(guidance, arrays[self.layer], max(self.bank_.shape))
        energies: FloatArray = scores.joint_energy(arrays.logits)
        return guided * energies


@dataclass(eq=False, repr=False)
class LabelNeighbours(NearestNeighbours):
    """Similarity to the nearest training samples of each label, weighted by the label's energy.

    For a label, it is the mean cosine similarity of the features to those of the k most similar
    training samples that carry the label. The score is the mean over labels, with the energy
    log(1 + exp(logit)) as the weight: the labels that the model finds decide. So a sample has to
    look like something in the training data, as for `knn`, and like the right thing: an image in
    which the model finds a dog must resemble images of dogs.

    Labels that no training sample carries count nothing. A row of zeros has no direction: its
    similarity to every sample is 0.

    Parameters
    ----------
    k : int
        How many training samples of each label; all of them if a label has fewer.
    layer : str
        The array to read: "features", or a name in `Outputs.arrays`.
    bank : int
        How many training samples to keep at most, as for `NearestNeighbours`. It is smaller here,
        so that `combined` takes below 3 % of the time of DenseNet-121, for one image at a time.

    Examples
    --------
    >>> from nescio import Outputs
    >>> rng = np.random.default_rng(0)
    >>> labels = np.eye(2, dtype=int)[rng.integers(0, 2, 200)]
    >>> features = 3 * labels @ np.eye(2, 5) + rng.normal(size=(200, 5))
    >>> train = Outputs(np.where(labels, 4.0, -4.0), features=features, labels=labels)
    >>> detector = LabelNeighbours().fit(train)

    Features of the first label, together with the first label and with the second:

    >>> new = Outputs([[4.0, -4.0], [-4.0, 4.0]], features=[[3.0, 0, 0, 0, 0]] * 2)
    >>> detector.score_samples(new).round(1)
    array([1. , 0.6])
    """

    name = "label_neighbours"
    paper = "nescio; neighbours as in Sun et al., ICML 2022"
    learns_with = ("labels",)
    scores_with = ("logits",)
    learned = {
        "bank_": "float bank features",
        "rows_": "int bank",
        "members_": "int members",  # of the bank: those that carry the first label, the second, ...
        "starts_": "int starts",  # where each label starts among them, and the end
    }

    bank: int = 6_000

    def _learn(self, arrays: Arrays) -> None:
        features: FloatArray = arrays[self.layer]
        if arrays.labels is None or arrays.labels.ndim != 2:
            raise MissingInputError(
                f"{self.name} learns the labels of the training samples and reads logits too: pass "
                "Outputs(logits, features=..., labels=...)."
            )
        carried = arrays.labels.astype(bool)
        useful = np.flatnonzero(features.any(1) & carried.any(1))
        if not len(useful):
            raise InputError(
                f"{self.name} learns from training samples that carry a label and whose features "
                f"are not all 0, and none of the {len(carried):,} is such."
            )
        self.rows_ = useful[self._drawn(len(useful))]
        self.bank_ = unit_rows(features, self.rows_)
        label, member = np.nonzero(carried[self.rows_].T)  # ordered by label
        self.members_ = member
        self.starts_ = np.searchsorted(label, np.arange(carried.shape[1] + 1))
        self.__dict__.pop("_tables", None)  # those of an earlier fit

    def _score(self, arrays: Arrays) -> Array:
        inputs: FloatArray = arrays[self.layer]
        n_labels = len(self.starts_) - 1
        if arrays.logits.shape[1] != n_labels:
            raise ShapeError(
                f"{self.name} has learned {n_labels} labels, but there are logits of "
                f"{arrays.logits.shape[1]}. Pass outputs of the same model."
            )
        scores = np.empty(len(inputs))
        width = max(members.size for _, members in self._tables)
        for block in row_blocks(len(inputs), max(*self.bank_.shape, len(self.starts_), width)):
            similarities = self._similarities(unit_rows(inputs[block]))
            scores[block] = np.einsum("ij,ij->i", self._weights(arrays.logits[block]), similarities)
        return scores

    @cached_property
    def _tables(self) -> list[tuple[Indices, Indices]]:
        """The members of all labels in few tables, so that not every label takes a step.

        A table is labels, and their members: one row per label. The labels of a table have less
        than twice as many members as each other. Shorter rows are filled with `len(self.bank_)`.
        """
        sizes = np.diff(self.starts_)
        doublings = np.frexp(sizes)[1]  # 0 for labels without members
        tables = []
        for doubling in np.unique(doublings[sizes > 0]):
            labels = np.flatnonzero(doublings == doubling)
            members = np.full((len(labels), sizes[labels].max()), len(self.bank_))
            present = np.arange(members.shape[1]) < sizes[labels][:, None]
            members[present] = self.members_[np.repeat(doublings == doubling, sizes)]
            tables.append((labels, members))
        return tables

    def _similarities(self, unit: FloatArray) -> NDArray[np.float64]:
        """Return the mean similarity to the nearest samples of each label."""
        n_bank = len(self.bank_)
        products = np.empty((len(unit), n_bank + 1), self.bank_.dtype)
        np.matmul(unit.astype(self.bank_.dtype, copy=False), self.bank_.T, out=products[:, :n_bank])
        products[:, n_bank] = -np.inf
        similarities = np.zeros((len(unit), len(self.starts_) - 1))
        for labels, members in self._tables:
            near = products.take(members, axis=1)  # (n_rows, n_labels, n_members)
            n_further = max(members.shape[1] - self.k, 0)
            near.partition(n_further, axis=2)
            near = near[:, :, n_further:]
            similarities[:, labels] = near.mean(2, dtype=np.float64, where=near > -np.inf)
        return similarities

    def _weights(self, logits: Array) -> NDArray[np.float64]:
        """Return the labels' energies, 0 for labels without samples, with a sum of 1."""
        weights: NDArray[np.float64] = scores.label_energy(logits.astype(np.float64))
        has_samples = np.diff(self.starts_) > 0
        weights *= has_samples
        # If no label has any energy, each counts alike.
        weights[weights.sum(1) == 0] = has_samples
        weights /= weights.sum(1, keepdims=True)
        return weights

    def _check_learned(self) -> None:
        n_bank, starts = len(self.bank_), self.starts_
        if not (
            len(starts) == self.n_columns_.get("logits", len(starts) - 1) + 1
            and starts[0] == 0
            and starts[-1] == len(self.members_)
            and (np.diff(starts) >= 0).all()
            and ((self.members_ >= 0) & (self.members_ < n_bank)).all()
        ):
            raise ValueError("its training samples and labels are not consistent")
