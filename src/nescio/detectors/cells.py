"""An index of plain arrays: samples of length 1, divided into cells around centres."""

from __future__ import annotations

import numpy as np

from nescio._validation import FloatArray
from nescio.detectors.features import product, row_blocks, unit_rows
from nescio.detectors.nearest import Cells, Indices

_SAMPLES_PER_CELL = 40  # to find the centres; more of them improve little
_STEPS = 10


def find_centers(features: FloatArray, rows: Indices, n_cells: int) -> FloatArray:
    """Return centres of length 1: spherical k-means on a random part of these rows."""
    rng = np.random.default_rng(0)
    n_seen = min(len(rows), _SAMPLES_PER_CELL * n_cells)
    seen = unit_rows(features[np.sort(rng.choice(rows, n_seen, replace=False))])
    centers: FloatArray = seen[np.sort(rng.choice(n_seen, n_cells, replace=False))].copy()
    for _ in range(_STEPS):
        cell = cells_of(seen, np.arange(n_seen), centers)
        order = np.argsort(cell, kind="stable")
        present, first = np.unique(cell[order], return_index=True)
        # A cell without samples keeps its centre.
        centers[present] = unit_rows(np.add.reduceat(seen[order], first, axis=0))
    return centers


def cells_of(features: FloatArray, rows: Indices, centers: FloatArray) -> Indices:
    """Return the cell of each of these rows: that of the nearest centre."""
    found = np.empty(len(rows), np.int64)
    for block in row_blocks(len(rows), max(centers.shape)):
        unit = unit_rows(features, rows[block])
        found[block] = (unit.astype(centers.dtype, copy=False) @ centers.T).argmax(1)
    return found


def nearest_rows(features: FloatArray, rows: Indices, centers: FloatArray) -> Indices:
    """Return which of these rows is the nearest to each centre."""
    best = np.full(len(centers), -np.inf, centers.dtype)
    found = np.zeros(len(centers), np.int64)
    for block in row_blocks(len(rows), max(centers.shape)):
        near = unit_rows(features, rows[block]).astype(centers.dtype, copy=False) @ centers.T
        at = near.argmax(0)
        value = near[at, np.arange(len(centers))]
        found = np.where(value > best, at + block.start, found)
        best = np.maximum(value, best)
    return found


def starts_of(cell: Indices, n_cells: int) -> Indices:
    """Return where each cell starts if samples are ordered by cell, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(np.bincount(cell, minlength=n_cells))])


def probed(unit: FloatArray, centers: FloatArray, starts: Indices, n_probes: int) -> Cells:
    """Return the cells whose centres are nearest to each row."""
    near = product(unit.astype(centers.dtype, copy=False), centers.T)  # (n_rows, n_cells)
    first = len(centers) - n_probes
    return Cells(starts, np.argpartition(near, first, axis=1)[:, first:])
