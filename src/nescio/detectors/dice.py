"""DICE: joint energy with the most important weights of the head only."""

from __future__ import annotations

import numpy as np

from nescio._validation import Array, checked_share
from nescio.calibration import TIE_TOLERANCE
from nescio.detectors.arrays import Arrays
from nescio.detectors.base import Detector
from nescio.detectors.rectified import READS, check_width, energy_of
from nescio.errors import ShapeError


class DICE(Detector):
    """Joint energy of the logits with only those weights of the head that contribute most.

    The contribution of a weight is its product with the mean of its input over the training data.
    The share `sparsity` of all weights, those with the smallest contributions, counts as 0. So
    units that matter little for the training data cannot make a logit large.

    Parameters
    ----------
    sparsity : float
        The share of the weights to leave out, between 0 and 1. The default of 0.9 is that of the
        authors for CIFAR-10 and CIFAR-100; for ImageNet they took 0.7.

    Attributes
    ----------
    kept_ : array of bool of shape (n_labels, n_features)
        The weights that are kept.

    Examples
    --------
    >>> from nescio.checks import make_outputs
    >>> detector = DICE(sparsity=0.5).fit(make_outputs(500))
    >>> detector.kept_.mean()
    np.float64(0.5)
    """

    name = "dice"
    paper = "Sun & Li, ECCV 2022; joint energy in place of the softmax energy"
    learns_from = scores_from = READS
    learned = ("kept_",)
    traceable = True

    def __init__(
        self, sparsity: float = 0.9, *, tpr: float = 0.95, nonfinite: str = "raise"
    ) -> None:
        super().__init__(tpr=tpr, nonfinite=nonfinite)
        self.sparsity = sparsity

    def _check_params(self) -> None:
        super()._check_params()
        checked_share("sparsity", self.sparsity)

    def _learn(self, arrays: Arrays) -> None:
        check_width(arrays.penultimate, arrays.head.weight)
        means = arrays.penultimate.mean(0, dtype=np.float64)
        contributions = arrays.head.weight * means  # (n_labels, n_features)
        n_left_out = min(round(contributions.size * self.sparsity), contributions.size - 1)
        smallest_kept = np.partition(contributions, n_left_out, axis=None)[n_left_out]
        # Contributions that differ by rounding only are tied: the first of them are kept, as many
        # as there is room for.
        tied = np.abs(contributions - smallest_kept) <= TIE_TOLERANCE * abs(smallest_kept)
        self.kept_ = (contributions > smallest_kept) & ~tied
        room = contributions.size - n_left_out - np.count_nonzero(self.kept_)
        self.kept_.flat[np.flatnonzero(tied)[:room]] = True

    def _score(self, arrays: Arrays) -> Array:
        head = arrays.head
        if head.weight.shape != self.kept_.shape:
            raise ShapeError(
                f"dice learned from a head with weights of shape {tuple(self.kept_.shape)}, but "
                f"this one has {tuple(head.weight.shape)}."
            )
        return energy_of(arrays.penultimate, head.weight * self.kept_, head.bias)

    def _check_learned(self) -> None:
        shape = self.kept_.shape
        if self.kept_.dtype != np.bool_ or len(shape) != 2 or shape[1] != self.n_features_in_:
            raise ValueError("what it says about the weights does not fit the head's inputs")
