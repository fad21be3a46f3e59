"""Distance to the Gaussian of the nearest label, relative to one Gaussian of all samples."""

from __future__ import annotations

import numpy as np

from nescio._validation import Array, FloatArray, checked_flag
from nescio.detectors.arrays import Arrays
from nescio.detectors.base import Detector
from nescio.detectors.features import checked_layer, row_blocks
from nescio.detectors.gaussians import Gaussians, learn_gaussians, minus_distances


class RelativeMahalanobis(Detector):
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

    Attributes
    ----------
    center_, whitening_, means_ : arrays
        The Gaussians of the labels, as in `Mahalanobis`.
    overall_center_ : array of shape (n_features,)
        The mean of all samples.
    overall_whitening_ : array of shape (n_features, rank)
        Its product with itself is the inverse covariance of all samples.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> labels = np.eye(3, dtype=int)[rng.integers(0, 3, 300)]
    >>> features = 4 * labels @ np.eye(3, 6) + rng.normal(size=(300, 6))
    >>> detector = RelativeMahalanobis(normalise=False).fit(features, labels)
    >>> detector.predict([[4.0, 0, 0, 0, 0, 0], [1.3, 1.3, 1.3, 0, 0, 0]])
    array([ 1, -1])
    """

    name = "relative_mahalanobis"
    paper = "Ren et al., 2021 (arXiv:2106.09022)"
    learned = ("center_", "whitening_", "means_", "overall_center_", "overall_whitening_")

    def __init__(
        self,
        normalise: bool = True,
        layer: str = "features",
        *,
        tpr: float = 0.95,
        nonfinite: str = "raise",
    ) -> None:
        super().__init__(tpr=tpr, nonfinite=nonfinite)
        self.normalise = normalise
        self.layer = layer

    @property
    def learns_from(self) -> tuple[str, ...]:
        """The features of the layer, and labels."""
        return (self.layer, "labels")

    @property
    def scores_from(self) -> tuple[str, ...]:
        """The features of the layer."""
        return (self.layer,)

    def _check_params(self) -> None:
        super()._check_params()
        checked_flag("normalise", self.normalise)
        checked_layer(self.layer)

    def _learn(self, arrays: Arrays) -> None:
        features: FloatArray = arrays[self.layer]
        self.center_, self.whitening_, self.means_ = learn_gaussians(
            features, arrays.labels, normalise=self.normalise
        )
        self.overall_center_ = np.zeros(features.shape[1])
        self.overall_whitening_ = np.zeros((features.shape[1], 0))  # every distance is 0
        if arrays.labels is not None:
            overall = learn_gaussians(features, None, normalise=self.normalise)
            self.overall_center_, self.overall_whitening_ = overall.center, overall.whitening

    def _score(self, arrays: Arrays) -> Array:
        # In float64: a small difference of two large distances would lose too much in float32.
        inputs: FloatArray = arrays[self.layer]
        scores = np.empty(len(inputs))
        for rows in row_blocks(len(inputs), inputs.shape[1]):
            wide = inputs[rows].astype(np.float64)
            labels, overall = (
                minus_distances(wide, gaussians, normalise=self.normalise)
                for gaussians in self._gaussians()
            )
            scores[rows] = labels - overall
        return scores

    def _gaussians(self) -> tuple[Gaussians, Gaussians]:
        """Return the Gaussians of the labels, and that of all samples."""
        rank = np.shape(self.overall_whitening_)[-1]
        return (
            Gaussians(self.center_, self.whitening_, self.means_),
            Gaussians(self.overall_center_, self.overall_whitening_, np.zeros((1, rank))),
        )

    def _check_learned(self) -> None:
        for gaussians in self._gaussians():
            gaussians.check(self.n_features_in_)
