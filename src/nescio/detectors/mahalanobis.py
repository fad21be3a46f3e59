"""Distances to Gaussians of the features: one per label under a shared covariance."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from nescio._validation import Array, FloatArray, checked_choice, checked_flag
from nescio.detectors.features import (
    SMALLEST_VARIANCE,
    FeatureDetector,
    Matrix,
    by_blocks,
    centred,
    memberships,
    product,
    row_squares,
    unit_rows,
)
from nescio.detectors.inputs import Arrays
from nescio.errors import EmptyLabelWarning, ShapeError, warn
from nescio.scores import like, max_logit

_GAUSSIANS = {  # as in `Gaussians`; only labels with samples have a mean
    "center_": "float features",
    "whitening_": "float features rank",
    "means_": "float labels rank",
}


class Gaussians(NamedTuple):
    """Gaussians that share one covariance."""

    center: Matrix  # (n_features,), subtracted before whitening
    whitening: Matrix  # (n_features, rank); its product with itself is the inverse covariance
    means: Matrix  # (n_gaussians, rank), whitened


def learn_gaussians(
    features: FloatArray, labels: Array | None, *, normalise: bool = False
) -> Gaussians:
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
        empty = np.flatnonzero(counts == 0)
        warn(
            f"{len(empty)} of {len(counts)} labels have no sample and are left out "
            f"(the first is label {empty[0]}).",
            EmptyLabelWarning,
        )
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
    inputs: Any, gaussians: Gaussians, aggregate: str = "max", *, normalise: bool = False
) -> Any:
    """Return minus the squared distance of each row to the nearest mean, or summed over all.

    The costly product is computed in the precision of the input, the distances in float64; blocks
    of rows keep the memory bounded.
    """
    center, whitening, means = gaussians.center, like(gaussians.whitening, inputs), gaussians.means
    mean_norms = row_squares(means)

    def score(rows: Any) -> Any:
        moved = centred(unit_rows(rows) if normalise else rows, center)
        z = like(product(moved, whitening), means)
        if aggregate == "max":
            nearest = -max_logit(2 * product(z, means.T) - mean_norms)
            return -(row_squares(z) + nearest).clip(min=0.0)
        cross = product(z, means.sum(0)[:, None])[:, 0]
        return 2 * cross - len(means) * row_squares(z) - mean_norms.sum()

    return by_blocks(score, inputs, max(inputs.shape[1], len(means)))


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


@dataclass(eq=False, repr=False)
class Mahalanobis(FeatureDetector):
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
    normalise : bool
        Divide features by their Euclidean length first ("Mahalanobis++", Mueller & Hein, ICML
        2025). A row of zeros stays as it is.
    layer : str
        The array to read: "features", or a name in `Outputs.arrays`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 2, (300, 4))
    >>> features = labels @ rng.normal(size=(4, 6)) + rng.normal(size=(300, 6))
    >>> detector = Mahalanobis().fit(features[:200], labels[:200]).calibrate(features[200:])
    >>> detector.predict(np.full((1, 6), 50.0))
    array([-1])
    """

    name = "mahalanobis"
    paper = "Lee et al., NeurIPS 2018; multi-label as in Wang et al., NeurIPS 2021"
    learns_with = ("labels",)
    learned = _GAUSSIANS
    traceable = True

    aggregate: str = "max"
    normalise: bool = False
    layer: str = "features"

    def _check_params(self) -> None:
        super()._check_params()
        checked_choice("aggregate", self.aggregate, ("max", "sum"))
        checked_flag("normalise", self.normalise)

    def _learn(self, arrays: Arrays) -> None:
        self.center_, self.whitening_, self.means_ = learn_gaussians(
            arrays[self.layer], arrays.labels, normalise=self.normalise
        )

    def _score(self, arrays: Arrays) -> Array:
        (name,) = self.scores_from
        inputs = arrays[name]
        if inputs.shape[1] != len(self.center_):
            raise ShapeError(
                f"{self.name} learned from {len(self.center_)} features, but {name} has "
                f"{inputs.shape[1]} columns."
            )
        gaussians = Gaussians(self.center_, self.whitening_, self.means_)
        return minus_distances(  # type: ignore[no-any-return]
            inputs, gaussians, self.aggregate, normalise=self.normalise
        )


