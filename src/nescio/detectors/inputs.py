"""What comes into a detector: the named arrays that it reads, checked.

Data that is valid but probably a mistake gives a warning. Calibrating on data that the detector has
learned from is an error, because it would void the guarantee.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_array

from nescio._io.frames import read_features, read_logits, read_truth
from nescio._validation import (
    ENOUGH_VALUES,
    Array,
    BoolArray,
    FloatArray,
    check_logits,
    check_matrix,
    is_frame,
    multi_hot,
    row_hashes,
    to_float,
    to_numpy,
)
from nescio.calibration.calibration import checked_groups, group_counts
from nescio.errors import (
    ImplausibleValuesWarning,
    InputError,
    MissingInputError,
    NonFiniteError,
    ShapeError,
    listed,
    warn,
)
from nescio.outputs import Outputs
from nescio.outputs.outputs import match_labels
from nescio.scores import logits_from_probs

if TYPE_CHECKING:
    from nescio.detectors.base import Detector

_NOT_MATRICES = ("labels", "head")
_NAMED_ROWS = 5
_NAMED_LABELS = 10
_COMPARED_ROWS = 64
_HEAD_TOLERANCE = 0.02  # relative to the largest logit: features may be stored in 16 bits
_ABOUT_THE_MODEL = ("kind", "model_hash", "preprocessing")
_KINDS_OF_LAYER = {"pooled", "penultimate", "input"}
_N_LOWEST = 256
_FEWEST_COMPARED = 8
_SHARE_LEARNED = 0.2  # some data has equal rows by nature
_SHARE_OF_COPIES = 0.1  # if fewer samples are there twice, a 99 % interval covers 98 % or more


class Arrays:
    """The arrays that a method declared, by name, and nothing else.

    `arrays.features` and `arrays["features"]` are the same. Matrices are float32 or float64, one
    row per sample. `labels` is the multi-hot truth, and None only if a plain array was fitted
    without `y`. `head` has a `weight` and a `bias`. A detector that holds detectors passes its
    `Arrays` on to their `fit`, `calibrate` and `score_samples`.

    Examples
    --------
    >>> arrays = Arrays({"logits": np.zeros((3, 2)), "features": np.ones((3, 4))})
    >>> len(arrays), arrays.features.shape, arrays[:2].logits.shape
    (3, (3, 4), (2, 2))
    """

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._arrays = dict(arrays)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, key: Any) -> Any:
        """Return one array by its name, or the arrays of some rows."""
        if not isinstance(key, str):
            rows = {
                name: array if name == "head" or array is None else array[key]
                for name, array in self._arrays.items()
            }
            return Arrays(rows)
        if key not in self._arrays:
            raise AttributeError(
                f"the detector reads {key!r} without declaring it; it declares "
                f"{', '.join(self._arrays)}. Add {key!r} to scores_from or learns_from."
            )
        return self._arrays[key]

    def __len__(self) -> int:
        return len(next(a for name, a in self._arrays.items() if name not in _NOT_MATRICES))

    def matrices(self) -> dict[str, Any]:
        """Return the arrays that are matrices of numbers with one row per sample."""
        return {name: a for name, a in self._arrays.items() if name not in _NOT_MATRICES}

    def only(self, names: Sequence[str]) -> Arrays:
        """Return the arrays of these names."""
        if self.names == names:  # a tuple, in most calls
            return self
        return Arrays({name: self[name] for name in names})

    def get(self, name: str) -> Any:
        """Return one array by its name; None if it was not declared."""
        return self._arrays.get(name)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the arrays."""
        return tuple(self._arrays)


