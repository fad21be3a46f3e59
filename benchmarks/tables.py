"""Which features and which detectors help on tables? FPR95, mean and spread over five seeds.

    python benchmarks/tables.py
    python benchmarks/tables.py --summary benchmarks/results/tables.jsonl

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
nescio.sklearn.TableFeatures; leaves. The leaves of boosting are what each tree adds to the logits.
Those of the forest are a random projection of the leaves' one-hot code to 256 columns.
isolation_forest and lof read the table in place of logits, as they do in scikit-learn.

No set and no setting was chosen by a result, but for the constant column of TableFeatures: that it
helps was seen on seed 0 of all three problems. Its length was not searched.
"""

from __future__ import annotations

import argparse
import functools
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
from nescio.benchmark.results import Line, Spread, comparison_lines, read_lines, write_lines
from nescio.errors import NescioWarning
from nescio.metrics import mean_average_precision
from nescio.metrics.comparison import compare
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
    known = rng.permutation(np.flatnonzero(~held_out))
    train, val, test = np.split(known, [int(0.55 * len(known)), int(0.8 * len(known))])
    base = x[test[:N_TEST]]
    n_columns = x.shape[1]
    units, shifted = base.copy(), base.copy()
    some = rng.permutation(n_columns)[: n_columns // 4]
    units[:, some] *= rng.choice([0.1, 0.4536, 1.8, 2.54, 10.0], len(some))
    column = rng.integers(n_columns)
    shifted[:, column] += 4 * x[train, column].std()
    others = (units, shifted, base[:, rng.permutation(n_columns)], rng.permuted(base, axis=0))
    return Problem(
        {"train": (x[train], y[train]), "val": (x[val], y[val]), "test": (base, y[test[:N_TEST]])},
        dict(zip(OOD, (x[held_out][:N_TEST], *others), strict=True)),
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
    yield TABLE, ns.sklearn.TableFeatures().fit(train).transform
    if name == "boosting":
        yield LEAVES, lambda x: boosting_leaves(model, x)
    if name == "forest":
        rng = np.random.default_rng(0)
        codes = [rng.choice([-1.0, 1.0], (one.tree_.node_count, 256)) for one in model.estimators_]
        yield (
            LEAVES,
            lambda x: sum(code[leaf] for code, leaf in zip(codes, model.apply(x).T, strict=True)),
        )


def boosting_leaves(model: MultiOutputClassifier, x: Matrix) -> Matrix:
    """Return what each tree adds to the logits: one column per tree of each label."""
    stages = [np.column_stack([*one.staged_decision_function(x)]) for one in model.estimators_]
    return np.hstack([np.diff(of_label, axis=1) for of_label in stages])


# --- results ------------------------------------------------------------------------------------


def result_lines(name: str, kind: str, seed: int) -> list[Line]:
    """Return one line per OOD set and detector on its features."""
    problem = problem_of(name, seed)
    model = MODELS[kind](seed).fit(*problem.parts["train"])
    wrapped = ns.wrap(model)
    truth = {part: labels for part, (_, labels) in problem.parts.items()}
    inputs = {part: x for part, (x, _) in problem.parts.items()} | problem.ood
    logits = {part: wrapped.outputs(x).logits for part, x in inputs.items()}
    manifest = {
        "n_train": len(inputs["train"]),
        "n_held_out": len(inputs["val"]),
        "n_labels": truth["test"].shape[1],
        "test_map": mean_average_precision(truth["test"], logits["test"]),
        "versions": {one.__name__: one.__version__ for one in (ns, np, sklearn)},
    }

    def lines(features: str, names: Sequence[str], made: Mapping[str, Outputs]) -> list[Line]:
        found = compare(
            {f"{features}: {one}": one for one in names},
            made["test"],
            {ood: made[ood] for ood in OOD},
            train=made["train"],
            held_out=made["val"],
            n_bootstrap=0,
        )
        return comparison_lines(found, "tables", f"{name}, {kind}", seed, manifest)

    def outputs(transform: Transform) -> dict[str, Outputs]:
        return {
            part: Outputs(logits[part], transform(x), truth.get(part)) for part, x in inputs.items()
        }

    found: list[Line] = []
    for features, transform in features_of(kind, model, inputs["train"]):
        made = outputs(transform)
        if features == INPUTS:
            found += lines(LOGITS, DETECTORS[LOGITS], made)
        found += lines(features, DETECTORS[features], made)
        if features == TABLE:
            tables = {part: Outputs(one.features[:, :-1]) for part, one in made.items()}
            found += lines(TABLE, ALONE, tables)
    return found


def mean_fpr(lines: Sequence[Line], n_seeds: int) -> str:
    """Return FPR95 in per cent: the mean over problems and models, and its spread over seeds."""
    values = [
        np.mean([one.evaluation.fpr.value for one in lines if one.seed == seed])
        for seed in range(n_seeds)
    ]
    found = Spread.of(values)
    return f"{100 * found.mean:.1f} ± {100 * (found.deviation or 0):.1f}"


def table(lines: Sequence[Line], by: Callable[[Line], str], title: str) -> str:
    """Return a table with one row per detector and one column per value of `by`."""
    n_seeds = 1 + max(line.seed for line in lines)
    columns = list(dict.fromkeys(map(by, lines)))
    rows = []
    for detector in dict.fromkeys(line.detector for line in lines):
        own = [line for line in lines if line.detector == detector and line.evaluation]
        cells = [[line for line in own if by(line) == column] for column in columns]
        texts = [mean_fpr(cell, n_seeds) if cell else "" for cell in cells]
        mean = np.mean([line.evaluation.fpr.value for line in own])
        features, _, name = detector.partition(": ")
        row = f"| {features} | `{name}` | {' | '.join(texts)} | {mean_fpr(own, n_seeds)} |"
        rows.append((list(DETECTORS).index(features), mean, row))
    head = f"| features | detector | {' | '.join(columns)} | mean |"
    rule = f"|---|---|{'---:|' * (len(columns) + 1)}"
    return "\n".join([title, "", head, rule, *(row for *_, row in sorted(rows))])


def tables(lines: Sequence[Line]) -> list[str]:
    """Return the tables: by OOD set, by model, by problem."""
    return [
        table(lines, lambda one: one.ood, "By kind of out-of-distribution rows"),
        table(lines, lambda one: one.id.split(", ")[1], "By model"),
        table(lines, lambda one: one.id.split(", ")[0], "By problem"),
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
    given = parser.parse_args(arguments)
    lines = read_lines(given.summary) if given.summary else []
    if not lines:
        warnings.simplefilter("ignore", NescioWarning)  # tables in place of logits; ties
        for seed in range(given.seeds):
            for name in given.only or PROBLEMS:
                for kind in given.model or MODELS:
                    lines += result_lines(name, kind, seed)
                    print(f"{name}, {kind}, seed {seed}: {os.times().user:.0f} s", flush=True)
    if given.results:
        write_lines(given.results, lines)
    for reason in sorted({f"{one.detector}: {one.skipped}" for one in lines if one.skipped}):
        print(f"skipped: {reason}")
    print("\n\n".join(["", *tables(lines)]))


if __name__ == "__main__":
    main()
