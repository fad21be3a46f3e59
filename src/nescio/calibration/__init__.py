"""Calibration: thresholds, p-values, guarantees, groups, and what the calibration data was like."""

from __future__ import annotations

from nescio.calibration.calibration import (
    CUSTOM,
    LABEL_COUNT,
    TIE_TOLERANCE,
    TOP_LABEL,
    Calibration,
    Scores,
    Threshold,
    benjamini_hochberg,
    conformal_rank,
    required_samples,
)
from nescio.calibration.medians import Medians

__all__ = [
    "CUSTOM",
    "LABEL_COUNT",
    "TIE_TOLERANCE",
    "TOP_LABEL",
    "Calibration",
    "Medians",
    "Scores",
    "Threshold",
    "benjamini_hochberg",
    "conformal_rank",
    "required_samples",
]
