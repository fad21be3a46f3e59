"""How good is what `nescio.choose` picks? Its regret, and how well it predicts the order.

    python benchmarks/choose.py --train train.npz --held-out val.npz --id test.npz --ood a=a.npz

The detector is picked from the training and the held-out data. Only then are the ID test data and
the OOD data read, and every detector of the ranking is evaluated on them: it learns from all of
the training data, and from the held-out data if it learns from such data. Per OOD set:

- the FPR of the pick, and the lowest FPR of any detector in hindsight. The regret is the
  difference, in points;
- Spearman's rank correlation, over detectors, of the real FPR with the near FPR, the far FPR and
  the criterion that were predicted.

The last row is about the mean FPR over the sets. Its regret is against the one detector with the
lowest mean, while the mean of the regrets above it is against the best detector of each set.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from nescio import Choice, Outputs, choose
from nescio.choosing.standings import mean
from nescio.metrics.comparison import compare

MEAN = "mean FPR"


def real_fprs(
    choice: Choice, files: argparse.Namespace, train: Outputs, held_out: Outputs
) -> dict[str, dict[str, float]]:
    """Return the FPR of each detector of the ranking by OOD set, and its mean over the sets."""
    sets = {name: Outputs.load(path) for name, path in files.ood}
    detectors = {one.name: choice.detector(one.name) for one in choice.ranking}
    found = compare(
        detectors,
        Outputs.load(files.id),
        sets,
        train=train,
        held_out=held_out,
        tpr=choice.tpr,
        n_bootstrap=0,
    )
    if found.skipped:
        raise SystemExit(f"the test data does not suit every detector: {found.skipped}")
    fprs = {
        ood: {name: one.fpr.value for name, one in results.items()}
        for ood, results in found.results.items()
    }
    return fprs | {MEAN: {name: mean([fprs[ood][name] for ood in sets]) for name in detectors}}


def measured(choice: Choice, fprs: Mapping[str, float]) -> dict[str, object]:
    """Return the regret of the pick, and the rank correlations with what was predicted."""
    best = min(fprs, key=lambda name: fprs[name])
    standings = [choice.standing(name) for name in fprs]
    predicted = {
        "near": [mean(one.near) for one in standings],
        "far": [mean(one.mean_far) for one in standings if one.far],
        "criterion": [one.mean for one in standings],
    }
    return {
        "pick": fprs[choice.pick],
        "best": fprs[best],
        "best_detector": best,
        "regret": fprs[choice.pick] - fprs[best],
        "correlation": {
            kind: correlation(values, list(fprs.values())) for kind, values in predicted.items()
        },
    }


def correlation(predicted: Sequence[float], real: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation; None if all values of a side are equal, or absent."""
    if len(predicted) < 2 or np.ptp(predicted) == 0 or np.ptp(real) == 0:
        return None
    return float(spearmanr(predicted, real).statistic)


def print_table(choice: Choice, results: Mapping[str, Mapping[str, object]]) -> None:
    print(choice)
    print("\n| OOD set | pick | best | regret | near | far | criterion | best detector |")
    print("|---|---:|---:|---:|---:|---:|---:|---|")
    for ood, one in results.items():
        cells = [f"{100 * one[name]:.1f}" for name in ("pick", "best", "regret")]
        cells += ["" if r is None else f"{r:.2f}" for r in one["correlation"].values()]
        print(f"| {ood} | {' | '.join(cells)} | {one['best_detector']} |")
    regrets = [one["regret"] for ood, one in results.items() if ood != MEAN]
    print(f"\nmean regret against the best of each set: {100 * mean(regrets):.1f} points")


def named_file(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not (name and equals and path) or name == MEAN:
        raise argparse.ArgumentTypeError(f"expected NAME=FILE, got {text!r}")
    return name, Path(path)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("--train", "--held-out", "--id"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument(
        "--ood", type=named_file, action="append", required=True, metavar="NAME=FILE"
    )
    parser.add_argument("--far", type=named_file, action="append", metavar="CORRUPTION=FILE")
    parser.add_argument("-d", "--detector", action="append", help="default: those of nescio choose")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print JSON")
    files = parser.parse_args(arguments)
    train, held_out = Outputs.load(files.train), Outputs.load(files.held_out)
    choice = choose(
        train,
        held_out,
        detectors=files.detector,
        far={name: Outputs.load(path) for name, path in files.far or ()},
        n_folds=files.folds,
        seed=files.seed,
    )
    results = {
        ood: measured(choice, fprs)
        for ood, fprs in real_fprs(choice, files, train, held_out).items()
    }
    if files.json:
        print(json.dumps({"pick": choice.pick, "results": results}))
    else:
        print_table(choice, results)


if __name__ == "__main__":
    main()
