"""Calibration: thresholds, p-values, guarantees, groups, and what the calibration data was like."""

from __future__ import annotations

from nescio.calibration.calibration import (
    ALL,
    CUSTOM,
    LABEL_COUNT,
    MIN_GROUP_SIZE,
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
    "ALL",
    "CUSTOM",
    "LABEL_COUNT",
    "MIN_GROUP_SIZE",
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
