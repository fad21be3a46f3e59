"""Find the largest logits of a head without forming all of them, and bound what is left out.

A search visits the cells of a `LabelIndex` that promise most. If it goes on until no other cell can
reach the k-th logit, it is exact.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nescio._threads import available_cpus, in_threads
from nescio._validation import Array, FloatArray
from nescio.detectors.features import product, row_blocks
from nescio.detectors.label_index import LabelIndex, Values
from nescio.detectors.neighbours import Indices, largest
from nescio.scores.tail import largest_mean_energy

EXACT = 0
"""The number of probes that stands for as many as an exact result needs."""

_FIRST_PROBES = 16  # of an exact search, to have a k-th logit to compare with
# The best label of a cell is usually above its centre by so many of |features| * radius / sqrt(D).
# This only orders the cells: with 0, recall falls from 0.82 to 0.78 where cells differ in size.
_USUAL_REACH = 2.0
_FEWEST_ROWS = 64  # per thread: rows that visit the same cell share the reading of its weights
_MOST_THREADS = 8  # each has its own blocks in memory
_LABELS_PER_FOUND = 4  # a search visits at least so many labels per label that it is to find
_MOST_CANDIDATES = 4  # times k, before those that are no longer among the k largest are dropped


class Found(NamedTuple):
    """The largest logits of each sample that a search has found.

    Attributes
    ----------
    logits : array of shape (n_samples, k)
        In float64, the largest first; -inf where fewer than k were found.
    places : array of shape (n_samples, k)
        Their places in the index; -1 where fewer than k were found.
    limits : array of shape (n_samples,)
        No other label has a larger logit.
    """

    logits: Values
    places: Indices
    limits: Values


def search(index: LabelIndex, features: FloatArray, k: int, probes: int) -> Found:
    """Find the k largest logits of each sample.

    Parameters
    ----------
    index : LabelIndex
    features : array of shape (n_samples, n_units)
        The input of the head.
    k : int
    probes : int
        How many cells to visit per sample, or `EXACT`.
    """
    k, n_cells = min(k, len(index)), len(index.sizes)
    enough = -(-_LABELS_PER_FOUND * k * n_cells // len(index))
    n_visited = min(n_cells, max(probes or _FIRST_PROBES, enough))
    n_units = features.shape[1]
    width = max(n_cells, n_visited * max(int(index.sizes.max()), n_units), k * n_units)
    n_rows = len(features)
    n_blocks = max(
        len(list(row_blocks(n_rows, width))), min(available_cpus(), n_rows // _FEWEST_ROWS), 1
    )
    found: list[Found | None] = [None] * n_blocks

    def run(block: int) -> None:
        rows = slice(n_rows * block // n_blocks, n_rows * (block + 1) // n_blocks)
        found[block] = _search(index, features[rows], k, n_visited, exact=probes == EXACT)

    index.prepared(features[:1])  # what is computed at first use, before there are threads
    in_threads(run, range(n_blocks), _MOST_THREADS, small=n_rows > 1)
    return Found(*map(np.concatenate, zip(*filter(None, found), strict=True)))


def _search(
    index: LabelIndex, features: FloatArray, k: int, n_visited: int, *, exact: bool
) -> Found:
    rows, lengths, errors = index.prepared(features)
    limits = product(rows, index.centers.T.astype(rows.dtype, copy=False))  # (n_rows, n_cells)
    limits += index.largest_bias
    reach = lengths.astype(rows.dtype)[:, None] * index.radii
    promise = limits + (_USUAL_REACH / np.sqrt(rows.shape[1])) * reach
    limits += reach
    limits += errors[:, None].astype(rows.dtype)
    cells = largest(promise, n_visited)  # (n_rows, n_visited)
    np.put_along_axis(limits, cells, -np.inf, axis=1)  # the limits of the other cells remain
    best = _first(index, rows, cells, k)
    if exact:
        best = _go_on(index, rows, limits, *best)
        limits = np.full((len(rows), 1), -np.inf)
    places = best[1]
    logits = index.logits_at(features, places)
    order = np.argsort(-logits, axis=1, kind="stable")
    logits = np.take_along_axis(logits, order, axis=1)
    places = np.take_along_axis(places, order, axis=1)
    return Found(logits, places, np.maximum(limits.max(1), logits[:, -1] + errors))


def _first(
    index: LabelIndex, rows: FloatArray, cells: Indices, k: int
) -> tuple[FloatArray, Indices]:
    """Return the k largest logits in these cells of each row, and their places."""
    n_rows, n_visited = cells.shape
    size = int(index.sizes.max())
    logits = _by_cell(index, rows, cells).reshape(n_rows, n_visited * size)
    if k > logits.shape[1]:
        logits = np.pad(logits, ((0, 0), (0, k - logits.shape[1])), constant_values=-np.inf)
    at = largest(logits, k)
    found = np.take_along_axis(logits, at, axis=1)
    visited = np.take_along_axis(cells, np.minimum(at // size, n_visited - 1), axis=1)
    return found, np.where(np.isneginf(found), -1, index.starts[visited] + at % size)


def _by_cell(index: LabelIndex, rows: FloatArray, cells: Indices) -> FloatArray:
    """Return the logits in the cells of each row, and -inf where a cell is smaller than others.

    The weights of a cell are read once, for all rows that visit it.
    """
    order = np.argsort(cells, axis=None, kind="stable")
    inputs = rows[order // cells.shape[1]]  # (n_pairs, n_units), by cell
    logits = np.full((cells.size, int(index.sizes.max())), -np.inf, rows.dtype)
    visited, first = np.unique(cells.reshape(-1)[order], return_index=True)
    ends = np.append(first[1:], cells.size)
    bounds = (index.starts[visited], index.starts[visited + 1], first, ends)
    for start, stop, begin, end in zip(*(bound.tolist() for bound in bounds), strict=True):
        out = logits[begin:end, : stop - start]
        np.matmul(inputs[begin:end], index.weight[start:stop].T, out=out)
        out += index.bias[start:stop]
    result = np.empty_like(logits)
    result[order] = logits
    return result


def _logits(index: LabelIndex, rows: FloatArray, labels: slice) -> FloatArray:
    return np.asarray(rows @ index.weight[labels].T + index.bias[labels])


def _go_on(
    index: LabelIndex, rows: FloatArray, limits: FloatArray, logits: FloatArray, places: Indices
) -> tuple[FloatArray, Indices]:
    """Visit every cell that can have one of the k largest logits; return these and their places."""
    most = _MOST_CANDIDATES * logits.size
    new: list[tuple[Array, ...]] = []
    n_new = 0
    lowest = logits.min(1)
    for cell in np.argsort(-limits.max(0), kind="stable").tolist():
        row = np.flatnonzero(limits[:, cell] > lowest)
        if not len(row):
            continue
        first = index.starts[cell]
        found = _logits(index, rows[row], slice(first, index.starts[cell + 1]))
        at, label = np.nonzero(found > lowest[row, None])
        new.append((row[at], found[at, label], first + label))
        n_new += len(at)
        if n_new > most:
            logits, places = _merged(logits, places, new)
            lowest, n_new = logits.min(1), 0
            new.clear()
    return _merged(logits, places, new)


def _merged(
    logits: FloatArray, places: Indices, new: list[tuple[Array, ...]]
) -> tuple[FloatArray, Indices]:
    """Return the k largest of the logits so far and the new ones: (rows, logits, places) each."""
    if not new:
        return logits, places
    n_rows, k = logits.shape
    old = (np.repeat(np.arange(n_rows), k), logits.reshape(-1), places.reshape(-1))
    row, value, place = map(np.concatenate, zip(old, *new, strict=True))
    order = np.lexsort((-value, row))
    sizes = np.bincount(row, minlength=n_rows)  # at least k each
    kept = order[(np.cumsum(sizes) - sizes)[:, None] + np.arange(k)]
    return value[kept], place[kept]


def rest_bound(index: LabelIndex, features: FloatArray, found: Found) -> Values:
    """Return what the energies of all labels that were not found sum up to at most.

    The number of these labels times the largest mean energy that they can have: the mean and the
    variance of their logits are known, and a limit of the largest one.
    """
    known = found.places >= 0
    n_rest = len(index) - known.sum(1)
    n_divisor = np.maximum(n_rest, 1)
    mean, covariance = index.moments
    rows = np.column_stack([features.astype(np.float64), np.ones(len(features))])
    center = rows @ mean
    errors = index.prepared(features)[2]
    squares = np.einsum("ij,ij->i", rows @ covariance, rows)
    # The covariance is a sum of products in the precision of the weights, in parts.
    rounding = 2048 * np.finfo(index.weight.dtype).eps * np.trace(covariance)
    squares += rounding * np.einsum("ij,ij->i", rows, rows)
    away = np.where(known, found.logits - center[:, None], 0.0)
    drop = away.sum(1) / n_divisor
    total = len(index) * squares / n_divisor
    variance = total - np.einsum("ij,ij->i", away, away) / n_divisor - drop**2
    variance = (np.sqrt(np.maximum(variance + 1e-11 * total, 0.0)) + errors) ** 2
    bound = n_rest * largest_mean_energy(center - drop + errors, variance, found.limits)
    return np.where(n_rest > 0, bound, 0.0)
