"""ReAct: joint energy after the inputs of the head are clipped."""

from __future__ import annotations

import numpy as np

from nescio._validation import Array, checked_percentile
from nescio.detectors.arrays import Arrays
from nescio.detectors.base import Detector
from nescio.detectors.rectified import READS, energy_of


class ReAct(Detector):
    """Joint energy of the logits for inputs of the head that are clipped at a percentile.

    Out-of-distribution inputs can activate a few units far more than training data does, which
    makes large logits. Clipping bounds the contribution of each unit. One limit holds for all
    units: a percentile of all activations of the training data.

    Parameters
    ----------
    percentile : float
        The percentile of the training activations to clip at. The default of 90 is that of the
        paper and of the OpenOOD benchmark.

    Attributes
    ----------
    ceiling_ : array of shape ()
        The largest activation that remains.

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
    scores_from = READS
    learned = ("ceiling_",)
    traceable = True

    def __init__(
        self, percentile: float = 90.0, *, tpr: float = 0.95, nonfinite: str = "raise"
    ) -> None:
        super().__init__(tpr=tpr, nonfinite=nonfinite)
        self.percentile = percentile

    def _check_params(self) -> None:
        super()._check_params()
        checked_percentile("percentile", self.percentile)

    def _learn(self, arrays: Arrays) -> None:
        self.ceiling_ = np.array(np.percentile(arrays.penultimate, self.percentile))

    def _score(self, arrays: Arrays) -> Array:
        clipped = arrays.penultimate.clip(max=float(self.ceiling_))
        return energy_of(clipped, arrays.head.weight, arrays.head.bias)

    def _check_learned(self) -> None:
        if self.ceiling_.shape != () or not np.isfinite(self.ceiling_):
            raise ValueError("its ceiling is not a finite number")
