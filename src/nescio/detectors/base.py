"""The interface of every detector: learn, calibrate, decide, explain, save and load.

A detector declares the arrays it reads by name and writes `_score` (one number per sample, higher
means more in-distribution) and, if it learns from data, `_learn` (from training data) or
`_learn_held_out` (from a part of the held-out data).
"""

from __future__ import annotations

import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.exceptions import NotFittedError

from nescio._io.tables import GROUP
from nescio._validation import (
    Array,
    BoolArray,
    check_no_labels,
    checked_choice,
    checked_share,
    to_numpy,
)
from nescio.calibration import (
    CUSTOM,
    LABEL_COUNT,
    TOP_LABEL,
    Calibration,
    Medians,
    Scores,
    benjamini_hochberg,
    required_samples,
)
from nescio.calibration.calibration import calibration_groups, checked_groups
from nescio.detectors import inputs
from nescio.detectors.inputs import Arrays, DetectorInput
from nescio.detectors.verdicts import Assessment
from nescio.errors import (
    DetectorError,
    GroupWarning,
    InputError,
    MissingInputError,
    NescioError,
    ParameterError,
    TooFewSamplesError,
)
from nescio.explain import ExplainedVerdicts, Explanation, Terms
from nescio.self_check import MOST_ROWS, NUMBERS, SelfCheck, check_faults, spread_rows


class NotCalibratedError(NescioError, NotFittedError):  # type: ignore[misc]
    """The detector is not calibrated yet, so it has no threshold and no p-values."""


class Decided(NamedTuple):
    """Scores with their groups (None without groups) and thresholds."""

    data: DetectorInput
    scores: Scores
    groups: NDArray[np.str_] | None
    threshold: float | Scores


