"""Verdicts on batches of a table, for Ray Data, Spark or a plain loop."""

from __future__ import annotations


class Verdicts:
    """Adds verdicts to batches of a table."""
