"""What is claimed of the default, checked against the committed results.

    python benchmarks/detection/claims.py

Reads the result lines of coco70-methods, voc20, digits-quick and text_and_tables.py and the tables
of left_out.py, and prints the tables of docs/explanation/the-default.md:

- for each form of the default, FPR95 far and near against joint energy, and the set where it is
  worst, also against the same combination without its guard. The last row has only results that
  nobody had seen when the parts were chosen: the networks of seeds 3 and 4, left-out labels of
  seeds 2 to 4, and seeds 2 to 4 of text and tables. (The guard came later: it had all in view.)
- for the generated tables of tables.py, by kind of features, how often the default is worse than
  joint energy, and where most;
- FPR95 of some detectors on real images, and on text, tables and digits.
"""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

from nescio.lab.benchmark.results import read_lines

RESULTS = Path(__file__).parents[1] / "results"
JOINT = "joint_energy"
ENERGY = "top_k_joint_energy(k=20)"  # joint energy itself, if there are at most 20 labels
DEFAULT = "combined"
UNGUARDED = "combined(detectors=[joint_energy, label_neighbours, linear_probe])"
ON_FEATURES = f"combined(detectors=[{ENERGY}, out_of_range(held_out=true)])"
ON_LOGITS = f"combined(detectors=[{ENERGY}, out_of_range(layer=logits, held_out=true)])"
FAR = (("coco70", "textures"), ("coco70", "objects"))
VOC = (("voc20", "textures"), ("voc20", "objects"))
LEFT_OUT = {"coco70": "left-out", "voc20": "left-out-voc20"}
UNSEEN = {"coco70": {3, 4}, "voc20": set(), "left out": {2, 3, 4}, "digits": set()}
SHOWN = {  # the detectors of the page, and what it calls them
    DEFAULT: "**the default**",
    UNGUARDED: "without the guard",
    ON_FEATURES: "no training data",
    ON_LOGITS: "logits only",
    **{name: f"`{name}`" for name in (JOINT, "max_logit", "knn")},
    **{name: f"`{name}`" for name in ("label_neighbours", "linear_probe")},
}
UNSEEN_ELSEWHERE = {2, 3, 4}

Results = dict[tuple[str, str], dict[str, dict[int, float]]]  # by set, detector and seed


def read_results() -> Results:
    """Return the FPR95 in per cent of every set."""
    result: Results = defaultdict(lambda: defaultdict(dict))
    for name in ("coco70-methods", "voc20", "digits-quick", "text-and-tables"):
        for line in read_lines(RESULTS / f"{name}.jsonl"):
            if line.evaluation is not None:
                fpr = 100 * line.evaluation.fpr.value
                result[line.id, line.ood][line.detector][line.seed] = fpr
    # left_out.py prints the detectors in the order of coco70-methods, as it was when it ran.
    lines = read_lines(RESULTS / "coco70-methods.jsonl")
    detectors = tuple(dict.fromkeys(line.detector for line in lines))
    for trained, file in LEFT_OUT.items():
        for text in (RESULTS / f"{file}.txt").read_text().splitlines():
            if text.startswith("seed "):
                seed, values = text.removeprefix("seed ").split(": ")
                for detector, value in zip(detectors, ast.literal_eval(values), strict=True):
                    result[trained, "left out"][detector][int(seed)] = value
    return result


def only_unseen(results: Results) -> Results:
    """Return the seeds that were not in view when the parts of the default were chosen."""
    kept: Results = {}
    for (trained, ood), by_detector in results.items():
        seeds = UNSEEN.get(trained, UNSEEN_ELSEWHERE)
        if trained == "coco70":
            seeds = UNSEEN.get(ood, seeds)
        if seeds:
            kept[trained, ood] = {
                name: {seed: value for seed, value in values.items() if seed in seeds}
                for name, values in by_detector.items()
            }
    return kept


def row(results: Results, detector: str, other: str) -> str:
    """Return the claims for one detector, against joint energy and against another one."""

    def fpr(key: tuple[str, str], name: str) -> float:
        return mean(results[key][name].values())

    def lower(*keys: tuple[str, str]) -> str:
        if not all(key in results for key in keys):
            return "-"
        ours, theirs = (mean(fpr(key, name) for key in keys) for name in (detector, JOINT))
        return f"{ours:.2f} against {theirs:.2f}: {1 - ours / theirs:.0%} lower"

    def worst(than: str) -> str:
        both = [key for key, result in results.items() if detector in result and than in result]
        worse = {key: fpr(key, detector) - fpr(key, than) for key in both}
        key = max(worse, key=lambda key: worse[key])
        return f"{worse[key]:+.1f} points ({' against '.join(key)}), of {len(both)} sets"

    near = lower(("coco70", "left out"))
    return f"{lower(*FAR)} | {lower(*VOC)} | {near} | {worst(JOINT)} | {worst(other)} |"


def claims() -> str:
    """Return the table of all sets but those of tables.py."""
    results = read_results()
    return "\n".join(
        [
            "| | COCO-70, far | VOC-20, far | COCO-70, left-out labels "
            "| worst against joint energy | worst against the same without the guard |",
            "|---|---|---|---|---|---|",
            f"| with training data | {row(results, DEFAULT, UNGUARDED)}",
            f"| features, no training data | {row(results, ON_FEATURES, ENERGY)}",
            f"| logits only | {row(results, ON_LOGITS, ENERGY)}",
            f"| with training data, unseen | {row(only_unseen(results), DEFAULT, UNGUARDED)}",
        ]
    )


def images() -> str:
    """Return the table of COCO-70 and VOC-20: mean and deviation over seeds."""
    results = read_results()
    sets = [(trained, ood) for trained in LEFT_OUT for ood in ("textures", "objects", "left out")]
    heads = " | ".join(f"{trained}: {ood} ↓" for trained, ood in sets)
    lines = [f"| detector | {heads} |", f"|---|{'---:|' * len(sets)}"]
    for name, shown in SHOWN.items():
        values = [results[key][name].values() for key in sets]
        cells = [f"{mean(some):.1f} ± {stdev(some):.1f}" for some in values]
        lines.append(f"| {shown} | {' | '.join(cells)} |")
    return "\n".join(lines)


def elsewhere() -> str:
    """Return the table of digits, text and real tables: mean over seeds."""
    results = read_results()
    names = " | ".join(SHOWN.values())
    lines = [f"| trained on | shown | {names} |", f"|---|---|{'---:|' * len(SHOWN)}"]
    for (trained, ood), by_detector in results.items():
        if trained not in LEFT_OUT:
            cells = " | ".join(f"{mean(by_detector[name].values()):.1f}" for name in SHOWN)
            lines.append(f"| {trained} | {ood} | {cells} |")
    return "\n".join(lines)


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
    print("\n\n".join([claims(), claims_on_tables(), images(), elsewhere()]))