@dataclass(frozen=True)
class DetectorInput:
    """What comes into a detector: the arrays it declared, and what calibration needs besides."""

    arrays: Arrays
    source: Any  # all of it: Outputs, Arrays, or as it was passed
    logits: FloatArray | None = None
    label_names: tuple[str, ...] | None = None
    ids: Array | None = None
    columns: tuple[str, ...] | None = None  # the names of the columns of a data frame
    index: Any = None  # of a pandas frame

    def __getitem__(self, rows: BoolArray) -> DetectorInput:
        """Return the arrays of some of the rows, for calibration."""
        logits = None if self.logits is None else self.logits[rows]
        return DetectorInput(self.arrays[rows], self.source, logits, self.label_names)

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What is known about the model that gave the data."""
        return self.source.manifest if isinstance(self.source, Outputs) else {}

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers of the model that features and further arrays were taken from, if known."""
        layers = self.manifest.get("layers")
        return tuple(map(str, layers)) if isinstance(layers, list | tuple) else ()

    @property
    def made_with(self) -> dict[str, Any]:
        """Which model gave the outputs and how images were prepared, if they say so."""
        manifest = self.manifest
        return {name: manifest[name] for name in _ABOUT_THE_MODEL if manifest.get(name) is not None}


def read(
    detector: Detector,
    X: Any,
    names: Sequence[str],
    y: Any = None,
    *,
    from_probs: bool | None = None,
) -> DetectorInput:
    """Take the named arrays from outputs, or from a plain array if a single one is needed.

    Labels, and columns of a data frame, are matched by name with those that the detector knows.
    With `from_probs`, the logits are probabilities and are converted; with False they are logits;
    with None they are checked.
    """
    if isinstance(X, Arrays):
        return DetectorInput(Arrays(_by_name(detector, X, names)), X, X.get("logits"))
    if isinstance(X, Outputs):
        data = _of_outputs(detector, X, names, y)
    elif type(X) is not np.ndarray and is_frame(X):  # an array is the usual case
        data = _of_frame(detector, X, names, y)
    else:
        data = _of_array(detector, X, names, y)
    if from_probs:
        return _from_probs(data)
    logits = data.arrays.get("logits")
    if logits is not None and from_probs is None:
        check_logits(logits)
    return data


def _from_probs(data: DetectorInput) -> DetectorInput:
    """Return the same data with logits in place of probabilities."""
    if data.logits is None:
        return data
    logits, source = logits_from_probs(data.logits), data.source
    if isinstance(source, Outputs):
        source = replace(source, logits=logits)
    arrays = {name: data.arrays[name] for name in data.arrays.names}
    if "logits" in arrays:
        arrays["logits"] = logits
    return replace(data, arrays=Arrays(arrays), source=source, logits=logits)


def _of_outputs(
    detector: Detector, outputs: Outputs, names: Sequence[str], y: Any
) -> DetectorInput:
    if "labels" in names and y is not None:
        raise InputError("pass labels inside Outputs or as y, not both.")
    label_names = getattr(detector, "label_names_", None)
    if label_names is not None and outputs.label_names is not None:
        outputs = match_labels(outputs, label_names, names)
    arrays = Arrays(_by_name(detector, outputs, names))
    ids, index = outputs.ids, outputs.index
    return DetectorInput(arrays, outputs, outputs.logits, outputs.label_names, ids, index=index)


def _of_frame(detector: Detector, frame: Any, names: Sequence[str], y: Any) -> DetectorInput:
    """Read a data frame: its columns are the labels or, for a detector of features, features."""
    of_logits = "logits" in names
    if of_logits:
        content = read_logits(frame, getattr(detector, "label_names_", None))
    else:
        columns = getattr(detector, "feature_names_in_", None)
        content = read_features(frame, None if columns is None else tuple(columns))
    if "labels" in names and is_frame(y):
        y = read_truth(y, content.get("label_names") if of_logits else None, content.get("ids"))
    outputs = Outputs(**content)
    if of_logits or any(name in outputs.names for name in names if name not in _NOT_MATRICES):
        if "labels" in names and outputs.labels is None:
            outputs, y = replace(outputs, labels=y), None
        data = _of_outputs(detector, outputs, names, y)
    else:
        data = _of_array(detector, outputs.logits, names, y)
        data = replace(data, ids=outputs.ids, index=outputs.index)
    return replace(data, columns=outputs.label_names)


