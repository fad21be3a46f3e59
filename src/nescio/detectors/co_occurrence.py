"""Joint energy of labels that are not independent: pairs that occur together count more."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio import scores
from nescio._validation import Array, check_multi_hot, checked_number, to_numpy
from nescio.detectors.arrays import Arrays
from nescio.detectors.base import Detector
from nescio.detectors.tensors import like
from nescio.errors import ImplausibleValuesWarning, ShapeError, warn

_PSEUDO_COUNT = 1.0


class CoOccurrence(Detector):
    """Joint energy plus the expected sum of the log lifts of the pairs of labels.

    The log lift of two labels is log((n_ij + 1) / (n_i n_j / n + 1)): how often they occur
    together in the n training samples, relative to how often they would if they were independent.
    It is positive for labels that belong together, negative for labels that exclude each other,
    and close to 0 if there is little data. With the label probabilities p, the score is

        sum over i of log(1 + exp(logit_i)) + weight * sum over i < j of p_i p_j lift_ij.

    Joint energy is the log of the sum, over all sets of labels, of exp(sum of the logits in the
    set). If each pair in a set adds its weighted log lift to that exponent, the score is a lower
    bound (the mean-field bound) of the result. So a sample with labels that often occur together
    gains, and one with labels that never do loses.

    SLCS (Wang et al., 2022) also weights predictions by the co-occurrence of training labels. It
    was published without code, and this formula is another one.

    Without labels (a plain array and no `y`), it learns from the labels that the model predicts.

    Parameters
    ----------
    weight : float
        How much the pairs count, at least 0; joint energy at 0.

    Attributes
    ----------
    lift_ : array of shape (n_labels, n_labels)
        The log lift of each pair; 0 on the diagonal.

    Examples
    --------
    The first two labels occur together, the third one alone:

    >>> labels = np.array([[1, 1, 0]] * 50 + [[0, 0, 1]] * 50)
    >>> logits = np.where(labels, 4.0, -4.0)
    >>> detector = CoOccurrence().fit(logits, labels)
    >>> detector.score_samples([[4.0, 4.0, -4.0], [4.0, -4.0, 4.0]]).round(2)
    array([8.59, 4.87])
    """

    name = "co_occurrence"
    paper = "related to SLCS, Wang et al., Image and Vision Computing 2022"
    learns_from = ("logits", "labels")
    learned = ("lift_",)
    traceable = True

    def __init__(self, weight: float = 1.0, *, tpr: float = 0.95, nonfinite: str = "raise") -> None:
        super().__init__(tpr=tpr, nonfinite=nonfinite)
        self.weight = weight

    def _check_params(self) -> None:
        super()._check_params()
        checked_number("weight", self.weight, minimum=0)

    def _learn(self, arrays: Arrays) -> None:
        present = _multi_hot(arrays.labels, arrays.logits)
        together = present.T @ present  # (n_labels, n_labels)
        counts = np.diag(together)
        expected = np.outer(counts, counts) / len(present)
        self.lift_ = np.log((together + _PSEUDO_COUNT) / (expected + _PSEUDO_COUNT))
        np.fill_diagonal(self.lift_, 0.0)

    def _score(self, arrays: Arrays) -> Array:
        probs = scores.label_prob(arrays.logits)
        # Every pair is in the product twice.
        pairs = ((probs @ like(self.lift_, probs)) * probs).sum(1) / 2
        return scores.joint_energy(arrays.logits) + self.weight * pairs  # type: ignore[no-any-return]

    def _check_learned(self) -> None:
        n_labels = self.n_features_in_
        if self.lift_.shape != (n_labels, n_labels) or not np.isfinite(self.lift_).all():
            raise ValueError("its log lifts do not fit its labels")


def _multi_hot(labels: Any, logits: Array) -> NDArray[np.float64]:
    """Return the labels as floats; the predicted ones if there are none, or one per sample only."""
    array = None if labels is None else to_numpy(labels)
    if array is not None and array.ndim == 1:
        warn(
            "co_occurrence learns which labels occur together, but y has one class per sample. It "
            "learns from the predicted labels (logit above 0) instead. Pass multi-hot labels.",
            ImplausibleValuesWarning,
        )
        array = None
    if array is None:
        array = logits > 0
    if array.shape != logits.shape:
        raise ShapeError(f"labels must be multi-hot, of shape {logits.shape}, got {array.shape}.")
    check_multi_hot(array)
    return array.astype(np.float64)
