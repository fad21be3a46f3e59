"""FPR95, AUROC and AUPR against peers, and of scores that are counted in cells."""

from __future__ import annotations

import importlib
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from nescio import evaluate
from nescio.metrics import ScoreCells
from speed.harness import Bench

N = 1_000_000  # of ID and of OOD scores
BLOCK = 2**16
MEASURES = ("fpr", "auroc", "aupr", "aupr_at_ratio", "fpr_ood_positive", "aupr_ood_positive")

Scores = np.ndarray
Measured = dict[str, float]


def run(bench: Bench) -> None:
    id_scores, ood_scores = _scores(N)
    _against_others(bench, id_scores, ood_scores)
    _counted(bench, id_scores, ood_scores)
    _intervals(bench)
    bench.growth(
        "FPR95, AUROC and AUPR",
        "n",
        lambda n: {"all scores": _exactly(n), "counted in cells": _in_cells(n)},
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
    found, reference = evaluate(id_scores, ood_scores, n_bootstrap=0), peers[theirs]()
    difference = max(abs(float(getattr(found, name)) - reference[name]) for name in reference)
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


# --- scores counted in cells ------------------------------------------------------------------


def _cells(scores: Scores) -> ScoreCells:
    counted = ScoreCells(max_exact=BLOCK)
    for start in range(0, len(scores), BLOCK):
        counted.add(scores[start : start + BLOCK])
    return counted


def _exactly(n: int) -> Callable[[], object]:
    scores = _scores(n // 2)
    return lambda: evaluate(*scores, n_bootstrap=0)


def _in_cells(n: int) -> Callable[[], object]:
    scores = _scores(n // 2)
    return lambda: evaluate(*map(_cells, scores), n_bootstrap=0)


def _counted(bench: Bench, id_scores: Scores, ood_scores: Scores) -> None:
    both = "all scores"
    bench.compare(
        "FPR95, AUROC and AUPR of 2,000,000 scores, counted in cells",
        both,
        {both: _exactly(2 * N), "counted in cells, in blocks of 65,536": _in_cells(2 * N)},
    )
    exact = evaluate(id_scores, ood_scores, n_bootstrap=0)
    tracemalloc.start()
    counted = [_cells(one) for one in (id_scores, ood_scores)]
    kept = tracemalloc.get_traced_memory()[0] / 1e6
    found = evaluate(*counted, n_bootstrap=0)
    tracemalloc.stop()
    differences = {
        name: abs(getattr(found, name).value - getattr(exact, name).value) for name in MEASURES
    }
    errors = {name: getattr(found, name).error for name in MEASURES}
    bench.fact("Counted in cells: memory of 2,000,000 scores", kept, "MB", at_most=64)
    bench.fact("Counted in cells: largest stated error", max(errors.values()), at_most=1e-4)
    bench.fact("Counted in cells: largest difference", max(differences.values()), at_most=1e-4)
    share = max(differences[name] / errors[name] for name in MEASURES if errors[name])
    bench.fact("Counted in cells: largest difference by its stated error", share, at_most=1)


def _intervals(bench: Bench) -> None:
    """Compare resamples drawn one by one with those drawn by bin, on as many as take seconds."""
    from nescio.metrics.binned import resample_bins
    from nescio.metrics.intervals import resample
    from nescio.metrics.ranking import Ranking

    ranking = Ranking.from_scores(*_scores(N // 2))
    one_by_one = "drawn one by one"
    options = (0.95, 1.0, 20, np.random.default_rng(0))
    bench.compare(
        "20 bootstrap resamples of 1,000,000 scores",
        one_by_one,
        {
            one_by_one: lambda: resample(ranking, *options),
            "drawn by bin": lambda: resample_bins(ranking, *options),
        },
        rounds=3,
    )