def _by_name(detector: Detector, data: Outputs | Arrays, names: Sequence[str]) -> dict[str, Any]:
    arrays = {}
    for name in names:
        array = data.get(name)
        if array is None and name not in data.names:
            raise MissingInputError(
                f"{detector.name} reads {name}, which these outputs do not have (they have "
                f"{', '.join(data.names)}).",
                where_from(name),
            )
        if name not in _NOT_MATRICES and not len(array):
            raise InputError("the outputs have no samples.")
        half = name not in _NOT_MATRICES and array.dtype == np.float16
        arrays[name] = array.astype(np.float32) if half else array
    return arrays


def where_from(name: str) -> str:
    """Say how outputs get an array."""
    if name.startswith(("odin_", "mahalanobis_")):
        return "nescio extract --tuned adds it."
    if name == "labels":
        return "Add the multi-hot truth: Outputs(..., labels=...)."
    if name == "features":
        return (
            "nescio extract and nescio.wrap(model, features=...) provide it, or put them in a "
            "column of lists named features (Parquet, JSON lines)."
        )
    if name in ("penultimate", "head"):
        return (
            "nescio extract and nescio.wrap with features='penultimate' provide the last layer and "
            "its input, if this layer is linear."
        )
    return (
        f"Add it: Outputs(..., arrays={{{name!r}: ...}}). If it is a layer of the model, nescio "
        f"extract and nescio.wrap with features='pooled,{name}' provide it."
    )


def _of_array(detector: Detector, X: Any, names: Sequence[str], y: Any) -> DetectorInput:
    matrices = [name for name in names if name not in _NOT_MATRICES]
    if len(matrices) != 1 or "head" in names:
        raise MissingInputError(
            f"{detector.name} reads {' and '.join(names)}: pass Outputs, which hold them by name, "
            "instead of a single array."
        )
    (name,) = matrices
    matrix = X if _is_plain(X) else _checked(detector, X, name)
    arrays: dict[str, Any] = {name: matrix}
    if "labels" in names:
        truth = read_truth(y) if is_frame(y) else y
        arrays["labels"] = None if y is None else multi_hot(truth, or_classes=True)
    return DetectorInput(Arrays(arrays), X, matrix if name == "logits" else None)


def _is_plain(data: Any) -> bool:
    """Return whether scikit-learn's check would return the array as it is (in 40 microseconds)."""
    return (
        type(data) is np.ndarray
        and data.ndim == 2
        and data.size > 0
        and data.dtype.char in "fd"
        and data.dtype.isnative
    )


def _checked(detector: Detector, data: Any, name: str) -> FloatArray:
    """Return a matrix of float32 or float64 from what the caller passed."""
    data = to_float(to_numpy(data), name)
    if data.ndim != 2:
        check_matrix(data, name)
    half = data.dtype == np.float16
    try:
        matrix: FloatArray = check_array(  # values may be NaN or infinite
            data,
            dtype=np.float32 if half else [np.float64, np.float32],
            ensure_all_finite=False,
            estimator=detector,
        )
    except ValueError as error:  # there are no rows or no columns
        raise InputError(str(error)) from error
    return matrix


# --- rows that cannot be used -----------------------------------------------------------------


def usable_rows(arrays: Arrays, detector: Detector) -> BoolArray | None:
    """Return which rows can be scored, or None for all of them.

    NaN and infinity cannot be scored, except -inf as a masked label. With nonfinite="raise", such
    rows are an error.
    """
    usable = None
    for name, matrix in arrays.matrices().items():
        masked_allowed = detector.accepts_masked and name == "logits"
        # One pass without a temporary array: max shows NaN and +inf, min shows -inf.
        if isfinite(matrix.max()) and (masked_allowed or isfinite(matrix.min())):
            continue
        finite = _finite_rows(matrix, masked_allowed=masked_allowed)
        if detector.nonfinite == "raise" and not finite.all():
            raise _bad_rows_error(name, matrix, finite, detector)
        usable = finite if usable is None else usable & finite
    return usable


def _finite_rows(matrix: FloatArray, *, masked_allowed: bool) -> BoolArray:
    finite = np.isfinite(matrix)
    if masked_allowed:
        finite |= np.isneginf(matrix)
    return np.asarray(finite.all(1))


