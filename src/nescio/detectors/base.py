"""What every detector does: check its input, learn, calibrate, decide, save and load.

A method adds `_score` (one number per sample, higher means more in-distribution) and, if it learns
from data, `_learn`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import validate_data

from nescio._validation import (
    Array,
    BoolArray,
    FloatArray,
    checked_choice,
    checked_share,
    looks_like_probabilities,
    to_numpy,
)
from nescio.calibration import (
    LABEL_COUNT,
    Calibration,
    Firing,
    Scores,
    benjamini_hochberg,
    empirical_threshold,
)
from nescio.detectors import inputs
from nescio.detectors.artifact import Artifact
from nescio.detectors.assessment import Assessment
from nescio.errors import (
    FileFormatError,
    InputError,
    LabelMismatchError,
    MissingInputError,
    NescioError,
    ParameterError,
    ProbabilitiesWarning,
    ShapeError,
    warn,
)
from nescio.explain import Explanation, Terms, Usual, checked_terms, terms_of
from nescio.outputs import Outputs, check_label_names


class NotCalibratedError(NescioError, NotFittedError):  # type: ignore[misc]
    """The detector has no threshold (or, for p-values, no calibration) yet."""


class Detector(OutlierMixin, BaseEstimator, ABC):  # type: ignore[misc]  # scikit-learn is untyped
    """A score with a threshold: +1 for in-distribution, -1 for out.

    Parameters
    ----------
    tpr : float
        The share of in-distribution data to keep.
    nonfinite : {"raise", "out"}
        Rows with NaN or infinite values are an error, or count as out-of-distribution with a score
        of -inf.

    Attributes
    ----------
    offset_ : float
        The threshold tau: in-distribution if the score is at least this. The threshold of the
        first group, if calibrated by group.
    calibration_ : Calibration
        After `calibrate`: thresholds, calibration scores and guarantees.
    usual_ : Usual
        The in-distribution medians that `explain` compares with, if it can be explained.
    firing_ : Firing
        How often each label fired in the calibration data, if there were logits.
    n_features_in_ : int
        Columns of what the detector reads: the number of labels, if it reads logits.
    label_names_ : tuple of str or None
        The labels it was made for, where known.
    """

    name: ClassVar[str] = ""
    """Its name in the registry, on the command line and in a saved file."""

    paper: ClassVar[str] = ""
    """Where it comes from."""

    reads: ClassVar[tuple[str, ...]] = ("logits",)
    """What it reads of `Outputs`: its input first, then what it learns from besides."""

    learned: ClassVar[tuple[str, ...]] = ()
    """The arrays that `_learn` sets; empty for a method that has nothing to learn."""

    accepts_masked: ClassVar[bool] = True
    """Whether a logit of -inf may mark a masked label."""

    traceable: ClassVar[bool] = False
    """Whether `_score` takes torch tensors that are being traced, so that it can be exported."""

    def __init__(self, *, tpr: float = 0.95, nonfinite: str = "raise") -> None:
        self.tpr = tpr
        self.nonfinite = nonfinite

    def input_name(self, *, learning: bool = False) -> str:
        """Which array of `Outputs` it takes: the first that it reads, unless it says otherwise."""
        return self.reads[0]

    def label_terms(self) -> Terms | None:
        """Each label's term, if the score is the sum of the largest of them; None if not."""
        return None

    # --- what a method writes ---

    @abstractmethod
    def _score(self, inputs: FloatArray) -> Array:
        """One score per row of checked inputs; higher means more in-distribution."""

    def _learn(self, inputs: FloatArray, labels: Any) -> None:
        """Learn from checked inputs and set the attributes named in `learned`."""

    def _check_params(self) -> None:
        """Raise a `ParameterError` for a parameter outside of what is allowed."""
        checked_share("tpr", self.tpr)
        checked_choice("nonfinite", self.nonfinite, ("raise", "out"))

    def _check_learned(self) -> None:
        """Raise a `ValueError` if the learned arrays, read from a file, do not fit each other."""

    # --- learning and calibrating ---

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn what the method needs, and set tau on the same data.

        That threshold keeps the share `tpr` of this very data and promises nothing of new data;
        `calibrate` on held-out data does.

        Parameters
        ----------
        X : array, tensor or Outputs
            What the detector reads, of shape (n_samples, n_columns).
        y : array, optional
            Labels, multi-hot, for a method that learns from them. Outputs bring their own.
        """
        with self._unchanged_on_error():
            self._check_params()
            matrix = self._checked_inputs(X, reset=True, learning=bool(self.learned))
            if isinstance(X, Outputs):
                y = self._labels_of(X, y)
            usable = self._usable_rows(matrix)
            if usable.all():
                self._learn(matrix, y)
            else:
                self._learn(matrix[usable], None if y is None else to_numpy(y)[usable])
            scores = self._scores_where(matrix, usable)
            self.offset_ = empirical_threshold(scores, self.tpr)
            for name in ("calibration_", "firing_"):
                self.__dict__.pop(name, None)
            self._keep_usual(matrix, usable)
        return self

    def calibrate(
        self,
        X: Any,
        *,
        tpr: float | None = None,
        confidence: float | None = None,
        groups: Any = None,
    ) -> Self:
        """Set tau on held-out in-distribution data, with a guarantee.

        A new in-distribution input is kept with probability at least `tpr`. With `confidence`, the
        long-run share kept is at least `tpr` with that confidence instead. A parameter that is
        changed afterwards needs a new calibration.

        Parameters
        ----------
        X : array, tensor or Outputs
            In-distribution data that the detector has not learned from.
        tpr : float, optional
            The share of in-distribution data to keep; the detector's own `tpr` if not given.
        confidence : float, optional
            For example 0.99.
        groups : "label_count" or array of shape (n_samples,), optional
            One threshold for each group, so that every group keeps its share: by how many labels
            the model predicts (logit above 0), or by the names in an array, which `predict` and
            `assess` then need too.
        """
        with self._unchanged_on_error():
            self._check_params()
            self._require_learned()
            matrix = self._checked_inputs(X, reset=not self.learned)
            usable = self._usable_rows(matrix)
            scores = self._scores_where(matrix, usable)
            share = self.tpr if tpr is None else tpr
            counts = self._label_counts(X, matrix) if isinstance(groups, str) else None
            self.calibration_ = self._calibrated(scores, counts, share, confidence, groups)
            self.offset_ = next(iter(self.calibration_.threshold_values.values()))
            self._keep_usual(matrix, usable, groups, counts)
            self._keep_firing(X, matrix)
        return self

    def _calibrated(
        self,
        scores: Scores,
        counts: Array | None,
        tpr: float,
        confidence: float | None,
        groups: Any,
    ) -> Calibration:
        if not isinstance(groups, str):
            return Calibration.from_scores(scores, tpr=tpr, confidence=confidence, groups=groups)
        if groups != LABEL_COUNT:
            raise ParameterError(
                f"groups must be {LABEL_COUNT!r} or an array with a group per sample, "
                f"got {groups!r}."
            )
        if counts is None:
            raise MissingInputError(
                f"groups='label_count' needs logits, and {self.name} reads {self.input_name()}. "
                "Pass Outputs, which hold both."
            )
        return Calibration.by_label_count(scores, counts, tpr=tpr, confidence=confidence)

    def _keep_usual(
        self, matrix: FloatArray, usable: BoolArray, groups: Any = None, counts: Any = None
    ) -> None:
        """Keep the medians that `explain` compares with, if it can be explained."""
        terms = self.label_terms()
        if terms is None:
            return
        if groups is None:
            self.usual_ = Usual.from_inputs(terms, matrix, usable)
            return
        own = None if isinstance(groups, str) else groups
        names = self.calibration_.group_names(len(matrix), groups=own, label_counts=counts)
        self.usual_ = Usual.from_inputs(
            terms, matrix, usable, groups=names, known=self.calibration_.thresholds
        )

    def _keep_firing(self, data: Any, matrix: FloatArray) -> None:
        """Keep how often each label fires, which `nescio.monitor` compares with."""
        self.__dict__.pop("firing_", None)
        logits = self._logits_of(data, matrix)
        if logits is not None:
            self.firing_ = Firing.from_logits(logits)

    # --- deciding ---

    def score_samples(self, X: Any) -> Scores:
        """One score per sample; higher means more in-distribution."""
        return self._scored(X)[1]

    def decision_function(self, X: Any, *, groups: Any = None) -> Scores:
        """The score less its threshold: in-distribution if at least 0."""
        self._require_threshold()
        matrix, scores = self._scored(X)
        return scores - self._tau_of(self._groups_of(X, matrix, groups))

    def predict(self, X: Any, *, groups: Any = None) -> NDArray[np.int64]:
        """+1 for in-distribution, -1 for out."""
        self._require_threshold()
        matrix, scores = self._scored(X)
        tau = self._tau_of(self._groups_of(X, matrix, groups))
        return np.where(scores >= tau, 1, -1)

    def assess(self, X: Any, *, groups: Any = None, fdr: float | None = None) -> Assessment:
        """Score, p-value and verdict of each sample.

        Parameters
        ----------
        X : array, tensor or Outputs
            What the detector reads.
        groups : array of shape (n_samples,), optional
            Each sample's group, if calibrated by an array of groups.
        fdr : float, optional
            Instead of the threshold, flag as many of this batch as keep the expected share of
            false alarms among the flagged at most `fdr` (Benjamini-Hochberg).
        """
        self._require_threshold()
        if not hasattr(self, "calibration_"):
            raise NotCalibratedError(
                f"{type(self).__name__} is not calibrated: p-values need held-out data. "
                "Call calibrate(held_out) first."
            )
        matrix, scores = self._scored(X)
        names = self._groups_of(X, matrix, groups)
        p_values = self.calibration_.p_values(scores, names)
        if fdr is None:
            inside = scores >= self._tau_of(names)
        else:
            inside = ~benjamini_hochberg(p_values, fdr) & ~np.isneginf(scores)
        ids = X.ids if isinstance(X, Outputs) else None
        return Assessment(scores, p_values, inside, names, ids)

    def explain(self, X: Any, *, groups: Any = None) -> Explanation:
        """Each label's share of the score, against the in-distribution medians.

        For the detectors whose score is a sum, a maximum or a top-k over the labels.

        Parameters
        ----------
        X : array, tensor or Outputs
            What the detector reads. For one input, pass a single row: outputs[[7]].
        groups : array of shape (n_samples,), optional
            Each sample's group, if calibrated by an array of groups.
        """
        terms = checked_terms(self.label_terms(), self.name)
        self._require_threshold()
        if not hasattr(self, "usual_"):
            raise NotCalibratedError(
                "the detector has a threshold and no in-distribution medians to explain with: an "
                "older nescio saved it. Calibrate again with this version: calibrate(held_out), or "
                "nescio fit."
            )
        matrix, scores = self._scored(X)
        names = self._groups_of(X, matrix, groups)
        calibration = getattr(self, "calibration_", None)
        medians, rank_medians = self.usual_.medians_of(names, len(matrix))
        return Explanation(
            self.name,
            terms,
            terms_of(terms, matrix),
            medians,
            rank_medians,
            scores,
            np.broadcast_to(self._tau_of(names), scores.shape),
            p_values=None if calibration is None else calibration.p_values(scores, names),
            groups=names,
            ids=X.ids if isinstance(X, Outputs) else None,
            label_names=self.label_names_ or inputs.label_names(X),
        )

    # --- on disk ---

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the detector as one file, atomically; an existing file only with `force`."""
        self._require_threshold()
        if not self.name:
            raise ParameterError(f"{type(self).__name__} needs a class attribute name to be saved.")
        Artifact(
            detector=self.name,
            params=self.get_params(),
            n_inputs=self.n_features_in_,
            tau=self.offset_,
            learned={name: getattr(self, name) for name in self.learned},
            label_names=self.label_names_,
            calibration=getattr(self, "calibration_", None),
            medians=self.usual_.arrays() if hasattr(self, "usual_") else {},
            firing=self.firing_.arrays() if hasattr(self, "firing_") else {},
        ).write(path, force=force)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a detector of this class. `nescio.load` reads any of nescio's own."""
        return cls.from_artifact(Artifact.read(path), path)

    @classmethod
    def from_artifact(cls, artifact: Artifact, path: str | Path) -> Self:
        """The detector that `artifact`, read from `path`, describes."""
        if artifact.detector != cls.name:
            raise FileFormatError(
                f"{path} holds a detector {artifact.detector!r}, not {cls.name!r}."
            )
        try:
            detector = cls(**artifact.params)
            detector._check_params()
            for name in cls.learned:
                setattr(detector, name, np.asarray(artifact.learned[name]))
            detector.n_features_in_ = artifact.n_inputs
            detector.label_names_ = artifact.label_names
            if artifact.label_names is not None and cls.reads[0] in inputs.ONE_COLUMN_A_LABEL:
                check_label_names(artifact.label_names, artifact.n_inputs)
            detector._check_learned()
            if artifact.medians and detector.label_terms() is not None:
                detector.usual_ = Usual.from_arrays(
                    artifact.medians, artifact.groups, artifact.n_inputs
                )
            if artifact.firing:
                detector.firing_ = Firing.from_arrays(artifact.firing)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise FileFormatError(f"{path} is damaged: {error}") from error
        detector.offset_ = artifact.tau
        if artifact.calibration is not None:
            detector.calibration_ = artifact.calibration
            detector.offset_ = next(iter(artifact.calibration.threshold_values.values()))
        return detector

    # --- checks ---

    def _scored(self, data: Any) -> tuple[FloatArray, Scores]:
        """What the detector reads of `data`, checked, and its scores."""
        self._check_params()
        self._require_learned()
        matrix = self._checked_inputs(data, reset=False)
        return matrix, self._scores_where(matrix, self._usable_rows(matrix))

    def _checked_inputs(self, data: Any, *, reset: bool, learning: bool = False) -> FloatArray:
        """The matrix that the detector reads, float32 or float64, with the right columns."""
        reads = self.input_name(learning=learning)
        of_outputs = isinstance(data, Outputs)
        data, names = inputs.what_it_reads(data, reads, self.name)
        matrix = inputs.checked_matrix(data, self, checked_before=of_outputs)
        if reset:
            validate_data(self, data, reset=True, skip_check_array=True)
            self.label_names_: tuple[str, ...] | None = names
        elif hasattr(self, "n_features_in_"):
            self._check_columns(data, matrix.shape[1], names)
        if reads == "logits" and looks_like_probabilities(matrix):
            warn(
                "every value lies within [0, 1]: these look like probabilities, and logits are "
                "expected. Convert them with nescio.scores.logits_from_probs.",
                ProbabilitiesWarning,
            )
        return matrix

    def _check_columns(self, data: Any, n_columns: int, names: tuple[str, ...] | None) -> None:
        """Raise unless the columns are those the detector was made for."""
        known = self.n_features_in_
        if n_columns != known:
            what = "labels" if self.reads[0] in inputs.ONE_COLUMN_A_LABEL else "features"
            raise ShapeError(
                f"the detector was made for {known} {what}, got {n_columns}. (X has {n_columns} "
                f"features, but {type(self).__name__} is expecting {known} features as input.)"
            )
        if hasattr(self, "feature_names_in_") and inputs.column_names(data) is not None:
            try:
                validate_data(self, data, reset=False, skip_check_array=True)
            except ValueError as error:
                raise LabelMismatchError(" ".join(str(error).split())) from error
        if names is not None and self.label_names_ is not None and names != self.label_names_:
            raise LabelMismatchError(inputs.label_difference(self.label_names_, names))

    def _usable_rows(self, matrix: FloatArray) -> BoolArray:
        """Rows that can be scored: all of them or an error, if bad rows are to raise."""
        masked_allowed = self.accepts_masked and self.reads[0] == "logits"
        usable = inputs.usable_rows(matrix, masked_allowed=masked_allowed)
        if self.nonfinite == "raise" and not usable.all():
            raise inputs.bad_rows_error(matrix, usable, self.input_name())
        return usable

    def _scores_where(self, matrix: FloatArray, usable: BoolArray) -> Scores:
        """Scores of the usable rows, -inf for the others."""
        if usable.all():
            return np.asarray(self._score(matrix), dtype=np.float64)
        scores = np.full(len(matrix), -np.inf)
        if usable.any():
            scores[usable] = self._score(matrix[usable])
        return scores

    def _labels_of(self, outputs: Outputs, y: Any) -> Any:
        if y is not None:
            raise InputError("pass labels inside Outputs, or an array with y; not both.")
        if "labels" in self.reads and outputs.labels is None:
            raise MissingInputError(
                f"{self.name} learns from labels, which these outputs lack. "
                "Add multi-hot labels: Outputs(..., labels=...)."
            )
        return outputs.labels

    def _label_counts(self, data: Any, matrix: FloatArray) -> Array | None:
        """How many labels the model predicts for each sample; None if there are no logits."""
        logits = self._logits_of(data, matrix)
        return None if logits is None else np.asarray((logits > 0).sum(1))

    def _logits_of(self, data: Any, matrix: FloatArray) -> Array | None:
        if isinstance(data, Outputs):
            return data.logits
        return matrix if self.reads[0] == "logits" else None

    def _groups_of(self, data: Any, matrix: FloatArray, groups: Any) -> NDArray[np.str_] | None:
        if not hasattr(self, "calibration_"):
            if groups is not None:
                raise ParameterError("groups were passed, but the detector is not calibrated.")
            return None
        by_count = self.calibration_.by == LABEL_COUNT
        counts = self._label_counts(data, matrix) if by_count else None
        return self.calibration_.group_names(len(matrix), groups=groups, label_counts=counts)

    def _tau_of(self, groups: NDArray[np.str_] | None) -> float | Scores:
        return self.offset_ if groups is None else self.calibration_.threshold_of(groups)

    @contextmanager
    def _unchanged_on_error(self) -> Iterator[None]:
        """Leave the detector as it was if learning or calibrating it fails."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise

    def _require_learned(self) -> None:
        if not all(hasattr(self, name) for name in self.learned):
            raise NotCalibratedError(
                f"{type(self).__name__} learns from data: call fit(training_data) first, "
                "then calibrate(held_out)."
            )

    def _require_threshold(self) -> None:
        if not hasattr(self, "offset_"):
            raise NotCalibratedError(
                f"this {type(self).__name__} has no threshold yet: "
                "call calibrate(held_out) (or fit) first."
            )

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "offset_")
