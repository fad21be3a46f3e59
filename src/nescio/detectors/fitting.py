"""The steps that the methods of `Detector` share: read, learn, score, calibrate, decide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError

from nescio._validation import BoolArray, to_numpy
from nescio.calibration import LABEL_COUNT, Calibration, Scores, checked_groups
from nescio.detectors import inputs as reading, plausibility
from nescio.detectors.inputs import Arrays, Given, Known
from nescio.errors import (
    DetectorError,
    InputError,
    MissingInputError,
    NescioError,
    ParameterError,
    TooFewSamplesError,
)
from nescio.outputs import Outputs

if TYPE_CHECKING:
    from nescio.detectors.base import Detector


class NotCalibratedError(NescioError, NotFittedError):  # type: ignore[misc]
    """The detector is not calibrated yet, so it has no threshold and no p-values."""


@dataclass(frozen=True)
class Decided:
    """Scores with their groups (None without groups) and thresholds."""

    given: Given
    scores: Scores
    groups: NDArray[np.str_] | None
    threshold: float | Scores


# --- reading ----------------------------------------------------------------------------------


def read(
    detector: Detector,
    data: Any,
    names: Sequence[str],
    y: Any = None,
    *,
    reset: bool = False,
    remember: bool = False,
    from_probs: bool | None = None,
) -> Given:
    """Take the named arrays from the data, and check their columns and labels.

    `reset` forgets the columns and labels of earlier data; `remember` keeps those of this data.
    Data with label names is matched by name with the labels that the detector knows.
    """
    n_columns = {} if reset else getattr(detector, "n_columns_", {})
    known = Known() if reset else _known_names(detector)
    given = reading.read(data, names, detector, y, known=known, from_probs=from_probs)
    reading.check_columns(n_columns, given, detector)
    if not reset:
        _check_layers(detector, data)
        plausibility.warn_of_another_model(detector, data)
    if remember:
        plausibility.warn_of_another_head(given)
        found = {name: matrix.shape[1] for name, matrix in given.arrays.matrices().items()}
        detector.n_columns_ = {**found, **n_columns}
        detector.n_features_in_ = next(iter(found.values()))
        detector.label_names_ = given.label_names if known.labels is None else known.labels
        _remember_layers(detector, data, reset=reset)
        if reset or not getattr(detector, "_made_with", {}):
            detector._made_with = plausibility.made_with(data)
        _remember_columns(detector, given.columns if known.columns is None else known.columns)
    return given


def _known_names(detector: Detector) -> Known:
    columns = getattr(detector, "feature_names_in_", None)
    return Known(
        getattr(detector, "label_names_", None), None if columns is None else tuple(columns)
    )


_KINDS_OF_LAYER = {"pooled", "penultimate", "input"}


def _check_layers(detector: Detector, data: Any) -> None:
    """Raise if the features are known to be of another layer: the widths may be the same."""
    if not isinstance(data, Outputs) or "features" not in detector.scores_from:
        return
    listed = data.manifest.get("layers")
    ours = getattr(detector, "layers_", ())[:1]
    theirs = tuple(map(str, listed[:1])) if isinstance(listed, list | tuple) else ()
    if ours != theirs and {*ours, *theirs} <= _KINDS_OF_LAYER and ours and theirs:
        raise InputError(
            f"the features are of the layer {theirs[0]!r}, but {detector.name} was made with those "
            f"of {ours[0]!r}. Choose the same layer (features={ours[0]!r}, --features {ours[0]})."
        )


def _remember_layers(detector: Detector, data: Any, *, reset: bool) -> None:
    """Keep which layers of the model the data was made of, so that a runner can give them again."""
    if reset:
        detector.__dict__.pop("layers_", None)
    layers = data.manifest.get("layers") if isinstance(data, Outputs) else None
    if isinstance(layers, list | tuple):
        detector.layers_ = tuple(map(str, layers))


def _remember_columns(detector: Detector, columns: Sequence[str] | None) -> None:
    """Keep the names of the columns of a data frame under scikit-learn's name."""
    if columns is not None:
        detector.feature_names_in_ = np.array(columns, dtype=object)
    else:
        detector.__dict__.pop("feature_names_in_", None)


