"""The detectors that are a score of the logits and a threshold; nothing is learned."""

from __future__ import annotations

import numpy as np

from nescio import scores
from nescio._validation import Array, FloatArray
from nescio.detectors.base import Detector
from nescio.explain import Terms

_WANG = "Wang et al., NeurIPS 2021"
_HENDRYCKS_2017 = "Hendrycks & Gimpel, ICLR 2017"
_HENDRYCKS_2019 = "Hendrycks et al., 2019 (arXiv:1911.11132)"


class JointEnergy(Detector):
    """Sum over labels of log(1 + exp(logit)): the paper's method.

    Examples
    --------
    >>> import numpy as np
    >>> held_out = np.random.default_rng(0).normal(0, 3, (500, 10))
    >>> detector = JointEnergy().calibrate(held_out, tpr=0.95)
    >>> detector.predict([[4.0, 4.0] + [-4.0] * 8, [-6.0] * 10])
    array([ 1, -1])
    """

    name = "joint_energy"
    paper = _WANG
    traceable = True

    def _score(self, inputs: FloatArray) -> Array:
        return scores.joint_energy(inputs)

    def label_terms(self) -> Terms:
        """All energies."""
        return Terms("energy", scores.label_energy)


class MaxEnergy(Detector):
    """The largest label-wise energy; ranks as MaxLogit does."""

    name = "max_energy"
    paper = _WANG
    traceable = True

    def _score(self, inputs: FloatArray) -> Array:
        return scores.max_energy(inputs)

    def label_terms(self) -> Terms:
        """The largest energy."""
        return Terms("energy", scores.label_energy, largest=1)


class MaxLogit(Detector):
    """The largest logit."""

    name = "max_logit"
    paper = _HENDRYCKS_2019
    traceable = True

    def _score(self, inputs: FloatArray) -> Array:
        return scores.max_logit(inputs)

    def label_terms(self) -> Terms:
        """The largest logit."""
        return Terms("logit", np.asarray, largest=1)


class SumLogit(Detector):
    """The sum of the logits: the paper's ablation, and a poor score."""

    name = "sum_logit"
    paper = _WANG
    traceable = True

    def _score(self, inputs: FloatArray) -> Array:
        return scores.sum_logit(inputs)

    def label_terms(self) -> Terms:
        """All logits."""
        return Terms("logit", np.asarray)


class MaxProb(Detector):
    """The largest label probability; ranks as MaxLogit does until it saturates at 1."""

    name = "max_prob"
    paper = _HENDRYCKS_2017
    traceable = True

    def _score(self, inputs: FloatArray) -> Array:
        return scores.max_prob(inputs)

    def label_terms(self) -> Terms:
        """The largest probability."""
        return Terms("probability", scores.label_prob, largest=1)


class SumProb(Detector):
    """The sum of the label probabilities: the paper's ablation."""

    name = "sum_prob"
    paper = _WANG
    traceable = True

    def _score(self, inputs: FloatArray) -> Array:
        return scores.sum_prob(inputs)

    def label_terms(self) -> Terms:
        """All probabilities."""
        return Terms("probability", scores.label_prob)


class MSP(Detector):
    """The maximum softmax probability over labels, made for one label per input."""

    name = "msp"
    paper = _HENDRYCKS_2017
    traceable = True

    def _score(self, inputs: FloatArray) -> Array:
        return scores.msp(inputs)
