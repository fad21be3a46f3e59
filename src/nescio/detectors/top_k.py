"""Detectors that read only the k largest logits of each input, for very many labels."""

from __future__ import annotations

import numpy as np

from nescio import scores
from nescio._validation import Array, FloatArray, checked_whole
from nescio.detectors.base import Detector
from nescio.explain import Terms


class _TopK(Detector):
    """What the three share: k."""

    paper = "Wang et al., NeurIPS 2021 (appendix)"
    traceable = True

    def __init__(self, k: int = 5, *, tpr: float = 0.95, nonfinite: str = "raise") -> None:
        super().__init__(tpr=tpr, nonfinite=nonfinite)
        self.k = k

    def _check_params(self) -> None:
        super()._check_params()
        checked_whole("k", self.k, minimum=1)


class TopKJointEnergy(_TopK):
    """The joint energy of the k largest logits.

    Parameters
    ----------
    k : int
        How many labels count; the paper takes the mean number of labels of a training image, 5, 10,
        20, 40 and 60. With fewer labels than k, all count.
    """

    name = "top_k_joint_energy"

    def _score(self, inputs: FloatArray) -> Array:
        return scores.top_k_joint_energy(inputs, self.k)

    def label_terms(self) -> Terms:
        """The k largest energies."""
        return Terms("energy", scores.label_energy, largest=self.k)


class TopKLogit(_TopK):
    """The sum of the k largest logits.

    Parameters
    ----------
    k : int
        How many labels count; all of them, if there are fewer.
    """

    name = "top_k_logit"

    def _score(self, inputs: FloatArray) -> Array:
        return scores.top_k_logit(inputs, self.k)

    def label_terms(self) -> Terms:
        """The k largest logits."""
        return Terms("logit", np.asarray, largest=self.k)


class TopKProb(_TopK):
    """The sum of the k largest label probabilities.

    Parameters
    ----------
    k : int
        How many labels count; all of them, if there are fewer.
    """

    name = "top_k_prob"

    def _score(self, inputs: FloatArray) -> Array:
        return scores.top_k_prob(inputs, self.k)

    def label_terms(self) -> Terms:
        """The k largest probabilities."""
        return Terms("probability", scores.label_prob, largest=self.k)
