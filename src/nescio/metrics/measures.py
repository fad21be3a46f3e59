"""Measures of detectors (FPR, AUROC, AUPR), their intervals, DeLong's test, and mAP of predictions.

All measures of separation are computed from ID and OOD scores that are sorted only once. The
intervals are bias-corrected and accelerated (BCa; Efron, 1987). The method was chosen by the
coverage that `benchmarks/detection/intervals.py` measures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio._threads import available_cpus
from nescio._validation import (
    checked_choice,
    checked_scores,
    is_frame,
    multi_hot,
    to_float,
    to_numpy,
)
from nescio.errors import InputError, ParameterError, ShapeError
from nescio.outputs import Outputs

Values = NDArray[np.float64]
Indices = NDArray[np.intp]
Flags = NDArray[np.bool_]

_SORTED_TOGETHER = 100_000  # two threads take longer to start than to sort fewer scores
_DRAWN_ONE_BY_ONE = 1_000_000  # samples; a thousand resamples of more take minutes
_N_BINS = 16_384
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Estimate:
    """A measure and its bootstrap interval; `low` and `high` are None if there is no interval."""

    value: float
    low: float | None = None
    high: float | None = None

    def __float__(self) -> float:
        return self.value

    @property
    def interval(self) -> str:
        """The interval in per cent, such as "[91.16, 94.20]"; empty if there is none."""
        if self.low is None or self.high is None:
            return ""
        return f"[{self.low * 100:.2f}, {self.high * 100:.2f}]"

    def __str__(self) -> str:
        return f"{self.value * 100:.2f} {self.interval}".rstrip()


@dataclass(frozen=True)
class Ranking:
    """The positions of sorted ID scores among sorted OOD scores, and of tied scores.

    With these index arrays, each measure is a few sums over sample weights. A bootstrap resample
    is given by weights: how often each sample was drawn.

    Average precision counts all samples of a tie as kept. The copies of a sample that was drawn
    several times are no tie of the data: if they were counted as one, the average precision of
    nearly all resamples could be above that of the data. So the copies of a sample whose score
    occurs once are counted as if they followed one another, and the middle one stands for all.
    """

    ood_below: Indices  # for each ID score: the number of smaller OOD scores
    ood_up_to: Indices  # for each ID score: the number of smaller or equal OOD scores
    id_up_to: Indices  # for each OOD score: the number of smaller or equal ID scores
    id_first: Indices | None  # for each ID score: the first index of its tie; None without ties
    ood_last: Indices | None  # for each OOD score: the last index of its tie; None without ties
    id_behind: Values  # for each ID score: half if it is untied (its copies behind the middle one)
    ood_behind: Values  # the same for each OOD score

    @classmethod
    def from_scores(cls, id_scores: Any, ood_scores: Any) -> Ranking:
        """Check and sort the scores, and find the position of each ID score among the OOD ones."""
        both = checked_scores(id_scores, "id_scores"), checked_scores(ood_scores, "ood_scores")
        if sum(map(len, both)) < _SORTED_TOGETHER:
            return cls.from_sorted(*map(np.sort, both))
        with ThreadPoolExecutor(2) as pool:  # a sort does not hold Python's lock
            return cls.from_sorted(*pool.map(np.sort, both))

    @classmethod
    def from_sorted(cls, id_: Values, ood: Values) -> Ranking:
        """Find the positions of scores in ascending order."""
        # Two ascending runs: a stable sort only merges them. An ID score comes before its equals.
        order = np.argsort(np.concatenate([id_, ood]), kind="stable")
        is_id = order < len(id_)
        ood_below = np.flatnonzero(is_id) - np.arange(len(id_))
        id_up_to = np.flatnonzero(~is_id) - np.arange(len(ood))
        id_apart, ood_apart = _apart(id_), _apart(ood)
        id_first = None if id_apart.all() else _first_of_tie(id_apart)
        ood_last = None if ood_apart.all() else len(ood) - 1 - _first_of_tie(ood_apart[::-1])[::-1]
        return cls(
            ood_below=ood_below,
            ood_up_to=_up_to(id_, ood, ood_below, ood_last),
            id_up_to=id_up_to,
            id_first=id_first,
            ood_last=ood_last,
            id_behind=_half_if_untied(id_apart),
            ood_behind=_half_if_untied(ood_apart),
        )

    @property
    def n_id(self) -> int:
        """The number of ID scores."""
        return len(self.ood_below)

    @property
    def n_ood(self) -> int:
        """The number of OOD scores."""
        return len(self.id_up_to)

    def measures(
        self,
        tpr: float = 0.95,
        id_to_ood: float = 1.0,
        *,
        id_weights: Values | None = None,
        ood_weights: Values | None = None,
    ) -> dict[str, float]:
        """Return all measures, by their names in `Evaluation`."""
        if not 0 < tpr <= 1:
            raise ParameterError(f"tpr must be above 0 and at most 1, got {tpr!r}.")
        if not 0 < id_to_ood < math.inf:
            raise ParameterError(f"id_to_ood must be a positive number, got {id_to_ood!r}.")
        # cumulative[i] is the total weight of the i smallest scores.
        cumulative_id = _cumulative(id_weights, self.n_id)
        cumulative_ood = _cumulative(ood_weights, self.n_ood)
        n, m = float(cumulative_id[-1]), float(cumulative_ood[-1])

        below = cumulative_ood[self.ood_below]
        up_to = below if self.ood_up_to is self.ood_below else cumulative_ood[self.ood_up_to]
        area = _dot(id_weights, below + up_to) / (2.0 * n * m)

        # How much is kept if the threshold is this ID score, or flagged if it is this OOD score.
        first = slice(-1) if self.id_first is None else self.id_first
        kept_id = n - cumulative_id[first]
        kept_ood = m - below
        flagged_id = cumulative_id[self.id_up_to]
        last = slice(1, None) if self.ood_last is None else self.ood_last + 1
        flagged_ood = cumulative_ood[last]
        if id_weights is not None:
            kept_id -= (id_weights - 1.0) * self.id_behind
        if ood_weights is not None:
            flagged_ood = flagged_ood - (ood_weights - 1.0) * self.ood_behind

        # The positions of the thresholds that keep a share of the ID, or flag one of the OOD.
        id_position = np.searchsorted(cumulative_id[1:], n_allowed(n, tpr), side="right")
        ood_position = np.searchsorted(cumulative_ood[1:], m - n_allowed(m, tpr), side="left")
        aupr = _mean_precision(id_weights, kept_id, kept_ood)
        ratio = n / (m * id_to_ood)
        return {
            "fpr": float(kept_ood[id_position] / m),
            "auroc": area,
            "aupr": aupr,
            "aupr_at_ratio": (
                aupr if ratio == 1 else _mean_precision(id_weights, kept_id, kept_ood * ratio)
            ),
            "fpr_ood_positive": float(flagged_id[ood_position] / n),
            "aupr_ood_positive": _mean_precision(ood_weights, flagged_ood, flagged_id),
        }


def n_allowed(n: float, tpr: float) -> int:
    """Return how many of n samples a threshold may flag that keeps a share `tpr`."""
    # 1e-9 corrects rounding: 10 * (1 - 0.9) must count as 1, although it is 0.9999999999999998.
    return math.floor(n * (1 - tpr) + 1e-9)


def _cumulative(weights: Values | None, n: int) -> Values:
    """Return the total weight of the i smallest of n scores, for i from 0 to n."""
    if weights is None:
        return np.arange(n + 1, dtype=np.float64)
    return np.concatenate([[0.0], np.cumsum(weights)])


def _apart(ordered: Values) -> Flags:
    """Return, for each place before, between and after sorted scores, whether values differ."""
    apart = np.ones(len(ordered) + 1, dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=apart[1:-1])
    return apart


def _first_of_tie(apart: Flags) -> Indices:
    return np.maximum.accumulate(np.where(apart[:-1], np.arange(len(apart) - 1), 0))


def _half_if_untied(apart: Flags) -> Values:
    return np.multiply(apart[1:] & apart[:-1], 0.5)


def _up_to(id_: Values, ood: Values, ood_below: Indices, ood_last: Indices | None) -> Indices:
    """Return the number of OOD scores that are smaller than or equal to each ID score."""
    nearest = np.minimum(ood_below, len(ood) - 1)
    tied = np.flatnonzero(ood[nearest] == id_)
    if not len(tied):
        return ood_below
    result = ood_below.copy()
    first = ood_below[tied]
    result[tied] = (first if ood_last is None else ood_last[first]) + 1
    return result


def _dot(weights: Values | None, values: Values) -> float:
    if weights is None:
        return float(values.sum())
    # Not np.dot: BLAS starts its own threads, which compete with the threads of the bootstrap.
    return float(np.einsum("i,i->", weights, values))


def _mean_precision(weights: Values | None, true: Values, false: Values) -> float:
    """Return the average precision: the mean over positives of the precision at their score.

    Positives that a resample did not draw have weight 0. For some of these no sample is kept at
    all, so their precision is set to 0 to avoid a division by zero.
    """
    total = true + false
    if weights is None:  # each positive keeps at least itself
        return float((true / total).mean())
    precision = np.divide(true, total, out=np.zeros_like(true), where=total > 0)
    return _dot(weights, precision) / float(weights.sum())


def fpr_at_tpr(id_scores: Any, ood_scores: Any, tpr: float = 0.95) -> float:
    """Return the share of OOD samples kept when at least the share `tpr` of ID samples is kept.

    Examples
    --------
    >>> fpr_at_tpr(np.arange(10, 110), np.arange(0, 100), tpr=0.95)
    0.85
    """
    return Ranking.from_scores(id_scores, ood_scores).measures(tpr)["fpr"]


def auroc(id_scores: Any, ood_scores: Any) -> float:
    """Return the probability that an ID sample has a higher score than an OOD sample.

    A tie counts as one half.

    Examples
    --------
    >>> auroc([1.0, 2.0, 3.0], [0.0, 1.0])
    0.9166666666666666
    """
    return Ranking.from_scores(id_scores, ood_scores).measures()["auroc"]


def aupr(id_scores: Any, ood_scores: Any, *, id_to_ood: float | None = None) -> float:
    """Return the average precision with ID as the positive side.

    The value depends on the number of ID and OOD samples. Pass `id_to_ood` to get the value at a
    fixed ratio instead: 1 for as many ID as OOD samples, 9 for nine ID samples per OOD sample.

    Examples
    --------
    >>> aupr([1.0, 2.0, 3.0], [0.0, 1.5])
    0.9166666666666666
    """
    ranking = Ranking.from_scores(id_scores, ood_scores)
    if id_to_ood is None:
        return ranking.measures()["aupr"]
    return ranking.measures(id_to_ood=id_to_ood)["aupr_at_ratio"]


@dataclass(frozen=True)
class AurocDifference:
    """The result of DeLong's test for the AUROC of two detectors, a and b.

    `difference` is `auroc_a - auroc_b`, with its standard error. The p-value is two-sided: of the
    hypothesis that both detectors have the same AUROC.
    """

    auroc_a: float
    auroc_b: float
    difference: float
    standard_error: float
    p_value: float


def delong_test(id_a: Any, ood_a: Any, id_b: Any, ood_b: Any) -> AurocDifference:
    """Compare the AUROC of two detectors on the same samples (DeLong et al., 1988).

    Parameters
    ----------
    id_a, ood_a : array of shape (n_samples,)
        ID and OOD scores of the first detector.
    id_b, ood_b : array of shape (n_samples,)
        Scores of the second detector, for the same samples in the same order.

    Examples
    --------
    >>> result = delong_test([2.0, 3.0, 4.0], [0.0, 1.0], [2.0, 0.5, 4.0], [0.0, 1.0])
    >>> round(result.difference, 3), round(result.p_value, 3)
    (0.167, 0.48)
    """
    pairs = [
        (checked_scores(id_a, "id_a"), checked_scores(ood_a, "ood_a")),
        (checked_scores(id_b, "id_b"), checked_scores(ood_b, "ood_b")),
    ]
    sizes_a, sizes_b = ([len(scores) for scores in pair] for pair in pairs)
    if sizes_a != sizes_b:
        raise ShapeError(
            "DeLong's test needs the scores of both detectors for the same samples, got "
            f"{sizes_a[0]} and {sizes_b[0]} ID scores, {sizes_a[1]} and {sizes_b[1]} OOD scores."
        )
    # Placements: for each ID sample the share of OOD samples below it, and vice versa.
    of_id = np.stack([_share_below(ood, id_) for id_, ood in pairs])
    of_ood = np.stack([1 - _share_below(id_, ood) for id_, ood in pairs])
    n_id, n_ood = of_id.shape[1], of_ood.shape[1]
    if min(n_id, n_ood) < 2:
        raise ShapeError(
            f"DeLong's test needs at least 2 ID and 2 OOD samples, got {n_id} ID and {n_ood} OOD."
        )
    covariance = np.cov(of_id) / n_id + np.cov(of_ood) / n_ood
    variance = covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]
    error = math.sqrt(max(variance, 0.0))
    auroc_a, auroc_b = of_id.mean(1).tolist()
    difference = auroc_a - auroc_b
    if error > 0:
        p_value = math.erfc(abs(difference) / error / math.sqrt(2))
    else:
        p_value = 1.0 if difference == 0 else 0.0
    return AurocDifference(auroc_a, auroc_b, difference, error, p_value)


def _share_below(reference: Values, values: Values) -> Values:
    """Return, for each value, the share of the reference that is lower; ties count half."""
    ordered = np.sort(reference)
    below = np.searchsorted(ordered, values, side="left")
    return (below + np.searchsorted(ordered, values, side="right")) / (2.0 * len(ordered))


# --- bootstrap intervals -------------------------------------------------------------------------


def intervals(
    ranking: Ranking,
    values: Mapping[str, float],
    tpr: float,
    id_to_ood: float,
    n_bootstrap: int,
    confidence: float,
    rng: np.random.Generator,
) -> dict[str, tuple[float, float]]:
    """Return the interval of each measure; with more than a million samples, resampled by bin."""
    options = (tpr, id_to_ood, n_bootstrap, rng)
    if ranking.n_id + ranking.n_ood <= _DRAWN_ONE_BY_ONE:
        samples = resample(ranking, *options)
    else:
        samples = resample_bins(ranking, values, *options)
    ends = {name: interval(samples[name], value, confidence) for name, value in values.items()}
    return {name: (max(low, 0.0), min(high, 1.0)) for name, (low, high) in ends.items()}


def resample(
    ranking: Ranking,
    tpr: float,
    id_to_ood: float,
    n_bootstrap: int,
    rng: np.random.Generator,
    draw: Callable[[np.random.Generator], tuple[Values, Values]] | None = None,
) -> dict[str, Values]:
    """Compute each measure for every resample: for the weights of ID and OOD that `draw` gives.

    Each has its own random stream, so the result does not depend on the number of threads.
    """

    def draw_samples(stream: np.random.Generator) -> tuple[Values, Values]:
        sizes = ranking.n_id, ranking.n_ood
        id_, ood = (np.bincount(stream.integers(0, n, n), minlength=n) for n in sizes)
        return id_.astype(np.float64), ood.astype(np.float64)

    def measure(stream: np.random.Generator) -> dict[str, float]:
        id_weights, ood_weights = (draw or draw_samples)(stream)
        return ranking.measures(tpr, id_to_ood, id_weights=id_weights, ood_weights=ood_weights)

    with ThreadPoolExecutor(available_cpus()) as pool:
        results = list(pool.map(measure, rng.spawn(n_bootstrap)))
    return {name: np.array([result[name] for result in results]) for name in results[0]}


def resample_bins(
    ranking: Ranking,
    values: Mapping[str, float],
    tpr: float,
    id_to_ood: float,
    n_bootstrap: int,
    rng: np.random.Generator,
) -> dict[str, Values]:
    """Compute each measure for every resample, drawn by bin.

    The measures hardly depend on the order within many narrow bins, and a resample of the counts in
    the bins is a single multinomial draw. The measures of the binned data differ a little from
    `values`, so those of the resamples are moved by the difference.
    """
    id_counts, ood_counts = _bins(ranking)

    def draw(stream: np.random.Generator) -> tuple[Values, Values]:
        id_, ood = (
            stream.multinomial(n, counts / n).astype(np.float64)
            for n, counts in ((ranking.n_id, id_counts), (ranking.n_ood, ood_counts))
        )
        return id_, ood

    binned = Ranking.from_sorted(np.arange(_N_BINS, dtype=float), np.arange(_N_BINS, dtype=float))
    center = binned.measures(tpr, id_to_ood, id_weights=id_counts, ood_weights=ood_counts)
    samples = resample(binned, tpr, id_to_ood, n_bootstrap, rng, draw)
    return {name: samples[name] + (value - center[name]) for name, value in values.items()}


def _bins(ranking: Ranking) -> tuple[Values, Values]:
    """Return how many ID and OOD samples are in each bin; a tie is in a single one."""
    n, m, first, last = ranking.n_id, ranking.n_ood, ranking.id_first, ranking.ood_last
    id_ends = np.arange(1, n + 1) if first is None else np.searchsorted(first, first, "right")
    ood_ends = np.arange(1, m + 1) if last is None else last + 1
    sides = []
    for up_to_id, up_to_ood in ((id_ends, ranking.ood_up_to), (ranking.id_up_to, ood_ends)):
        place = (_scale(up_to_id, n) + _scale(up_to_ood, m)) / 2
        bins = np.clip(np.ceil(place * _N_BINS).astype(np.intp) - 1, 0, _N_BINS - 1)
        sides.append(np.bincount(bins, minlength=_N_BINS).astype(np.float64))
    return sides[0], sides[1]


def _scale(up_to: Indices, n: int) -> Values:
    """Return a place from 0 to 1 for the end of each tie, from the number of scores up to there.

    Half of it is the share of the scores, half is on a logarithmic scale from both ends: average
    precision depends on the first few scores of a side.
    """
    logarithmic = (np.log1p(up_to) - np.log1p(n - up_to)) / (2 * math.log1p(n)) + 0.5
    return np.asarray((up_to / n + logarithmic) / 2)


def interval(samples: Values, value: float, confidence: float) -> tuple[float, float]:
    """Return the interval of a measure, from its values in resamples; it contains its value."""
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


def average_precisions(labels: Any, scores: Any, *, area: str = "step") -> Values:
    """Return the average precision of each label of a multi-label prediction.

    The value of a label without a positive sample is NaN.

    Parameters
    ----------
    labels : array of shape (n_samples, n_labels), or data frame
        The true labels, multi-hot.
    scores : array of shape (n_samples, n_labels), or data frame
        Logits or probabilities. The columns of two data frames are matched by name.
    area : {"step", "trapezoid"}
        "step" is the average precision. "trapezoid" connects the points of the precision-recall
        curve with straight lines, which is usually a little different.

    Examples
    --------
    >>> average_precisions([[1, 0], [0, 1], [1, 1]], [[2.0, 1.0], [-1.0, 3.0], [0.5, 0.0]])
    array([1.        , 0.83333333])
    """
    checked_choice("area", area, ("step", "trapezoid"))
    area_of = aupr if area == "step" else _trapezoid
    if is_frame(labels) or is_frame(scores):
        outputs = Outputs(scores, labels=labels)
        labels, scores = outputs.labels, outputs.logits
    truth = multi_hot(labels).astype(bool)
    values = to_float(to_numpy(scores), "scores").astype(np.float64)
    if truth.shape != values.shape:
        raise ShapeError(
            "labels and scores must both have shape (n_samples, n_labels), "
            f"got {truth.shape} and {values.shape}."
        )
    precisions = np.full(truth.shape[1], np.nan)
    for label in range(truth.shape[1]):
        positive = truth[:, label]
        if positive.all():
            precisions[label] = 1.0
        elif positive.any():
            precisions[label] = area_of(values[positive, label], values[~positive, label])
    return precisions


def _trapezoid(positives: Values, negatives: Values) -> float:
    """Return the area below the precision-recall curve, drawn with straight lines."""
    from sklearn.metrics import auc, precision_recall_curve

    truth = np.repeat([True, False], [len(positives), len(negatives)])
    precision, recall, _ = precision_recall_curve(truth, np.concatenate([positives, negatives]))
    return float(auc(recall, precision))


def mean_average_precision(labels: Any, scores: Any, *, area: str = "step") -> float:
    """Return the mean of the average precision over labels (mAP).

    Labels without a positive sample are left out of the mean. `area` is as for
    `average_precisions`.

    Examples
    --------
    >>> mean_average_precision([[1, 0], [0, 1], [0, 1]], [[2.0, 0.0], [1.0, 3.0], [0.0, -1.0]])
    0.9166666666666666
    """
    precisions = average_precisions(labels, scores, area=area)
    if np.isnan(precisions).all():
        raise InputError("mAP needs at least one positive label, but labels contains only zeros.")
    return float(np.nanmean(precisions))