# --- learning and scoring ---------------------------------------------------------------------


def learn(detector: Detector, given: Given) -> None:
    """Let the method learn from the rows that can be used."""
    arrays = given.arrays
    usable = reading.usable_rows(arrays, detector)
    detector._learn(arrays if usable.all() else arrays[usable])
    plausibility.remember_learned_data(detector, given.data, arrays)


def learn_held_out(detector: Detector, given: Given) -> None:
    """Let the method learn from the rows of held-out data that can be used, if it does."""
    if not detector.learns_from_held_out:
        return
    arrays = given.arrays.only(detector.learns_from_held_out)
    n_rows = len(arrays)
    usable = reading.usable_rows(arrays, detector) if n_rows else np.zeros(0, np.bool_)
    if not usable.any():
        raise TooFewSamplesError(
            f"{detector.name} learns from held-out data, but none of the {n_rows:,} rows that it "
            "gets (half of them, in calibrate) can be used. Pass more held-out data."
        )
    detector._learn_held_out(arrays if usable.all() else arrays[usable])


def score(detector: Detector, data: Any, *, from_probs: bool | None = None) -> tuple[Given, Scores]:
    """Read and score every row."""
    detector._check_params()
    calibrated = hasattr(detector, "calibration_") or not detector.learns_from_held_out
    if not calibrated or not all(hasattr(detector, name) for name in detector.learned):
        raise _not_learned(detector)
    given = read(detector, data, detector.scores_from, from_probs=from_probs)
    return given, score_given(detector, given)


def score_given(detector: Detector, given: Given) -> Scores:
    """Score every row; rows that cannot be used get -inf."""
    arrays = given.arrays.only(detector.scores_from)
    if reading.all_usable(arrays, detector):
        return _scores_of(detector, arrays)
    usable = reading.usable_rows(arrays, detector)
    scores = np.full(len(usable), -np.inf)
    if usable.any():
        scores[usable] = _scores_of(detector, arrays[usable])
    return scores


def _not_learned(detector: Detector) -> NotCalibratedError:
    first = "call fit(training_data) first, then calibrate(held_out)."
    if not detector.learns_from or hasattr(detector, "_learned_from"):
        first = "call calibrate(held_out) first."
    return NotCalibratedError(f"{type(detector).__name__} learns from data: {first}")


def _scores_of(detector: Detector, arrays: Arrays) -> Scores:
    """Return what the method computes as float64; raise unless it is one number per sample."""
    found = detector._score(arrays)
    if type(found) is not np.ndarray:
        found = to_numpy(found)
    if found.shape != (len(arrays),) or found.dtype.kind not in "fiub":
        raise DetectorError(
            f"{type(detector).__name__}._score must return one number per sample: an array of "
            f"shape ({len(arrays)},), got shape {found.shape} and dtype {found.dtype}."
        )
    return found.astype(np.float64, copy=False)


# --- calibrating and deciding -----------------------------------------------------------------


def read_in_calibration(detector: Detector) -> tuple[str, ...]:
    """Return the arrays that the detector reads from held-out data."""
    return tuple(dict.fromkeys([*detector.scores_from, *detector.learns_from_held_out]))


def read_held_out(detector: Detector, data: Any, *, from_probs: bool | None = None) -> Given:
    """Read held-out data, and check that it is plausible and that the detector does not know it."""
    detector._check_params()
    if detector.learns_from and not hasattr(detector, "_learned_from"):
        raise _not_learned(detector)
    names = read_in_calibration(detector)
    reset = not detector.learns_from
    given = read(detector, data, names, reset=reset, remember=True, from_probs=from_probs)
    plausibility.check_held_out(detector, given)
    plausibility.warn_of_large_k(detector, given)
    plausibility.warn_of_constant_labels(given)
    plausibility.warn_of_no_negative(given)
    return given