def _bad_rows_error(
    name: str, matrix: FloatArray, finite: BoolArray, detector: Detector
) -> NonFiniteError:
    bad = np.flatnonzero(~finite)
    rows = ", ".join(map(str, bad[:_NAMED_ROWS])) + (", ..." if len(bad) > _NAMED_ROWS else "")
    what = "NaN or infinity"
    if _finite_rows(matrix, masked_allowed=True).all():
        what = "-inf (masked labels), which this detector does not accept,"
    names = getattr(detector, "label_names_", None) if name == "logits" else None
    first = int(np.argmin(np.isfinite(matrix[bad[0]])))
    column = f"column {first}" if names is None else f"label {names[first]!r}"
    return NonFiniteError(
        f"{name} hold {what} in {len(bad):,} of {len(matrix):,} rows: {rows} (counted from 0). "
        f"In row {bad[0]} it is in {column}.",
        "Clean them, or pass nonfinite='out' to a detector (wrapped.detector.set_params, if it "
        "has one) to count such rows as out-of-distribution.",
    )


# --- columns and labels -----------------------------------------------------------------------


def check_columns(detector: Detector, data: DetectorInput) -> None:
    """Raise unless every array has as many columns as when the detector was made."""
    n_columns_before = getattr(detector, "n_columns_", {})
    for name, matrix in data.arrays.matrices().items():
        n_columns, expected = matrix.shape[1], n_columns_before.get(name)
        if expected is None or n_columns == expected:
            continue
        what = "labels" if name == "logits" else f"columns of {name}"
        parts = [f"the detector was made for {expected} {what}, got {n_columns}."]
        if len(matrix) == expected:
            parts.append(transposed_hint(matrix.shape))
        elif name == "logits":
            parts += _names_hint(getattr(detector, "label_names_", None), data.label_names)
        if not isinstance(data.source, Outputs | Arrays):  # scikit-learn's checks look for this
            parts.append(
                f"In the terms of scikit-learn: X has {n_columns} features, but "
                f"{type(detector).__name__} is expecting {expected} features as input."
            )
        raise ShapeError(*parts)


def _names_hint(ours: Sequence[str] | None, theirs: Sequence[str] | None) -> list[str]:
    """Return which labels there are, where they cannot be matched by name."""
    if ours is not None and theirs is None:
        return [
            "Pass Outputs with label_names, or a table with named columns, to find labels by "
            f"name. The detector has {listed(ours, _NAMED_LABELS)}."
        ]
    if theirs is not None and ours is None:
        return [
            f"The data has {listed(theirs, _NAMED_LABELS)}; the detector does not know the names "
            "of its labels, because it was made from data without names."
        ]
    return []


def transposed_hint(shape: tuple[int, ...]) -> str:
    """Return what to do about an array that has its samples as columns."""
    return (
        f"The array has {shape[0]:,} rows and {shape[1]:,} columns, and rows are samples: if it is "
        "transposed, pass its transpose (array.T)."
    )


def warn_of_odd_logits(data: DetectorInput) -> None:
    """Warn of calibration logits that no multi-label classifier gives.

    A detector inside a detector does not warn: the outer one has done so.
    """
    logits = data.arrays.get("logits")
    if logits is None or isinstance(data.source, Arrays):
        return
    if len(logits) < logits.shape[1] and data.label_names is None:
        warn(
            f"the calibration data has more labels than samples. {transposed_hint(logits.shape)} "
            "If it is not, calibrate on more samples, or pass Outputs with label_names.",
            ImplausibleValuesWarning,
        )
    if logits.size >= ENOUGH_VALUES and not np.fmin.reduce(logits, axis=None) < 0:
        warn(
            "no value is negative, but logits are expected, which are negative for absent labels. "
            "Pass the outputs of the model before its last activation, which may be a ReLU.",
            ImplausibleValuesWarning,
        )
    constant = np.isfinite(logits[0]) & (logits == logits[0]).all(0)
    truth = np.isin(logits[0], (0, 1)) & ~constant
    truth[truth] = np.isin(logits[:, truth], (0, 1)).all(0)
    truth &= ~truth.all()
    for of_label, what, why in (
        (constant, "have the same logit", "A constant label tells nothing about a sample"),
        (truth, "are 0 or 1", "Such columns may hold the truth, and not logits"),
    ):
        if of_label.any() and len(logits) > 1:
            names = data.label_names or range(logits.shape[1])
            warn(
                f"all {len(logits):,} calibration samples {what} for these labels: "
                f"{listed([names[label] for label in np.flatnonzero(of_label).tolist()])}. {why}. "
                "Check the outputs of the model, or leave the label out (Outputs.select_labels).",
                ImplausibleValuesWarning,
            )


