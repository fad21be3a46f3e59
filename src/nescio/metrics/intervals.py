"""Bootstrap intervals of the measures: bias-corrected and accelerated (BCa; Efron, 1987).

The method was chosen by the coverage that `benchmarks/intervals.py` measures.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from statistics import NormalDist

import numpy as np

from nescio._threads import available_cpus
from nescio.metrics.binned import resample_bins
from nescio.metrics.ranking import Ranking, Values

_NORMAL = NormalDist()
_DRAWN_ONE_BY_ONE = 1_000_000  # samples; a thousand resamples of more take minutes


def resample(
    ranking: Ranking, tpr: float, id_to_ood: float, n_bootstrap: int, rng: np.random.Generator
) -> dict[str, Values]:
    """Compute each measure for every resample.

    A resample is represented by how often each sample was drawn, so nothing is sorted again. Each
    resample has its own random stream, so the result does not depend on the number of threads.
    """

    def measure(stream: np.random.Generator) -> dict[str, float]:
        draws = [
            np.bincount(stream.integers(0, n, n), minlength=n).astype(np.float64)
            for n in (ranking.n_id, ranking.n_ood)
        ]
        return ranking.measures(tpr, id_to_ood, id_weights=draws[0], ood_weights=draws[1])

    with ThreadPoolExecutor(available_cpus()) as pool:
        results = list(pool.map(measure, rng.spawn(n_bootstrap)))
    return {name: np.array([result[name] for result in results]) for name in results[0]}


def intervals(
    ranking: Ranking,
    values: Mapping[str, float],
    tpr: float,
    id_to_ood: float,
    n_bootstrap: int,
    confidence: float,
    rng: np.random.Generator,
    weights: Mapping[str, Values],
) -> dict[str, tuple[float, float]]:
    """Return the interval of each measure.

    With more than a million samples, or with weights (scores that stand for several samples), the
    resamples are drawn by bin.
    """
    if not weights and ranking.n_id + ranking.n_ood <= _DRAWN_ONE_BY_ONE:
        samples = resample(ranking, tpr, id_to_ood, n_bootstrap, rng)
        return {name: interval(samples[name], values[name], confidence) for name in values}
    found = resample_bins(ranking, tpr, id_to_ood, n_bootstrap, rng, **weights)
    result = {}
    for name, value in values.items():
        low, high = interval(found.samples[name], found.values[name], confidence)
        move = value - found.values[name]
        result[name] = max(low + move, 0.0), min(high + move, 1.0)
    return result


def interval(samples: Values, value: float, confidence: float) -> tuple[float, float]:
    """Return the interval of a measure from its value and its values in resamples.

    The interval is widened to contain the value, if it does not.
    """
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    low, high = np.quantile(samples, bca_levels(samples, value, tails)).tolist()
    return min(low, value), max(high, value)


def bca_levels(samples: Values, value: float, tails: list[float]) -> list[float]:
    """Return the shares of resamples at which a BCa interval ends.

    The bias is measured by the share of resamples below the value. The acceleration is a sixth of
    the skewness of the resamples: a jackknife would need one more evaluation per sample.
    """
    n = len(samples)
    below = (np.count_nonzero(samples < value) + np.count_nonzero(samples <= value)) / (2 * n)
    bias = _NORMAL.inv_cdf(min(max(below, 0.5 / n), 1 - 0.5 / n))
    spread = float(np.std(samples))
    skewness = float(np.mean(((samples - np.mean(samples)) / spread) ** 3)) if spread > 0 else 0.0
    levels = []
    for tail in tails:
        shifted = bias + _NORMAL.inv_cdf(tail)
        stretched = 1 - skewness / 6 * shifted
        # The formula has a pole: from there on, the interval ends at the last resample.
        end = bias + shifted / stretched if stretched > 0 else shifted * np.inf
        levels.append(_NORMAL.cdf(end))
    return levels
