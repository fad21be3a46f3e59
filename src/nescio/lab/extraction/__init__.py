"""Run a network on the images of a data set and keep its outputs."""

from __future__ import annotations

from nescio.lab.extraction.extract import Extraction, extract

__all__ = ["Extraction", "extract"]
