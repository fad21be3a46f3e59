"""Bootstrap intervals of the measures: bias-corrected and accelerated (BCa; Efron, 1987).

The method was chosen by the coverage that `benchmarks/detection/intervals.py` measures.

A resample of n samples takes time and memory for n draws, a thousand times. So resamples of more
than a million samples are drawn by bin: the areas (AUROC, AUPR) hardly depend on the order within a
few thousand bins, and a resample of the counts in the bins is a multinomial draw. The FPR depends
on one quantile and one share, whose bootstrap distributions are a Beta and a binomial distribution.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from nescio._threads import available_cpus
from nescio.metrics.ranking import Indices, Ranking, Values

_NORMAL = NormalDist()
_DRAWN_ONE_BY_ONE = 1_000_000  # samples; a thousand resamples of more take minutes
_N_BINS = 4096
_AT_ONCE = 64  # resamples


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
) -> dict[str, tuple[float, float]]:
    """Return the interval of each measure; of more than a million samples, by bin."""
    if ranking.n_id + ranking.n_ood <= _DRAWN_ONE_BY_ONE:
        samples = resample(ranking, tpr, id_to_ood, n_bootstrap, rng)
        return {name: interval(samples[name], values[name], confidence) for name in values}
    binned = resample_bins(ranking, tpr, id_to_ood, n_bootstrap, rng)
    ends = {}
    for name, value in values.items():
        low, high = interval(binned.samples[name], binned.values[name], confidence)
        move = value - binned.values[name]
        ends[name] = max(low + move, 0.0), min(high + move, 1.0)
    return ends


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


class BinnedResamples(NamedTuple):
    """The measures of the binned data, and of each resample, by name.

    The measures differ a little if computed from bins. So an interval has to be moved from
    `values` to the values of the data.
    """

    values: dict[str, float]
    samples: dict[str, Values]


def resample_bins(
    ranking: Ranking, tpr: float, id_to_ood: float, n_bootstrap: int, rng: np.random.Generator
) -> BinnedResamples:
    """Compute each measure for every resample, drawn by bin."""
    bins = _bins(ranking)
    values = {name: float(column[0]) for name, column in _areas(*bins, id_to_ood).items()}
    parts = []
    for start in range(0, n_bootstrap, _AT_ONCE):
        n_rows = min(_AT_ONCE, n_bootstrap - start)
        id_, ood = (
            rng.multinomial(n, counts[0] / n, size=n_rows).astype(np.float64)
            for n, counts in zip((ranking.n_id, ranking.n_ood), bins, strict=True)
        )
        parts.append(_areas(id_, ood, id_to_ood))
    samples = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    exact = ranking.measures(tpr, id_to_ood)
    for name, fprs in _resampled_fprs(ranking, tpr, n_bootstrap, rng).items():
        values[name], samples[name] = exact[name], fprs
    return BinnedResamples(values, samples)


def _bins(ranking: Ranking) -> tuple[Values, Values]:
    """Return how many ID and OOD samples are in each bin, as matrices with one row.

    A tie is in a single bin. Otherwise bins end where `_scale` of the ID scores and that of the OOD
    scores add up to equal steps.
    """
    n, m, first, last = ranking.n_id, ranking.n_ood, ranking.id_first, ranking.ood_last
    id_ends = np.arange(1, n + 1) if first is None else np.searchsorted(first, first, "right")
    ood_ends = np.arange(1, m + 1) if last is None else last + 1
    sides = []
    for up_to_id, up_to_ood in ((id_ends, ranking.ood_up_to), (ranking.id_up_to, ood_ends)):
        place = (_scale(up_to_id, n) + _scale(up_to_ood, m)) / 2
        bins = np.clip(np.ceil(place * _N_BINS).astype(np.intp) - 1, 0, _N_BINS - 1)
        sides.append(np.bincount(bins, minlength=_N_BINS).astype(np.float64)[None, :])
    return sides[0], sides[1]


def _scale(up_to: Indices, n: int) -> Values:
    """Return a place from 0 to 1 for the end of each tie, from the number of scores up to there.

    Half of it is the share of the scores, half is on a logarithmic scale from both ends: average
    precision depends on the first few scores of a side.
    """
    logarithmic = (np.log1p(up_to) - np.log1p(n - up_to)) / (2 * math.log1p(n)) + 0.5
    return np.asarray((up_to / n + logarithmic) / 2)


def _areas(id_: Values, ood: Values, id_to_ood: float) -> dict[str, Values]:
    """Return the areas of each row of counts: the samples of a bin are spread evenly over it."""
    n, m = id_.sum(1), ood.sum(1)
    below_id, below_ood = np.cumsum(id_, 1) - id_ / 2, np.cumsum(ood, 1) - ood / 2
    kept_id, kept_ood = n[:, None] - below_id, m[:, None] - below_ood
    ratio = n / (m * id_to_ood)
    return {
        "auroc": (id_ * below_ood).sum(1) / (n * m),
        "aupr": _mean_precisions(id_, kept_id, kept_ood),
        "aupr_at_ratio": _mean_precisions(id_, kept_id, kept_ood * ratio[:, None]),
        "aupr_ood_positive": _mean_precisions(ood, below_ood, below_id),
    }


def _mean_precisions(counts: Values, true: Values, false: Values) -> Values:
    total = true + false
    precisions = np.divide(true, total, out=np.zeros_like(true), where=total > 0)
    return np.asarray((counts * precisions).sum(1) / counts.sum(1))


def _resampled_fprs(
    ranking: Ranking, tpr: float, n_bootstrap: int, rng: np.random.Generator
) -> dict[str, Values]:
    """Draw both FPRs as the bootstrap has them.

    The threshold of a resample is a score of the data. In a resample of n samples, the number of
    those up to the j-th smallest of the data is binomial with share j / n. So the j of the k-th
    smallest of the resample is n times a Beta variable, rounded up. The share of the other side
    that is beyond this score is resampled independently.
    """
    n, m = ranking.n_id, ranking.n_ood
    kth = math.floor(n * (1 - tpr) + 1e-9) + 1
    kth_ood = m - math.floor(m * (1 - tpr) + 1e-9)

    def thresholds(size: int, k: int) -> Indices:
        places = np.ceil(size * rng.beta(k, size + 1 - k, n_bootstrap))
        return np.maximum(places, 1).astype(np.intp) - 1

    kept = 1 - ranking.ood_below[thresholds(n, kth)] / m
    flagged = ranking.id_up_to[thresholds(m, kth_ood)] / n
    return {
        "fpr": rng.binomial(m, kept) / m,
        "fpr_ood_positive": rng.binomial(n, flagged) / n,
    }
