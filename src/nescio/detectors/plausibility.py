"""Sanity checks: data that is valid but probably a mistake; and what calibration data looked like.

Data that the detector has learned from is an error, because it would void the guarantee.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from nescio._validation import Array, BoolArray
from nescio.calibration import Firing
from nescio.detectors.inputs import Arrays, Given, transposed_hint
from nescio.errors import ImplausibleValuesWarning, InputError, listed, warn
from nescio.explain import Medians, Terms
from nescio.outputs import Outputs

if TYPE_CHECKING:
    from nescio.detectors.base import Detector

_ROWS_AT_ONCE = 1000  # a hash needs memory for as many rows
_COMPARED_ROWS = 64
_ENOUGH_VALUES = 50
_HEAD_TOLERANCE = 0.02  # relative to the largest logit: features may be stored in 16 bits
_ABOUT_THE_MODEL = ("kind", "model_hash", "preprocessing")
_KINDS_OF_LAYER = {"pooled", "penultimate", "input"}
_N_LOWEST = 256
_FEWEST_COMPARED = 8
_SHARE_LEARNED = 0.2  # some data has equal rows by nature


# --- logits -----------------------------------------------------------------------------------


def warn_of_odd_logits(given: Given) -> None:
    """Warn of calibration logits that no multi-label classifier gives.

    A detector inside a detector does not warn: the outer one has done so.
    """
    logits = given.arrays.get("logits")
    if logits is None or isinstance(given.data, Arrays):
        return
    if len(logits) < logits.shape[1] and given.label_names is None:
        warn(
            f"the calibration data has more labels than samples. {transposed_hint(logits.shape)} "
            "If it is not, calibrate on more samples, or pass Outputs with label_names.",
            ImplausibleValuesWarning,
        )
    if logits.size >= _ENOUGH_VALUES and not np.fmin.reduce(logits, axis=None) < 0:
        warn(
            "no value is negative, but logits are expected, which are negative for absent labels. "
            "Pass the outputs of the model before its last activation, which may be a ReLU.",
            ImplausibleValuesWarning,
        )
    constant = np.flatnonzero(np.isfinite(logits[0]) & (logits == logits[0]).all(0)).tolist()
    if constant and len(logits) > 1:
        names = [
            label if given.label_names is None else given.label_names[label] for label in constant
        ]
        what = f"label {listed(names)} has" if len(names) == 1 else f"{len(names):,} labels have"
        warn(
            f"{what} the same logit for all {len(logits):,} calibration samples"
            + ("" if len(names) == 1 else f": {listed(names)}")
            + ". A constant label tells nothing about a sample. Check the outputs of the model, or "
            "leave the label out (Outputs.select_labels).",
            ImplausibleValuesWarning,
        )


# --- the model --------------------------------------------------------------------------------


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
        finite = np.isfinite(made) & np.isfinite(logits)
        off = np.abs(made - logits)[finite] > _HEAD_TOLERANCE * np.abs(made[finite]).max(initial=1)
    if off.any():
        warn(
            "the head does not give the logits for these features (logits = features @ weight.T + "
            "bias): they are of another layer, or of another model. The scores are not meaningful. "
            "Pass the input of the last layer: Outputs(..., arrays={'penultimate': ...}).",
            ImplausibleValuesWarning,
        )


def made_with(given: Given) -> dict[str, Any]:
    """Return which model gave the outputs and how images were prepared, if they say so."""
    manifest = given.manifest
    return {name: manifest[name] for name in _ABOUT_THE_MODEL if manifest.get(name) is not None}


def check_same_model(detector: Detector, given: Given) -> None:
    """Compare the model of the outputs with the one that the detector was made with, if known.

    Features of another layer are an error: the widths may be the same. Another model is a warning.
    A graph has another hash than the module that it was exported from, so only models of the same
    kind are compared.
    """
    if not given.manifest:
        return
    layers = [*getattr(detector, "layers_", ())[:1], *given.layers[:1]]
    two_kinds = len(set(layers)) == 2 and _KINDS_OF_LAYER.issuperset(layers)
    if two_kinds and "features" in detector.scores_from:
        ours, theirs = layers
        raise InputError(
            f"the features are of the layer {theirs!r}, but {detector.name} was made with those "
            f"of {ours!r}. Choose the same layer (features={ours!r}, --features {ours})."
        )
    before, now = getattr(detector, "_made_with", {}), made_with(given)
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


def remember_learned_data(detector: Detector, given: Given) -> None:
    """Keep what `check_held_out` compares with; nothing for a detector inside a detector."""
    matrices = {} if isinstance(given.data, Arrays) else given.arrays.matrices()
    detector._learned_from = {name: _fingerprint(matrix) for name, matrix in matrices.items()}


def check_held_out(detector: Detector, given: Given) -> None:
    """Raise if the detector has learned from this very data; warn if from many of its samples.

    The share of learned samples is estimated from rows with low hashes: of the rows with a hash up
    to the largest one that was kept, it is known which are learned ones. A hash does not depend on
    the sample's content in any way that matters, so they stand for all rows.
    """
    for name, learned in getattr(detector, "_learned_from", {}).items():
        matrix = given.arrays.get(name)
        if matrix is None and isinstance(given.data, Outputs):
            matrix = given.data.get(name)  # it is not scored, but shows which data this is
        if matrix is None:
            continue
        rows = _row_hashes(matrix)
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
    rows = _row_hashes(matrix)
    return [len(rows), int(rows.sum()), np.unique(rows)[:_N_LOWEST].tolist()]


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
