"""Calibration: thresholds, p-values, guarantees and groups."""

from __future__ import annotations

from nescio.calibration.calibration import (
    CUSTOM,
    LABEL_COUNT,
    MIN_GROUP_SIZE,
    Calibration,
    Firing,
    benjamini_hochberg,
    checked_groups,
)
from nescio.calibration.thresholds import (
    TIE_TOLERANCE,
    Scores,
    Threshold,
    checked_scores,
    conformal_rank,
    empirical_threshold,
    required_samples,
    tie_limits,
)

__all__ = [
    "CUSTOM",
    "LABEL_COUNT",
    "MIN_GROUP_SIZE",
    "TIE_TOLERANCE",
    "Calibration",
    "Firing",
    "Scores",
    "Threshold",
    "benjamini_hochberg",
    "checked_groups",
    "checked_scores",
    "conformal_rank",
    "empirical_threshold",
    "required_samples",
    "tie_limits",
]
