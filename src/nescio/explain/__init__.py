"""Why an input was flagged: each label's share of its score, against what is usual."""

from __future__ import annotations

from nescio.explain.explanation import (
    Explanation,
    LabelTerm,
    PartReason,
    PartsExplanation,
    PartsReason,
    Reason,
    cells,
)
from nescio.explain.terms import Medians, Terms, checked_terms, terms_of

__all__ = [
    "Explanation",
    "LabelTerm",
    "Medians",
    "PartReason",
    "PartsExplanation",
    "PartsReason",
    "Reason",
    "Terms",
    "cells",
    "checked_terms",
    "terms_of",
]
