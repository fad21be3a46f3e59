"""Which features and which detectors help on tables? FPR95, mean and spread over five seeds.

    python benchmarks/detection/tables.py
    python benchmarks/detection/tables.py --summary benchmarks/results/tables.jsonl

It needs scikit-learn and nothing else. Three multi-label problems:

- sensors: generated. Four hidden factors with one centre for each of six groups make 14 correlated
  columns in different units, four of them log-normal. Six labels depend on the factors and on a
  product of two. Held out: a group.
- counts: scikit-learn's make_multilabel_classification, 20 columns of counts. Held out: the samples
  with the last label, which is then not a label.
- digits: scikit-learn's load_digits as a table of grey values. Labels are properties of the digit,
  such as "even". Held out: a digit.

Out-of-distribution sets, all but the first made of test rows: group, what was held out; units, a
quarter of the columns multiplied by factors such as 2.54 or 10; shifted, one column moved by four
standard deviations; columns, in another order; independent, each column shuffled by itself.

Features: logits alone; inputs, as they are; standardised; table, which is
nescio.TableFeatures; leaves. The leaves of boosting are what each tree adds to the logits.
Those of the forest are a random projection of the leaves' one-hot code to 256 columns.
isolation_forest and lof read the table in place of logits, as they do in scikit-learn.

No set was chosen by a result, but one setting was. That the constant column of TableFeatures helps
was seen on seed 0 of all three problems; its length was not searched, and seeds 1 to 4 test it.
The default, combined, was not chosen by these results.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import sklearn
from numpy.typing import NDArray
from sklearn.datasets import load_digits, make_multilabel_classification
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import nescio as ns
from nescio.detectors.registry import build_detector
from nescio.errors import NescioWarning
from nescio.metrics import Evaluation, mean_average_precision
from nescio.metrics.comparison import Spread, compare_outputs
from nescio.outputs import Outputs

Matrix = NDArray[np.float64]
Transform = Callable[[Matrix], Matrix]

N_SAMPLES, N_TEST = 3600, 600
OOD = ("group", "units", "shifted", "columns", "independent")
LOGITS, INPUTS, STANDARDISED, TABLE, LEAVES = "logits", "inputs", "standardised", "table", "leaves"
ON_FEATURES = ("knn", "label_neighbours", "mahalanobis", "combined")
DETECTORS = {
    LOGITS: ("joint_energy", "max_logit"),
    INPUTS: ("knn", "label_neighbours", "combined"),  # for mahalanobis, the same as standardised
    STANDARDISED: ON_FEATURES,
    TABLE: (*ON_FEATURES, "vim", "relative_mahalanobis", "linear_probe"),
    LEAVES: ON_FEATURES,
}
ALONE = ("isolation_forest", "lof")  # they read logits; here, the table


class Rows(NamedTuple):
    """Inputs, multi-hot labels, and which rows are held out as a group."""

    x: Matrix
    y: NDArray[np.int64]
    held_out: NDArray[np.bool_]


class Problem(NamedTuple):
    """Inputs and labels of each part, and inputs of each OOD set."""

    parts: Mapping[str, tuple[Matrix, NDArray[np.int64]]]
    ood: Mapping[str, Matrix]


# --- problems -----------------------------------------------------------------------------------


def sensors(seed: int, rng: np.random.Generator) -> Rows:
    n_factors, n_columns, n_labels, n_groups = 4, 14, 6, 6
    group = rng.integers(0, n_groups, N_SAMPLES)
    factors = 0.8 * rng.normal(size=(n_groups, n_factors))[group]
    factors += rng.normal(size=factors.shape)
    x = factors @ rng.normal(size=(n_factors, n_columns))
    x += 0.7 * rng.normal(size=x.shape)
    x = (x - x.mean(0)) / x.std(0)
    skewed = rng.permutation(n_columns)[:4]
    x[:, skewed] = np.exp(x[:, skewed])
    x = x * 10.0 ** rng.uniform(-2, 3, n_columns) + 10.0 ** rng.uniform(-1, 3, n_columns)
    evidence = factors @ rng.normal(size=(n_factors, n_labels)) + 0.5 * rng.normal(size=n_labels)
    evidence += 0.5 * factors[:, :1] * factors[:, 1:2] + 0.5 * rng.normal(size=evidence.shape)
    return Rows(x, (evidence > 0.8).astype(int), group == seed % n_groups)


def counts(seed: int, rng: np.random.Generator) -> Rows:
    x, y = make_multilabel_classification(N_SAMPLES, 20, n_classes=6, random_state=seed)
    return Rows(x, y[:, :-1], y[:, -1] == 1)


def digits(seed: int, rng: np.random.Generator) -> Rows:
    x, digit = load_digits(return_X_y=True)
    properties = [
        digit % 2 == 0,
        digit >= 5,
        np.isin(digit, [0, 6, 8, 9]),  # a closed line
        np.isin(digit, [2, 3, 5, 7]),  # prime
        np.isin(digit, [1, 4, 7]),  # straight lines only
        np.isin(digit, [0, 3, 6, 9]),  # divisible by three
    ]
    return Rows(x[:, x.std(0) > 0.3], np.column_stack(properties).astype(int), digit == seed)


PROBLEMS = {"sensors": sensors, "counts": counts, "digits": digits}


@functools.lru_cache(maxsize=1)  # one problem at a time, for all models
def problem_of(name: str, seed: int) -> Problem:
    """Divide the rows that are not held out, and make the OOD sets."""
    rng = np.random.default_rng((list(PROBLEMS).index(name), seed))
    x, y, held_out = PROBLEMS[name](seed, rng)
    id_rows = rng.permutation(np.flatnonzero(~held_out))
    train, val, test = np.split(id_rows, [int(0.55 * len(id_rows)), int(0.8 * len(id_rows))])
    base = x[test[:N_TEST]]
    n_columns = x.shape[1]
    units, shifted = base.copy(), base.copy()
    some = rng.permutation(n_columns)[: n_columns // 4]
    units[:, some] *= rng.choice([0.1, 0.4536, 1.8, 2.54, 10.0], len(some))
    column = rng.integers(n_columns)
    shifted[:, column] += 4 * x[train, column].std()
    rest = (units, shifted, base[:, rng.permutation(n_columns)], rng.permuted(base, axis=0))
    return Problem(
        {"train": (x[train], y[train]), "val": (x[val], y[val]), "test": (base, y[test[:N_TEST]])},
        dict(zip(OOD, (x[held_out][:N_TEST], *rest), strict=True)),
    )


# --- models and features ------------------------------------------------------------------------

MODELS = {
    "chain": lambda seed: make_pipeline(
        StandardScaler(), ClassifierChain(LogisticRegression(max_iter=1000))
    ),
    "logistic": lambda seed: make_pipeline(
        StandardScaler(), MultiOutputClassifier(LogisticRegression(max_iter=1000))
    ),
    "boosting": lambda seed: MultiOutputClassifier(
        HistGradientBoostingClassifier(max_iter=40, random_state=seed)
    ),
    "forest": lambda seed: RandomForestClassifier(60, random_state=seed),
}


def features_of(name: str, model, train: Matrix) -> Iterator[tuple[str, Transform]]:
    yield INPUTS, lambda x: x
    yield STANDARDISED, StandardScaler().fit(train).transform
    yield TABLE, ns.TableFeatures().fit(train).transform
    if name == "boosting":
        yield LEAVES, lambda x: boosting_leaves(model, x)
    if name == "forest":
        rng = np.random.default_rng(0)
        codes = [
            rng.choice([-1.0, 1.0], (tree.tree_.node_count, 256)) for tree in model.estimators_
        ]
        yield (
            LEAVES,
            lambda x: sum(code[leaf] for code, leaf in zip(codes, model.apply(x).T, strict=True)),
        )


def boosting_leaves(model: MultiOutputClassifier, x: Matrix) -> Matrix:
    """Return what each tree adds to the logits: one column per tree of each label."""
    stages = [
        np.column_stack([*booster.staged_decision_function(x)]) for booster in model.estimators_
    ]
    return np.hstack([np.diff(of_label, axis=1) for of_label in stages])


# --- results ------------------------------------------------------------------------------------


class Line(NamedTuple):
    """One model on one problem: FPR95 and AUROC of each detector on each OOD set."""

    problem: str
    model: str
    seed: int
    n_train: int
    n_held_out: int
    test_map: float
    versions: Mapping[str, str]
    fpr: Mapping[str, Mapping[str, float]]  # by "features: detector", then by OOD set
    auroc: Mapping[str, Mapping[str, float]]


def result_line(name: str, kind: str, seed: int) -> Line:
    problem = problem_of(name, seed)
    model = MODELS[kind](seed).fit(*problem.parts["train"])
    wrapped = ns.wrap(model)
    truth = {part: labels for part, (_, labels) in problem.parts.items()}
    inputs = {part: x for part, (x, _) in problem.parts.items()} | problem.ood
    logits = {part: wrapped.outputs(x).logits for part, x in inputs.items()}
    result: dict[str, dict[str, Evaluation]] = {}
    for features, transform in features_of(kind, model, inputs["train"]):
        made = {
            part: Outputs(logits[part], transform(x), truth.get(part)) for part, x in inputs.items()
        }
        if features == INPUTS:
            result |= evaluated(LOGITS, DETECTORS[LOGITS], made)
        result |= evaluated(features, DETECTORS[features], made)
        if features == TABLE:
            tables = {part: Outputs(outputs.features[:, :-1]) for part, outputs in made.items()}
            result |= evaluated(TABLE, ALONE, tables)
    fpr, auroc = (
        {
            detector: {ood: round(getattr(item, measure).value, 4) for ood, item in by_ood.items()}
            for detector, by_ood in result.items()
        }
        for measure in ("fpr", "auroc")
    )
    return Line(
        name,
        kind,
        seed,
        len(inputs["train"]),
        len(inputs["val"]),
        round(mean_average_precision(truth["test"], logits["test"]), 4),
        {package.__name__: package.__version__ for package in (ns, np, sklearn)},
        fpr,
        auroc,
    )


def evaluated(
    features: str, names: Sequence[str], made: Mapping[str, Outputs]
) -> dict[str, dict[str, Evaluation]]:
    """Return the evaluation of each detector on each OOD set."""
    result = compare_outputs(
        {f"{features}: {name}": build_detector(name) for name in names},
        made["test"],
        {ood: made[ood] for ood in OOD},
        train=made["train"],
        held_out=made["val"],
        n_bootstrap=0,
    )
    if result.skipped:
        raise SystemExit(f"some detectors could not run: {result.skipped}")
    return {
        f"{features}: {name}": {ood: result.results[ood][f"{features}: {name}"] for ood in OOD}
        for name in names
    }


# --- tables -------------------------------------------------------------------------------------


class Cell(NamedTuple):
    """FPR95 of a detector on one OOD set, by one model on one problem."""

    detector: str
    problem: str
    model: str
    ood: str
    seed: int
    fpr: float


def cells_of(lines: Sequence[Line]) -> list[Cell]:
    return [
        Cell(detector, line.problem, line.model, ood, line.seed, value)
        for line in lines
        for detector, by_ood in line.fpr.items()
        for ood, value in by_ood.items()
    ]


def mean_fpr(cells: Sequence[Cell]) -> Spread:
    """Return the mean over problems, models and OOD sets, and its spread over seeds."""
    seeds = sorted({cell.seed for cell in cells})
    return Spread.of([np.mean([cell.fpr for cell in cells if cell.seed == seed]) for seed in seeds])


def in_per_cent(spread: Spread) -> str:
    deviation = "" if spread.deviation is None else f" ± {100 * spread.deviation:.1f}"
    return f"{100 * spread.mean:.1f}{deviation}"


def table(cells: Sequence[Cell], by: str) -> str:
    """Return a table with one row per detector and one column per OOD set, model or problem."""
    columns = list(dict.fromkeys(getattr(cell, by) for cell in cells))
    rows = []
    for detector in dict.fromkeys(cell.detector for cell in cells):
        own = [cell for cell in cells if cell.detector == detector]
        texts = []
        for column in columns:
            some = [cell for cell in own if getattr(cell, by) == column]
            texts.append(in_per_cent(mean_fpr(some)) if some else "")
        features, _, name = detector.partition(": ")
        mean = mean_fpr(own)
        row = f"| {features} | `{name}` | {' | '.join(texts)} | {in_per_cent(mean)} |"
        rows.append((list(DETECTORS).index(features), mean.mean, row))
    head = f"| features | detector | {' | '.join(columns)} | mean |"
    rule = f"|---|---|{'---:|' * (len(columns) + 1)}"
    return "\n".join([head, rule, *(row for *_, row in sorted(rows))])


def tables(lines: Sequence[Line]) -> list[str]:
    """Return the tables by OOD set, by model and by problem, and what was not in view."""
    cells = cells_of(lines)
    unseen = [cell for cell in cells if cell.seed > 0] or cells
    means = {
        features: in_per_cent(mean_fpr([c for c in unseen if c.detector == f"{features}: knn"]))
        for features in (INPUTS, STANDARDISED, TABLE)
    }
    text = ", ".join(f"{value} ({features})" for features, value in means.items())
    return [
        *(table(cells, by) for by in ("ood", "model", "problem")),
        f"knn on seeds 1 and later, which were not in view: {text}",
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=PROBLEMS, help="some of the problems")
    parser.add_argument("--model", action="append", choices=MODELS, help="some of the models")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--results", type=Path, help="write result lines to this file")
    parser.add_argument("--summary", type=Path, help="print the tables of such a file only")
    options = parser.parse_args(arguments)
    if options.summary:
        lines = read(options.summary)
    else:
        lines = []
        warnings.simplefilter("ignore", NescioWarning)  # tables in place of logits; ties
        for seed in range(options.seeds):
            for name in options.only or PROBLEMS:
                for kind in options.model or MODELS:
                    lines.append(result_line(name, kind, seed))
                    print(f"{name}, {kind}, seed {seed}: {os.times().user:.0f} s", flush=True)
    if options.results:
        text = "".join(json.dumps(line._asdict()) + "\n" for line in lines)
        options.results.write_text(text, "utf-8")
    print("\n\n".join(["", *tables(lines)]))


def read(path: Path) -> list[Line]:
    return [Line(**json.loads(text)) for text in path.read_text("utf-8").splitlines()]


if __name__ == "__main__":
    main()
