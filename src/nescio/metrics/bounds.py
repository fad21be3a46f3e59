"""Bounds of the measures if scores are counted in cells: no order of the scores gives more or less.

Two scores of different cells are in a known order, and so are two of the same cell if the ID scores
of that cell are all above, or all below, its OOD scores. Otherwise the order is not known. The
bounds are the measures for the most and for the least favourable order in every such cell.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nescio.metrics.cells import Cells
from nescio.metrics.ranking import Flags, Ranking, Values

_AREAS_OF_PRECISION = ("aupr", "aupr_at_ratio", "aupr_ood_positive")


class Bounds(NamedTuple):
    """The smallest and the largest value that each measure may have, by name."""

    low: dict[str, float]
    high: dict[str, float]


class _Places(NamedTuple):
    """Where the scores of each cell are on a line on which only the order counts."""

    id: Values
    ood: Values


def common_cells(id_: Cells, ood: Cells) -> tuple[Cells, Cells]:
    """Return both with cells of the same width."""
    bits = min(id_.bits, ood.bits)
    found = (replace(one, bits=bits).united() for one in (id_, ood))
    return next(found), next(found)


def tied_cells(id_: Cells, ood: Cells) -> tuple[Ranking, dict[str, Values]]:
    """Return the ranking of cells and their weights, with all scores of a cell tied."""
    ranking = _ranking(_Places(_floats(id_.numbers()), _floats(ood.numbers())))
    return ranking, _weights(id_, ood)


def measure_bounds(id_: Cells, ood: Cells, tpr: float, id_to_ood: float) -> Bounds:
    """Return the bounds of all measures for scores that were counted in cells of the same width."""
    weights = _weights(id_, ood)
    best, worst = _extreme_orders(id_, ood)
    # All ID scores of a cell count as one tie, with the precision at its lowest.
    most = _ranking(best).measures(tpr, id_to_ood, **weights)
    least = _ranking(worst).measures(tpr, id_to_ood, **weights)
    # If they differ, the precision at the i-th of a cell is concave in i: the mean is at least that
    # of the first and the last.
    apart = _floats(id_.low < id_.high), _floats(ood.low < ood.high)
    first = _ranking(worst, apart).measures(tpr, id_to_ood, **weights)
    for name in _AREAS_OF_PRECISION:
        least[name] = (least[name] + first[name]) / 2
    for name in ("fpr", "fpr_ood_positive"):  # lower is better
        most[name], least[name] = least[name], most[name]
    return Bounds(least, most)


def _floats(array: NDArray[Any]) -> Values:
    return array.astype(np.float64)


def _weights(id_: Cells, ood: Cells) -> dict[str, Values]:
    return {"id_weights": _floats(id_.counts), "ood_weights": _floats(ood.counts)}


def _ranking(places: _Places, behind: tuple[Values, Values] | None = None) -> Ranking:
    """Return the ranking; the share of each cell that is behind the score that counts is 0 or 1."""
    behind = behind or (np.zeros(len(places.id)), np.zeros(len(places.ood)))
    return Ranking.from_sorted(*places, id_behind=behind[0], ood_behind=behind[1])


def _extreme_orders(id_: Cells, ood: Cells) -> tuple[_Places, _Places]:
    """Return places with the ID scores above the OOD scores wherever that may be, and below."""
    at_id, at_ood = id_.numbers(), ood.numbers()
    _, of_id, of_ood = np.intersect1d(at_id, at_ood, assume_unique=True, return_indices=True)
    lows, highs = (id_.low[of_id], ood.low[of_ood]), (id_.high[of_id], ood.high[of_ood])
    id_above: Flags = lows[0] > highs[1]
    ood_above: Flags = lows[1] > highs[0]
    tied = (lows[0] == highs[0]) & (lows[1] == highs[1]) & (lows[0] == lows[1])
    unknown = ~(id_above | ood_above | tied)
    found = []
    for id_up, ood_up in ((id_above | unknown, ood_above), (id_above, ood_above | unknown)):
        # Two places for each cell: scores of the upper one are above those of the lower one.
        places = _Places(_floats(2 * at_id), _floats(2 * at_ood))
        places.id[of_id[id_up]] += 1
        places.ood[of_ood[ood_up]] += 1
        found.append(places)
    return found[0], found[1]
