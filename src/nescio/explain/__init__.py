"""Why an input was flagged: each label's share of its score, against what is usual."""

from __future__ import annotations

from nescio.explain.explanation import (
    ExplainedVerdicts,
    Explanation,
    Medians,
    PartsExplanation,
    Terms,
)
from nescio.explain.reason import LabelTerm, PartReason, Reason

__all__ = [
    "ExplainedVerdicts",
    "Explanation",
    "LabelTerm",
    "Medians",
    "PartReason",
    "PartsExplanation",
    "Reason",
    "Terms",
]
