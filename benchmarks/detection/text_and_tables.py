"""Which detectors help on text and tables? FPR95, mean and spread over five seeds.

    python benchmarks/detection/text_and_tables.py
    python benchmarks/detection/text_and_tables.py -d joint_energy -d knn --only flights
    python benchmarks/detection/text_and_tables.py --only docstrings --all

Four real multi-label problems that need no download beyond packages; see real_text.py and
real_tables.py. For each, what is near and far, and how a seed changes it:

- packages, docstrings: short texts; a head with one hidden layer on sentence embeddings.
  Near: topics, texts of labels that were held out. Far: words, the words of test texts in random
  texts; other kinds of text; another language;
- patients: a table; the same head on standardised columns. Near: group, a group of diseases.
  Far: units, six columns in other units; columns, in another order; independent, each column
  shuffled by itself; noise;
- flights: a table; gradient boosting for each label. Near: a season, and three airlines, that were
  held out. Far: the same.

`nescio choose` makes its own far data as "independent" is made, so that this set is no test of it.
No set and no setting was chosen by the result of a detector. Features are the embeddings or the
standardised columns; the layer "penultimate" is the hidden layer of the head.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import sklearn
import torch

import nescio
import nescio.detectors
import problems
import real_tables
import real_text
from nescio.detectors.registry import build_detector
from nescio.lab.benchmark.results import Line, comparison_lines, summarise, write_lines
from nescio.metrics import mean_average_precision
from nescio.metrics.comparison import compare_outputs
from nescio.outputs import Outputs

DETECTORS = (
    *("joint_energy", "top_k_joint_energy(k=20)", "max_logit", "knn", "combined"),
    "combined(detectors=[joint_energy, label_neighbours, linear_probe])",
    "combined(detectors=[top_k_joint_energy(k=20), out_of_range(held_out=true)])",
    "combined(detectors=[top_k_joint_energy(k=20), out_of_range(layer=logits, held_out=true)])",
    *("label_neighbours", "linear_probe"),
    *("relative_mahalanobis", "nnguide", "mahalanobis(normalise=true)", "vim"),
)
SETS = ("packages", "docstrings", "patients", "flights")
SIZES = {"packages": (3200, 700, 700), "docstrings": (1500, 400, 400)}
PARTS = ("train", "val", "test")
OOD = "ood-"
NEAR = ("topics", "group", "season", "airlines")  # the others are far

Made = dict[str, Outputs]  # by part or OOD set


def makers(names: Sequence[str]) -> Iterator[tuple[str, Callable[[int], Made]]]:
    """Yield for each set a function from a seed to the outputs of its model."""
    if set(names) & set(SIZES):
        yield from text_makers(names)
    if "patients" in names:
        yield "patients", lambda s: problems.two_layer_outputs(real_tables.patients(s), s)
    if "flights" in names:
        yield "flights", lambda s: problems.boosting_outputs(real_tables.flights(s), s)


def text_makers(names: Sequence[str]) -> Iterator[tuple[str, Callable[[int], Made]]]:
    embed = real_text.Embedder()
    tagged = {"packages": real_text.packages(), "docstrings": real_text.docstrings()}
    other = {"licences": real_text.licences(), "german": real_text.german()}
    texts = {name: sorted(tags_of) for name, tags_of in tagged.items()} | other
    absent = [name for name, part in texts.items() if not part]
    if absent:
        print(f"not on this computer, which is not Debian: {', '.join(absent)}")
    for name in tagged:
        if name in names and name not in absent:
            far = {other: part for other, part in texts.items() if other != name}
            made = real_text.TextSet(tagged[name], far, SIZES[name], embed)
            yield name, lambda s, made=made: problems.two_layer_outputs(made.problem(s), s)


def save(folder: Path, name: str, seed: int, made: Made) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part, outputs in made.items():
        outputs.save(folder / f"{name}-seed{seed}-{part}.safetensors", force=True)


def result_lines(name: str, seed: int, made: Made, detectors: Sequence[str]) -> list[Line]:
    """Return one line per detector and OOD set, near sets first."""
    train, val, test = (made[part] for part in PARTS)
    sets = {part.removeprefix(OOD): made[part] for part in made if part.startswith(OOD)}
    ood = {name: sets[name] for name in sorted(sets, key=lambda name: (name not in NEAR, name))}
    comparison = compare_outputs(
        {name: build_detector(name) for name in detectors},
        test,
        ood,
        train=train,
        held_out=val,
        n_bootstrap=0,
    )
    manifest = {
        "n_train": len(train),
        "n_held_out": len(val),
        "n_labels": test.n_labels,
        "test_map": mean_average_precision(test.labels, test.logits),
        "versions": {
            package.__name__: package.__version__ for package in (nescio, np, sklearn, torch)
        },
    }
    return comparison_lines(comparison, "text-and-tables", name, seed, manifest)


def print_tables(lines: Sequence[Line]) -> None:
    """Print one table per set: FPR95 of each detector on each OOD set, and the mean of these.

    The lowest mean comes first.
    """
    summary = summarise(lines)
    for name in dict.fromkeys(line.id for line in lines):
        maps = {line.seed: line.manifest["test_map"] for line in lines if line.id == name}
        by_ood = {ood: results for (id_name, ood), results in summary.items() if id_name == name}
        print(f"\n{name}: FPR95 over {len(maps)} seeds; mAP {100 * np.mean([*maps.values()]):.1f}")
        print(f"\n| detector | {' | '.join(by_ood)} | mean |\n|---|{'---:|' * (len(by_ood) + 1)}")
        detectors = dict.fromkeys(line.detector for line in lines)
        rows = {detector: row(detector, by_ood) for detector in detectors}
        for detector in sorted(rows, key=lambda name: float(rows[name][-1] or "inf")):
            print(f"| `{detector}` | {' | '.join(rows[detector])} |")
    for reason in sorted({f"{line.detector}: {line.skipped}" for line in lines if line.skipped}):
        print(f"skipped: {reason}")


def row(detector: str, by_ood: Mapping[str, Mapping]) -> list[str]:
    """Return the cells of a detector, in per cent; empty if it could not run."""
    fprs = [results[detector]["fpr"] for results in by_ood.values() if detector in results]
    if not fprs:
        return [""] * (len(by_ood) + 1)
    cells = [
        f"{100 * fpr.mean:.1f}" + ("" if fpr.deviation is None else f" ± {100 * fpr.deviation:.1f}")
        for fpr in fprs
    ]
    return [*cells, f"{100 * np.mean([fpr.mean for fpr in fprs]):.1f}"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-d", "--detector", action="append")
    parser.add_argument("--all", action="store_true", help="every detector that nescio has")
    parser.add_argument("--only", action="append", choices=SETS, help="some of the sets")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--results", type=Path, help="write result lines to this file")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="write the outputs there")
    options = parser.parse_args(arguments)
    names = options.only or SETS
    every = (
        tuple(dict.fromkeys((*DETECTORS, *nescio.detectors.DETECTORS)))
        if options.all
        else DETECTORS
    )
    chosen = options.detector or every
    lines: list[Line] = []
    for name, make in makers(names):
        for seed in range(options.seeds):
            made = make(seed)
            if options.save:
                save(options.save, name, seed, made)
            lines += result_lines(name, seed, made, chosen)
            print(f"{name}, seed {seed}", flush=True)
    if options.results:
        write_lines(options.results, lines)
    print_tables(lines)


if __name__ == "__main__":
    main()