def learn_from_half(detector: Detector, given: Given, groups: Any) -> tuple[Given, Any]:
    """Let the method learn from half of the held-out data; return the other half, for calibration.

    The guarantee needs scores that a new sample's score is exchangeable with. Those of the rows
    that the method has learned from are not.
    """
    n_samples = len(given.arrays)
    learning = learning_half(n_samples)
    learn_held_out(detector, given[learning])
    if groups is not None and not isinstance(groups, str):
        groups = checked_groups(groups, n_samples)[~learning]
    return given[~learning], groups


def learning_half(n_samples: int) -> BoolArray:
    """Return which rows a detector learns from: half of them, drawn with a fixed seed."""
    learning = np.zeros(n_samples, dtype=np.bool_)
    learning[np.random.default_rng(0).permutation(n_samples)[: n_samples // 2]] = True
    return learning


def calibrated(
    detector: Detector,
    given: Given,
    scores: Scores,
    tpr: float,
    confidence: float | None,
    groups: Any,
) -> Calibration:
    """Calibrate the scores of held-out data, by group if asked to."""
    try:
        return _by_groups(given, scores, tpr, confidence, groups)
    except TooFewSamplesError as error:
        hints = []
        if detector.learns_from_held_out:
            hints.append(
                f"Half of the held-out data goes to the p-values or to whatever else "
                f"{detector.name} learns from it, so it takes twice as many samples."
            )
        shape = next(iter(given.arrays.matrices().values())).shape
        by_a_model = bool(getattr(given.data, "manifest", None))  # no array of the user's
        if shape[0] < shape[1] and not by_a_model:
            hints.append(reading.transposed_hint(shape))
        raise TooFewSamplesError(" ".join([str(error), *hints])) from error


def _by_groups(
    given: Given, scores: Scores, tpr: float, confidence: float | None, groups: Any
) -> Calibration:
    if not isinstance(groups, str):
        return Calibration.from_scores(scores, tpr=tpr, confidence=confidence, groups=groups)
    if groups != LABEL_COUNT:
        raise ParameterError(
            f"groups must be {LABEL_COUNT!r} or an array with one group per sample, got {groups!r}."
        )
    counts = given.label_counts()
    if counts is None:
        raise MissingInputError(
            f"groups={LABEL_COUNT!r} needs logits, and only {' and '.join(given.arrays.names)} "
            "were passed. Pass Outputs, which hold both."
        )
    return Calibration.by_label_count(scores, counts, tpr=tpr, confidence=confidence)


def groups_of(calibration: Calibration, given: Given, groups: Any) -> NDArray[np.str_] | None:
    """Return the group of each sample; None if the calibration has no groups."""
    by_count = calibration.by == LABEL_COUNT
    return calibration.group_names(
        len(given.arrays),
        groups=None if by_count and isinstance(groups, str) else groups,
        label_counts=given.label_counts() if by_count else None,
    )


def decide(
    detector: Detector, data: Any, groups: Any, *, from_probs: bool | None = None
) -> Decided:
    """Score the data and find the threshold of each sample."""
    require_calibration(detector)
    given, scores = score(detector, data, from_probs=from_probs)
    names = groups_of(detector.calibration_, given, groups)
    return Decided(given, scores, names, detector.calibration_.threshold_of(names))


def require_calibration(detector: Detector) -> None:
    """Raise unless the detector is calibrated."""
    if not hasattr(detector, "calibration_"):
        raise NotCalibratedError(
            f"this {type(detector).__name__} has no threshold yet: call calibrate(held_out) first."
        )


@contextmanager
def unchanged_on_error(detector: Detector) -> Iterator[None]:
    """Leave the detector as it was if learning or calibrating fails."""
    before = dict(detector.__dict__)
    try:
        yield
    except BaseException:
        detector.__dict__ = before
        raise
