"""SCALE: joint energy after all inputs of the head are scaled by one factor per sample."""

from __future__ import annotations

from nescio._validation import Array, checked_percentile
from nescio.detectors.arrays import Arrays
from nescio.detectors.base import Detector
from nescio.detectors.rectified import READS, cut_off, energy_of, growth


class Scale(Detector):
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
    scores_from = READS
    traceable = True

    def __init__(
        self, percentile: float = 85.0, *, tpr: float = 0.95, nonfinite: str = "raise"
    ) -> None:
        super().__init__(tpr=tpr, nonfinite=nonfinite)
        self.percentile = percentile

    def _check_params(self) -> None:
        super()._check_params()
        checked_percentile("percentile", self.percentile)

    def _score(self, arrays: Arrays) -> Array:
        inputs = arrays.penultimate
        scaled = inputs * growth(inputs, cut_off(inputs, self.percentile))
        return energy_of(scaled, arrays.head.weight, arrays.head.bias)
