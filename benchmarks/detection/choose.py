"""How good is what `nescio.choose` picks? Its regret, and how well it predicts the order.

    python benchmarks/detection/choose.py --saved FOLDER --results benchmarks/results/choose.jsonl
    python benchmarks/detection/choose.py --summary benchmarks/results/choose.jsonl

FOLDER has the outputs of many problems: files named PROBLEM-seedN-PART.safetensors, where PART is
train, val, test or ood-NAME, as text_and_tables.py --save writes them (the outputs of `nescio
bench` are in its cache, under other names). A line is added to the results for each problem and
seed that has none yet.

The detector is picked from the training and the held-out data. Only then are the ID test data and
the OOD data read, and every detector of the ranking is evaluated on them: it learns from all of
the training data, and from the held-out data if it learns from such data. The summary has, as means
over seeds and then over problems, each of which counts the same:

- the FPR of the pick and of joint energy, and their regret: the difference to the lowest FPR of any
  detector in hindsight, in points, for each OOD set. The regret of the mean FPR is against the one
  detector with the lowest mean over the sets;
- Spearman's rank correlation, over detectors, of the real FPR with the near FPR, the far FPR and
  the criterion that were predicted.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import spearmanr

from nescio import Choice, Outputs, __version__, choose
from nescio.metrics.comparison import compare_outputs

MEAN = "mean FPR"


class Files(NamedTuple):
    """The outputs of one model."""

    train: Path
    held_out: Path
    id: Path
    ood: Mapping[str, Path]


def saved_files(folder: Path) -> dict[tuple[str, int], Files]:
    """Return the files of a folder by problem and seed, all problems of a seed together."""
    result: dict[tuple[str, int], dict[str, Path]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        name, seed, part = re.fullmatch(r"(.+)-seed(\d+)-(.+)", path.stem).groups()
        result.setdefault((name, int(seed)), {})[part] = path
    return {
        key: Files(
            parts["train"],
            parts["val"],
            parts["test"],
            {name.removeprefix("ood-"): parts[name] for name in parts if name.startswith("ood-")},
        )
        for key, parts in sorted(result.items(), key=lambda item: (item[0][1], item[0][0]))
    }


def run(files: Files, detectors: Sequence[str] | None, folds: int, seed: int) -> Run:
    """Choose a detector; then evaluate every detector of the ranking."""
    train, held_out = Outputs.load(files.train), Outputs.load(files.held_out)
    choice = choose(
        train,
        held_out,
        detectors=detectors,
        n_folds=folds,
        seed=seed,
    )
    predicted = {
        ranked.name: {
            "near": fmean(ranked.near),
            "far": fmean(ranked.mean_far) if ranked.far else None,
            "criterion": ranked.mean,
        }
        for ranked in choice.ranking
    }
    return Run(choice, predicted, real_fprs(choice, files, train, held_out))


class Run(NamedTuple):
    """A choice, what it predicts of each detector, and the real FPRs by OOD set and detector."""

    choice: Choice
    predicted: Mapping[str, Mapping[str, float | None]]
    real: Mapping[str, Mapping[str, float]]


def real_fprs(
    choice: Choice, files: Files, train: Outputs, held_out: Outputs
) -> dict[str, dict[str, float]]:
    """Return the FPR of each detector of the ranking by OOD set."""
    result = compare_outputs(
        {ranked.name: choice.detector(ranked.name) for ranked in choice.ranking},
        Outputs.load(files.id),
        {name: Outputs.load(path) for name, path in files.ood.items()},
        train=train,
        held_out=held_out,
        tpr=choice.tpr,
        n_bootstrap=0,
    )
    if result.skipped:
        raise SystemExit(f"the test data does not suit every detector: {result.skipped}")
    return {
        ood: {name: evaluation.fpr.value for name, evaluation in results.items()}
        for ood, results in result.results.items()
    }


def measured(pick: str, predicted: Mapping, real: Mapping) -> dict[str, dict[str, Any]]:
    """Return, by OOD set and for their mean, the regret of the pick and the rank correlations."""
    means = {name: fmean([fprs[name] for fprs in real.values()]) for name in predicted}
    result = {}
    for ood, fprs in {**real, MEAN: means}.items():
        best = min(fprs, key=lambda name: fprs[name])
        result[ood] = {
            "pick": fprs[pick],
            "best": fprs[best],
            "best_detector": best,
            "regret": fprs[pick] - fprs[best],
            "correlation": {
                kind: correlation(
                    [predicted[name][kind] for name in fprs if predicted[name][kind] is not None],
                    list(fprs.values()),
                )
                for kind in ("near", "far", "criterion")
            },
        }
    return result


def correlation(predicted: Sequence[float], real: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation; None if all values of a side are equal, or absent."""
    if len(predicted) < 2 or np.ptp(predicted) == 0 or np.ptp(real) == 0:
        return None
    return float(spearmanr(predicted, real).statistic)


