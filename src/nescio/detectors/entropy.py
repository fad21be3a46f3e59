"""Entropy of labels that are predicted independently."""

from __future__ import annotations

from nescio import scores
from nescio._validation import Array
from nescio.detectors.arrays import Arrays
from nescio.detectors.base import Detector

_CERTAIN = 1000.0  # a logit of which the entropy is 0 in every precision


class Entropy(Detector):
    """Minus the sum over labels of the entropy of each label's probability: a negative result.

    The entropy of a label with probability p is -p log(p) - (1 - p) log(1 - p). A masked label
    counts nothing.

    For one label per sample, an uncertain prediction is a sign of an unknown input, and the score
    keeps that direction. With several labels it can point the wrong way, with an AUROC below
    50 %: an input that shows none of the labels has only certain, negative predictions, and an
    in-distribution input has more labels that are uncertain. It is here to show that.

    Examples
    --------
    The first sample is in doubt about one label, the second one about none:

    >>> Entropy().score_samples(np.array([[0.0, -9.0], [-9.0, -9.0]])).round(4)
    array([-0.6944, -0.0025])
    """

    name = "entropy"
    paper = "Shannon, 1948; summed over labels"
    traceable = True

    def _score(self, arrays: Arrays) -> Array:
        # It is the same for a logit and for minus the logit, and this form does not cancel.
        certainty = abs(arrays.logits).clip(max=_CERTAIN)
        each = scores.label_energy(-certainty) + certainty * scores.label_prob(-certainty)
        return -each.sum(1)  # type: ignore[no-any-return]
