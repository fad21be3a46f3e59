"""DeLong's test: do two detectors have the same AUROC on the same samples?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from nescio.calibration import checked_scores
from nescio.errors import ShapeError
from nescio.metrics.ranking import Values


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
