"""Monitoring: does the stream still look like the calibration data of the detector?

A monitor looks at a stream of verdicts in two ways: a martingale raises an alarm with a bounded
probability of a false one, and a control chart shows the flagged share.
"""

from __future__ import annotations

from nescio.monitor.martingale import Change, Place
from nescio.monitor.monitor import Monitor
from nescio.monitor.report import draw_monitor
from nescio.monitor.windows import Window

__all__ = ["Change", "Monitor", "Place", "Window", "draw_monitor"]
