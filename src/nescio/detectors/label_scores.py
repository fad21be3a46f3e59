"""The detectors that are a score of the logits and a threshold; nothing is learned.

Nine of them are one table: a term of each label (energy, logit, probability) under an aggregation
over the labels (sum, max, top-k). The others are the softmax score, two scores that the paper did
not publish, ODIN, GEN, and GradNorm, which reads the input of the head too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from nescio import scores
from nescio._validation import Array, checked_choice, checked_number, checked_share, checked_whole
from nescio.detectors.base import Detector
from nescio.detectors.inputs import Arrays
from nescio.explain import Terms
from nescio.scores import exp, largest

_WANG = "Wang et al., NeurIPS 2021"
_WANG_APPENDIX = f"{_WANG} (appendix)"
_UNPUBLISHED = f"{_WANG} (commented out in its source, never published)"
_HENDRYCKS_2017 = "Hendrycks & Gimpel, ICLR 2017"

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


@dataclass(eq=False, repr=False)
class _TopKScore(_LabelScore):
    """An entry of the table under the top-k aggregation."""

    aggregate = "top_k"

    k: int = 5

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
    paper = "Hendrycks et al., 2019 (arXiv:1911.11132)"


class SumLogit(_LabelScore):
    """The sum of the logits: the paper's ablation, and a poor score."""

    name, term, aggregate = "sum_logit", "logit", "sum"
    paper = _WANG


class TopKLogit(_TopKScore):
    """The sum of the k largest logits; of all of them, if there are fewer."""

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
    """The sum of the k largest label probabilities; of all of them, if there are fewer."""

    name, term = "top_k_prob", "prob"
    paper = _WANG_APPENDIX


class _Score(Detector):
    """The function of `nescio.scores` that has the detector's name."""

    traceable = True

    def _score(self, arrays: Arrays) -> Array:
        return scores.SCORES[self.name](arrays.logits)  # type: ignore[no-any-return]


class MSP(_Score):
    """The maximum softmax probability over labels, made for one label per sample."""

    name, paper = "msp", _HENDRYCKS_2017


class ExpJointEnergy(_Score):
    """The log of the sum of exp(logit); ranks as the sum over labels of exp(energy)."""

    name, paper = "exp_joint_energy", _UNPUBLISHED


class ConditionalJointEnergy(_Score):
    """The sum of the energies of the labels whose logit is at least 0."""

    name, paper = "conditional_joint_energy", _UNPUBLISHED


@dataclass(eq=False, repr=False)
class ODIN(Detector):
    """The largest label probability of the perturbed input, its logits divided by a temperature.

    The perturbed logits need the network: `nescio tune` chooses the temperature and the size of
    the perturbation on synthetic data, and `nescio extract --tuned` adds the logits for the
    perturbed inputs to the outputs, already divided by the temperature.

    Under the max, the temperature does not change the ranking: dividing all logits by one number
    keeps their order.

    Parameters
    ----------
    aggregate : {"max", "sum"}
        The paper's method takes the max, of the array odin_max; its ablation takes the sum, of
        odin_sum.
    """

    name = "odin"
    paper = "Liang et al., ICLR 2018; multi-label as in Wang et al., NeurIPS 2021"
    accepts_masked = False

    aggregate: str = "max"

    def _check_params(self) -> None:
        super()._check_params()
        checked_choice("aggregate", self.aggregate, ("max", "sum"))

    @property
    def scores_from(self) -> tuple[str, ...]:
        """The perturbed logits for the aggregate: their directions differ."""
        return (f"odin_{self.aggregate}",)

    def _score(self, arrays: Arrays) -> Array:
        (name,) = self.scores_from
        return scores.label_score(arrays[name], "prob", self.aggregate)


@dataclass(eq=False, repr=False)
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

    gamma: float = 0.1
    k: int = 100

    def _check_params(self) -> None:
        super()._check_params()
        checked_share("gamma", self.gamma)
        checked_whole("k", self.k, minimum=1)

    def _score(self, arrays: Arrays) -> Array:
        top = largest(arrays.logits, self.k)
        # log(p (1 - p)), which does not round to log(0) for logits far from 0
        minus_log = scores.label_energy(top) + scores.label_energy(-top)
        return -exp(-self.gamma * minus_log).sum(1)  # type: ignore[no-any-return]


@dataclass(eq=False, repr=False)
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

    target: float = 0.0

    def _check_params(self) -> None:
        super()._check_params()
        checked_number("target", self.target, minimum=0, maximum=1)

    def _score(self, arrays: Arrays) -> Array:
        logits = arrays.logits
        differences = abs(scores.label_prob(logits) - self.target) * (logits > -np.inf)
        return abs(arrays.penultimate).sum(1) * differences.sum(1)  # type: ignore[no-any-return]
