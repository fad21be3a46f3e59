"""GradNorm for the binary cross-entropy, in closed form."""

from __future__ import annotations

import numpy as np

from nescio import scores
from nescio._validation import Array, checked_number
from nescio.detectors.arrays import Arrays
from nescio.detectors.base import Detector


class GradNorm(Detector):
    """The L1 norm of the gradient of the binary cross-entropy in the weights of the head.

    The gradient for one sample is the outer product of p - target, one value per label, and of the
    input h of the head. So its norm is the sum of |p - target| times the sum of |h|, and needs no
    backward pass. A masked label counts nothing.

    The target is the same for all labels. With 0 (no label is present), the norm grows with the
    labels that the model sees in the input. The paper's target is uniform over the classes of one
    softmax. The uniform target of a label is 0.5, for which a label that is surely absent counts as
    much as one that is surely present.

    Parameters
    ----------
    target : float
        The probability that the loss compares every label with, from 0 to 1.

    Examples
    --------
    >>> import nescio as ns
    >>> outputs = ns.Outputs([[0.0, 0.0]], arrays={"penultimate": [[2.0, -1.0, 0.0]]})
    >>> GradNorm().score_samples(outputs)
    array([3.])
    """

    name = "gradnorm"
    paper = "Huang et al., NeurIPS 2021; for the binary cross-entropy"
    scores_from = ("penultimate", "logits")
    traceable = True

    def __init__(self, target: float = 0.0, *, tpr: float = 0.95, nonfinite: str = "raise") -> None:
        super().__init__(tpr=tpr, nonfinite=nonfinite)
        self.target = target

    def _check_params(self) -> None:
        super()._check_params()
        checked_number("target", self.target, minimum=0, maximum=1)

    def _score(self, arrays: Arrays) -> Array:
        logits = arrays.logits
        differences = abs(scores.label_prob(logits) - self.target) * (logits > -np.inf)
        return abs(arrays.penultimate).sum(1) * differences.sum(1)  # type: ignore[no-any-return]
