"""Verdicts and extraction on clusters.

`Verdicts` adds verdicts to batches of a table, for Ray Data, Spark or a plain loop; it does not
need Ray. `ray_engine` runs an extraction on a Ray cluster.
"""

from __future__ import annotations

from nescio.ray.extraction import ray_engine
from nescio.ray.verdicts import Verdicts

__all__ = ["Verdicts", "ray_engine"]
