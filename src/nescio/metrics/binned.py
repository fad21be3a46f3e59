"""Resamples of very many scores: drawn by bin, and not sample by sample.

A resample of n samples takes time and memory for n draws, a thousand times. But the areas (AUROC,
AUPR) hardly depend on the order within a few thousand bins, so a resample of the counts in the bins
is enough: a multinomial draw. The FPR depends on one quantile and one share, and the bootstrap
distributions of these are known: a Beta and a binomial distribution.

The values of the measures differ a little if computed from bins. So the resamples belong to
`BinnedResamples.values`, and intervals have to be moved from these to the values of the data.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from nescio.metrics.ranking import Ranking, Values, cumulative

N_BINS = 4096
_AT_ONCE = 64  # resamples


class BinnedResamples(NamedTuple):
    """The measures of the binned data, and of each resample, by name."""

    values: dict[str, float]
    samples: dict[str, Values]


def resample_bins(
    ranking: Ranking,
    tpr: float,
    id_to_ood: float,
    n_bootstrap: int,
    rng: np.random.Generator,
    *,
    id_weights: Values | None = None,
    ood_weights: Values | None = None,
) -> BinnedResamples:
    """Compute each measure for every resample. Scores with a weight stand for so many samples."""
    sums = cumulative(id_weights, ranking.n_id), cumulative(ood_weights, ranking.n_ood)
    given = {"id_weights": id_weights, "ood_weights": ood_weights}
    exact = ranking.measures(tpr, id_to_ood, **given)
    bins = _bins(ranking, *sums, id_weights, ood_weights)
    values = {name: float(column[0]) for name, column in _areas(*bins, id_to_ood).items()}
    samples = _resampled_areas(*bins, id_to_ood, n_bootstrap, rng)
    for name, found in _resampled_fprs(ranking, *sums, tpr, n_bootstrap, rng).items():
        values[name], samples[name] = exact[name], found
    return BinnedResamples(values, samples)


def _bins(
    ranking: Ranking,
    sum_id: Values,
    sum_ood: Values,
    id_weights: Values | None,
    ood_weights: Values | None,
) -> tuple[Values, Values]:
    """Return how many ID and OOD samples are in each bin, as matrices with one row.

    A tie is in a single bin. Otherwise bins end where `_scale` of the ID scores and that of the OOD
    scores add up to equal steps.
    """
    first = ranking.id_first
    id_end = slice(1, None) if first is None else np.searchsorted(first, first, side="right")
    ood_end = slice(1, None) if ranking.ood_last is None else ranking.ood_last + 1
    n, m = sum_id[-1], sum_ood[-1]
    found = []
    for upto_id, upto_ood, weights in (
        (sum_id[id_end], sum_ood[ranking.ood_up_to], id_weights),
        (sum_id[ranking.id_up_to], sum_ood[ood_end], ood_weights),
    ):
        place = (_scale(upto_id, n) + _scale(upto_ood, m)) / 2
        at = np.clip(np.ceil(place * N_BINS).astype(np.intp) - 1, 0, N_BINS - 1)
        counts = np.bincount(at, weights=weights, minlength=N_BINS)
        found.append(counts.astype(np.float64)[None, :])
    return found[0], found[1]


def _scale(upto: Values, n: float) -> Values:
    """Return a place from 0 to 1 for the end of each tie, from the number of scores up to there.

    Half of it is the share of the scores, half is on a logarithmic scale from both ends: average
    precision depends on the first few scores of a side.
    """
    share = upto / n
    logarithmic = (np.log1p(upto) - np.log1p(n - upto)) / (2 * math.log1p(n)) + 0.5
    return (share + logarithmic) / 2


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
    found: Values = (counts * precisions).sum(1) / counts.sum(1)
    return found


def _resampled_areas(
    id_: Values, ood: Values, id_to_ood: float, n_bootstrap: int, rng: np.random.Generator
) -> dict[str, Values]:
    sizes = [round(float(counts.sum())) for counts in (id_, ood)]
    shares = [counts[0] / counts.sum() for counts in (id_, ood)]
    found = []
    for start in range(0, n_bootstrap, _AT_ONCE):
        rows = min(_AT_ONCE, n_bootstrap - start)
        drawn = [
            rng.multinomial(size, share, size=rows).astype(np.float64)
            for size, share in zip(sizes, shares, strict=True)
        ]
        found.append(_areas(drawn[0], drawn[1], id_to_ood))
    return {name: np.concatenate([part[name] for part in found]) for name in found[0]}


def _resampled_fprs(
    ranking: Ranking,
    sum_id: Values,
    sum_ood: Values,
    tpr: float,
    n_bootstrap: int,
    rng: np.random.Generator,
) -> dict[str, Values]:
    """Draw both FPRs as the bootstrap has them.

    The threshold of a resample is a score of the data. In a resample of n samples, the number of
    those up to the j-th smallest of the data is binomial with share j / n. So the j of the k-th
    smallest of the resample is n times a Beta variable, rounded up. The share of the other side
    that is beyond this score is resampled independently.
    """
    n, m = round(float(sum_id[-1])), round(float(sum_ood[-1]))
    kth = math.floor(n * (1 - tpr) + 1e-9) + 1
    kth_ood = m - math.floor(m * (1 - tpr) + 1e-9)

    def thresholds(sums: Values, size: int, k: int) -> np.ndarray:
        sample = np.maximum(np.ceil(size * rng.beta(k, size + 1 - k, n_bootstrap)), 1)
        return np.searchsorted(sums[1:], sample, side="left")

    kept = 1 - sum_ood[ranking.ood_below[thresholds(sum_id, n, kth)]] / m
    flagged = sum_id[ranking.id_up_to[thresholds(sum_ood, m, kth_ood)]] / n
    return {
        "fpr": rng.binomial(m, kept) / m,
        "fpr_ood_positive": rng.binomial(n, flagged) / n,
    }
