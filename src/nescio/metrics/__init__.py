"""Measures of how well scores separate in-distribution (ID) from out-of-distribution (OOD) data.

The names say which side is positive. `fpr_at_tpr` and `aupr` take ID as the positive side, as the
paper does: FPR95 is the share of OOD samples that are kept when 95 % of the ID samples are kept.
Other papers use the names "FPR95" and "AUPR" with OOD as the positive side. These measures are
`fpr_ood_positive` and `aupr_ood_positive` of `evaluate`, and they can differ by a factor of two on
the same scores. AUROC is the same for both conventions.

A threshold keeps either all of several tied scores or none of them.
"""

from __future__ import annotations

from nescio.metrics.by_label import LabelRates, label_rates
from nescio.metrics.comparison import Comparison, Evaluation, compare, evaluate
from nescio.metrics.measures import (
    AurocDifference,
    Estimate,
    aupr,
    auroc,
    average_precisions,
    delong_test,
    fpr_at_tpr,
    mean_average_precision,
)

__all__ = [
    "AurocDifference",
    "Comparison",
    "Estimate",
    "Evaluation",
    "LabelRates",
    "aupr",
    "auroc",
    "average_precisions",
    "compare",
    "delong_test",
    "evaluate",
    "fpr_at_tpr",
    "label_rates",
    "mean_average_precision",
]
