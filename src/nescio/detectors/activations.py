"""ReAct, DICE, ASH and SCALE: change the input of the head, or its weights, and recompute logits.

Their score is the joint energy of the new logits, in place of the softmax energy of the papers.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from nescio import scores
from nescio._validation import Array, checked_share
from nescio.calibration import TIE_TOLERANCE
from nescio.detectors.base import Detector
from nescio.detectors.inputs import Arrays
from nescio.errors import ShapeError
from nescio.scores import exp, largest, like, where

# exp(50) is far from the largest float32. A sum over the positive values can be more than 50
# times that of the values above the percentile only if fewer than 2 % of them are above it.
_LARGEST_EXPONENT = 50.0


class _PercentileDetector(Detector):
    """Joint energy of the logits that the head gives for changed inputs."""

    scores_from = ("penultimate", "head")
    traceable = True

    percentile: float

    def _check_params(self) -> None:
        super()._check_params()
        checked_share("percentile", self.percentile, of=100)

    @abstractmethod
    def _changed(self, inputs: Any) -> Any:
        """Return what the head gets in place of its inputs."""

    def _score(self, arrays: Arrays) -> Array:
        return _energy(self._changed(arrays.penultimate), arrays.head.weight, arrays.head.bias)

    def _cut_off(self, inputs: Any) -> Any:
        """Return the percentile of each row: as a column, the smallest value that is kept."""
        n_kept = max(1, inputs.shape[1] - round(inputs.shape[1] * self.percentile / 100))
        return largest(inputs, n_kept)[:, :1]


def _energy(inputs: Any, weight: Any, bias: Any) -> Array:
    """Return the joint energy of the logits that a head gives."""
    _check_width(inputs, weight)
    return scores.joint_energy(inputs @ like(weight, inputs).T + like(bias, inputs))


def _check_width(inputs: Any, weight: Any) -> None:
    """Raise unless the head has one weight per column of its inputs."""
    if inputs.shape[1] != weight.shape[1]:
        raise ShapeError(
            f"the head reads {weight.shape[1]} values, but its input has {inputs.shape[1]} "
            "columns. If the features are those of another layer, add the input of the head: "
            "Outputs(..., arrays={'penultimate': ...})."
        )


def _growth(inputs: Any, lowest: Any) -> Any:
    """Return exp(sum of a row / sum of its values from `lowest` on) as a column."""
    positive = inputs.clip(min=0.0)  # all are positive in the papers, after a ReLU
    total = positive.sum(1)[:, None]
    kept = (positive * (inputs >= lowest)).sum(1)[:, None]
    ratio = where(kept > 0, total / where(kept > 0, kept, 1.0), 1.0)
    return exp(ratio.clip(max=_LARGEST_EXPONENT))


@dataclass(eq=False, repr=False)
class ReAct(_PercentileDetector):
    """Joint energy of the logits for inputs of the head that are clipped at a percentile.

    Out-of-distribution inputs can activate a few units far more than training data does, which
    makes large logits. Clipping bounds the contribution of each unit. One limit holds for all
    units, `ceiling_`: a percentile of all activations of the training data.

    Parameters
    ----------
    percentile : float
        The percentile of the training activations to clip at. The default of 90 is that of the
        paper and of the OpenOOD benchmark.

    Examples
    --------
    >>> from nescio.checks import make_outputs
    >>> train = make_outputs(500)
    >>> ceiling = ReAct().fit(train).ceiling_
    >>> (train.features <= ceiling).mean()
    np.float64(0.9)
    """

    name = "react"
    paper = "Sun et al., NeurIPS 2021; joint energy in place of the softmax energy"
    learns_from = ("penultimate",)
    learned = {"ceiling_": "float"}

    percentile: float = 90.0

    def _learn(self, arrays: Arrays) -> None:
        self.ceiling_ = np.array(np.percentile(arrays.penultimate, self.percentile))

    def _changed(self, inputs: Any) -> Any:
        return inputs.clip(max=float(self.ceiling_))


@dataclass(eq=False, repr=False)
class DICE(Detector):
    """Joint energy of the logits with only those weights of the head that contribute most.

    The contribution of a weight is its product with the mean of its input over the training data.
    The share `sparsity` of all weights, those with the smallest contributions, counts as 0; `kept_`
    says which remain. So units that matter little for the training data cannot make a logit large.

    Parameters
    ----------
    sparsity : float
        The share of the weights to leave out, between 0 and 1. The default of 0.9 is that of the
        authors for CIFAR-10 and CIFAR-100; for ImageNet they took 0.7.

    Examples
    --------
    >>> from nescio.checks import make_outputs
    >>> detector = DICE(sparsity=0.5).fit(make_outputs(500))
    >>> detector.kept_.mean()
    np.float64(0.5)
    """

    name = "dice"
    paper = "Sun & Li, ECCV 2022; joint energy in place of the softmax energy"
    learns_from = scores_from = ("penultimate", "head")
    learned = {"kept_": "bool labels features"}
    traceable = True

    sparsity: float = 0.9

    def _check_params(self) -> None:
        super()._check_params()
        checked_share("sparsity", self.sparsity)

    def _learn(self, arrays: Arrays) -> None:
        _check_width(arrays.penultimate, arrays.head.weight)
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
        return _energy(arrays.penultimate, head.weight * self.kept_, head.bias)


@dataclass(eq=False, repr=False)
class ASH(_PercentileDetector):
    """Joint energy of the logits for inputs of the head that are pruned and scaled (ASH-S).

    For each sample, the inputs below a percentile of this sample become 0, and the others are
    multiplied by exp(sum before / sum after). It learns nothing.

    The method is made for inputs that have passed a ReLU. Of other inputs, only positive values
    count in the two sums.

    Parameters
    ----------
    percentile : float
        The percentage of the inputs to remove. The default of 90 is that of the authors' code
        for ImageNet.

    Examples
    --------
    The first input is removed, the second one multiplied by exp(4 / 3):

    >>> import nescio as ns
    >>> outputs = ns.Outputs([[1.0, 3.0]], [[1.0, 3.0]], head=ns.Head(np.eye(2), np.zeros(2)))
    >>> ASH(percentile=50).score_samples(outputs).round(2)
    array([12.07])
    """

    name = "ash"
    paper = "Djurisic et al., ICLR 2023; joint energy in place of the softmax energy"

    percentile: float = 90.0

    def _changed(self, inputs: Any) -> Any:
        lowest = self._cut_off(inputs)
        return inputs * (inputs >= lowest) * _growth(inputs, lowest)


@dataclass(eq=False, repr=False)
class Scale(_PercentileDetector):
    """Joint energy of the logits for inputs of the head that are scaled by a factor per sample.

    The factor is exp(sum of all inputs / sum of the inputs from a percentile of this sample on).
    Nothing is removed, which is the difference from `ASH`. It learns nothing.

    The method is made for inputs that have passed a ReLU. Of other inputs, only positive values
    count in the two sums.

    Parameters
    ----------
    percentile : float
        The percentage of the inputs that only the first sum counts. The default of 85 is that of
        the paper for ImageNet, and of the OpenOOD benchmark.

    Examples
    --------
    Both inputs are multiplied by exp(4 / 3):

    >>> import nescio as ns
    >>> outputs = ns.Outputs([[1.0, 3.0]], [[1.0, 3.0]], head=ns.Head(np.eye(2), np.zeros(2)))
    >>> Scale(percentile=50).score_samples(outputs).round(2)
    array([15.2])
    """

    name = "scale"
    paper = "Xu et al., ICLR 2024; joint energy in place of the softmax energy"

    percentile: float = 85.0

    def _changed(self, inputs: Any) -> Any:
        return inputs * _growth(inputs, self._cut_off(inputs))
