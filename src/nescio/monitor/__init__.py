"""Monitoring: does the stream still look like the calibration data of the detector?

A monitor looks at a stream of verdicts in three ways: a martingale raises an alarm with a bounded
probability of a false one, a control chart shows the flagged share, and a test finds labels that
fire more or less often than they did in the calibration data.
"""

from __future__ import annotations

from nescio.monitor.martingale import Change, Place
from nescio.monitor.monitor import Monitor
from nescio.monitor.windows import LabelDrift, Window

__all__ = ["Change", "LabelDrift", "Monitor", "Place", "Window"]
