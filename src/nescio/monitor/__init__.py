"""Is the stream still the one that the detector was calibrated on?

Three looks at a stream of verdicts: a martingale that raises an alarm with a bounded probability of
a false one, a control chart of the flagged share, and a test of how often each label fires.
"""

from __future__ import annotations

from nescio.monitor.chart import Window
from nescio.monitor.labels import LabelDrift
from nescio.monitor.report import MonitorReport
from nescio.monitor.stream import Monitor

__all__ = ["LabelDrift", "Monitor", "MonitorReport", "Window"]