def mean_regret(results: Mapping[str, Mapping[str, Any]]) -> float:
    """Return the mean over OOD sets of the regret against the best detector of each."""
    return fmean([measures["regret"] for ood, measures in results.items() if ood != MEAN])


def add_results(folder: Path, results: Path, detectors: Sequence[str] | None, folds: int) -> None:
    """Add a line for each problem and seed of the folder that the results have none for."""
    lines = read_results(results) if results.exists() else []
    done = {(line["problem"], line["seed"]) for line in lines}
    for (problem, seed), files in saved_files(folder).items():
        if (problem, seed) in done:
            continue
        choice, predicted, real = run(files, detectors, folds, seed)
        result = {"problem": problem, "seed": seed, "pick": choice.pick, "nescio": __version__}
        line = json.dumps({**result, "predicted": predicted, "real": real})
        with results.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        print(f"{problem}, seed {seed}: {choice.pick}", flush=True)


def read_results(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def print_summary(lines: Sequence[Mapping[str, Any]]) -> None:
    """Print a row per problem, with means over seeds, and the mean of these rows."""
    print("| problem | seeds | pick | joint energy | regret | regret of joint energy | ", end="")
    print("regret, mean FPR | near | far | criterion | most frequent pick |")
    print("|---|" + "---:|" * 9 + "---|")
    rows = []
    for problem in dict.fromkeys(line["problem"] for line in lines):
        own = [line for line in lines if line["problem"] == problem]
        rows.append([mean_of(values) for values in zip(*map(summary_row, own), strict=True)])
        [(pick, n)] = Counter(line["pick"] for line in own).most_common(1)
        print(f"| {problem} | {len(own)} | {cells(rows[-1])} | `{pick}` ({n}) |")
    print(f"| mean | {len(lines)} | {cells([mean_of(v) for v in zip(*rows, strict=True)])} | |")


def summary_row(line: Mapping[str, Any]) -> list[float | None]:
    """Return the mean FPRs, regrets and correlations of one problem and seed."""
    predicted, real = line["predicted"], line["real"]
    result = measured(line["pick"], predicted, real)
    energy = measured("joint_energy", predicted, real)
    overall = result[MEAN]
    return [
        *(100 * value for value in (overall["pick"], energy[MEAN]["pick"])),
        *(100 * value for value in (mean_regret(result), mean_regret(energy), overall["regret"])),
        *overall["correlation"].values(),
    ]


def mean_of(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return fmean(there) if there else None


def cells(row: Sequence[float | None]) -> str:
    digits = (*[1] * 5, *[2] * 3)  # points, then correlations
    pairs = zip(row, digits, strict=True)
    return " | ".join("" if value is None else f"{value:.{n}f}" for value, n in pairs)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-d", "--detector", action="append", help="default: those of nescio choose")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--saved", type=Path, metavar="FOLDER", help="needs --results")
    parser.add_argument("--results", type=Path, metavar="FILE")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="summarise such results")
    options = parser.parse_args(arguments)
    if options.summary:
        print_summary(read_results(options.summary))
        return
    if not (options.saved and options.results):
        parser.error("pass --saved and --results, or --summary.")
    add_results(options.saved, options.results, options.detector, options.folds)
    print_summary(read_results(options.results))


if __name__ == "__main__":
    main()
