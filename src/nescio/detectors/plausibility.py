"""Sanity checks of calibration data that is valid but probably a mistake, and what it looked like.

Data that the detector has learned from is an error, because it would void the guarantee.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from nescio._validation import Array, BoolArray
from nescio.calibration import Firing
from nescio.detectors.inputs import Arrays, Given, transposed_hint
from nescio.errors import ImplausibleValuesWarning, InputError, ParameterWarning, listed, warn
from nescio.explain import Medians, Terms
from nescio.outputs import Outputs

if TYPE_CHECKING:
    from nescio.detectors.base import Detector

_ROWS_AT_ONCE = 1000  # a fingerprint needs memory for as many rows
_COMPARED_ROWS = 64
_ENOUGH_VALUES = 50
_HEAD_TOLERANCE = 0.02  # relative to the largest logit: features may be stored in 16 bits
_ABOUT_THE_MODEL = ("kind", "model_hash", "preprocessing")
# The parts of a fingerprint: what does not depend on the order of rows, and the lowest hashes.
_IN_ANY_ORDER, _LOWEST = slice(64), slice(128, None)
_N_LOWEST = 256
_FEWEST_COMPARED = 8
_SHARE_LEARNED = 0.2  # some data has equal rows by nature


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


def warn_of_no_negative(given: Given) -> None:
    """Warn of held-out logits that are never negative, such as those after a ReLU."""
    logits = given.arrays.get("logits")
    if logits is None or logits.size < _ENOUGH_VALUES or np.fmin.reduce(logits, axis=None) < 0:
        return
    warn(
        "no value is negative, but logits are expected, which are negative for absent labels. "
        "Pass the outputs of the model before its last activation, which may be a ReLU.",
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
    """Raise if the detector has learned from this very data; warn if from many of its samples."""
    for name, learned in getattr(detector, "_learned_from", {}).items():
        matrix = given.arrays.get(name)
        if matrix is None and isinstance(given.data, Outputs):
            matrix = given.data.get(name)  # it is not scored, but shows which data this is
        if matrix is not None:
            check = LearnedRows(detector, name, learned)
            check.add(matrix)
            if check.finish():
                return


def _row_hashes(matrix: Array) -> NDArray[np.uint64]:
    """Return a hash of each row, for float32 as for float64.

    It is the sum of the row's bits, as whole numbers, times fixed random numbers.
    """
    factors = np.random.default_rng(0).integers(2**64, size=matrix.shape[1], dtype=np.uint64)
    rows = np.empty(len(matrix), np.uint64)
    for start in range(0, len(matrix), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        rows[part] = np.ascontiguousarray(matrix[part], dtype=np.float32).view(np.uint32) @ factors
    return rows


def _fingerprint(matrix: Array) -> str:
    return _hash_of_rows(matrix.shape, _row_hashes(matrix))


def _hash_of_rows(shape: tuple[int, ...], rows: NDArray[np.uint64]) -> str:
    """Return a hash of the rows in any order, one in theirs, and the lowest hashes of rows."""
    shown = repr(shape).encode()
    hashes = [hashlib.sha256(shown + order.tobytes()) for order in (np.sort(rows), rows)]
    lowest = np.unique(rows)[:_N_LOWEST]
    return "".join([one.hexdigest() for one in hashes] + [f"{one:016x}" for one in lowest.tolist()])


class LearnedRows:
    """Whether samples, which are added block by block, are those that a detector has learned from.

    With `compare_all`, a hash of each row is kept, to see whether all samples are the same.

    The share of learned samples is estimated from the lowest hashes of these: of the rows with a
    hash up to the largest of them, it is known which are learned ones. A hash does not depend on
    the sample's content in any way that matters, so they stand for all rows.
    """

    def __init__(
        self, detector: Detector, name: str, learned: str, *, compare_all: bool = True
    ) -> None:
        self._detector, self._name, self._learned = detector, name, learned
        self._compare_all = compare_all
        lowest = learned[_LOWEST]
        known = [int(lowest[at : at + 16], 16) for at in range(0, len(lowest), 16)]
        self._known = np.array([one for one in known if one], np.uint64)
        self._all_known = len(known) < _N_LOWEST
        self._n_columns = self._n_some = self._n_known = 0
        self._rows: list[NDArray[np.uint64]] = []

    def add(self, matrix: Array) -> None:
        """Add the next samples."""
        rows = _row_hashes(matrix)
        self._n_columns = matrix.shape[1]
        if self._compare_all:
            self._rows.append(rows)
        if len(self._known):
            some = rows if self._all_known else rows[rows <= self._known[-1]]
            some = some[some > 0]  # rows of zeros, which are equal by nature and always among these
            self._n_some += len(some)
            self._n_known += int(np.isin(some, self._known).sum())

    def finish(self) -> bool:
        """Raise if all are learned samples; warn, and return True, if many are."""
        detector = self._detector
        rows = np.concatenate([np.empty(0, np.uint64), *self._rows])
        found = _hash_of_rows((len(rows), self._n_columns), rows)
        if self._compare_all and found[_IN_ANY_ORDER] == self._learned[_IN_ANY_ORDER]:
            raise InputError(
                f"{detector.name} has learned from this very data ({len(rows):,} samples). "
                "Calibrating on it would void the guarantee: calibrate on held-out data."
            )
        share = self._n_known / self._n_some if self._n_some >= _FEWEST_COMPARED else 0.0
        if share <= _SHARE_LEARNED:
            return False
        warn(
            f"about {share:.0%} of these samples are equal to samples that {detector.name} has "
            f"learned from ({self._name}). If they are the same samples, the guarantee is void: "
            "calibrate on held-out data.",
            ImplausibleValuesWarning,
        )
        return True


# --- what the calibration data looked like ----------------------------------------------------


@dataclass(frozen=True, eq=False)
class Profile:
    """What the calibration data looked like.

    Attributes
    ----------
    firing : Firing or None
        How often each label fired, which `nescio.monitor` compares with. None without logits.
    medians : Medians or None
        The medians of the score's terms, which `explain` compares with. None if the score is not
        made of labels.
    """

    firing: Firing | None = None
    medians: Medians | None = None

    @classmethod
    def from_logits(
        cls,
        logits: Array | None,
        terms: Terms | None,
        usable: BoolArray,
        groups: NDArray[np.str_] | None = None,
    ) -> Self:
        """Summarise the logits of the calibration data, within groups if there are any."""
        if logits is None:
            return cls()
        medians = None if terms is None else Medians.from_logits(terms, logits, usable, groups)
        return cls(Firing.from_logits(logits), medians)

    def arrays(self) -> dict[str, Array]:
        """Return what a file keeps."""
        kept: dict[str, Array] = {}
        if self.firing is not None:
            kept["firing.counts"] = self.firing.counts
            kept["firing.n_samples"] = np.array([self.firing.n_samples], np.int64)
        if self.medians is not None:
            kept["medians.labels"] = self.medians.labels
            kept["medians.ranks"] = self.medians.ranks
        return kept

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, Array], groups: tuple[str, ...] | None, n_labels: int | None
    ) -> Self:
        """Read what a file keeps; raise a `ValueError` if it makes no sense."""
        firing = medians = None
        if "firing.counts" in arrays:
            firing = Firing.from_arrays(arrays["firing.counts"], arrays["firing.n_samples"])
        if "medians.labels" in arrays:
            names = ("",) if groups is None else tuple(sorted(groups))
            medians = Medians(names, arrays["medians.labels"], arrays["medians.ranks"])
            medians.check(n_labels)
        return cls(firing, medians)
