"""How well scores tell in-distribution (ID) from out-of-distribution (OOD) data.

Names say which side is positive. `fpr_at_tpr` and `aupr` take ID as the positive side, as the paper
does: FPR95 is the share of OOD inputs let through when 95 % of ID inputs are. The literature also
uses "FPR95" and "AUPR" with OOD as the positive side; these are `fpr_at_tpr_ood_positive` and
`aupr_ood_positive`, and may differ by a factor of two on the same scores. AUROC is the same both
ways.

All of them come from one sort of each side. Tied scores get no benefit of the doubt: a threshold
lets all of them through or none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio._threads import available_cpus
from nescio._validation import check_multi_hot, checked_share, checked_whole, to_numpy
from nescio.calibration import checked_scores
from nescio.errors import InputError, ShapeError
from nescio.metrics.ranking import Ranking

Values = NDArray[np.float64]


def fpr_at_tpr(id_scores: Any, ood_scores: Any, tpr: float = 0.95) -> float:
    """The share of OOD inputs kept when at least a share `tpr` of ID inputs is kept.

    Examples
    --------
    >>> fpr_at_tpr(np.arange(10, 110), np.arange(0, 100), tpr=0.95)
    0.85
    """
    return Ranking.of(*_checked_pair(id_scores, ood_scores)).measures(tpr)["fpr"]


def fpr_at_tpr_ood_positive(id_scores: Any, ood_scores: Any, tpr: float = 0.95) -> float:
    """The share of ID inputs flagged when at least a share `tpr` of OOD inputs is flagged.

    Examples
    --------
    >>> fpr_at_tpr_ood_positive(np.arange(10, 110), np.arange(0, 100), tpr=0.95)
    0.85
    """
    return Ranking.of(*_checked_pair(id_scores, ood_scores)).measures(tpr)["fpr_ood_positive"]


def auroc(id_scores: Any, ood_scores: Any) -> float:
    """The probability that an ID input outscores an OOD input, ties counting half.

    Examples
    --------
    >>> auroc([1.0, 2.0, 3.0], [0.0, 1.0])
    0.9166666666666666
    """
    return Ranking.of(*_checked_pair(id_scores, ood_scores)).measures()["auroc"]


def aupr(id_scores: Any, ood_scores: Any, *, id_to_ood: float | None = None) -> float:
    """Average precision with ID as the positive side.

    Depends on how many samples each side happens to have. `id_to_ood` gives the value at a stated
    ratio instead: 1 for as many ID as OOD inputs, 9 for nine ID to one OOD.

    Examples
    --------
    >>> aupr([1.0, 2.0, 3.0], [0.0, 1.5])
    0.9166666666666666
    """
    ranking = Ranking.of(*_checked_pair(id_scores, ood_scores))
    if id_to_ood is None:
        return ranking.measures()["aupr"]
    return ranking.measures(id_to_ood=id_to_ood)["aupr_at_ratio"]


def aupr_ood_positive(id_scores: Any, ood_scores: Any) -> float:
    """Average precision with OOD as the positive side.

    Examples
    --------
    >>> aupr_ood_positive([1.0, 2.0, 3.0], [0.0, 1.5])
    0.8333333333333333
    """
    return Ranking.of(*_checked_pair(id_scores, ood_scores)).measures()["aupr_ood_positive"]


# --- all at once, with intervals --------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """A number and the bootstrap interval around it (None where none was asked)."""

    value: float
    low: float | None = None
    high: float | None = None

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value * 100:.2f}"
        return f"{self.value * 100:.2f} [{self.low * 100:.2f}, {self.high * 100:.2f}]"


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` found. Values are shares; as text they are per cent.

    Attributes
    ----------
    fpr, auroc, aupr : Estimate
        As in the paper, with ID as the positive side.
    aupr_at_ratio : Estimate
        `aupr` at `id_to_ood` ID inputs for one OOD input.
    fpr_ood_positive, aupr_ood_positive : Estimate
        The other convention, with OOD as the positive side.
    """

    fpr: Estimate
    auroc: Estimate
    aupr: Estimate
    aupr_at_ratio: Estimate
    fpr_ood_positive: Estimate
    aupr_ood_positive: Estimate
    n_id: int
    n_ood: int
    tpr: float
    id_to_ood: float
    confidence: float

    @property
    def fpr_name(self) -> str:
        """FPR95 at the paper's TPR of 0.95."""
        return f"FPR{self.tpr * 100:g}"

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Evaluation:
        """What `as_dict` gave; other entries are ignored."""
        values = {one.name: content[one.name] for one in fields(cls)}
        estimates = {
            name: Estimate(**value) for name, value in values.items() if isinstance(value, Mapping)
        }
        return cls(**(values | estimates))

    def __str__(self) -> str:
        rows = {
            self.fpr_name: self.fpr,
            "AUROC": self.auroc,
            "AUPR": self.aupr,
            f"AUPR at {self.id_to_ood:g}:1": self.aupr_at_ratio,
            f"{self.fpr_name}, OOD positive": self.fpr_ood_positive,
            "AUPR, OOD positive": self.aupr_ood_positive,
        }
        head = f"{self.n_id:,} ID against {self.n_ood:,} OOD, per cent"
        if self.auroc.low is not None:
            head += f" [{self.confidence * 100:g} % interval]"
        return "\n".join([head, *(f"  {name:<20}{estimate}" for name, estimate in rows.items())])


