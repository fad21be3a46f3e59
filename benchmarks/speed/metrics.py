"""FPR95, AUROC and AUPR against peers, and bootstrap resamples drawn by bin."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from nescio import evaluate
from speed.harness import Bench

N = 1_000_000  # of ID and of OOD scores

Scores = np.ndarray
Measured = dict[str, float]


def run(bench: Bench) -> None:
    id_scores, ood_scores = _scores(N)
    _against_others(bench, id_scores, ood_scores)
    _intervals(bench)
    bench.growth(
        "FPR95, AUROC and AUPR",
        "n",
        lambda n: {"all scores": _exactly(n)},
        sizes=[200_000, 500_000, 1_000_000, 2_000_000],
    )


def _scores(n: int) -> tuple[Scores, Scores]:
    rng = np.random.default_rng(0)
    return rng.normal(6, 1, n), rng.normal(5, 1, n)


# --- peers ------------------------------------------------------------------------------------


def _against_others(bench: Bench, id_scores: Scores, ood_scores: Scores) -> None:
    theirs = "scikit-learn: roc_curve, roc_auc, average_precision"
    peers = {theirs: _scikit_learn(id_scores, ood_scores)}
    for name, make in {"osr-metrics": _osr_metrics, "pytorch-ood": _pytorch_ood}.items():
        peer = make(id_scores, ood_scores)
        if peer is None:
            print(f"{name} is not installed")
        else:
            peers[name] = peer
    ours = "nescio (and both conventions, and AUPR at 1:1)"
    bench.compare(
        "FPR95, AUROC and AUPR of 2,000,000 scores",
        theirs,
        {**peers, ours: lambda: evaluate(id_scores, ood_scores, n_bootstrap=0)},
    )
    result, reference = evaluate(id_scores, ood_scores, n_bootstrap=0), peers[theirs]()
    difference = max(abs(float(getattr(result, name)) - reference[name]) for name in reference)
    bench.fact("FPR95, AUROC, AUPR: largest difference", difference, at_most=1e-9)


def _scikit_learn(id_scores: Scores, ood_scores: Scores) -> Callable[[], Measured]:
    from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

    truth = np.repeat([1, 0], [len(id_scores), len(ood_scores)])
    both = np.concatenate([id_scores, ood_scores])

    def three_calls() -> Measured:
        fpr, tpr, _ = roc_curve(truth, both)
        return {
            "fpr": fpr[np.argmax(tpr >= 0.95)],
            "auroc": roc_auc_score(truth, both),
            "aupr": average_precision_score(truth, both),
        }

    return three_calls


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _osr_metrics(id_scores: Scores, ood_scores: Scores) -> Callable[[], object] | None:
    osr = _imported("osr_metrics.ood")
    if osr is None:
        return None
    # Its scores are higher for OOD samples, which are the positive side, but for aupr_in.
    both = -np.concatenate([id_scores, ood_scores])
    labels = np.repeat([0, 1], [len(id_scores), len(ood_scores)])
    return lambda: (
        osr.fpr_at_95tpr(both, labels),
        osr.auroc(both, labels),
        osr.aupr_in(both, labels),
    )


def _pytorch_ood(id_scores: Scores, ood_scores: Scores) -> Callable[[], object] | None:
    theirs, torch = _imported("pytorch_ood.metrics"), _imported("torch")
    if theirs is None or torch is None:
        return None
    # Its scores are higher for OOD samples, whose labels are negative.
    both = torch.from_numpy(-np.concatenate([id_scores, ood_scores]))
    labels = torch.from_numpy(np.repeat([0, -1], [len(id_scores), len(ood_scores)]))

    def compute() -> object:
        metrics = theirs.OODMetrics()
        metrics.update(both, labels)
        return metrics.compute()

    return compute


def _exactly(n: int) -> Callable[[], object]:
    scores = _scores(n // 2)
    return lambda: evaluate(*scores, n_bootstrap=0)


def _intervals(bench: Bench) -> None:
    """Compare resamples drawn one by one with those drawn by bin, on as many as take seconds."""
    from nescio.metrics.measures import Ranking, resample, resample_bins

    ranking = Ranking.from_scores(*_scores(N // 2))
    values = ranking.measures()
    one_by_one = "drawn one by one"
    options = (0.95, 1.0, 20, np.random.default_rng(0))
    bench.compare(
        "20 bootstrap resamples of 1,000,000 scores",
        one_by_one,
        {
            one_by_one: lambda: resample(ranking, *options),
            "drawn by bin": lambda: resample_bins(ranking, values, *options),
        },
        rounds=3,
    )
