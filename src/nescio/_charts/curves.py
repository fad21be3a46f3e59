"""The numbers behind the charts: ROC curves, densities and shares kept. Scores of -inf count."""

from __future__ import annotations

import math

import numpy as np

from nescio._charts.svg import Values

_BINS = 600
_TAIL = 0.003  # the share of each set that may lie outside the chart, on each side


def roc(id_scores: Values, ood_scores: Values, n_points: int = 160) -> tuple[Values, Values]:
    """Return (FPR, TPR) with ID as the positive class, at evenly spaced points of the curve."""
    id_, ood = np.sort(id_scores), np.sort(ood_scores)
    thresholds = np.unique(np.concatenate([id_, ood]))[::-1]
    fpr = np.concatenate([[0.0], share_kept(ood, thresholds)])
    tpr = np.concatenate([[0.0], share_kept(id_, thresholds)])
    along = fpr + tpr  # from 0 to 2, never falling
    picked = np.searchsorted(along, np.linspace(0, 2, n_points))
    picked = np.unique(np.append(np.minimum(picked, len(along) - 1), [0, len(along) - 1]))
    return fpr[picked], tpr[picked]


def share_kept(ordered: Values, thresholds: Values) -> Values:
    """Return the share of ascending scores at or above each threshold."""
    below: Values = np.searchsorted(ordered, thresholds, side="left") / len(ordered)
    return 1.0 - below


def visible_range(*sets: Values) -> tuple[float, float] | None:
    """Return the ends of an axis that shows nearly all of each set; None without finite scores."""
    ends = []
    for values in sets:
        finite = values[np.isfinite(values)]
        if len(finite):
            ends.append(np.quantile(finite, [_TAIL, 1 - _TAIL]))
    if not ends:
        return None
    low, high = float(np.min(ends)), float(np.max(ends))
    if not math.isfinite(high - low):  # scores near the largest float
        return None
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-300):
        margin = abs(low) / 10 or 1.0
    else:
        margin = 0.02 * (high - low)
    return low - margin, high + margin


def density(values: Values, low: float, high: float, n_points: int = 128) -> tuple[Values, Values]:
    """Return a smoothed histogram within [low, high], scaled as a density of all finite values."""
    finite = values[np.isfinite(values)]
    grid = np.linspace(low, high, n_points)
    # Values just outside are counted too, so that the curve does not fall at the edge.
    margin = (high - low) / 4
    near = finite[(finite >= low - margin) & (finite <= high + margin)]
    if not len(near):
        return grid, np.zeros(n_points)
    from scipy.ndimage import gaussian_filter1d

    counts, edges = np.histogram(near, bins=_BINS, range=(low - margin, high + margin))
    step = float(edges[1] - edges[0])
    # The smoothing is at least as wide as one step of the grid.
    width = max(_bandwidth(near), float(grid[1] - grid[0])) / step
    smooth = gaussian_filter1d(counts / (len(finite) * step), width, mode="constant")
    heights: Values = np.interp(grid, (edges[:-1] + edges[1:]) / 2, smooth)
    return grid, heights


def _bandwidth(values: Values) -> float:
    """Return the bandwidth of Silverman's rule, with a spread that is robust to outliers."""
    low, high = np.quantile(values, [0.25, 0.75])
    spread = min(float(np.std(values)), float(high - low) / 1.34) or float(np.std(values))
    return float(0.9 * spread * len(values) ** -0.2)
