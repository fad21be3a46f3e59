"""What a stream is compared with: the calibration of a detector."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nescio.errors import InputError, MissingInputError, ShapeError

if TYPE_CHECKING:
    from nescio.calibration import Calibration, Firing, Threshold
    from nescio.detectors import Detector
    from nescio.detectors.assessment import Assessment

Floats = NDArray[np.float64]
Codes = NDArray[np.intp]

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


def checked_assessment(calibration: Calibration, assessment: Assessment) -> tuple[Floats, Codes]:
    """Return the scores of an assessment and the number of the threshold that each belongs to.

    Raise if the calibration does not fit.
    """
    scores = np.asarray(assessment.scores, np.float64)
    p_values = np.asarray(assessment.p_values, np.float64)
    if p_values.ndim != 1 or scores.shape != p_values.shape:
        raise ShapeError(
            "scores and p_values must have the same shape (n_samples,), got "
            f"{scores.shape} and {p_values.shape}."
        )
    codes = _checked_codes(calibration, assessment.groups, len(scores))
    for code, threshold in enumerate(calibration.thresholds.values()):
        rows = codes == code
        _check_p_values(threshold, scores[rows], p_values[rows])
    return scores, codes


def _checked_codes(calibration: Calibration, groups: Any, n_samples: int) -> Codes:
    codes = np.zeros(n_samples, np.intp)
    if calibration.by is None:
        return codes
    if groups is None:
        raise MissingInputError(
            "the detector is calibrated by group, but the assessment has no groups. Pass an "
            "assessment that holds the group of each input."
        )
    names = np.asarray(groups).astype(np.str_)
    if names.shape != (n_samples,):
        raise ShapeError(f"groups must have shape ({n_samples},), got {names.shape}.")
    known = [*calibration.thresholds]
    unknown = sorted(set(names.tolist()) - set(known))
    if unknown:
        raise InputError(
            f"the detector is not calibrated for group {unknown[0]!r}, only for {known}."
        )
    for code, name in enumerate(known):
        codes[names == name] = code
    return codes


def _check_p_values(threshold: Threshold, scores: Floats, p_values: Floats) -> None:
    """Raise if the p-values of these scores come from another calibration."""
    n = threshold.n_samples
    # A NaN would sort last and so have p = 1.
    fits = np.abs(p_values - threshold.p_values(scores)) * (n + 1) < _CLOSE
    fits &= ~np.isnan(scores)
    if not fits.all():
        p = float(p_values[~fits][0])
        raise InputError(
            f"a p-value of {p:g} does not match its score and these {n:,} calibration "
            "scores. Was the assessment made by another detector, or were its numbers rounded?"
        )
