"""Figures on matplotlib, in scikit-learn's manner: `from_*` draws, `plot(ax=...)` draws again.

They need the extra `plot`. matplotlib is imported when the first figure is drawn. A display takes
arrays, or the results that have them.
"""

from __future__ import annotations

from nescio.displays.explanation import ExplanationDisplay
from nescio.displays.monitor import MonitorDisplay
from nescio.displays.roc import RocDisplay
from nescio.displays.scores import ScoreHistogramDisplay

__all__ = ["ExplanationDisplay", "MonitorDisplay", "RocDisplay", "ScoreHistogramDisplay"]
