"""How much a sample resembles the training samples that carry the labels it is said to have."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nescio import scores
from nescio._validation import Array, FloatArray
from nescio.detectors.features import row_blocks, unit_rows
from nescio.detectors.inputs import Arrays
from nescio.detectors.neighbours import BankDetector, drawn, fits
from nescio.errors import InputError, MissingInputError, ShapeError


class _Table(NamedTuple):
    """Labels with about as many samples each, and their members: one row per label."""

    labels: NDArray[np.int64]
    members: NDArray[np.int64]


class LabelNeighbours(BankDetector):
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
        How many training samples to keep at most, as for `NearestNeighbours`.

    Attributes
    ----------
    bank_ : array of shape (n_kept, n_features)
        The training samples that are searched, of length 1.
    rows_ : array of shape (n_kept,)
        Their positions in the training data.
    members_ : array of int
        The positions in `bank_` of the samples that carry the first label, then of those that
        carry the second, and so on.
    starts_ : array of shape (n_labels + 1,)
        Where each label starts in `members_`.

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
    learned = ("bank_", "rows_", "members_", "starts_")

    @property
    def learns_from(self) -> tuple[str, ...]:
        """The features of the layer, and labels."""
        return (self.layer, "labels")

    @property
    def scores_from(self) -> tuple[str, ...]:
        """The features of the layer, and logits."""
        return (self.layer, "logits")

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
                f"are not all 0, and none of the {len(carried):,} is such. Check labels and "
                "features."
            )
        self.rows_ = useful[drawn(len(useful), self.bank)]
        self.bank_ = unit_rows(features, self.rows_)
        label, member = np.nonzero(carried[self.rows_].T)  # ordered by label
        self.members_ = member
        self.starts_ = np.searchsorted(label, np.arange(carried.shape[1] + 1))
        self.__dict__.pop("_tables", None)

    def _score(self, arrays: Arrays) -> Array:
        inputs: FloatArray = arrays[self.layer]
        n_labels = len(self.starts_) - 1
        if arrays.logits.shape[1] != n_labels:
            raise ShapeError(
                f"{self.name} has learned {n_labels} labels, but there are logits of "
                f"{arrays.logits.shape[1]}. Pass outputs of the same model."
            )
        if not hasattr(self, "_tables"):
            self._tables = _tables(self.members_, self.starts_, len(self.bank_))
        result = np.empty(len(inputs))
        largest = max(table.members.size for table in self._tables)
        for block in row_blocks(len(inputs), max(*self.bank_.shape, len(self.starts_), largest)):
            similarities = self._similarities(unit_rows(inputs[block]))
            result[block] = np.einsum("ij,ij->i", self._weights(arrays.logits[block]), similarities)
        return result

    def _similarities(self, unit: FloatArray) -> NDArray[np.float64]:
        """Return the mean similarity to the nearest samples of each label."""
        n_bank = len(self.bank_)
        products = np.empty((len(unit), n_bank + 1), self.bank_.dtype)
        np.matmul(unit.astype(self.bank_.dtype, copy=False), self.bank_.T, out=products[:, :n_bank])
        products[:, n_bank] = -np.inf
        found = np.zeros((len(unit), len(self.starts_) - 1))
        for labels, members in self._tables:
            near = products.take(members, axis=1)  # (n_rows, n_labels, n_members)
            n_others = members.shape[1] - self.k
            if n_others > 0:
                near.partition(n_others, axis=2)
                near = near[:, :, n_others:]
            sizes = np.minimum(np.diff(self.starts_)[labels], near.shape[2])
            sums = near.sum(2, dtype=np.float64, where=near > -np.inf)
            found[:, labels] = sums / sizes
        return found

    def _weights(self, logits: Array) -> NDArray[np.float64]:
        """Return the labels' energies, 0 for labels without samples, with a sum of 1."""
        weights: NDArray[np.float64] = scores.label_energy(logits.astype(np.float64))
        known = np.diff(self.starts_) > 0
        weights *= known
        # If no label has any energy, each counts alike.
        weights[weights.sum(1) == 0] = known
        weights /= weights.sum(1, keepdims=True)
        return weights

    def _check_learned(self) -> None:
        n_members, starts = self.members_.size, self.starts_
        consistent = (
            fits(self.bank_, 1, self.n_features_in_)
            and self.rows_.shape == self.bank_.shape[:1]
            and all(array.dtype.kind == "i" for array in (self.rows_, self.members_, starts))
            and self.members_.ndim == starts.ndim == 1
            and len(starts) == self.n_columns_.get("logits", len(starts) - 1) + 1
            and starts[0] == 0
            and starts[-1] == n_members > 0
            and bool((np.diff(starts) >= 0).all())
            and bool(((self.members_ >= 0) & (self.members_ < len(self.bank_))).all())
        )
        if not consistent:
            raise ValueError("its training samples and labels are not consistent")


def _tables(members: Array, starts: Array, absent: int) -> list[_Table]:
    """Return the members of all labels in few tables, so that not every label takes a step.

    The labels of a table have at most twice as many members as each other. Shorter rows are filled
    with `absent`.
    """
    sizes = np.diff(starts)
    classes = np.ceil(np.log2(np.maximum(sizes, 1))).astype(int)
    tables = []
    for each in np.unique(classes[sizes > 0]):
        labels = np.flatnonzero((classes == each) & (sizes > 0))
        place = np.arange(sizes[labels].max())
        present = place < sizes[labels][:, None]
        at = np.where(present, starts[labels][:, None] + place, 0)
        tables.append(_Table(labels, np.where(present, members[at], absent)))
    return tables