@dataclass(eq=False, repr=False)
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
    medians_ : Medians or None
        After `calibrate`: the medians of the score's terms, which `explain` compares with. None if
        the score is not made of labels.
    n_columns_ : dict of str to int
        The number of columns of each array that the detector reads.
    label_names_ : tuple of str or None
        The labels that the detector was made for, if known.
    layers_ : tuple of str
        The layers of the model that features and further arrays were taken from, if known.
    """

    tpr: float = field(default=0.95, kw_only=True)
    nonfinite: str = field(default="raise", kw_only=True)

    offset_: float = field(init=False)
    calibration_: Calibration = field(init=False)
    medians_: Medians | None = field(init=False)
    n_columns_: dict[str, int] = field(init=False)
    label_names_: tuple[str, ...] | None = field(init=False)
    layers_: tuple[str, ...] = field(init=False)
    _learned_from: dict[str, Any] = field(init=False)
    _made_with: dict[str, Any] = field(init=False)

    name: ClassVar[str] = ""
    """The name in the registry, on the command line and in a saved file."""

    paper: ClassVar[str] = ""
    """The publication that the detector comes from."""

    learned: ClassVar[Collection[str]] = ()
    """The attributes that `_learn` and `_learn_held_out` set: arrays, or lists of detectors.

    A mapping also says what each array is, such as "float features labels": its kind (float, int or
    bool), and the names of its axes. `load` checks them: values must be finite, axes of one name
    equally long, and "features" as many as the columns of the first array in `scores_from`.
    """

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

    @property
    def calibrates_from(self) -> tuple[str, ...]:
        """The arrays that `calibrate` reads: those to score, and those to learn from."""
        return tuple(dict.fromkeys([*self.scores_from, *self.learns_from_held_out]))

    # --- what the author of a detector writes ---

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
        own = type(self)._explain is not Detector._explain
        return own or self.label_terms() is not None

    # --- learning and calibrating ---

    def fit(self, X: Any, y: Any = None, *, from_probs: bool | None = None) -> Self:
        """Learn from training data what the detector needs.

        It sets no threshold: call `calibrate` on held-out data next. A detector that learns nothing
        only remembers the columns and labels, and need not be fitted.

        Parameters
        ----------
        X : array, tensor, data frame or Outputs
            What the detector learns from. A plain array is accepted if that is a single one.
        y : array, optional
            Multi-hot labels for a detector that learns from them; Outputs bring their own.
        from_probs : bool, optional
            Whether the logits are probabilities, which are then converted. By default, logits are
            expected, and what looks like probabilities is an error; with False, it is not.
        """
        with _unchanged_on_error(self):
            self._check_params()
            self._forget(*_OF_THE_DATA, "calibration_", "medians_", "offset_", *self.learned)
            data = self._read(X, self.learns_from or self.scores_from, y, from_probs=from_probs)
            self._remember(data)
            if self.learns_from:
                usable = inputs.usable_rows(data.arrays, self)
                self._learn(data.arrays if usable is None else data.arrays[usable])
                inputs.remember_learned_data(self, data)
        return self

    def calibrate(
        self,
        X: Any,
        y: None = None,
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
        y : None
            Calibration needs no labels: they are an error that says so.
        tpr : float, optional
            The share of in-distribution data to keep; by default the detector's own `tpr`.
        confidence : float, optional
            For example 0.99.
        groups : "label_count", "top_label" or array of shape (n_samples,), optional
            One threshold per group, so that every group keeps its share: by the number of labels
            that the model predicts (logit above 0), by how frequent the most likely label is, or by
            the group names in an array, which `predict` and `assess` then need too. For names that
            have no threshold of their own, that of all samples holds, with a warning.
        from_probs : bool, optional
            As for `fit`.
        """
        check_no_labels(y)
        with _unchanged_on_error(self):
            self._check_params()
            if not self.learns_from:
                self._forget(*_OF_THE_DATA)
            elif not hasattr(self, "_learned_from"):
                raise self._not_learned()
            whole = data = self._read(X, self.calibrates_from, from_probs=from_probs)
            self._remember(data)
            inputs.check_held_out(self, data)
            if groups is not None and not isinstance(groups, str):
                groups = calibration_groups(groups, len(data.arrays))
            if self.learns_from_held_out:
                data, groups = self._learn_from_half(data, groups)
            scores = self._score_rows(data)
            share = self.tpr if tpr is None else tpr
            counted = inputs.counted_rows(self, data, scores, groups, required_samples(share))
            inputs.warn_of_low_tpr(share)
            if counted is not None:
                data, scores = data[counted], scores[counted]
                groups = groups_at(counted, groups, len(counted))
            self.calibration_ = self._calibration_from(data, scores, share, confidence, groups)
            self.offset_ = self.calibration_.first.value
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", GroupWarning)  # given above
                names = _groups_of(self.calibration_, data, groups)
            usable = ~np.isneginf(scores)
            terms = self.label_terms()
            self.medians_ = None
            if terms is not None and data.logits is not None:
                thresholds = None if names is None else list(self.calibration_.thresholds)
                self.medians_ = Medians.from_logits(terms, data.logits, usable, names, thresholds)
            inputs.warn_of_odd_logits(whole)
        return self

    def _learn_from_half(self, data: DetectorInput, groups: Any) -> tuple[DetectorInput, Any]:
        """Learn from half of the held-out data; return the other half, for calibration.

        The guarantee needs scores that a new sample's score is exchangeable with. Those of the rows
        that the detector has learned from are not.
        """
        learning = learning_half(len(data.arrays))
        arrays = data.arrays.only(self.learns_from_held_out)
        usable = inputs.usable_rows(arrays, self)  # of all rows: an error names them by number
        rows = learning if usable is None else learning & usable
        if not rows.any():
            raise TooFewSamplesError(
                f"{self.name} learns from held-out data, but none of the {learning.sum():,} rows "
                "that it gets (half of them, in calibrate) can be used. Pass more held-out data."
            )
        self._learn_held_out(arrays[rows])
        return data[~learning], groups_at(~learning, groups, len(learning))

    def _calibration_from(
        self, data: DetectorInput, scores: Scores, tpr: float, confidence: float | None, groups: Any
    ) -> Calibration:
        """Calibrate the scores of held-out data, by group if asked to."""
        half = f" {self.name} learns from half of the held-out data: pass twice as many samples."
        half *= bool(self.learns_from_held_out)
        try:
            if not isinstance(groups, str):
                return Calibration.from_scores(
                    scores, tpr=tpr, confidence=confidence, groups=groups, why_few=half
                )
            if groups not in (LABEL_COUNT, TOP_LABEL):
                raise ParameterError(
                    f"groups must be {LABEL_COUNT!r}, {TOP_LABEL!r} or an array with one group per "
                    f"sample, got {groups!r}."
                )
            if data.logits is None:
                raise MissingInputError(
                    f"groups={groups!r} needs logits, and only {' and '.join(data.arrays.names)} "
                    "were passed. Pass Outputs, which hold both."
                )
            return Calibration.from_logits(
                scores, data.logits, groups, tpr=tpr, confidence=confidence
            )
        except TooFewSamplesError as error:
            hints = [f"{error}{half}"]
            shape = (len(data.source), next(iter(data.arrays.matrices().values())).shape[1])
            by_a_model = bool(getattr(data.source, "manifest", None))  # no array of the user's
            if shape[0] < shape[1] and not by_a_model:
                hints.append(inputs.transposed_hint(shape))
            raise TooFewSamplesError(" ".join(hints)) from error

    # --- deciding ---

    def score_samples(self, X: Any, *, from_probs: bool | None = None) -> Scores:
        """Return one score per sample; higher means more in-distribution."""
        return self._score_rows(self._read_to_score(X, from_probs=from_probs))

    def decision_function(
        self, X: Any, *, groups: Any = None, from_probs: bool | None = None
    ) -> Scores:
        """Return the score minus its threshold: in-distribution if at least 0."""
        decided = self._decide(X, groups, from_probs=from_probs)
        return decided.scores - decided.threshold

    def predict(
        self, X: Any, *, groups: Any = None, from_probs: bool | None = None
    ) -> NDArray[np.int64]:
        """Return +1 for in-distribution, -1 for out."""
        decided = self._decide(X, groups, from_probs=from_probs)
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
        data, scores, names, threshold = self._decide(X, groups, from_probs=from_probs)
        p_values = self.calibration_.p_values(scores, names)
        if fdr is None:
            inside = np.asarray(scores >= threshold)
        else:
            inside = ~benjamini_hochberg(p_values, fdr) & ~np.isneginf(scores)
        kept = getattr(data.source, "kept", {})
        if groups is not None:  # they become the column of this name
            kept = {name: column for name, column in kept.items() if name != GROUP}
        return Assessment(
            scores,
            p_values,
            inside,
            groups=names,
            ids=data.ids,
            index=data.index,
            kept=kept,
            calibration=self.calibration_ if fdr is None else None,
        )

    def self_check(
        self, X: Any, *, groups: Any = None, n_samples: int = 200, from_probs: bool | None = None
    ) -> SelfCheck:
        """Return how many samples would be flagged after gross faults, as one table.

        The faults change all arrays that the detector reads together, such as logits and features:
        scaled, shifted, zeros, shuffled over samples, noise. For faults of the inputs, use
        `self_check` of a wrapped model.

        Parameters
        ----------
        X : array, tensor, data frame or Outputs
            In-distribution data, such as that which calibrated.
        groups, from_probs
            As for `assess`.
        n_samples : int
            How many samples to use, evenly spaced. Rows that cannot be used are left out.
        """
        data = self._read_to_score(X, from_probs=from_probs)
        usable = inputs.usable_rows(data.arrays, self)
        rows = np.arange(len(data.arrays)) if usable is None else np.flatnonzero(usable)
        rows = rows[spread_rows(len(rows), max(MOST_ROWS, n_samples))]
        chosen = spread_rows(len(rows), n_samples)
        groups = groups_at(rows[chosen], groups, len(data.arrays))
        logits = {} if data.logits is None else {"logits": data.logits}  # for groups, if not scored
        arrays = Arrays({name: data.arrays[name] for name in data.arrays.names} | logits)[rows]

        kept = {name: arrays[name] for name in arrays.names if name not in arrays.matrices()}

        def flagged(values: dict[str, Any]) -> BoolArray:
            return self.predict(Arrays(values | kept)[chosen], groups=groups) < 0

        return check_faults(self.name, NUMBERS, "output", arrays.matrices(), chosen, flagged)

    def explain(
        self, X: Any, *, groups: Any = None, from_probs: bool | None = None
    ) -> ExplainedVerdicts:
        """Return each label's share of the score, against the in-distribution medians.

        For detectors whose score is a sum, a maximum or a top-k over the labels. `groups` is as for
        `assess`. For one sample, pass a single row: outputs[[7]]. `out_of_range` returns the
        columns that are outside of their usual range, and a combination what each part says: its
        score, p-value, share of the evidence, labels or columns, and nearest training samples.
        """
        if not self.explains:
            layer = "layer=logits" if "logits" in self.scores_from else "layer=features"
            guard = f"out_of_range({layer}{'' if self.learns_from else ', held_out=true'})"
            raise ParameterError(
                f"{self.name} cannot be explained: its score is not made of labels, columns or "
                "parts.",
                "A combination with the detector that compares values with their usual ranges can "
                f"be: Combined(['{self.name}', '{guard}']).",
            )
        return self._explain(self._decide(X, groups, from_probs=from_probs))

    def _explain(self, decided: Decided) -> ExplainedVerdicts:
        """Explain samples that have been scored; called if `explains` is true."""
        how, logits = self.label_terms(), decided.data.arrays.logits
        assert how is not None
        assert self.medians_ is not None
        medians, rank_medians = self.medians_.of_samples(decided.groups, len(logits))
        terms = np.array(how.of(logits.astype(np.float64)), dtype=np.float64)
        terms[np.isnan(logits) | np.isposinf(logits)] = np.nan
        return Explanation(
            how=how,
            terms=terms,
            medians=medians,
            rank_medians=rank_medians,
            label_names=self.label_names_ or decided.data.label_names,
            **self._explained(decided),
        )

    def _explained(self, decided: Decided) -> dict[str, Any]:
        """Return what every explanation has: the verdicts, and the ids of the samples."""
        return {
            "detector": self.name,
            "scores": decided.scores,
            "thresholds": np.broadcast_to(decided.threshold, decided.scores.shape),
            "p_values": self.calibration_.p_values(decided.scores, decided.groups),
            "groups": decided.groups,
            "ids": decided.data.ids,
            "index": decided.data.index,
        }

    def _decide(self, X: Any, groups: Any, *, from_probs: bool | None = None) -> Decided:
        """Score the data and find the threshold of each sample."""
        require_calibration(self)
        data = self._read_to_score(X, from_probs=from_probs)
        scores = self._score_rows(data)
        names = _groups_of(self.calibration_, data, groups)
        return Decided(data, scores, names, self.calibration_.threshold_of(names))

    def _read_to_score(self, X: Any, *, from_probs: bool | None = None) -> DetectorInput:
        """Read what `_score` gets; raise unless the detector has learned what it needs."""
        self._check_params()
        calibrated = hasattr(self, "calibration_") or not self.learns_from_held_out
        if not calibrated or not all(hasattr(self, name) for name in self.learned):
            raise self._not_learned()
        return self._read(X, self.scores_from, from_probs=from_probs)

    def _score_rows(self, data: DetectorInput) -> Scores:
        """Score every row; rows that cannot be used get -inf."""
        arrays = data.arrays.only(self.scores_from)
        usable = inputs.usable_rows(arrays, self)
        if usable is None:
            return self._checked_scores(arrays)
        scores = np.full(len(usable), -np.inf)
        if usable.any():
            scores[usable] = self._checked_scores(arrays[usable])
        return scores

    def _checked_scores(self, arrays: Arrays) -> Scores:
        """Return what `_score` computes as float64; raise unless it is one number per sample."""
        scores = self._score(arrays)
        if type(scores) is not np.ndarray:
            try:
                scores = to_numpy(scores)
            except InputError as error:
                raise DetectorError(
                    f"{type(self).__name__}._score must return one number per sample: {error}"
                ) from error
        if scores.shape != (len(arrays),) or scores.dtype.kind not in "fiub":
            raise DetectorError(
                f"{type(self).__name__}._score must return one number per sample: an array of "
                f"shape ({len(arrays)},), got shape {scores.shape} and dtype {scores.dtype}."
            )
        return scores.astype(np.float64, copy=False)

    def _not_learned(self) -> NotCalibratedError:
        first = "call fit(training_data) first, then calibrate(held_out)."
        if not self.learns_from or hasattr(self, "_learned_from"):
            first = "call calibrate(held_out) first."
        return NotCalibratedError(f"{type(self).__name__} learns from data: {first}")

    # --- what the data was like ---

    def _read(
        self, X: Any, names: Sequence[str], y: Any = None, *, from_probs: bool | None = None
    ) -> DetectorInput:
        """Take the named arrays from the data; check columns, labels, layer and model."""
        data = inputs.read(self, X, names, y, from_probs=from_probs)
        inputs.check_columns(self, data)
        inputs.check_same_model(self, data)
        return data

    def _forget(self, *names: str) -> None:
        for name in names:
            self.__dict__.pop(name, None)

    def _remember(self, data: DetectorInput) -> None:
        """Keep the columns, labels, layers and model of the data, unless they are known already."""
        inputs.warn_of_another_head(data)
        n_columns = {name: matrix.shape[1] for name, matrix in data.arrays.matrices().items()}
        self.n_columns_ = {**n_columns, **getattr(self, "n_columns_", {})}
        self.n_features_in_ = next(iter(n_columns.values()))
        if getattr(self, "label_names_", None) is None:
            self.label_names_ = data.label_names
        if data.columns is not None and not hasattr(self, "feature_names_in_"):
            self.feature_names_in_ = np.array(data.columns, dtype=object)
        if data.layers:
            self.layers_ = data.layers
        if not getattr(self, "_made_with", {}):
            self._made_with = data.made_with

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the detector as one file, atomically; replace an existing file with `force`."""
        from nescio.detectors import saving

        saving.save(self, path, force=force)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a detector of this class. `nescio.load` reads any registered detector."""
        from nescio.detectors import saving

        return saving.load_as(cls, path)

    def text(self, *, defaults: bool = True) -> str:
        """Return the name and the detector's own parameters, as `build_detector` reads them.

        Without empty lists and, with `defaults=False`, without parameters at their defaults.

        Examples
        --------
        >>> import nescio as ns
        >>> ns.TopKJointEnergy().text(), ns.TopKJointEnergy().text(defaults=False)
        ('top_k_joint_energy(k=5)', 'top_k_joint_energy')
        """
        usual = {} if defaults else type(self)().get_params(deep=False)
        settings = ", ".join(
            f"{name}={_value_text(value)}"
            for name, value in self.get_params(deep=False).items()
            if name not in PARAMS_OF_ALL
            and not (name in usual and value == usual[name])
            and not (isinstance(value, list | tuple) and not value)
        )
        return f"{self.name}({settings})" if settings else self.name

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "n_columns_")