def counted_rows(
    detector: Detector, data: DetectorInput, scores: Array, groups: Any, fewest: int
) -> BoolArray | None:
    """Return the calibration rows to use if many are equal, with a warning; None for all of them.

    A copy tells nothing new, so each group keeps as many rows as it has distinct ones. They are
    spread evenly over its scores: with m of n rows, the j-th one has the rank j * (n + 1) / (m + 1)
    among all. If every row has the same number of copies, this keeps one of each. If rows are equal
    by nature, it keeps the distribution of the scores. So the guarantee holds in both cases.
    At least the `fewest` rows that a threshold needs are kept: a single tree gives few scores.
    """
    if isinstance(data.source, Arrays):  # a detector inside a detector: the outer one does it
        return None
    arrays = data.arrays.only(detector.scores_from).matrices()
    hashes = np.zeros(len(scores), np.uint64)
    for matrix in arrays.values():
        hashes = 3 * hashes + row_hashes(matrix)
    bad = np.isneginf(scores)  # rows of NaN are not copies
    hashes[bad] = np.flatnonzero(bad)
    counted = np.ones(len(scores), np.bool_)
    names: Array = np.zeros(len(scores))
    if groups is not None and not isinstance(groups, str):
        names = checked_groups(groups, len(scores))
    elif groups is not None and data.logits is not None:
        names = group_counts(data.logits, groups)
    for name in np.unique(names):
        rows = np.flatnonzero(names == name)
        n, n_distinct = len(rows), 1 + int((np.diff(np.sort(hashes[rows])) > 0).sum())
        if n_distinct < (1 - _SHARE_OF_COPIES) * n:
            m = min(n, max(n_distinct, fewest))
            ranks = np.arange(1, m + 1) * (n + 1) // (m + 1)
            counted[rows] = False
            counted[rows[np.argsort(scores[rows], kind="stable")][ranks - 1]] = True
    if counted.all():
        return None
    otherwise = (
        "If rows are equal by nature (few trees, few categories), the guarantee holds, and the "
        "interval is wider than necessary."
    )
    if detector.learns_from_held_out:
        otherwise = "They are in both halves of the samples, so that a little less may be kept."
    warn(
        f"many of the {len(scores):,} calibration samples have the same {' and '.join(arrays)}. "
        "Copies tell nothing new, so the threshold and its interval are those of "
        f"{np.count_nonzero(counted):,} samples. If files were joined or samples drawn repeatedly, "
        f"remove the copies. {otherwise}",
        ImplausibleValuesWarning,
    )
    return counted


def warn_of_low_tpr(tpr: float) -> None:
    """Warn if less than half of the ordinary data is to be kept."""
    if tpr < 0.5:
        advice = f"so {1 - tpr:.3g} of it is flagged. To flag {tpr:g} of it, pass tpr={1 - tpr:g}."
        reason = f"tpr={tpr:g} is the share of in-distribution data to keep, "
        warn(reason + advice, ImplausibleValuesWarning)


# --- the model --------------------------------------------------------------------------------


def warn_of_another_head(data: DetectorInput) -> None:
    """Warn if the head does not give the logits for what is taken as its input."""
    head, outputs = data.arrays.get("head"), data.source
    if head is None or not isinstance(outputs, Outputs):
        return
    inputs, logits = outputs.get("penultimate")[:_COMPARED_ROWS], outputs.logits[:_COMPARED_ROWS]
    if inputs.shape[1] != head.weight.shape[1]:
        return  # an error of the detector, which says more
    with np.errstate(all="ignore"):
        made = inputs.astype(np.float64) @ head.weight.T.astype(np.float64) + head.bias
        finite = np.isfinite(made) & np.isfinite(logits)
        off = np.abs(made - logits)[finite] > _HEAD_TOLERANCE * np.abs(made[finite]).max(initial=1)
    if off.any():
        warn(
            "the head does not give the logits for these features (logits = features @ weight.T + "
            "bias): they are of another layer, or of another model. The scores are not meaningful. "
            "Pass the input of the last layer: Outputs(..., arrays={'penultimate': ...}).",
            ImplausibleValuesWarning,
        )


