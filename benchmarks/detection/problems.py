"""What `text_and_tables.py` makes of each data set, and the models that are trained on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.multioutput import MultiOutputClassifier

from left_out import outputs_of, trained_head
from nescio.outputs import Outputs


@dataclass(frozen=True)
class Problem:
    """A multi-label problem, with inputs of unknown kinds.

    `parts` has inputs and multi-hot labels of train, val and test; `ood` has inputs.
    """

    label_names: tuple[str, ...]
    parts: Mapping[str, tuple[NDArray[np.float64], NDArray[np.uint8]]]
    ood: Mapping[str, NDArray[np.float64]]


def divided(rows, sizes: Sequence[int], rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """Return disjoint random parts of the rows, of these sizes."""
    if len(rows) < sum(sizes):
        raise SystemExit(f"{sum(sizes):,} samples are needed, but there are only {len(rows):,}.")
    return np.split(rng.permutation(rows)[: sum(sizes)], np.cumsum(sizes)[:-1])


def two_layer_outputs(problem: Problem, seed: int) -> dict[str, Outputs]:
    """Train the paper's head on the inputs; return its outputs for every part and OOD set.

    A sixth of the training samples chooses the epoch.
    """
    x, y = problem.parts["train"]
    reference = np.random.default_rng((3, seed)).permutation(len(x)) < len(x) // 6
    x_train, y_train = x.astype("f4"), y.astype("f4")
    head = trained_head(
        x_train[~reference], y_train[~reference], x_train[reference], y_train[reference], seed
    )
    return _of_all(
        problem,
        lambda x, labels=None: outputs_of(head, x.astype("f4"), labels, problem.label_names),
    )


def boosting_outputs(problem: Problem, seed: int) -> dict[str, Outputs]:
    """Fit gradient boosting for each label; return its outputs for every part and OOD set."""
    model = MultiOutputClassifier(HistGradientBoostingClassifier(max_iter=50, random_state=seed))
    model.fit(*problem.parts["train"])

    def run(inputs, labels=None):
        logits = np.column_stack([item.decision_function(inputs) for item in model.estimators_])
        return Outputs(
            logits.astype("f4"), inputs.astype("f4"), labels, label_names=problem.label_names
        )

    return _of_all(problem, run)


def _of_all(problem: Problem, run) -> dict[str, Outputs]:
    result = {name: run(*part) for name, part in problem.parts.items()}
    return result | {f"ood-{name}": run(inputs) for name, inputs in problem.ood.items()}
