"""Calibration data that is valid but cannot be meant: constant labels, few samples, a large k.

Data that the detector has learned from is an error, because it would void the guarantee.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from nescio._validation import Array
from nescio.detectors.arrays import Arrays, Given, transposed_hint
from nescio.errors import ImplausibleValuesWarning, InputError, ParameterWarning, listed, warn
from nescio.outputs import Outputs

if TYPE_CHECKING:
    from nescio.detectors.base import Detector

_ROWS_AT_ONCE = 1000  # a fingerprint needs memory for as many rows
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
    if inside or given.logits is None or len(given.logits) < 2:
        return
    first = given.logits[0]
    constant = np.isfinite(first)
    # Most labels differ between the first few rows: compare all rows of the others only.
    for n_rows in (10, None):
        columns = np.flatnonzero(constant)
        constant[columns] = (given.logits[:n_rows, columns] == first[columns]).all(0)
    at = np.flatnonzero(constant)
    if not len(at):
        return
    names = [i if given.label_names is None else given.label_names[i] for i in at.tolist()]
    what = f"label {listed(names)} has" if len(at) == 1 else f"{len(at):,} labels have"
    warn(
        f"{what} the same logit for all {len(given.logits):,} calibration samples"
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
        if matrix is not None and _fingerprint(matrix)[_IN_ANY_ORDER] == learned[_IN_ANY_ORDER]:
            raise InputError(
                f"{detector.name} has learned from this very data ({len(matrix):,} samples). "
                "Calibrating on it would void the guarantee: calibrate on held-out data."
            )


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
    # The hash of a row is the sum of its bits, as whole numbers, times fixed random numbers.
    factors = np.random.default_rng(0).integers(2**64, size=matrix.shape[1], dtype=np.uint64)
    rows = np.empty(len(matrix), np.uint64)
    for start in range(0, len(matrix), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        rows[part] = np.ascontiguousarray(matrix[part], dtype=np.float32).view(np.uint32) @ factors
    shape = repr(matrix.shape).encode()
    hashes = [hashlib.sha256(shape + order.tobytes()) for order in (np.sort(rows), rows)]
    return "".join(one.hexdigest() for one in hashes)