PARAMS_OF_ALL = ("tpr", "nonfinite")
"""The parameters that every detector has, beside its own."""

_OF_THE_DATA = ("n_columns_", "label_names_", "layers_", "feature_names_in_", "_made_with")
"""What `_remember` sets."""


def _value_text(value: Any) -> str:
    if isinstance(value, Detector):
        return value.text(defaults=False)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value_text, value))}]"
    value = getattr(value, "tolist", lambda: value)()  # of NumPy, such as np.int64(5)
    return value if isinstance(value, str) else json.dumps(value)


def learning_half(n_samples: int) -> BoolArray:
    """Return which rows a detector learns from: half of them, drawn with a fixed seed."""
    learning = np.zeros(n_samples, dtype=np.bool_)
    learning[np.random.default_rng(0).permutation(n_samples)[: n_samples // 2]] = True
    return learning


def require_calibration(detector: Detector) -> None:
    """Raise unless the detector is calibrated."""
    if detector is None:
        raise NotCalibratedError("the model has no detector yet: fit and calibrate it first.")
    if not hasattr(detector, "calibration_"):
        kind = detector if isinstance(detector, type) else type(detector)  # a class has none either
        raise NotCalibratedError(
            f"this {kind.__name__} has no threshold yet: call calibrate(held_out) first."
        )


def _groups_of(
    calibration: Calibration, data: DetectorInput, groups: Any
) -> NDArray[np.str_] | None:
    """Return the group of each sample; None if the calibration has no groups."""
    return calibration.group_names(
        len(data.arrays),
        groups=groups if calibration.by == CUSTOM or not isinstance(groups, str) else None,
        logits=data.logits,
    )


def groups_at(rows: Array, groups: Any, n_rows: int) -> Any:
    """Return the groups of some rows, if they are given row by row."""
    if groups is None or isinstance(groups, str):
        return groups
    return checked_groups(groups, n_rows)[rows]


@contextmanager
def _unchanged_on_error(detector: Detector) -> Iterator[None]:
    """Leave the detector as it was if learning or calibrating fails."""
    before = dict(detector.__dict__)
    try:
        yield
    except BaseException:
        detector.__dict__ = before
        raise
