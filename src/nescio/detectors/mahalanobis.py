"""Distance to class-conditional Gaussians, for samples with several labels each."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio._validation import Array, FloatArray, check_multi_hot, checked_choice, to_numpy
from nescio.detectors.arrays import Arrays
from nescio.detectors.base import Detector
from nescio.errors import EmptyLabelWarning, InputError, ShapeError, warn

Matrix = NDArray[np.float64]

_ROWS_AT_ONCE = 1024


class Mahalanobis(Detector):
    """Mahalanobis distance of the features to the label means, under one shared covariance.

    Each label has a mean: that of the features of all samples with this label. The covariance is
    shared: a sample with three labels enters it three times, once around each of their means. The
    label-wise score is minus the squared distance, aggregated by the nearest label (max) or over
    all labels (sum).

    Features are whitened once with a Cholesky factor, so that a distance becomes Euclidean. If the
    covariance is singular (constant features, few samples), its pseudo-inverse is used.

    Parameters
    ----------
    aggregate : {"max", "sum"}
        The paper's method takes the max; its ablation takes the sum.

    Attributes
    ----------
    center_ : array of shape (n_features,)
        Subtracted before whitening.
    whitening_ : array of shape (n_features, rank)
        Its product with itself is the inverse covariance.
    means_ : array of shape (n_labels_with_samples, rank)
        The label means, whitened.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 2, (300, 4))
    >>> features = labels @ rng.normal(size=(4, 6)) + rng.normal(size=(300, 6))
    >>> detector = Mahalanobis().fit(features, labels)
    >>> detector.predict(np.full((1, 6), 50.0))
    array([-1])
    """

    name = "mahalanobis"
    paper = "Lee et al., NeurIPS 2018; multi-label as in Wang et al., NeurIPS 2021"
    learns_from = ("features", "labels")
    scores_from: tuple[str, ...] = ("features",)
    learned = ("center_", "whitening_", "means_")

    def __init__(
        self, aggregate: str = "max", *, tpr: float = 0.95, nonfinite: str = "raise"
    ) -> None:
        super().__init__(tpr=tpr, nonfinite=nonfinite)
        self.aggregate = aggregate

    def _check_params(self) -> None:
        super()._check_params()
        checked_choice("aggregate", self.aggregate, ("max", "sum"))

    def _learn(self, arrays: Arrays) -> None:
        features = arrays.features.astype(np.float64)
        member = _memberships(arrays.labels, len(features))  # (n_samples, n_labels)
        counts = member.sum(0)
        if not counts.all():
            _warn_of_empty(counts)
            member, counts = member[:, counts > 0], counts[counts > 0]
        weight = member.sum(1)  # how many labels each sample carries
        self.center_ = weight @ features / weight.sum()
        features -= self.center_
        means = member.T @ features / counts[:, None]
        # The sum over memberships of (x - mean)(x - mean)^T, without forming them.
        total = features.T @ (weight[:, None] * features)
        scatter = total - means.T @ (counts[:, None] * means)
        # A feature that does not vary around the label means leaves only rounding errors.
        still = np.diag(scatter) <= len(features) * np.finfo(np.float64).eps * np.diag(total)
        scatter[still], scatter[:, still] = 0.0, 0.0
        self.whitening_ = _whitening(scatter / weight.sum())
        self.means_ = means @ self.whitening_

    def _score(self, arrays: Arrays) -> Array:
        # The costly product is computed in the precision of the input, the distances in float64;
        # blocks of rows keep the memory bounded.
        (name,) = self.scores_from
        inputs: FloatArray = arrays[name]
        if inputs.shape[1] != len(self.center_):
            raise ShapeError(
                f"{self.name} learned from {len(self.center_)} features, but {name} has "
                f"{inputs.shape[1]} columns."
            )
        whitening = self.whitening_.astype(inputs.dtype)
        # The centre is split in two, so that features far from zero lose no precision in float32.
        coarse = self.center_.astype(inputs.dtype)
        fine = (self.center_ - coarse).astype(inputs.dtype)
        mean_norms = np.einsum("ij,ij->i", self.means_, self.means_)
        scores = np.empty(len(inputs))
        for start in range(0, len(inputs), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            centred = inputs[rows] - coarse
            centred -= fine
            z = (centred @ whitening).astype(np.float64)
            norms = np.einsum("ij,ij->i", z, z)
            if self.aggregate == "max":
                nearest = (mean_norms - 2 * (z @ self.means_.T)).min(1)
                scores[rows] = -np.maximum(norms + nearest, 0.0)
            else:
                cross = z @ self.means_.sum(0)
                scores[rows] = 2 * cross - len(self.means_) * norms - mean_norms.sum()
        return scores

    def _check_learned(self) -> None:
        rank = self.whitening_.shape[1] if self.whitening_.ndim == 2 else -1
        fits = (
            self.center_.shape == (self.n_features_in_,)
            and self.whitening_.shape == (self.n_features_in_, rank)
            and self.means_.ndim == 2
            and len(self.means_) > 0
            and self.means_.shape[1] == rank
        )
        arrays = (self.center_, self.whitening_, self.means_)
        if not fits or not all(np.isfinite(array).all() for array in arrays):
            raise ValueError("its means and covariance do not fit each other")


class PerturbedMahalanobis(Mahalanobis):
    """Mahalanobis as in the paper: on the features of slightly perturbed inputs.

    It learns from the plain features of the training data, and scores the features of perturbed
    inputs, which `nescio extract --tuned` adds to the outputs as mahalanobis_max or
    mahalanobis_sum.

    Parameters
    ----------
    aggregate : {"max", "sum"}
        The paper's method takes the max; its ablation takes the sum.
    """

    name = "mahalanobis_perturbed"

    @property
    def scores_from(self) -> tuple[str, ...]:  # type: ignore[override]
        """The features of perturbed inputs, for the aggregate."""
        return (f"mahalanobis_{self.aggregate}",)


def _memberships(labels: Any, n_samples: int) -> Matrix:
    """Return multi-hot labels as floats; one class per sample is one-hot, no labels one class."""
    if labels is None:
        return np.ones((n_samples, 1))
    array = to_numpy(labels)
    if array.ndim == 1:
        array = (array[:, None] == np.unique(array)).astype(np.float64)
    if array.ndim != 2 or len(array) != n_samples:
        raise ShapeError(
            f"labels must have shape ({n_samples}, n_labels), multi-hot, got {array.shape}."
        )
    check_multi_hot(array)
    if not array.any():
        raise InputError("labels are all 0: no sample has a label to learn from.")
    return array.astype(np.float64)


def _warn_of_empty(counts: Matrix) -> None:
    empty = np.flatnonzero(counts == 0)
    warn(
        f"{len(empty)} of {len(counts)} labels have no sample and are left out "
        f"(the first is label {empty[0]}).",
        EmptyLabelWarning,
    )


def _whitening(covariance: Matrix) -> Matrix:
    """Return W with W W^T the inverse of the covariance, or a pseudo-inverse if it is singular.

    Features are scaled to unit variance first, so that small ones do not count as constant.
    """
    scale = np.sqrt(np.diag(covariance))
    scale[scale == 0] = 1.0
    correlation = covariance / np.outer(scale, scale)
    epsilon = len(covariance) * np.finfo(np.float64).eps
    try:
        factor = np.linalg.cholesky(correlation)
        if np.diag(factor).min() ** 2 > epsilon:
            return np.linalg.inv(factor).T / scale[:, None]
    except np.linalg.LinAlgError:
        pass
    values, vectors = np.linalg.eigh(correlation)
    kept = values > epsilon * max(values[-1], 0.0)
    whitening: Matrix = vectors[:, kept] / np.sqrt(values[kept]) / scale[:, None]
    return whitening
