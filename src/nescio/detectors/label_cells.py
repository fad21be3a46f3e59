"""Divide the labels of a head into cells of similar weights, so that a search can leave most out.

k-means on two levels: groups, and cells within each group. A label then goes to the nearest cell
of its own group and of the groups next to it. One level alone would compare every label with every
cell.
"""

from __future__ import annotations

import numpy as np

from nescio._threads import in_threads
from nescio._validation import FloatArray
from nescio.detectors.neighbours import Indices

# With c * sqrt(n_labels) cells, the work per sample grows with sqrt(n_labels). Fewer cells cost
# recall. It was chosen on the made-up labels in topics of benchmarks/speed/labels.py, which prints
# the recall; no trained head of this size was at hand.
_CELLS_PER_ROOT = 8
_FEWEST_LABELS = 16  # per cell, on average
_CELLS_PER_GROUP = 16
_GROUPS_NEXT_TO_IT = 8
_ROUNDS = 8
_LEARNED_PER_CENTER = 64
_ROWS_AT_ONCE = 16_384
_MOST_THREADS = 8
_LARGEST_CELL = 2  # times the average: a sample that visits a cell reads all of it


def divide(weight: FloatArray) -> tuple[Indices, Indices]:
    """Return the labels in the order of their cells, and where each cell starts and the last ends.

    The same weights always give the same cells.
    """
    n_labels = len(weight)
    n_cells = int(min(_CELLS_PER_ROOT * np.sqrt(n_labels), n_labels / _FEWEST_LABELS))
    if n_cells < 2:
        return np.arange(n_labels), np.array([0, n_labels])
    groups = _centers(weight, max(1, n_cells // _CELLS_PER_GROUP), seed=0)
    group_of = _nearest(weight, groups)
    groups = groups[np.unique(group_of)]
    members = _members(group_of)
    cells = [groups] * len(groups)

    def divide_group(at: int) -> None:
        share = len(members[at]) / n_labels
        cells[at] = _centers(weight[members[at]], max(1, round(share * n_cells)), seed=at)

    in_threads(divide_group, range(len(groups)), _MOST_THREADS, small=True)
    cell_of = _nearest_cells(weight, groups, members, cells)
    sizes = np.bincount(cell_of)
    return np.argsort(cell_of, kind="stable"), _starts(sizes, _LARGEST_CELL * n_labels // n_cells)


def _centers(rows: FloatArray, n_centers: int, seed: int) -> FloatArray:
    """Return the centres of k-means, learned from some of the rows; all of them are distinct."""
    rng = np.random.default_rng(seed)
    if len(rows) > n_centers * _LEARNED_PER_CENTER:
        rows = rows[np.sort(rng.choice(len(rows), n_centers * _LEARNED_PER_CENTER, replace=False))]
    centers: FloatArray = rows[rng.choice(len(rows), min(n_centers, len(rows)), replace=False)]
    for _ in range(_ROUNDS):
        found = _nearest(rows, centers)
        sizes = np.bincount(found, minlength=len(centers))
        used = np.flatnonzero(sizes)  # of equal rows, only the first centre is used
        starts = (np.cumsum(sizes) - sizes)[used]
        sums = np.add.reduceat(rows[np.argsort(found, kind="stable")], starts, axis=0)
        centers = sums / sizes[used, None].astype(rows.dtype)
    return centers


def _nearest(rows: FloatArray, centers: FloatArray) -> Indices:
    """Return the nearest centre of each row, by the Euclidean distance."""
    half_squares = 0.5 * np.einsum("ij,ij->i", centers, centers)
    found = np.empty(len(rows), np.int64)
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        products = rows[part] @ centers.T  # (n_rows, n_centers)
        products -= half_squares
        found[part] = products.argmax(1)
    return found


def _members(group_of: Indices) -> list[Indices]:
    """Return the rows of each group that has any."""
    sizes = np.bincount(group_of)
    return np.split(np.argsort(group_of, kind="stable"), np.cumsum(sizes[sizes > 0])[:-1])


def _nearest_cells(
    weight: FloatArray, groups: FloatArray, members: list[Indices], cells: list[FloatArray]
) -> Indices:
    """Return the nearest cell of each label, of its own group and of those next to it."""
    first = np.cumsum([0, *map(len, cells)])
    cell_of = np.empty(len(weight), np.int64)
    closeness = groups @ groups.T - 0.5 * np.einsum("ij,ij->i", groups, groups)

    def find(at: int) -> None:
        near = np.argsort(-closeness[at])[:_GROUPS_NEXT_TO_IT]
        numbers = np.concatenate([np.arange(first[i], first[i + 1]) for i in near])
        centers = np.concatenate([cells[i] for i in near])
        cell_of[members[at]] = numbers[_nearest(weight[members[at]], centers)]

    in_threads(find, range(len(groups)), _MOST_THREADS, small=True)
    return cell_of


def _starts(sizes: Indices, largest: int) -> Indices:
    """Return where cells start, without empty ones; a cell that is too large is divided."""
    sizes = sizes[sizes > 0]
    n_parts = -(-sizes // largest)
    within = np.arange(n_parts.sum()) - np.repeat(np.cumsum(n_parts) - n_parts, n_parts)
    sizes, first = np.repeat(sizes, n_parts), np.repeat(np.cumsum(sizes) - sizes, n_parts)
    starts = first + sizes * within // np.repeat(n_parts, n_parts)
    return np.append(starts, first[-1] + sizes[-1])
