"""GEN for labels that are predicted independently: a generalised entropy of each label."""

from __future__ import annotations

from nescio import scores
from nescio._validation import Array, checked_share, checked_whole
from nescio.detectors.arrays import Arrays
from nescio.detectors.base import Detector
from nescio.detectors.tensors import exp, largest


class GEN(Detector):
    """Minus the generalised entropy of the most probable labels: a negative result.

    The sum of (p (1 - p)) ** gamma over the k largest label probabilities p. The paper sums over
    the classes of one softmax; here each label is a distribution of its own, p and 1 - p. Small
    gamma makes it sensitive to probabilities that are almost 0 or almost 1. A masked label counts
    nothing.

    For one label per sample, an uncertain prediction is a sign of an unknown input, and the score
    keeps that direction. With several labels it can point the wrong way, with an AUROC below
    50 %: an input that shows none of the labels has only certain, negative predictions, and an
    in-distribution input has more labels that are uncertain. It is here to show that.

    Parameters
    ----------
    gamma : float
        The exponent, between 0 and 1. The default of 0.1 is that of the paper and of its code.
    k : int
        How many labels count; all of them if there are fewer. The default of 100 is that of the
        paper, where it is a tenth of the 1,000 classes of ImageNet.

    Examples
    --------
    The first sample is in doubt about one label, the second one about none:

    >>> GEN().score_samples(np.array([[0.0, -9.0], [-9.0, -9.0]])).round(2)
    array([-1.28, -0.81])
    """

    name = "gen"
    paper = "Liu et al., CVPR 2023; one distribution per label"
    traceable = True

    def __init__(
        self, gamma: float = 0.1, k: int = 100, *, tpr: float = 0.95, nonfinite: str = "raise"
    ) -> None:
        super().__init__(tpr=tpr, nonfinite=nonfinite)
        self.gamma = gamma
        self.k = k

    def _check_params(self) -> None:
        super()._check_params()
        checked_share("gamma", self.gamma)
        checked_whole("k", self.k, minimum=1)

    def _score(self, arrays: Arrays) -> Array:
        top = largest(arrays.logits, self.k)
        # log(p (1 - p)), which does not round to log(0) for logits far from 0
        minus_log = scores.label_energy(top) + scores.label_energy(-top)
        return -exp(-self.gamma * minus_log).sum(1)  # type: ignore[no-any-return]
