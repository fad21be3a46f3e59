"""The interface of every detector: learn, calibrate, decide, explain, save and load.

A method declares the arrays it reads by name and writes `_score` (one number per sample, higher
means more in-distribution) and, if it learns from data, `_learn` (from training data) or
`_learn_held_out` (from a part of the held-out data).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, OutlierMixin

from nescio._validation import Array, BoolArray, checked_choice, checked_share
from nescio.calibration import Calibration, Scores, benjamini_hochberg
from nescio.detectors import fitting, plausibility
from nescio.detectors.assessment import Assessment
from nescio.detectors.inputs import Arrays
from nescio.detectors.plausibility import Profile
from nescio.explain import Explanation, PartsExplanation, Terms, checked_terms


class Detector(OutlierMixin, BaseEstimator, ABC):  # type: ignore[misc]  # scikit-learn is untyped
    """A score with a threshold: +1 for in-distribution, -1 for out.

    Parameters
    ----------
    tpr : float
        The share of in-distribution data to keep.
    nonfinite : {"raise", "out"}
        Rows with NaN or infinite values raise an error, or count as out-of-distribution with a
        score of -inf.

    Attributes
    ----------
    offset_ : float
        The threshold: a sample is in-distribution if its score is at least this. The threshold of
        the first group, if calibrated by group.
    calibration_ : Calibration
        After `calibrate`: thresholds, calibration scores and guarantees.
    profile_ : Profile
        After `calibrate`: what the calibration data looked like.
    n_columns_ : dict of str to int
        The number of columns of each array that the detector reads.
    label_names_ : tuple of str or None
        The labels that the detector was made for, if known.
    layers_ : tuple of str
        The layers of the model that features and further arrays were taken from, if known.
    """

    offset_: float
    calibration_: Calibration
    profile_: Profile
    n_columns_: dict[str, int]
    label_names_: tuple[str, ...] | None
    layers_: tuple[str, ...]
    _learned_from: dict[str, str]
    _made_with: dict[str, Any]

    name: ClassVar[str] = ""
    """The name in the registry, on the command line and in a saved file."""

    paper: ClassVar[str] = ""
    """The publication that the method comes from."""

    learned: ClassVar[tuple[str, ...]] = ()
    """The attributes that `_learn` and `_learn_held_out` set: arrays, or lists of detectors."""

    accepts_masked: ClassVar[bool] = True
    """Whether a logit of -inf may mark a masked label."""

    traceable: ClassVar[bool] = False
    """Whether `_score` accepts torch tensors that are being traced, so that it can be exported."""

    @property
    def learns_from(self) -> tuple[str, ...]:
        """The arrays that `_learn` gets: logits, features, labels, head, or names of your own."""
        return ()

    @property
    def learns_from_held_out(self) -> tuple[str, ...]:
        """The arrays that `_learn_held_out` gets."""
        return ()

    @property
    def scores_from(self) -> tuple[str, ...]:
        """The arrays that `_score` gets."""
        return ("logits",)

    def __init__(self, *, tpr: float = 0.95, nonfinite: str = "raise") -> None:
        self.tpr = tpr
        self.nonfinite = nonfinite

    # --- what a method writes ---

    @abstractmethod
    def _score(self, arrays: Arrays) -> Array:
        """Return one score per row of the arrays in `scores_from`."""

    def _learn(self, arrays: Arrays) -> None:
        """Learn from the arrays in `learns_from` and set attributes named in `learned`."""

    def _learn_held_out(self, arrays: Arrays) -> None:
        """Learn from held-out data, which sets no threshold; set attributes named in `learned`."""

    def _check_params(self) -> None:
        """Raise a `ParameterError` for a parameter outside of what is allowed."""
        checked_share("tpr", self.tpr)
        checked_choice("nonfinite", self.nonfinite, ("raise", "out"))

    def _check_learned(self) -> None:
        """Raise a `ValueError` if learned arrays, read from a file, do not fit each other."""

    def label_terms(self) -> Terms | None:
        """Return each label's term if the score is a sum of the largest of them, else None."""
        return None

    @property
    def explains(self) -> bool:
        """Whether `explain` can say how the score came about."""
        return self.label_terms() is not None

    # --- learning and calibrating ---

    def fit(self, X: Any, y: Any = None, *, from_probs: bool | None = None) -> Self:
        """Learn from training data what the method needs.

        It sets no threshold: call `calibrate` on held-out data next. A method that learns nothing
        only remembers the columns and labels, and need not be fitted.

        Parameters
        ----------
        X : array, tensor, data frame or Outputs
            What the detector learns from. A plain array is accepted if that is a single one.
        y : array, optional
            Multi-hot labels for a method that learns from them; Outputs bring their own.
        from_probs : bool, optional
            Whether the logits are probabilities, which are then converted. By default, logits are
            expected, and what looks like probabilities is an error; with False, it is not.
        """
        with fitting.unchanged_on_error(self):
            self._check_params()
            for name in ("calibration_", "profile_", "offset_", *self.learned):
                self.__dict__.pop(name, None)
            names = self.learns_from or self.scores_from
            given = fitting.read(
                self, X, names, y, reset=True, remember=True, from_probs=from_probs
            )
            if self.learns_from:
                fitting.learn(self, given)
        return self

    def calibrate(
        self,
        X: Any,
        *,
        tpr: float | None = None,
        confidence: float | None = None,
        groups: Any = None,
        from_probs: bool | None = None,
    ) -> Self:
        """Set the threshold on held-out in-distribution data, with a guarantee.

        A new in-distribution sample is kept with probability at least `tpr`. With `confidence`, the
        long-run share kept is at least `tpr` with that confidence instead. After a parameter has
        been changed, calibrate again.

        A detector that learns from held-out data (`learns_from_held_out`) learns from a random half
        of the rows, and only the other half sets the threshold.

        Parameters
        ----------
        X : array, tensor, data frame or Outputs
            In-distribution data that the detector has not learned from.
        tpr : float, optional
            The share of in-distribution data to keep; by default the detector's own `tpr`.
        confidence : float, optional
            For example 0.99.
        groups : "label_count" or array of shape (n_samples,), optional
            One threshold per group, so that every group keeps its share: by the number of labels
            that the model predicts (logit above 0), or by the group names in an array, which
            `predict` and `assess` then need too.
        from_probs : bool, optional
            As for `fit`.
        """
        with fitting.unchanged_on_error(self):
            given = whole = fitting.read_held_out(self, X, from_probs=from_probs)
            if self.learns_from_held_out:
                given, groups = fitting.learn_from_half(self, given, groups)
            scores = fitting.score_given(self, given)
            share = self.tpr if tpr is None else tpr
            self.calibration_ = fitting.calibrated(self, given, scores, share, confidence, groups)
            plausibility.warn_of_transposed(whole)
            self.offset_ = next(iter(self.calibration_.thresholds.values())).value
            names = fitting.groups_of(self.calibration_, given, groups)
            usable = ~np.isneginf(scores)
            self.profile_ = Profile.from_logits(given.logits, self.label_terms(), usable, names)
        return self

    # --- deciding ---

    def score_samples(self, X: Any, *, from_probs: bool | None = None) -> Scores:
        """Return one score per sample; higher means more in-distribution."""
        return fitting.score(self, X, from_probs=from_probs)[1]

    def decision_function(
        self, X: Any, *, groups: Any = None, from_probs: bool | None = None
    ) -> Scores:
        """Return the score minus its threshold: in-distribution if at least 0."""
        decided = fitting.decide(self, X, groups, from_probs=from_probs)
        return decided.scores - decided.threshold

    def predict(
        self, X: Any, *, groups: Any = None, from_probs: bool | None = None
    ) -> NDArray[np.int64]:
        """Return +1 for in-distribution, -1 for out."""
        decided = fitting.decide(self, X, groups, from_probs=from_probs)
        return np.where(decided.scores >= decided.threshold, 1, -1)

    def assess(
        self,
        X: Any,
        *,
        groups: Any = None,
        fdr: float | None = None,
        from_probs: bool | None = None,
    ) -> Assessment:
        """Return the score, the p-value and the verdict of each sample.

        Parameters
        ----------
        X : array, tensor, data frame or Outputs
            What the detector reads.
        groups : array of shape (n_samples,), optional
            Each sample's group, if calibrated by an array of groups.
        fdr : float, optional
            Instead of using the threshold, flag as many samples of this batch as keep the expected
            share of false alarms among the flagged at or below `fdr` (Benjamini-Hochberg).
        from_probs : bool, optional
            As for `fit`.
        """
        found = fitting.decide(self, X, groups, from_probs=from_probs)
        p_values = self.calibration_.p_values(found.scores, found.groups)
        if fdr is None:
            inside = np.asarray(found.scores >= found.threshold)
            return self._assessed(found, p_values, inside)
        inside = ~benjamini_hochberg(p_values, fdr) & ~np.isneginf(found.scores)
        return replace(self._assessed(found, p_values, inside), calibration=None)

    def _assessed(self, found: fitting.Decided, p_values: Scores, inside: BoolArray) -> Assessment:
        """Return the verdicts on samples that have been scored."""
        return Assessment(
            found.scores,
            p_values,
            inside,
            groups=found.groups,
            ids=found.given.ids,
            index=found.given.index,
            kept=getattr(found.given.data, "kept", {}),
            calibration=self.calibration_,
        )

    def explain(
        self, X: Any, *, groups: Any = None, from_probs: bool | None = None
    ) -> Explanation | PartsExplanation:
        """Return each label's share of the score, against the in-distribution medians.

        For detectors whose score is a sum, a maximum or a top-k over the labels. `groups` is as for
        `assess`. For one sample, pass a single row: outputs[[7]].
        """
        terms = checked_terms(self.label_terms(), self.name)
        found = fitting.decide(self, X, groups, from_probs=from_probs)
        assert self.profile_.medians is not None  # there are terms
        return Explanation.from_logits(
            terms,
            found.given.arrays.logits,
            self.profile_.medians,
            detector=self.name,
            scores=found.scores,
            thresholds=np.broadcast_to(found.threshold, found.scores.shape),
            p_values=self.calibration_.p_values(found.scores, found.groups),
            groups=found.groups,
            ids=found.given.ids,
            index=found.given.index,
            label_names=self.label_names_ or found.given.label_names,
        )

    # --- on disk ---

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the detector as one file, atomically; replace an existing file with `force`."""
        from nescio.detectors import saving

        saving.save(self, path, force=force)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a detector of this class. `nescio.load` reads any registered detector."""
        from nescio.detectors import saving

        return saving.load_as(cls, path)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "n_columns_")
