"""FPR95, AUROC and AUPR against scikit-learn."""

from __future__ import annotations

import numpy as np

from nescio import evaluate
from speed.harness import Bench


def run(bench: Bench) -> None:
    from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

    rng = np.random.default_rng(0)
    id_scores, ood_scores = rng.normal(1, 1, 1_000_000), rng.normal(0, 1, 1_000_000)
    truth = np.repeat([1, 0], 1_000_000)
    both = np.concatenate([id_scores, ood_scores])

    def three_calls() -> dict[str, float]:
        fpr, tpr, _ = roc_curve(truth, both)
        return {
            "fpr": fpr[np.argmax(tpr >= 0.95)],
            "auroc": roc_auc_score(truth, both),
            "aupr": average_precision_score(truth, both),
        }

    theirs = "scikit-learn: roc_curve, roc_auc, average_precision"
    bench.compare(
        "FPR95, AUROC and AUPR of 2,000,000 scores",
        theirs,
        {
            theirs: three_calls,
            "nescio (and both conventions, and AUPR at 1:1)": lambda: evaluate(
                id_scores, ood_scores, n_bootstrap=0
            ),
        },
    )
    ours, reference = evaluate(id_scores, ood_scores, n_bootstrap=0), three_calls()
    difference = max(abs(float(getattr(ours, name)) - reference[name]) for name in reference)
    bench.fact("FPR95, AUROC, AUPR: largest difference", difference, at_most=1e-9)
