"""Single measures of detectors (FPR, AUROC, AUPR), mAP of predictions, and DeLong's test."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from nescio._io.columns import is_frame
from nescio._validation import check_multi_hot, checked_choice, to_numpy
from nescio.calibration import checked_scores
from nescio.errors import InputError, ShapeError
from nescio.metrics.ranking import Ranking, Values
from nescio.outputs import Outputs


def fpr_at_tpr(id_scores: Any, ood_scores: Any, tpr: float = 0.95) -> float:
    """Return the share of OOD samples kept when at least the share `tpr` of ID samples is kept.

    Examples
    --------
    >>> fpr_at_tpr(np.arange(10, 110), np.arange(0, 100), tpr=0.95)
    0.85
    """
    return Ranking.from_scores(id_scores, ood_scores).measures(tpr)["fpr"]


def fpr_at_tpr_ood_positive(id_scores: Any, ood_scores: Any, tpr: float = 0.95) -> float:
    """Return the share of ID samples flagged when at least the share `tpr` of OOD is flagged.

    Examples
    --------
    >>> fpr_at_tpr_ood_positive(np.arange(10, 110), np.arange(0, 100), tpr=0.95)
    0.85
    """
    return Ranking.from_scores(id_scores, ood_scores).measures(tpr)["fpr_ood_positive"]


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


def aupr_ood_positive(id_scores: Any, ood_scores: Any) -> float:
    """Return the average precision with OOD as the positive side.

    Examples
    --------
    >>> aupr_ood_positive([1.0, 2.0, 3.0], [0.0, 1.5])
    0.8333333333333333
    """
    return Ranking.from_scores(id_scores, ood_scores).measures()["aupr_ood_positive"]


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
            result[label] = area_of(values[positive, label], values[~positive, label])
    return result


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


@dataclass(frozen=True)
class AurocDifference:
    """The result of DeLong's test for the AUROC of two detectors, a and b.

    Attributes
    ----------
    auroc_a, auroc_b : float
        The AUROC of each detector.
    difference : float
        `auroc_a - auroc_b`.
    standard_error : float
        The standard error of the difference.
    p_value : float
        The two-sided p-value of the hypothesis that both detectors have the same AUROC.
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
    if pairs[0][0].shape != pairs[1][0].shape or pairs[0][1].shape != pairs[1][1].shape:
        raise ShapeError(
            "DeLong's test needs the scores of both detectors for the same samples, got "
            f"{len(pairs[0][0])} and {len(pairs[1][0])} ID scores, "
            f"{len(pairs[0][1])} and {len(pairs[1][1])} OOD scores."
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
