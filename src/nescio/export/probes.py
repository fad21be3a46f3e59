"""Rows that test a detector's graph where rounding and infinities matter most."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nescio._validation import Array
from nescio.detectors import Detector

__all__ = ["probes_of"]

_N_ROWS = 24
_SCALES = (0.1, 1.0, 3.0, 10.0)
_LEVELS = (0.0, -30.0, 60.0, 1e4, -1e4)  # of all labels at once


def probes_of(detector: Detector, shapes: Mapping[str, tuple[int, Any]]) -> dict[str, Array]:
    """Return rows for each of logits and features, equally many of both.

    Parameters
    ----------
    detector : Detector
    shapes : mapping of str to (number of columns, dtype)
    """
    rng = np.random.default_rng(0)
    probes = {}
    for name, (n_columns, dtype) in shapes.items():
        scales = np.resize(_SCALES, _N_ROWS)[:, None]
        noise = rng.normal(size=(_N_ROWS, n_columns)) * scales
        center = getattr(detector, "center_", 0.0) if name == "features" else 0.0
        levels = np.repeat(np.array(_LEVELS)[:, None], n_columns, axis=1)
        bad = np.zeros((4, n_columns))
        bad[[0, 1, 2], 0] = np.nan, np.inf, -np.inf
        bad[3] = -np.inf
        probes[name] = np.concatenate([center + noise, levels, bad]).astype(dtype)
    return probes
