"""Joint energy from the input of the head, without the logits of all labels."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from nescio._validation import Array, FloatArray, checked_whole
from nescio.detectors import arrays as reading, steps
from nescio.detectors.arrays import Arrays
from nescio.detectors.base import Detector
from nescio.detectors.label_index import LabelIndex, Values
from nescio.detectors.label_search import Found, rest_bound, search
from nescio.detectors.neighbours import Indices
from nescio.detectors.rectified import READS, check_width
from nescio.errors import InputError
from nescio.outputs import Head
from nescio.scores import label_energy


class HeadJointEnergy(Detector):
    """The joint energy of the k largest logits, found without forming the logits of all labels.

    For 100,000 labels and more. It reads the input of the head. Labels with similar weights are
    put into cells once, and only the cells that promise most are visited for a sample. So the
    score may miss some of the k largest logits; then it is lower than `top_k_joint_energy`.
    Calibration takes the same scores, so its guarantee holds all the same.

    Parameters
    ----------
    k : int
        How many labels count; all of them if there are fewer. 0 for the joint energy of all
        labels: then every logit is computed, but in parts that need little memory.
    probes : int
        How many cells to visit per sample. 0 to go on until no other cell can have one of the k
        largest logits: exact, and slow unless the labels form clear clusters.

    Attributes
    ----------
    weight_, bias_ : arrays of shape (n_labels, n_units) and (n_labels,)
        The head, in the order of the cells. Labels with a bias of -inf are masked: left out.
    labels_ : array of shape (n_labels,)
        The position of each label in the head.
    starts_ : array of shape (n_cells + 1,)
        Where each cell starts, and the last one ends.

    Examples
    --------
    >>> from nescio.outputs import Head
    >>> rng = np.random.default_rng(0)
    >>> head = Head(rng.normal(size=(5000, 16)), np.full(5000, -9.0))
    >>> detector = HeadJointEnergy.from_head(head, k=10).calibrate(3 * head.weight[:500])
    >>> detector.predict(np.zeros((1, 16)))
    array([-1])
    """

    name = "head_joint_energy"
    paper = "Wang et al., NeurIPS 2021 (appendix); cells as in Jégou et al., TPAMI 2011"
    learned = ("weight_", "bias_", "labels_", "starts_")

    weight_: FloatArray
    bias_: FloatArray
    labels_: Indices
    starts_: Indices
    _index: LabelIndex

    def __init__(
        self, k: int = 20, probes: int = 16, *, tpr: float = 0.95, nonfinite: str = "raise"
    ) -> None:
        super().__init__(tpr=tpr, nonfinite=nonfinite)
        self.k = k
        self.probes = probes

    @property
    def learns_from(self) -> tuple[str, ...]:
        """The head, and its input."""
        return READS

    @property
    def scores_from(self) -> tuple[str, ...]:
        """The input of the head."""
        return READS[:1]

    def _check_params(self) -> None:
        super()._check_params()
        checked_whole("k", self.k, minimum=0)
        checked_whole("probes", self.probes, minimum=0)

    @classmethod
    def from_head(cls, head: Head, **params: Any) -> Self:
        """Make a detector of a head, to be calibrated. Nothing else is learned from data.

        Parameters
        ----------
        head : Head
            Weight and bias of the model's last layer.
        **params
            Parameters of the detector, such as k.
        """
        if not isinstance(head, Head):
            raise InputError(
                f"from_head takes a Head, got a {type(head).__name__}. Make one: "
                "nescio.Head(weight, bias)."
            )
        detector = cls(**params)
        detector._check_params()
        detector._keep(head)
        detector.n_features_in_ = head.weight.shape[1]
        detector.n_columns_ = {READS[0]: detector.n_features_in_}
        detector.label_names_ = None
        detector._learned_from = {}
        return detector

    def _keep(self, head: Head) -> None:
        self._index = LabelIndex.of(head)
        for name in self.learned:
            setattr(self, name, getattr(self._index, name.removesuffix("_")))

    def _learn(self, arrays: Arrays) -> None:
        check_width(arrays.penultimate, arrays.head.weight)
        self._keep(arrays.head)

    def _score(self, arrays: Arrays) -> Array:
        inputs: FloatArray = arrays.penultimate
        if not self.k:
            return self._index.joint_energy(inputs)
        return _energies(search(self._index, inputs, self.k, self.probes))

    def score_and_bound(self, X: Any) -> tuple[Values, Values]:
        """Return each sample's score, and a bound of what all other labels add to it.

        The joint energy of all labels is at least the score, and at most the sum of both. This
        holds whether or not the k largest logits were found. The bound is 0 with k=0.

        Parameters
        ----------
        X : array, tensor, data frame or Outputs
            The input of the head.

        Returns
        -------
        scores, bounds : arrays of shape (n_samples,)
            With nonfinite="out", -inf and +inf for rows with NaN or infinity.
        """
        inputs, usable = self._read(X)
        results = np.full(len(usable), -np.inf), np.full(len(usable), np.inf)
        if not self.k:
            results[0][usable] = self._index.joint_energy(inputs)
            results[1][usable] = 0.0
        elif len(inputs):
            found = search(self._index, inputs, self.k, self.probes)
            results[0][usable] = _energies(found)
            results[1][usable] = rest_bound(self._index, inputs, found)
        return results

    def top_labels(self, X: Any, n: int | None = None) -> tuple[Indices, Values]:
        """Return the labels with the largest logits that are found, the largest first.

        Parameters
        ----------
        X : array, tensor, data frame or Outputs
            The input of the head.
        n : int, optional
            How many; by default k, or all labels if k is 0.

        Returns
        -------
        labels, logits : arrays of shape (n_samples, n)
            Positions in the head, and logits. -1 and -inf where the cells that were visited have
            fewer labels and, with nonfinite="out", for rows with NaN or infinity.
        """
        inputs, usable = self._read(X)
        n = self.k or len(self.labels_) if n is None else checked_whole("n", n, minimum=1)
        n = min(n, len(self.labels_))
        labels, logits = np.full((len(usable), n), -1), np.full((len(usable), n), -np.inf)
        if len(inputs):
            found = search(self._index, inputs, n, self.probes)
            labels[usable] = np.where(found.places >= 0, self.labels_[found.places], -1)
            logits[usable] = found.logits
        return labels, logits

    def _read(self, X: Any) -> tuple[FloatArray, Array]:
        """Return the rows that can be used, and which of all rows these are."""
        self._check_params()
        if not hasattr(self, "_index"):
            raise steps.NotCalibratedError(
                f"{self.name} has no head: call from_head(head) or fit(outputs) first."
            )
        given = steps.read(self, X, self.scores_from).arrays
        usable = reading.usable_rows(given, self)
        return given.penultimate[usable], usable

    def _check_learned(self) -> None:
        self._index = LabelIndex(self.weight_, self.bias_, self.labels_, self.starts_)
        self._index.check(self.n_features_in_)


def _energies(found: Found) -> Values:
    """Return the sum of the energies of the logits that were found."""
    return np.asarray(label_energy(found.logits).sum(1))