def check_same_model(detector: Detector, data: DetectorInput) -> None:
    """Compare the model of the outputs with the one that the detector was made with, if known.

    Features of another layer are an error: the widths may be the same. Another model is a warning.
    A graph has another hash than the module that it was exported from, so only models of the same
    kind are compared.
    """
    if not data.manifest:
        return
    layers = [*getattr(detector, "layers_", ())[:1], *data.layers[:1]]
    two_kinds = len(set(layers)) == 2 and _KINDS_OF_LAYER.issuperset(layers)
    if two_kinds and "features" in detector.scores_from:
        ours, theirs = layers
        raise InputError(
            f"the features are of the layer {theirs!r}, but {detector.name} was made with those "
            f"of {ours!r}.",
            f"Choose the same layer (features={ours!r}, --features {ours}).",
        )
    before, now = getattr(detector, "_made_with", {}), data.made_with
    if before.keys() != now.keys() or before.get("kind") != now.get("kind") or before == now:
        return
    if before.get("model_hash") != now.get("model_hash"):
        differs, what = "model_hash", "another model"
    else:
        differs, what = "preprocessing", "images that were prepared in another way"
    warn(
        f"{detector.name} was made with outputs of {what} ({_shown(before[differs])}, here "
        f"{_shown(now[differs])}), so its threshold and p-values do not hold here. Fit and "
        "calibrate it on outputs of the same model.",
        ImplausibleValuesWarning,
    )


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):  # the preprocessing
        return ", ".join(f"{name} {setting}" for name, setting in value.items())
    return str(value)[:12]


# --- data that was learned from ---------------------------------------------------------------


def remember_learned_data(detector: Detector, data: DetectorInput) -> None:
    """Keep what `check_held_out` compares with; nothing for a detector inside a detector."""
    matrices = {} if isinstance(data.source, Arrays) else data.arrays.matrices()
    detector._learned_from = {name: _fingerprint(matrix) for name, matrix in matrices.items()}


def check_held_out(detector: Detector, data: DetectorInput) -> None:
    """Raise if the detector has learned from this very data; warn if from many of its samples.

    The share of learned samples is estimated from the rows with low hashes, which stand for all: of
    those with a hash up to the largest one that was kept, it is known which are learned ones.
    """
    for name, learned in getattr(detector, "_learned_from", {}).items():
        matrix = data.arrays.get(name)
        if matrix is None and isinstance(data.source, Outputs):
            matrix = data.source.get(name)  # it is not scored, but shows which data this is
        if matrix is None:
            continue
        rows = row_hashes(matrix)
        if [len(rows), int(rows.sum())] == learned[:2]:
            raise InputError(
                f"{detector.name} has learned from this very data ({len(rows):,} samples). "
                "Calibrating on it would void the guarantee: calibrate on held-out data."
            )
        lowest = np.array(learned[2], np.uint64)
        rows = rows[rows > 0]  # rows of zeros are equal by nature, and always among the lowest
        if len(lowest) == _N_LOWEST:
            rows = rows[rows <= lowest[-1]]
        share = np.isin(rows, lowest).mean() if len(rows) >= _FEWEST_COMPARED else 0.0
        if share > _SHARE_LEARNED:
            warn(
                f"about {share:.0%} of these samples are equal to samples that {detector.name} has "
                f"learned from ({name}). If they are the same samples, the guarantee is void: "
                "calibrate on held-out data.",
                ImplausibleValuesWarning,
            )
            return


def _fingerprint(matrix: Array) -> list[Any]:
    """Return the number of rows, the sum of their hashes, and the lowest of these."""
    rows = row_hashes(matrix)
    return [len(rows), int(rows.sum()), np.unique(rows)[:_N_LOWEST].tolist()]
