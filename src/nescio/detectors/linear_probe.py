"""The labels that a linear probe of the features finds, however the model itself ranks them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nescio._validation import Array, FloatArray
from nescio.detectors.features import (
    FeatureDetector,
    centred,
    memberships,
    product,
    row_blocks,
    unit_rows,
)
from nescio.detectors.inputs import Arrays
from nescio.errors import InputError, MissingInputError

Matrix = NDArray[np.float64]

_PENALTIES = 2.0 ** np.arange(-8, 7)  # in units of the mean eigenvalue
_ROWS = 4_096  # a mean error over this number of samples tells penalties apart


@dataclass(eq=False, repr=False)
class LinearProbe(FeatureDetector):
    """Sum of the squares of the positive outputs of a ridge regression of the labels.

    The regression predicts the labels (0 or 1) from features of length 1. It is a second opinion:
    a head that was fitted in closed form, with another error than the model's own. Its penalty is
    the one with the smallest leave-one-out error on the training data, so there is nothing to set.
    The square makes sure that many weak labels do not count as much as one clear label. If no
    output is positive, the score is the largest one.

    It does not ask whether the training data has anything like an input: one that is far from
    everything can score high. Combine it with a distance, as `combined` does.

    Parameters
    ----------
    layer : str
        The array to read: "features", or a name in `Outputs.arrays`.

    Attributes
    ----------
    center_ : array of shape (n_features,)
        The mean of the training features, at length 1.
    weights_ : array of shape (n_features, n_labels)
        The coefficients.
    shares_ : array of shape (n_labels,)
        The share of training samples that carry each label: the output at the centre.
    penalty_ : array of shape ()
        The penalty that was chosen, relative to the mean eigenvalue of the features' scatter.

    Examples
    --------
    >>> from nescio import Outputs
    >>> rng = np.random.default_rng(0)
    >>> labels = np.eye(3, dtype=int)[rng.integers(0, 3, 300)]
    >>> features = 4 * labels @ np.eye(3, 6) + rng.normal(size=(300, 6))
    >>> data = Outputs(np.where(labels, 4.0, -4.0), features=features, labels=labels)
    >>> detector = LinearProbe().fit(data[:200]).calibrate(data[200:])
    >>> detector.predict(Outputs(np.zeros((2, 3)), features=[[4.0] + [0] * 5, [0] * 5 + [4.0]]))
    array([ 1, -1])
    """

    name = "linear_probe"
    paper = "nescio; ridge regression, Hoerl & Kennard, Technometrics 1970"
    learns_with = ("labels",)
    learned = {
        "center_": "float features",
        "weights_": "float features labels",
        "shares_": "float labels",
        "penalty_": "float",
    }

    layer: str = "features"

    def _learn(self, arrays: Arrays) -> None:
        moved: FloatArray = unit_rows(arrays[self.layer].astype(np.float64))
        if arrays.labels is None:
            raise MissingInputError(
                f"{self.name} learns the labels of the training samples: pass them as y, or pass "
                "Outputs that have labels."
            )
        targets = memberships(arrays.labels, len(moved))
        self.center_, self.shares_ = moved.mean(0), targets.mean(0)
        moved -= self.center_
        targets -= self.shares_
        spread = float((moved**2).sum())
        if spread <= len(moved) * moved.shape[1] * np.finfo(np.float64).eps:
            raise InputError(
                f"{self.name} found no difference between the features of the {len(moved):,} "
                "training samples, at length 1. Check the features."
            )
        eigenvalues, directions = _spectrum(moved)
        shared = directions.T @ (moved.T @ targets)  # (n_directions, n_labels)
        # One column per penalty, which is in units of the mean eigenvalue of all directions.
        scales = eigenvalues[:, None] + _PENALTIES * (spread / moved.shape[1])
        rows = np.random.default_rng(0).permutation(len(moved))[:_ROWS]
        errors = _left_out_errors(
            moved[rows] @ directions, targets[rows], shared, scales, len(moved)
        )
        best = int(np.argmin(errors))
        self.penalty_ = np.array(_PENALTIES[best])
        self.weights_ = directions @ (shared / scales[:, best, None])

    def _score(self, arrays: Arrays) -> Array:
        inputs: FloatArray = arrays[self.layer]
        weights = self.weights_.astype(inputs.dtype)
        result = np.empty(len(inputs))
        for rows in row_blocks(len(inputs), max(weights.shape)):
            moved = centred(unit_rows(inputs[rows]), self.center_)
            outputs = product(moved, weights) + self.shares_  # (n_rows, n_labels), float64
            positive = np.maximum(outputs, 0.0)
            result[rows] = np.einsum("ij,ij->i", positive, positive)
            result[rows] += np.minimum(outputs.max(1), 0.0)
        return result


def _spectrum(moved: FloatArray) -> tuple[Matrix, Matrix]:
    """Return the eigenvalues and the directions of the scatter, without those that are empty.

    They come from the smaller one of two matrices: of features, or of samples.
    """
    if moved.shape[1] <= len(moved):
        eigenvalues, directions = np.linalg.eigh(moved.T @ moved)
        return np.maximum(eigenvalues, 0.0), directions
    eigenvalues, samples = np.linalg.eigh(moved @ moved.T)
    there = eigenvalues > moved.shape[1] * np.finfo(np.float64).eps * eigenvalues[-1]
    eigenvalues, samples = eigenvalues[there], samples[:, there]
    return eigenvalues, moved.T @ (samples / np.sqrt(eigenvalues))


def _left_out_errors(
    rotated: Matrix, targets: Matrix, shared: Matrix, scales: Matrix, n_samples: int
) -> list[float]:
    """Return the mean squared error, for each penalty, on samples that the fit has not seen.

    The residual without a sample is its residual divided by 1 - leverage, for ridge regression
    too; so no fit is repeated.
    """
    squares = rotated**2
    errors = []
    for scale in scales.T:
        leverage = squares @ (1 / scale) + 1 / n_samples
        residuals = targets - rotated @ (shared / scale[:, None])
        unseen = residuals / np.maximum(1 - leverage, 1e-6)[:, None]
        errors.append(float(np.mean(unseen**2)))
    return errors