@dataclass(eq=False, repr=False)
class PerturbedMahalanobis(Mahalanobis):
    """Mahalanobis as in the paper: on the features of slightly perturbed inputs.

    It learns from the plain features of the training data, and scores the features of perturbed
    inputs, which `nescio extract --tuned` adds to the outputs as mahalanobis_max or
    mahalanobis_sum, one for each `aggregate`.
    """

    name = "mahalanobis_perturbed"
    traceable = False

    # The perturbation was computed for features as they are.
    normalise: bool = field(default=False, init=False)
    layer: str = field(default="features", init=False)

    @property
    def scores_from(self) -> tuple[str, ...]:
        """The features of perturbed inputs, for the aggregate."""
        return (f"mahalanobis_{self.aggregate}",)


@dataclass(eq=False, repr=False)
class RelativeMahalanobis(Mahalanobis):
    """Distance to the Gaussian of all samples minus the distance to that of the nearest label.

    Both are squared Mahalanobis distances. The Gaussians of the labels share one covariance, as
    those of `Mahalanobis` do: a sample with three labels enters it three times. In the Gaussian of
    all samples, each sample counts once. Directions in which all samples vary alike cancel, so
    that the label decides. The price is that a sample far from everything can score high.

    Without labels (an array without `y`), the two would be the same Gaussian: nothing is
    subtracted then, and the score is that of `Mahalanobis`.

    Parameters
    ----------
    normalise : bool
        Divide features by their Euclidean length first. A row of zeros stays as it is.
    layer : str
        The array to read: "features", or a name in `Outputs.arrays`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> labels = np.eye(3, dtype=int)[rng.integers(0, 3, 300)]
    >>> features = 4 * labels @ np.eye(3, 6) + rng.normal(size=(300, 6))
    >>> detector = RelativeMahalanobis(normalise=False).fit(features[:200], labels[:200])
    >>> detector = detector.calibrate(features[200:])
    >>> detector.predict([[4.0, 0, 0, 0, 0, 0], [1.3, 1.3, 1.3, 0, 0, 0]])
    array([ 1, -1])
    """

    name = "relative_mahalanobis"
    paper = "Ren et al., 2021 (arXiv:2106.09022)"
    learned = {
        **_GAUSSIANS,  # those of the labels; the others are of all samples
        "overall_center_": "float features",
        "overall_whitening_": "float features overall-rank",
    }

    aggregate: str = field(default="max", init=False)
    normalise: bool = True

    def _learn(self, arrays: Arrays) -> None:
        super()._learn(arrays)
        features: FloatArray = arrays[self.layer]
        self.overall_center_ = np.zeros(features.shape[1])
        self.overall_whitening_ = np.zeros((features.shape[1], 0))  # every distance is 0
        if arrays.labels is not None:
            overall = learn_gaussians(features, None, normalise=self.normalise)
            self.overall_center_, self.overall_whitening_ = overall.center, overall.whitening

    def _score(self, arrays: Arrays) -> Array:
        labels = Gaussians(self.center_, self.whitening_, self.means_)
        mean = 0.0 * self.overall_whitening_[:1]
        overall = Gaussians(self.overall_center_, self.overall_whitening_, mean)

        def score(rows: Any) -> Any:
            # In float64: a small difference of two large distances would lose too much in float32.
            wide = like(rows, self.center_)
            scores = minus_distances(wide, labels, normalise=self.normalise)
            if not mean.shape[1]:  # without labels, nothing is subtracted
                return scores
            return scores - minus_distances(wide, overall, normalise=self.normalise)

        inputs = arrays[self.layer]
        return by_blocks(score, inputs, inputs.shape[1])  # type: ignore[no-any-return]
