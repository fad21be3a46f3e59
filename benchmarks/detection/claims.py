"""What is claimed of the default, checked against the committed results.

    python benchmarks/detection/claims.py

Reads the result lines of coco70-methods, digits-quick and text_and_tables.py and the table of
left_out.py, and prints how far the default and `top_k_joint_energy(k=20)`, the default for logits
alone, are from joint energy: FPR95, far and near, and on the set where they are worst. The last
row has only results that nobody had seen when the default was chosen: the networks of seeds 3 and
4, left-out labels of seeds 2 to 4, and seeds 2 to 4 of text and tables.

A second table has the generated tables of tables.py, for each kind of features: how often the
default is worse than joint energy, and where most.
"""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from pathlib import Path
from statistics import mean

from nescio.lab.benchmark.results import read_lines

RESULTS = Path(__file__).parents[1] / "results"
JOINT = "joint_energy"
FAR = (("coco70", "textures"), ("coco70", "objects"))
UNSEEN = {"coco70": {3, 4}, "left out": {2, 3, 4}, "digits": set()}
UNSEEN_ELSEWHERE = {2, 3, 4}

Results = dict[tuple[str, str], dict[str, dict[int, float]]]  # by set, detector and seed


def read_results() -> Results:
    """Return the FPR95 in per cent of every set."""
    result: Results = defaultdict(lambda: defaultdict(dict))
    for name in ("coco70-methods", "digits-quick", "text-and-tables"):
        for line in read_lines(RESULTS / f"{name}.jsonl"):
            if line.evaluation is not None:
                fpr = 100 * line.evaluation.fpr.value
                result[line.id, line.ood][line.detector][line.seed] = fpr
    # left_out.py prints the detectors in the order of coco70-methods, as it was when it ran.
    lines = read_lines(RESULTS / "coco70-methods.jsonl")
    detectors = tuple(dict.fromkeys(line.detector for line in lines))
    for text in (RESULTS / "left-out.txt").read_text().splitlines():
        if text.startswith("seed "):
            seed, values = text.removeprefix("seed ").split(": ")
            for detector, value in zip(detectors, ast.literal_eval(values), strict=True):
                result["coco70", "left out"][detector][int(seed)] = value
    return result


def only_unseen(results: Results) -> Results:
    """Return the seeds that were not in view when the default was chosen."""
    kept: Results = {}
    for (trained, ood), by_detector in results.items():
        seeds = UNSEEN.get(ood, UNSEEN.get(trained, UNSEEN_ELSEWHERE))
        if seeds:
            kept[trained, ood] = {
                name: {seed: value for seed, value in values.items() if seed in seeds}
                for name, values in by_detector.items()
            }
    return kept


def row(results: Results, detector: str) -> str:
    """Return the claims for one detector."""

    def fpr(key: tuple[str, str], name: str) -> float:
        return mean(results[key][name].values())

    def lower(*keys: tuple[str, str]) -> str:
        ours, theirs = (mean(fpr(key, name) for key in keys) for name in (detector, JOINT))
        return f"{ours:.2f} against {theirs:.2f}: {1 - ours / theirs:.0%} lower"

    measured = [key for key, result in results.items() if detector in result]
    worse = {key: fpr(key, detector) - fpr(key, JOINT) for key in measured}
    worst = max(worse, key=lambda key: worse[key])
    where = f"{worse[worst]:+.1f} points ({' against '.join(worst)}), of {len(measured)} sets"
    return f"{lower(*FAR)} | {lower(('coco70', 'left out'))} | {where} |"


def claims() -> str:
    """Return the table of all sets but those of tables.py."""
    results = read_results()
    return "\n".join(
        [
            "| | textures and objects, mean | left-out labels | worst difference |",
            "|---|---|---|---|",
            f"| with features | {row(results, 'combined')}",
            f"| logits only | {row(results, 'top_k_joint_energy(k=20)')}",
            f"| with features, unseen | {row(only_unseen(results), 'combined')}",
        ]
    )


def worse_on_tables() -> dict[str, dict[tuple[str, str, str], float]]:
    """Return FPR95 of the default minus joint energy, by features, problem, model and set."""
    result: dict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    for text in (RESULTS / "tables.jsonl").read_text("utf-8").splitlines():
        line = json.loads(text)
        for features in ("table", "inputs", "standardised", "leaves"):
            for ood, fpr in line["fpr"].get(f"{features}: combined", {}).items():
                joint = line["fpr"][f"logits: {JOINT}"][ood]
                key = (features, line["problem"], line["model"], ood)
                result[key].append(100 * (fpr - joint))
    differences: dict[str, dict[tuple[str, str, str], float]] = defaultdict(dict)
    for (features, *key), values in result.items():
        differences[features][tuple(key)] = mean(values)
    return differences


def claims_on_tables() -> str:
    """Return the table of tables.py."""
    lines = ["| features | sets | the default is worse | at worst |", "|---|---:|---:|---|"]
    for features, by_set in worse_on_tables().items():
        worst = max(by_set, key=lambda key: by_set[key])
        n_worse = sum(value >= 0.05 for value in by_set.values())
        where = f"{by_set[worst]:+.1f} points ({', '.join(worst)})"
        lines.append(f"| {features} | {len(by_set)} | {n_worse} | {where} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(f"{claims()}\n\n{claims_on_tables()}")
