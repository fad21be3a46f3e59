"""Why an input was flagged: each label's share of its score, against what is usual."""

from __future__ import annotations

from nescio.explain.explanation import (
    ExplainedVerdicts,
    Explanation,
    LabelTerm,
    PartReason,
    PartsExplanation,
    Reason,
)
from nescio.explain.terms import Medians, Terms, checked_terms, terms_of

__all__ = [
    "ExplainedVerdicts",
    "Explanation",
    "LabelTerm",
    "Medians",
    "PartReason",
    "PartsExplanation",
    "Reason",
    "Terms",
    "checked_terms",
    "terms_of",
]
