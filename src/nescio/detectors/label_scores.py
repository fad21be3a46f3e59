"""The detectors that are a score of the logits and a threshold; nothing is learned.

Nine of them are one table: a term of each label (energy, logit, probability) under an aggregation
over the labels (sum, max, top-k). The tenth is the softmax score.
"""

from __future__ import annotations

from typing import ClassVar

from nescio import scores
from nescio._validation import Array, checked_whole
from nescio.detectors.arrays import Arrays
from nescio.detectors.base import Detector
from nescio.explain import Terms

_WANG = "Wang et al., NeurIPS 2021"
_WANG_APPENDIX = f"{_WANG} (appendix)"
_HENDRYCKS_2017 = "Hendrycks & Gimpel, ICLR 2017"
_HENDRYCKS_2019 = "Hendrycks et al., 2019 (arXiv:1911.11132)"

_EACH = {
    "energy": ("energy", scores.label_energy),
    "logit": ("logit", lambda logits: logits),
    "prob": ("probability", scores.label_prob),
}


class _LabelScore(Detector):
    """An entry of the table: `term` of each label under `aggregate`."""

    term: ClassVar[str]
    aggregate: ClassVar[str]
    traceable = True

    def _n_largest(self) -> int | None:
        """Return how many of the largest terms the score sums; None for all."""
        return 1 if self.aggregate == "max" else None

    def _score(self, arrays: Arrays) -> Array:
        return scores.label_score(arrays.logits, self.term, self.aggregate, self._n_largest())

    def label_terms(self) -> Terms:
        """Return the terms whose sum is the score."""
        name, each = _EACH[self.term]
        return Terms(name, each, largest=self._n_largest())


class _TopKScore(_LabelScore):
    """An entry of the table under the top-k aggregation."""

    aggregate = "top_k"

    def __init__(self, k: int = 5, *, tpr: float = 0.95, nonfinite: str = "raise") -> None:
        super().__init__(tpr=tpr, nonfinite=nonfinite)
        self.k = k

    def _check_params(self) -> None:
        super()._check_params()
        checked_whole("k", self.k, minimum=1)

    def _n_largest(self) -> int:
        return self.k


class JointEnergy(_LabelScore):
    """Sum over labels of log(1 + exp(logit)): the paper's method.

    Examples
    --------
    >>> import numpy as np
    >>> held_out = np.random.default_rng(0).normal(0, 3, (500, 10))
    >>> detector = JointEnergy().calibrate(held_out, tpr=0.95)
    >>> detector.predict([[4.0, 4.0] + [-4.0] * 8, [-6.0] * 10])
    array([ 1, -1])
    """

    name, term, aggregate = "joint_energy", "energy", "sum"
    paper = _WANG


class TopKJointEnergy(_TopKScore):
    """The joint energy of the k largest logits, for very many labels.

    Parameters
    ----------
    k : int
        How many labels count; all of them if there are fewer. The paper's appendix tries the mean
        number of labels per image, and 5, 10, 20, 40 and 60.
    """

    name, term = "top_k_joint_energy", "energy"
    paper = _WANG_APPENDIX


class MaxEnergy(_LabelScore):
    """The largest label-wise energy; ranks as MaxLogit does."""

    name, term, aggregate = "max_energy", "energy", "max"
    paper = _WANG


class MaxLogit(_LabelScore):
    """The largest logit."""

    name, term, aggregate = "max_logit", "logit", "max"
    paper = _HENDRYCKS_2019


class SumLogit(_LabelScore):
    """The sum of the logits: the paper's ablation, and a poor score."""

    name, term, aggregate = "sum_logit", "logit", "sum"
    paper = _WANG


class TopKLogit(_TopKScore):
    """The sum of the k largest logits.

    Parameters
    ----------
    k : int
        How many labels count; all of them if there are fewer.
    """

    name, term = "top_k_logit", "logit"
    paper = _WANG_APPENDIX


class MaxProb(_LabelScore):
    """The largest label probability; ranks as MaxLogit does until it saturates at 1."""

    name, term, aggregate = "max_prob", "prob", "max"
    paper = _HENDRYCKS_2017


class SumProb(_LabelScore):
    """The sum of the label probabilities: the paper's ablation."""

    name, term, aggregate = "sum_prob", "prob", "sum"
    paper = _WANG


class TopKProb(_TopKScore):
    """The sum of the k largest label probabilities.

    Parameters
    ----------
    k : int
        How many labels count; all of them if there are fewer.
    """

    name, term = "top_k_prob", "prob"
    paper = _WANG_APPENDIX


class MSP(Detector):
    """The maximum softmax probability over labels, made for one label per sample."""

    name = "msp"
    paper = _HENDRYCKS_2017
    traceable = True

    def _score(self, arrays: Arrays) -> Array:
        return scores.msp(arrays.logits)
