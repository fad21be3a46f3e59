"""Calibration data that is valid but cannot be meant: constant labels, few samples, a large k.

Data that the detector has learned from is an error, because it would void the guarantee.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nescio._validation import Array
from nescio.detectors.arrays import Arrays, Given, transposed_hint
from nescio.errors import ImplausibleValuesWarning, InputError, ParameterWarning, listed, warn
from nescio.outputs import Outputs

if TYPE_CHECKING:
    from nescio.detectors.base import Detector

_ROWS_AT_ONCE = 1000  # a fingerprint needs memory for as many rows
_COMPARED_ROWS = 64
_HEAD_TOLERANCE = 0.02  # relative to the largest logit: features may be stored in 16 bits
_ABOUT_THE_MODEL = ("kind", "model_hash", "preprocessing")
_IN_ANY_ORDER = slice(64)  # the part of a fingerprint that does not depend on the order of the rows


def warn_of_large_k(detector: Detector, given: Given) -> None:
    """Warn if the score sums more labels than there are."""
    terms, logits = detector.label_terms(), given.arrays.get("logits")
    if terms is None or terms.largest is None or logits is None:
        return
    if terms.largest > logits.shape[1]:
        warn(
            f"{detector.name} counts the {terms.largest} largest labels, but there are only "
            f"{logits.shape[1]}: the score is the sum over all labels. Choose a smaller k, or a "
            "detector that sums all labels.",
            ParameterWarning,
        )


def warn_of_constant_labels(given: Given) -> None:
    """Warn of labels whose logit is the same for all samples; masked labels are fine."""
    inside = isinstance(given.data, Arrays)  # a detector inside a detector, which warns itself
    if not inside and given.logits is not None:
        labels = ConstantLabels()
        labels.add(given.logits)
        labels.warn(given.label_names)


class ConstantLabels:
    """Labels whose logit has been the same for all samples so far."""

    def __init__(self) -> None:
        self._first: Array | None = None
        self._constant = np.empty(0, np.bool_)
        self._n_samples = 0

    def add(self, logits: Array) -> None:
        """Compare the next samples with the first one."""
        if self._first is None:
            if not len(logits):
                return
            self._first = logits[0].copy()
            self._constant = np.isfinite(self._first)
        self._n_samples += len(logits)
        # Most labels differ between the first few rows: compare all rows of the others only.
        for n_rows in (10, None):
            columns = np.flatnonzero(self._constant)
            if len(columns):
                same = logits[:n_rows, columns] == self._first[columns]
                self._constant[columns] = same.all(0)

    def warn(self, label_names: Sequence[str] | None) -> None:
        """Warn of such labels."""
        at = np.flatnonzero(self._constant)
        if not len(at) or self._n_samples < 2:
            return
        names = [i if label_names is None else label_names[i] for i in at.tolist()]
        what = f"label {listed(names)} has" if len(at) == 1 else f"{len(at):,} labels have"
        warn(
            f"{what} the same logit for all {self._n_samples:,} calibration samples"
            + ("" if len(at) == 1 else f": {listed(names)}")
            + ". A constant label tells nothing about a sample. Check the outputs of the model, or "
            "leave the label out (Outputs.select_labels).",
            ImplausibleValuesWarning,
        )


def warn_of_transposed(given: Given) -> None:
    """Warn of logits with more labels than samples, unless the labels have names."""
    logits, inside = given.arrays.get("logits"), isinstance(given.data, Arrays)
    if logits is None or inside or given.label_names is not None or len(logits) >= logits.shape[1]:
        return
    warn(
        f"the calibration data has more labels than samples. {transposed_hint(logits.shape)} If it "
        "is not, calibrate on more samples, or pass Outputs with label_names.",
        ImplausibleValuesWarning,
    )


def warn_of_another_head(given: Given) -> None:
    """Warn if the head does not give the logits for what is taken as its input."""
    head, outputs = given.arrays.get("head"), given.data
    if head is None or not isinstance(outputs, Outputs):
        return
    inputs, logits = outputs.get("penultimate")[:_COMPARED_ROWS], outputs.logits[:_COMPARED_ROWS]
    if inputs.shape[1] != head.weight.shape[1]:
        return  # an error of the detector, which says more
    with np.errstate(all="ignore"):
        made = inputs.astype(np.float64) @ head.weight.T.astype(np.float64) + head.bias
        known = np.isfinite(made) & np.isfinite(logits)
        off = np.abs(made - logits)[known] > _HEAD_TOLERANCE * np.abs(made[known]).max(initial=1.0)
    if off.any():
        warn(
            "the head does not give the logits for these features (logits = features @ weight.T + "
            "bias): they are of another layer, or of another model. The scores are not meaningful. "
            "Pass the input of the last layer: Outputs(..., arrays={'penultimate': ...}).",
            ImplausibleValuesWarning,
        )


def made_with(data: Any) -> dict[str, Any]:
    """Return which model gave these outputs and how images were prepared, if they say so."""
    manifest = data.manifest if isinstance(data, Outputs) else {}
    return {name: manifest[name] for name in _ABOUT_THE_MODEL if manifest.get(name) is not None}


def warn_of_another_model(detector: Detector, data: Any) -> None:
    """Warn if the outputs are known to be of another model than those the detector was made with.

    A graph has another hash than the module that it was exported from, so only models of the same
    kind are compared.
    """
    ours, theirs = getattr(detector, "_made_with", {}), made_with(data)
    differ = [name for name in _ABOUT_THE_MODEL if ours.get(name) != theirs.get(name)]
    if not differ or not (ours.keys() == theirs.keys() and ours.get("kind") == theirs.get("kind")):
        return
    what = "another model" if "model_hash" in differ else "images that were prepared in another way"
    warn(
        f"{detector.name} was made with outputs of {what} ({_shown(ours[differ[0]])}, here "
        f"{_shown(theirs[differ[0]])}), so its threshold and p-values do not hold here. Fit and "
        "calibrate it on outputs of the same model.",
        ImplausibleValuesWarning,
    )


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):  # the preprocessing
        return ", ".join(f"{name} {one}" for name, one in value.items())
    return str(value)[:12]


def remember_learned_data(detector: Detector, data: Any, arrays: Arrays) -> None:
    """Keep what `check_held_out` compares with; nothing for a detector inside a detector."""
    inside = isinstance(data, Arrays)
    detector._learned_from = {
        name: _fingerprint(matrix) for name, matrix in arrays.matrices().items() if not inside
    }


def check_held_out(detector: Detector, given: Given) -> None:
    """Raise if the detector has learned from this very data."""
    for name, learned in getattr(detector, "_learned_from", {}).items():
        matrix = given.arrays.get(name)
        if matrix is None and isinstance(given.data, Outputs):
            matrix = given.data.get(name)  # it is not scored, but shows which data this is
        if matrix is not None:
            seen = RowHashes()
            seen.add(matrix)
            seen.refuse(detector, learned)


def has_learned_from(detector: Detector, outputs: Outputs) -> bool:
    """Return whether these are the outputs that the detector has learned from, in their order.

    A file that an older nescio saved does not know the order: False.
    """
    learned: dict[str, str] = getattr(detector, "_learned_from", {})
    found = {name: outputs.get(name) for name in learned}
    return bool(learned) and all(
        matrix is not None and _fingerprint(matrix) == learned[name]
        for name, matrix in found.items()
    )


def _fingerprint(matrix: Array) -> str:
    """Return a hash of the rows in any order and one in theirs, for float32 as for float64."""
    rows = RowHashes()
    rows.add(matrix)
    return rows.fingerprint()


class RowHashes:
    """A hash of each row of a matrix, which is added block by block."""

    def __init__(self) -> None:
        self._parts: list[NDArray[np.uint64]] = []
        self._n_columns = 0

    def add(self, matrix: Array) -> None:
        """Add the next rows."""
        self._n_columns = matrix.shape[1]
        # The hash of a row is the sum of its bits, as whole numbers, times fixed random numbers.
        factors = np.random.default_rng(0).integers(2**64, size=self._n_columns, dtype=np.uint64)
        for start in range(0, len(matrix), _ROWS_AT_ONCE):
            rows = np.ascontiguousarray(matrix[start : start + _ROWS_AT_ONCE], dtype=np.float32)
            self._parts.append(rows.view(np.uint32) @ factors)

    def fingerprint(self) -> str:
        """Return a hash of the rows in any order and one in theirs."""
        rows = np.concatenate([np.empty(0, np.uint64), *self._parts])
        shape = repr((len(rows), self._n_columns)).encode()
        hashes = [hashlib.sha256(shape + order.tobytes()) for order in (np.sort(rows), rows)]
        return "".join(one.hexdigest() for one in hashes)

    def refuse(self, detector: Detector, learned: str) -> None:
        """Raise if these are the rows that a detector has learned from, by their fingerprint."""
        if self.fingerprint()[_IN_ANY_ORDER] == learned[_IN_ANY_ORDER]:
            raise InputError(
                f"{detector.name} has learned from this very data "
                f"({sum(map(len, self._parts)):,} samples). Calibrating on it would void the "
                "guarantee: calibrate on held-out data."
            )
