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

from nescio.metrics.evaluation import (
    AurocDifference,
    Estimate,
    Evaluation,
    aupr,
    aupr_ood_positive,
    auroc,
    average_precisions,
    delong_test,
    evaluate,
    fpr_at_tpr,
    fpr_at_tpr_ood_positive,
    mean_average_precision,
)

__all__ = [
    "AurocDifference",
    "Estimate",
    "Evaluation",
    "aupr",
    "aupr_ood_positive",
    "auroc",
    "average_precisions",
    "delong_test",
    "evaluate",
    "fpr_at_tpr",
    "fpr_at_tpr_ood_positive",
    "mean_average_precision",
]
