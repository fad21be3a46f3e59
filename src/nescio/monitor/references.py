"""What a stream is compared with: the calibration of a detector."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nescio._validation import BoolArray
from nescio.errors import InputError, MissingInputError, ShapeError

if TYPE_CHECKING:
    from nescio.calibration import Calibration, Firing
    from nescio.detectors import Detector
    from nescio.detectors.assessment import Assessment

Floats = NDArray[np.float64]
Groups = NDArray[np.str_] | None

_ALL = "all"  # the only group of a calibration that is not by group
_CLOSE = 1e-6  # how close p * (n + 1) must be to a whole number


def firing_of(detector: Detector) -> Firing | None:
    """Return how often each label fired in the calibration data, or None if it is not known."""
    firing = detector.profile_.firing
    return firing if firing is not None and firing.n_samples else None


def fingerprint(detector: Detector) -> str:
    """Return a hash of everything that the stream of a detector is compared with."""
    digest = hashlib.sha256(repr((detector.name, detector.label_names_)).encode())
    for name, threshold in detector.calibration_.thresholds.items():
        digest.update(f"{name}:{threshold.rank}:{threshold.n_samples};".encode())
        digest.update(np.ascontiguousarray(threshold.scores, np.float64).data)
    firing = firing_of(detector)
    if firing is not None:
        digest.update(f"{firing.n_samples};".encode())
        digest.update(np.ascontiguousarray(firing.counts).data)
    return digest.hexdigest()


def members(
    names: Iterable[str], groups: Groups, n_samples: int
) -> list[tuple[str, slice | BoolArray]]:
    """Return the rows of each group that has any."""
    if groups is None:
        return [(_ALL, slice(0, n_samples))] if n_samples else []
    found = ((name, groups == name) for name in names)
    return [(name, rows) for name, rows in found if rows.any()]


def checked_assessment(calibration: Calibration, assessment: Assessment) -> tuple[Floats, Groups]:
    """Return the scores and the groups of an assessment; raise if the calibration does not fit."""
    scores = np.asarray(assessment.scores, np.float64)
    p_values = np.asarray(assessment.p_values, np.float64)
    if p_values.ndim != 1 or scores.shape != p_values.shape:
        raise ShapeError(
            "scores and p_values must have the same shape (n_samples,), got "
            f"{scores.shape} and {p_values.shape}."
        )
    groups = _checked_groups(calibration, assessment.groups, len(scores))
    for name, rows in members(calibration.thresholds, groups, len(scores)):
        _check_p_values(calibration.thresholds[name].scores, scores[rows], p_values[rows])
    return scores, groups


def _checked_groups(calibration: Calibration, groups: Any, n_samples: int) -> Groups:
    if calibration.by is None:
        return None
    if groups is None:
        raise MissingInputError(
            "the detector is calibrated by group, but the assessment has no groups. Pass an "
            "assessment that holds the group of each input."
        )
    names = np.asarray(groups).astype(np.str_)
    if names.shape != (n_samples,):
        raise ShapeError(f"groups must have shape ({n_samples},), got {names.shape}.")
    unknown = sorted(set(np.unique(names).tolist()) - set(calibration.thresholds))
    if unknown:
        raise InputError(
            f"the detector is not calibrated for group {unknown[0]!r}, only for "
            f"{[*calibration.thresholds]}."
        )
    return names


def _check_p_values(reference: Floats, scores: Floats, p_values: Floats) -> None:
    """Raise if the p-values of these scores come from another calibration."""
    below = np.searchsorted(reference, scores, side="right")
    # A NaN would sort last and so have p = 1.
    fits = np.abs(p_values * (len(reference) + 1) - 1 - below) < _CLOSE
    fits &= ~np.isnan(scores)
    if not fits.all():
        p = float(p_values[~fits][0])
        raise InputError(
            f"a p-value of {p:g} does not match its score and these {len(reference):,} calibration "
            "scores. Was the assessment made by another detector, or were its numbers rounded?"
        )
