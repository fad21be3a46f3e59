"""Virtual-logit matching, with joint energy: the part of the features that training data lacks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nescio import scores
from nescio._validation import Array, FloatArray, checked_whole
from nescio.detectors.features import (
    SMALLEST_VARIANCE,
    FeatureDetector,
    centred,
    product,
    row_blocks,
)
from nescio.detectors.inputs import Arrays
from nescio.errors import InputError


@dataclass(eq=False, repr=False)
class ViM(FeatureDetector):
    """Joint energy minus the scaled length of the features outside their principal subspace.

    The principal components of the training features span the subspace. What remains of a sample
    outside of it is its residual. The length of the residual is scaled so that it has the same
    mean as the joint energy on the training data.

    Two things differ from the paper, which has one label per sample. Joint energy takes the place
    of log-sum-exp, and of the largest logit in the scale: it is never negative. Features are
    centred by their mean instead of by the bias of the last layer, so that any layer can be read
    and the head is not needed.

    Parameters
    ----------
    n_components : int
        The dimension of the principal subspace; 0 for half of the dimensions in which the
        training features vary.
    layer : str
        The array to read: "features", or a name in `Outputs.arrays`.

    Attributes
    ----------
    center_ : array of shape (n_features,)
        The mean of the training features.
    outside_ : array of shape (n_features, n_features - n_components)
        An orthonormal basis of what is outside of the principal subspace.
    scale_ : array of shape ()
        The factor of the residual, alpha in the paper.
    """

    name = "vim"
    paper = "Wang et al., CVPR 2022; with joint energy"
    learns_with = scores_with = ("logits",)
    learned = {"center_": "float features", "outside_": "float features outside", "scale_": "float"}

    n_components: int = 0
    layer: str = "features"

    def _check_params(self) -> None:
        super()._check_params()
        checked_whole("n_components", self.n_components, minimum=0)

    def _learn(self, arrays: Arrays) -> None:
        features = arrays[self.layer].astype(np.float64)
        self.center_ = features.mean(0)
        constant = np.ptp(features, axis=0) == 0
        features -= self.center_
        features[:, constant] = 0.0  # the mean is rounded
        variances, directions = np.linalg.eigh(features.T @ features)  # ascending
        rank = np.count_nonzero(variances > len(variances) * SMALLEST_VARIANCE * variances[-1])
        if rank <= self.n_components:
            raise InputError(
                f"the training features vary in {rank} directions, and vim with n_components = "
                f"{self.n_components} needs at least one more than these. Learn from more "
                "samples, or choose a smaller n_components."
            )
        n_outside = len(variances) - (self.n_components or rank // 2)
        self.outside_ = np.ascontiguousarray(directions[:, :n_outside])
        energies = np.asarray(scores.joint_energy(arrays.logits), np.float64)
        residuals = self._residuals(arrays[self.layer])
        self.scale_ = np.array(energies.mean() / residuals.mean())

    def _score(self, arrays: Arrays) -> Array:
        energies = np.asarray(scores.joint_energy(arrays.logits), np.float64)
        return energies - self.scale_ * self._residuals(arrays[self.layer])

    def _residuals(self, features: FloatArray) -> NDArray[np.float64]:
        """Return the length of each row outside of the principal subspace."""
        outside = self.outside_.astype(features.dtype)
        lengths = np.empty(len(features))
        for rows in row_blocks(len(features), features.shape[1]):
            left = product(centred(features[rows], self.center_), outside).astype(np.float64)
            lengths[rows] = np.sqrt(np.einsum("ij,ij->i", left, left))
        return lengths
