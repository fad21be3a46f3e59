"""Verdicts and extraction on clusters.

`Verdicts` adds verdicts to batches of a table, for Ray Data, Spark or a plain loop; it does not
need Ray. `ray_engine` runs an extraction on a Ray cluster, and `ray_scoring` scores large files
there.
"""

from __future__ import annotations

from nescio.ray.extraction import ray_engine
from nescio.ray.scoring import ray_scoring
from nescio.ray.verdicts import Verdicts

__all__ = ["Verdicts", "ray_engine", "ray_scoring"]
