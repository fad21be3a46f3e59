"""ASH-S: joint energy after the small inputs of the head are removed and the others scaled."""

from __future__ import annotations

from nescio._validation import Array, checked_percentile
from nescio.detectors.arrays import Arrays
from nescio.detectors.base import Detector
from nescio.detectors.rectified import READS, cut_off, energy_of, growth


class ASH(Detector):
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
    scores_from = READS
    traceable = True

    def __init__(
        self, percentile: float = 90.0, *, tpr: float = 0.95, nonfinite: str = "raise"
    ) -> None:
        super().__init__(tpr=tpr, nonfinite=nonfinite)
        self.percentile = percentile

    def _check_params(self) -> None:
        super()._check_params()
        checked_percentile("percentile", self.percentile)

    def _score(self, arrays: Arrays) -> Array:
        inputs = arrays.penultimate
        lowest = cut_off(inputs, self.percentile)
        pruned = inputs * (inputs >= lowest)
        return energy_of(pruned * growth(inputs, lowest), arrays.head.weight, arrays.head.bias)