def evaluate(
    id_scores: Any,
    ood_scores: Any,
    *,
    tpr: float = 0.95,
    id_to_ood: float = 1.0,
    n_bootstrap: int = 1000,
    confidence: float = 0.95,
    seed: int | np.random.Generator = 0,
) -> Evaluation:
    """FPR at a TPR, AUROC and AUPR of one detector, with bootstrap intervals.

    Parameters
    ----------
    id_scores, ood_scores : array of shape (n_samples,)
        Higher means more in-distribution.
    tpr : float
        The share of ID inputs kept at which the FPR is read.
    id_to_ood : float
        The ratio at which `aupr_at_ratio` is given, beside the one at the ratio of the data.
    n_bootstrap : int
        Resamples, each side on its own; 0 for no intervals. A side of one input has none either:
        all its resamples are the same.
    confidence : float
        Of the percentile intervals.
    seed : int or Generator
        Of the resampling.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> print(evaluate(rng.normal(2, 1, 500), rng.normal(0, 1, 400), n_bootstrap=200))
    500 ID against 400 OOD, per cent [95 % interval]
      FPR95               28.00 [21.75, 39.07]
      AUROC               92.87 [91.27, 94.34]
      AUPR                94.38 [93.09, 95.73]
      AUPR at 1:1         93.23 [91.71, 94.88]
      FPR95, OOD positive 30.40 [23.59, 43.40]
      AUPR, OOD positive  89.99 [86.76, 92.54]
    """
    confidence = checked_share("confidence", confidence)
    n_bootstrap = checked_whole("n_bootstrap", n_bootstrap, minimum=0)
    ranking = Ranking.of(*_checked_pair(id_scores, ood_scores))
    values = ranking.measures(tpr, id_to_ood)
    estimates = {name: Estimate(value) for name, value in values.items()}
    if n_bootstrap and min(ranking.n_id, ranking.n_ood) > 1:
        samples = _bootstrap(ranking, tpr, id_to_ood, n_bootstrap, np.random.default_rng(seed))
        tail = (1 - confidence) / 2
        for name, value in values.items():
            low, high = np.quantile(samples[name], [tail, 1 - tail])
            estimates[name] = Estimate(value, float(low), float(high))
    return Evaluation(
        **estimates,
        n_id=ranking.n_id,
        n_ood=ranking.n_ood,
        tpr=tpr,
        id_to_ood=id_to_ood,
        confidence=confidence,
    )


