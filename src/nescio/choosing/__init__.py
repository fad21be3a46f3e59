"""Which detector to use, decided on in-distribution data alone."""

from __future__ import annotations

from nescio.choosing.choice import Choice, FoldFacts, Standing, choose

__all__ = ["Choice", "FoldFacts", "Standing", "choose"]
