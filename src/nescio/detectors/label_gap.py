"""The gap between the logits of the predicted labels and those of the others."""

from __future__ import annotations

from typing import Any

import numpy as np

from nescio import scores
from nescio._validation import Array
from nescio.detectors.arrays import Arrays
from nescio.detectors.base import Detector
from nescio.detectors.tensors import where


class LabelGap(Detector):
    """The mean logit of the predicted labels minus the mean logit of the other labels.

    A label is predicted if its logit is above 0. If there is none, the largest logit stands for
    the predicted ones; if all are, the smallest logit stands for the others. A masked label is
    neither. The score is never negative, and -inf if every label is masked.

    Examples
    --------
    >>> LabelGap().score_samples(np.array([[3.0, 1.0, -4.0], [-1.0, -4.0, -4.0]]))
    array([6., 3.])
    """

    name = "label_gap"
    paper = "the formula is its name"
    traceable = True

    def _score(self, arrays: Arrays) -> Array:
        logits = arrays.logits
        known = logits > -np.inf
        top = scores.max_logit(logits)[:, None]
        bottom = -scores.max_logit(where(known, -logits, -np.inf))
        predicted = ((logits > 0) | (logits == top)) & known
        others = known & ~predicted
        rest = where(others.any(1), _mean(logits, others), bottom)
        return _mean(logits, predicted) - rest  # type: ignore[no-any-return]


def _mean(logits: Any, chosen: Any) -> Any:
    """Return the mean of the chosen logits of each row; 0 if none is chosen."""
    return where(chosen, logits, 0.0).sum(1) / chosen.sum(1).clip(min=1)
