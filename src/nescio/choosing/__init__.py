"""Which detector to use, decided on in-distribution data alone."""

from __future__ import annotations

from nescio.choosing.choice import Choice, FoldFacts
from nescio.choosing.selection import choose
from nescio.choosing.standings import Standing

__all__ = ["Choice", "FoldFacts", "Standing", "choose"]