def _bootstrap(
    ranking: Ranking, tpr: float, id_to_ood: float, n_bootstrap: int, rng: np.random.Generator
) -> dict[str, list[float]]:
    """Each measure over resamples; every resample has its own random stream, whatever the threads.

    A resample is how often each sample was drawn: the sorting stays as it is.
    """

    def resample(stream: np.random.Generator) -> dict[str, float]:
        draws = [
            np.bincount(stream.integers(0, n, n), minlength=n).astype(np.float64)
            for n in (ranking.n_id, ranking.n_ood)
        ]
        return ranking.measures(tpr, id_to_ood, id_weights=draws[0], ood_weights=draws[1])

    with ThreadPoolExecutor(available_cpus()) as pool:
        results = list(pool.map(resample, rng.spawn(n_bootstrap)))
    return {name: [result[name] for result in results] for name in results[0]}


# --- two detectors on the same samples --------------------------------------------------------


@dataclass(frozen=True)
class AurocDifference:
    """DeLong's test of whether two detectors have the same AUROC on the same samples."""

    auroc_a: float
    auroc_b: float
    difference: float
    standard_error: float
    p_value: float


def delong_test(id_a: Any, ood_a: Any, id_b: Any, ood_b: Any) -> AurocDifference:
    """Compare the AUROC of two detectors scored on the same samples (DeLong et al., 1988).

    Parameters
    ----------
    id_a, ood_a : array
        ID and OOD scores of the first detector.
    id_b, ood_b : array
        Scores of the second, for the same samples in the same order.

    Examples
    --------
    >>> result = delong_test([2.0, 3.0, 4.0], [0.0, 1.0], [2.0, 0.5, 4.0], [0.0, 1.0])
    >>> round(result.difference, 3), round(result.p_value, 3)
    (0.167, 0.48)
    """
    pairs = [_checked_pair(id_a, ood_a), _checked_pair(id_b, ood_b)]
    if pairs[0][0].shape != pairs[1][0].shape or pairs[0][1].shape != pairs[1][1].shape:
        raise ShapeError("DeLong's test needs both detectors' scores of the same samples.")
    # Placements: for each ID sample the share of OOD below it, and the other way round.
    of_id = np.stack([_share_below(ood, id_) for id_, ood in pairs])
    of_ood = np.stack([1 - _share_below(id_, ood) for id_, ood in pairs])
    n_id, n_ood = of_id.shape[1], of_ood.shape[1]
    if min(n_id, n_ood) < 2:
        raise ShapeError(f"DeLong's test needs two samples a side, got {n_id} ID, {n_ood} OOD.")
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
    ordered = np.sort(reference)
    below = np.searchsorted(ordered, values, side="left")
    return (below + np.searchsorted(ordered, values, side="right")) / (2.0 * len(ordered))


# --- prediction quality -----------------------------------------------------------------------


def average_precisions(labels: Any, scores: Any) -> Values:
    """Average precision of each label of a multi-label prediction; NaN without a positive.

    Parameters
    ----------
    labels : array of shape (n_samples, n_labels)
        Multi-hot truth.
    scores : array of shape (n_samples, n_labels)
        Logits or probabilities.
    """
    truth = to_numpy(labels)
    check_multi_hot(truth)
    truth = truth.astype(bool)
    values = to_numpy(scores).astype(np.float64)
    if truth.ndim != 2 or truth.shape != values.shape:
        raise ShapeError(
            "labels and scores must both have shape (n_samples, n_labels), "
            f"got {truth.shape} and {values.shape}."
        )
    result = np.full(truth.shape[1], np.nan)
    for label in range(truth.shape[1]):
        positive = truth[:, label]
        if positive.all():
            result[label] = 1.0
        elif positive.any():
            result[label] = aupr(values[positive, label], values[~positive, label])
    return result


def mean_average_precision(labels: Any, scores: Any) -> float:
    """Mean over labels of the average precision (mAP); labels without a positive do not count.

    Examples
    --------
    >>> mean_average_precision([[1, 0], [0, 1], [0, 1]], [[2.0, 0.0], [1.0, 3.0], [0.0, -1.0]])
    0.9166666666666666
    """
    precisions = average_precisions(labels, scores)
    if np.isnan(precisions).all():
        raise InputError("mAP needs at least one positive label; there is none.")
    return float(np.nanmean(precisions))


def _checked_pair(id_scores: Any, ood_scores: Any) -> tuple[Values, Values]:
    return checked_scores(id_scores, "id_scores"), checked_scores(ood_scores, "ood_scores")
