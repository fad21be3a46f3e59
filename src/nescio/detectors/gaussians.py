"""Gaussians of the features, one per label under a shared covariance, and distances to them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nescio._validation import Array, FloatArray, check_multi_hot, to_numpy
from nescio.detectors.features import centred, product, row_blocks, unit_rows
from nescio.errors import EmptyLabelWarning, InputError, ShapeError, warn

Matrix = NDArray[np.float64]

# Relative to the largest variance, for each feature: rounding to float32 leaves a variance of up to
# 2 ** -48 in directions that have none. Whether the values were stored as float32 or as float64
# must not decide which directions count.
SMALLEST_VARIANCE = 2.0**-46


class Gaussians(NamedTuple):
    """Gaussians that share one covariance."""

    center: Matrix  # (n_features,), subtracted before whitening
    whitening: Matrix  # (n_features, rank); its product with itself is the inverse covariance
    means: Matrix  # (n_gaussians, rank), whitened

    def check(self, n_features: int) -> None:
        """Raise a `ValueError` if the arrays, read from a file, do not fit each other."""
        rank = self.whitening.shape[1] if self.whitening.ndim == 2 else -1
        fits = (
            self.center.shape == (n_features,)
            and self.whitening.shape == (n_features, rank)
            and self.means.ndim == 2
            and len(self.means) > 0
            and self.means.shape[1] == rank
        )
        if not fits or not all(np.isfinite(array).all() for array in self):
            raise ValueError("its means and covariance do not fit each other")


def learn_gaussians(features: FloatArray, labels: Any, *, normalise: bool = False) -> Gaussians:
    """Fit a mean to each label, and one covariance to all samples around the means of their labels.

    A sample with three labels enters the covariance three times. Without labels (None), there is
    one mean.
    """
    moved: FloatArray = features.astype(np.float64)
    if normalise:
        moved = unit_rows(moved)
    member = memberships(labels, len(moved))  # (n_samples, n_labels)
    counts = member.sum(0)
    if not counts.all():
        _warn_of_empty(counts)
        member, counts = member[:, counts > 0], counts[counts > 0]
    weight = member.sum(1)  # how many labels each sample carries
    center = weight @ moved / weight.sum()
    moved -= center
    means = member.T @ moved / counts[:, None]
    # The sum over memberships of (x - mean)(x - mean)^T, without forming them.
    total = moved.T @ (weight[:, None] * moved)
    scatter = total - means.T @ (counts[:, None] * means)
    # A feature that does not vary around the label means leaves only rounding errors.
    still = np.diag(scatter) <= len(moved) * np.finfo(np.float64).eps * np.diag(total)
    scatter[still], scatter[:, still] = 0.0, 0.0
    whitening = _whitening(scatter / weight.sum())
    return Gaussians(center, whitening, means @ whitening)


def minus_distances(
    inputs: FloatArray, gaussians: Gaussians, aggregate: str = "max", *, normalise: bool = False
) -> Array:
    """Return minus the squared distance of each row to the nearest mean, or summed over all.

    The costly product is computed in the precision of the input, the distances in float64; blocks
    of rows keep the memory bounded.
    """
    whitening = gaussians.whitening.astype(inputs.dtype, copy=False)
    means = gaussians.means
    mean_norms = np.einsum("ij,ij->i", means, means)
    scores = np.empty(len(inputs))
    for rows in row_blocks(len(inputs), max(inputs.shape[1], len(means))):
        block = unit_rows(inputs[rows]) if normalise else inputs[rows]
        z = product(centred(block, gaussians.center), whitening).astype(np.float64)
        norms = np.einsum("ij,ij->i", z, z)
        if aggregate == "max":
            nearest = (mean_norms - 2 * product(z, means.T)).min(1)
            scores[rows] = -np.maximum(norms + nearest, 0.0)
        else:
            cross = product(z, means.sum(0)[:, None])[:, 0]
            scores[rows] = 2 * cross - len(means) * norms - mean_norms.sum()
    return scores


def memberships(labels: Any, n_samples: int) -> Matrix:
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
    epsilon = len(covariance) * SMALLEST_VARIANCE
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
