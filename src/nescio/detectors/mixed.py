"""Known and unknown together: the scores of an image, of its lowest and of its highest crop."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import clone

from nescio._validation import Array, BoolArray
from nescio.calibration import Scores
from nescio.calibration.continuous import continuous_p_values
from nescio.calibration.thresholds import tie_limits
from nescio.detectors import steps
from nescio.detectors.arrays import Arrays, Given
from nescio.detectors.assessment import Assessment
from nescio.detectors.base import Detector
from nescio.detectors.naming import as_detector, named_part
from nescio.errors import ParameterError
from nescio.outputs.crops import CROPS, N_CROPS, views

_WHOLE, _LOWEST, _HIGHEST = range(3)


class Mixed(Detector):
    """The smallest p-value of three scores: of the image, its lowest and its highest crop.

    Another detector scores the image and nine crops of it. Three of these scores say what the image
    shows: that of the whole image, the lowest of the crops (is there anything unknown?) and the
    highest of the crops (is there anything known?). A random half of the held-out images says how
    low each of the three usually is. So a crop without any object is judged by what the emptiest
    crop of an in-distribution image looks like, not by whole images.

    The score is the smallest of the three p-values, and only the other half of the held-out images
    calibrates it. An image that is flagged is mixed if the p-value of its highest crop is not below
    the threshold: something in it is known. So at most a share of 1 - tpr of in-distribution images
    gets another verdict than in, out and mixed together.

    The outputs need the arrays of the crops, such as crops_logits: `nescio extract --crops` and
    `nescio.wrap` with this detector provide them.

    Parameters
    ----------
    detector : Detector or str
        What scores images and crops: a detector or its name, with parameters if needed. One that
        learns does so from the images and the crops of the training data; each crop counts as
        having the labels of its image.

    Attributes
    ----------
    detectors_ : list of Detector
        The detector that scores, with what it has learned.
    reference_ : array of shape (n_images, 3)
        The three scores of the half of the held-out images that makes the p-values, each column
        ascending.

    Examples
    --------
    >>> from nescio.checks import make_outputs
    >>> detector = Mixed().calibrate(make_outputs(500))
    >>> images = make_outputs(3, seed=1)
    >>> images.arrays["crops_logits"][0, :6] = -20  # the first crop shows nothing
    >>> images.arrays["crops_logits"][1], images.logits[1] = -20, -20
    >>> detector.assess(images).verdicts.tolist()
    ['MIXED', 'OUT', 'in']
    """

    name = "mixed"
    paper = "of this library; p-values are combined by Bonferroni's rule"
    learned = ("detectors_", "reference_")
    accepts_masked = False

    detectors_: list[Detector]
    reference_: Scores

    def __init__(
        self, detector: Any = "joint_energy", *, tpr: float = 0.95, nonfinite: str = "raise"
    ) -> None:
        super().__init__(tpr=tpr, nonfinite=nonfinite)
        self.detector = detector

    @property
    def learns_from(self) -> tuple[str, ...]:
        """What the detector learns from, of images and crops."""
        return _with_crops(self._part().learns_from)

    @property
    def learns_from_held_out(self) -> tuple[str, ...]:
        """What the detector scores or learns from held-out data, of images and crops."""
        part = self._part()
        return _with_crops((*part.scores_from, *part.learns_from_held_out))

    @property
    def scores_from(self) -> tuple[str, ...]:
        """What the detector scores, of images and crops."""
        return _with_crops(self._part().scores_from)

    def _check_params(self) -> None:
        super()._check_params()
        self._part()._check_params()

    def _part(self) -> Detector:
        """Return the detector as it was given; text is read once, because scoring asks often."""
        given = self.detector
        if isinstance(given, str):
            known = self.__dict__.setdefault("_read_part", {})
            if given not in known:
                known[given] = named_part(given)
            given = known[given]
        part = as_detector(given)
        if isinstance(part, Mixed):
            raise ParameterError("mixed scores crops itself: choose another detector for it.")
        return part

    # --- learning ---

    def _learn(self, arrays: Arrays) -> None:
        part = clone(self._part())
        steps.learn(part, _views(arrays, part.learns_from), None)
        self.detectors_ = [part]

    def _learn_held_out(self, arrays: Arrays) -> None:
        # A copy: if a later step of the calibration fails, the detector stays as it was.
        part = copy.copy(self.detectors_[0]) if self.learns_from else clone(self._part())
        if part.learns_from_held_out:
            seen = _views(arrays, (*part.scores_from, *part.learns_from_held_out))
            steps.learn_held_out(part, Given(seen, seen, None, None, None))
        self.detectors_ = [part]
        self.reference_ = np.sort(_three(self._view_scores(arrays)), axis=0)

    def _check_learned(self) -> None:
        (part,) = self.detectors_
        reference = self.reference_
        if part.name != self._part().name:
            raise ValueError("its detector is not that of its parameters")
        if (
            reference.ndim != 2
            or reference.shape[1] != 3
            or not len(reference)
            or not np.isfinite(reference).all()
            or (np.diff(reference, axis=0) < 0).any()
        ):
            raise ValueError("its scores of held-out images are not three ascending columns")

    # --- scoring ---

    def _score(self, arrays: Arrays) -> Array:
        return np.asarray(self._p_values(_three(self._view_scores(arrays))).min(1))

    def _view_scores(self, arrays: Arrays) -> Scores:
        """Return the scores of each image and its crops, of shape (n_samples, 1 + n_crops)."""
        (part,) = self.detectors_
        scores = part.score_samples(_views(arrays, part.scores_from))
        return scores.reshape(-1, 1 + N_CROPS)

    def _p_values(self, three: Scores) -> Scores:
        """Return the p-values of the three scores, of shape (n_samples, 3)."""
        columns = zip(self.reference_.T, three.T, strict=True)
        return np.stack([_p_values(ours, theirs) for ours, theirs in columns], axis=1)

    def _assessed(self, found: steps.Decided, p_values: Scores, inside: BoolArray) -> Assessment:
        """Return the verdicts, which flagged images show something known, and the crops' p-values.

        The p-value of a crop says how often the lowest crop of an in-distribution image scores as
        low or lower.
        """
        assessment = super()._assessed(found, p_values, inside)
        usable = ~np.isneginf(found.scores)
        crops = np.zeros((len(usable), N_CROPS))
        known = np.zeros(len(usable), np.bool_)
        if usable.any():
            scores = self._view_scores(found.given.arrays[usable])
            lowest = self.reference_[:, _LOWEST]
            crops[usable] = _p_values(lowest, scores[:, 1:].ravel()).reshape(-1, N_CROPS)
            threshold = np.broadcast_to(found.threshold, usable.shape)[usable]
            known[usable] = self._p_values(_three(scores))[:, _HIGHEST] >= threshold
        return replace(assessment, mixed=known & ~assessment.in_distribution, crops=crops)


def _p_values(reference: Scores, scores: Scores) -> Scores:
    """Return p-values; a score that differs by rounding from a reference score counts as tied."""
    return continuous_p_values(reference, scores, tie_limits(reference))


def _three(scores: Scores) -> Scores:
    """Return the scores of the image, of its lowest and of its highest crop: (n_samples, 3)."""
    crops = scores[:, 1:]
    return np.stack([scores[:, _WHOLE], crops.min(1), crops.max(1)], axis=1)


def _views(arrays: Arrays, names: Sequence[str]) -> Arrays:
    """Return the named arrays with the rows of each image followed by those of its crops."""
    found: dict[str, Any] = {}
    for name in names:
        array = arrays[name]
        if name == "labels":
            array = None if array is None else np.repeat(array, 1 + N_CROPS, axis=0)
        elif name != "head":
            array = views(array, arrays[CROPS + name], name)
        found[name] = array
    return Arrays(found)


def _with_crops(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names, and those of the same arrays of crops."""
    crops = [CROPS + name for name in names if name not in ("labels", "head")]
    return tuple(dict.fromkeys([*names, *crops]))
