"""Folds that leave labels out, made from in-distribution data only.

In each fold a part of the labels is unknown. The samples that carry only unknown labels stand for
out-of-distribution data that is near: the same kind of data, with something that the model has not
learned. Far data is made of features that do not belong together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit
from sklearn.neural_network import MLPClassifier

from nescio._validation import Array, BoolArray, row_hashes
from nescio.detectors import JointEnergy
from nescio.errors import (
    InputError,
    MissingInputError,
    NonFiniteError,
    ShapeError,
    TooFewSamplesError,
    error_context,
)
from nescio.metrics.comparison import check_same_labels
from nescio.outputs import Head, Outputs
from nescio.outputs.outputs import PENULTIMATE

FEWEST = 10  # in-distribution samples, and near samples, that an FPR is computed from

Indices = NDArray[np.intp]


# --- the data that folds are made of ---


def checked_inputs(
    train: Outputs, held_out: Outputs, far: Mapping[str, Outputs], *, refit: bool
) -> tuple[Outputs, Outputs, dict[str, Outputs]]:
    """Return the outputs with only what the folds need; raise if they cannot be used."""
    sets = {"the training data": train, "the held-out data": held_out, **far}
    check_same_labels(held_out, sets)
    for name, outputs in sets.items():
        _check_arrays(name, outputs, labels=name not in far, refit=refit)
    _check_separate(train, held_out)
    for name, outputs in far.items():
        same_ids = (
            outputs.ids is None or held_out.ids is None or np.array_equal(outputs.ids, held_out.ids)
        )
        if len(outputs) != len(held_out) or not same_ids:
            raise ShapeError(
                f"{name} must be made from the held-out samples, one row for each, in the same "
                f"order: there are {len(held_out):,} held-out samples, and {name} has "
                f"{len(outputs):,}" + ("." if same_ids else " with other ids.")
            )
    layers = [name for name in train.layers if all(name in o.layers for o in sets.values())]
    for name in [*layers, *(["features"] if refit else [])]:
        widths = {outputs.get(name).shape[1] for outputs in sets.values()}
        if len(widths) > 1:
            raise ShapeError(
                f"all outputs must come from the same model, but {name} have "
                f"{' and '.join(map(str, sorted(widths)))} columns."
            )
    plain = [
        replace(
            outputs,
            ids=None,
            kept={},
            manifest={"layers": layers},
            arrays={name: outputs.arrays[name] for name in layers},
        )
        for outputs in sets.values()
    ]
    return plain[0], plain[1], dict(zip(far, plain[2:], strict=True))


def _check_arrays(name: str, outputs: Outputs, *, labels: bool, refit: bool) -> None:
    """Raise if labels or features are missing or not finite."""
    if labels and outputs.labels is None:
        raise MissingInputError(
            f"{name} has no labels, and these say which samples carry only left-out labels. Add "
            "the multi-hot truth: Outputs(..., labels=...)."
        )
    with error_context(name):
        JointEnergy().score_samples(outputs)  # raises for NaN and for probabilities
    if not refit:
        return
    if outputs.features is None:
        raise MissingInputError(
            f"{name} has no features to refit the head on. Add them, or pass refit='none'."
        )
    if not np.isfinite(outputs.features).all():
        raise NonFiniteError(f"{name}: the features hold NaN or infinity. Leave these rows out.")


def _check_separate(train: Outputs, held_out: Outputs) -> None:
    """Raise if most of the held-out samples are training samples."""
    a, b = train.features, held_out.features
    if a is None or b is None:
        a, b = train.logits, held_out.logits
    shared = int(np.isin(row_hashes(b), row_hashes(a)).sum())
    if 2 * shared > len(b):
        raise InputError(
            f"{shared:,} of {len(b):,} held-out samples are also in the training data. Pass "
            "in-distribution data that the model was not trained on as held-out data."
        )


# --- which samples a fold has ---


@dataclass(frozen=True)
class Rows:
    """The labels that a fold keeps, and the samples it has, each of them only once."""

    kept: Indices
    train: Indices
    reference: Indices  # of the training data, or of the held-out data if no head is refitted
    id: Indices  # of the held-out data
    near_train: Indices
    near_held_out: Indices

    @property
    def n_near(self) -> int:
        """How many samples stand for near out-of-distribution data."""
        return len(self.near_train) + len(self.near_held_out)

    @property
    def usable(self) -> bool:
        """Whether there are enough samples for an FPR."""
        return min(self.n_near, len(self.id)) >= FEWEST


def label_folds(
    train: Outputs, held_out: Outputs, n_folds: int, seed: int, *, refit: bool
) -> list[Rows]:
    """Divide the labels into folds, and find the samples of each; raise if no fold can be used.

    Labels that no sample or every sample has tell no samples apart: they stay in every fold, and do
    not count as known or unknown. Samples without any other label are in no fold.
    """
    both = np.concatenate([train.get("labels"), held_out.get("labels")]) > 0
    telling = np.flatnonzero(both.any(0) & ~both.all(0))
    if len(telling) < 2:
        raise InputError(
            f"{len(telling)} of {train.n_labels} labels are carried by some samples but not by "
            "all of them, and leaving labels out needs at least two. Check that `labels` holds the "
            "truth, with one column per label."
        )
    rng = np.random.default_rng([seed, 0])
    parts = np.array_split(rng.permutation(telling), min(n_folds, len(telling)))
    folds = [_rows(train, held_out, telling, removed, rng, refit=refit) for removed in parts]
    if not any(rows.usable for rows in folds):
        raise TooFewSamplesError(
            f"at most {max(len(rows.id) for rows in folds)} held-out samples of a fold have a "
            f"known label, and at most {max(rows.n_near for rows in folds)} samples carry only "
            f"left-out labels, but {FEWEST} of each are needed. Use fewer folds (n_folds=2) or "
            "more held-out data, or drop labels that almost all have (Outputs.select_labels)."
        )
    return folds


def _rows(
    train: Outputs,
    held_out: Outputs,
    telling: Indices,
    removed: Indices,
    rng: np.random.Generator,
    *,
    refit: bool,
) -> Rows:
    """Return the samples of the fold that leaves out the labels `removed`."""
    learned = np.setdiff1d(telling, removed)
    fitted = rng.permutation(np.flatnonzero(_carries(train, learned)))
    tested = rng.permutation(np.flatnonzero(_carries(held_out, learned)))
    near = [
        np.flatnonzero(_carries(outputs, removed) & ~_carries(outputs, learned))
        for outputs in (train, held_out)
    ]
    if refit:
        n_reference = len(fitted) // 5
        reference, fitted = fitted[:n_reference], fitted[n_reference:]
    else:
        # The model has learned from all training samples, those of the removed labels too. Only
        # held-out samples are as new to it as the inputs that it will meet.
        reference, tested = tested[: len(tested) // 2], tested[len(tested) // 2 :]
        near[0] = near[0][:0]
    kept = np.setdiff1d(np.arange(train.n_labels), removed)
    return Rows(kept, np.sort(fitted), np.sort(reference), np.sort(tested), near[0], near[1])


def _carries(outputs: Outputs, labels: Indices) -> BoolArray:
    """Return which samples have at least one of the labels."""
    return np.asarray(outputs.get("labels")[:, labels].any(1))


# --- the outputs of a model that does not know the labels that are left out ---


@dataclass(frozen=True)
class Fold:
    """The outputs of a model that does not know the removed labels."""

    train: Outputs
    reference: Outputs  # in place of held-out data, for detectors that learn from it
    id: Outputs
    near: Outputs
    far: Mapping[str, Outputs]


def make_fold(
    train: Outputs,
    held_out: Outputs,
    far: Mapping[str, Outputs],
    rows: Rows,
    rng: np.random.Generator,
    *,
    refit: bool,
) -> Fold:
    """Return what a model with a refitted head gives, or the model without the removed columns."""
    kept, fitted, tested = rows.kept.tolist(), train[rows.train], held_out[rows.id]
    near = [held_out[rows.near_held_out]]
    far = {name: outputs[rows.id] for name, outputs in far.items()}
    if refit:
        reference = train[rows.reference]
        without_removed = refit_head(fitted, reference, kept, rng=rng)
        near.insert(0, train[rows.near_train])
        far = {"shuffled": shuffled(tested, rng), **far}
    else:
        reference = held_out[rows.reference]
        without_removed = partial(Outputs.select_labels, labels=kept)
    return Fold(
        train=without_removed(fitted),
        reference=without_removed(reference),
        id=without_removed(tested),
        near=Outputs.concat([without_removed(part) for part in near]),
        far={name: without_removed(outputs) for name, outputs in far.items()},
    )


def shuffled(outputs: Outputs, rng: np.random.Generator) -> Outputs:
    """Return the outputs with each feature permuted over the samples, also those of other layers.

    Every value is one of in-distribution data, but the values of a sample do not belong together.
    """
    return replace(
        outputs,
        features=rng.permuted(outputs.get("features"), axis=0),
        arrays={name: rng.permuted(array, axis=0) for name, array in outputs.arrays.items()},
    )


def with_head(
    outputs: Outputs, kept: list[int], weights: Sequence[Array], biases: Sequence[Array]
) -> Outputs:
    """Return the outputs as a model with these layers in its head, for the labels `kept`, would."""
    # In float64: features may be large numbers that differ little.
    last, logits = forward(outputs.get("features"), weights, biases)
    arrays = {name: outputs.arrays[name] for name in outputs.layers if name != PENULTIMATE}
    if len(weights) > 1:
        arrays[PENULTIMATE] = last.astype(np.float32)
    # Arrays that are no layers, such as logits of perturbed inputs, depend on the old head.
    relabelled = replace(outputs, head=None, arrays={}).select_labels(kept)
    head = Head(weights[-1].T, biases[-1])
    return replace(relabelled, logits=logits.astype(np.float32), head=head, arrays=arrays)


def forward(
    features: Array, weights: Sequence[Array], biases: Sequence[Array]
) -> tuple[Array, Array]:
    """Return the input of the last layer and the logits, in float64."""
    inputs = features.astype(np.float64)
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        inputs = np.maximum(inputs @ weight + bias, 0)
    return inputs, inputs @ weights[-1] + biases[-1]


def refit_head(
    train: Outputs, check: Outputs, kept: list[int], *, rng: np.random.Generator
) -> Callable[[Outputs], Outputs]:
    """Train a head on the features for the labels `kept`, by Adam on binary cross-entropy.

    Returns a function from outputs to those of a model with this head. The head has a hidden layer
    only if the model has one between the features and the logits. Its weights are those of the
    epoch with the lowest loss on `check`.
    """
    features, labels = train.get("features"), train.get("labels")[:, kept]
    mean, scale = features.mean(0, dtype=np.float64), features.std(0, dtype=np.float64)
    scale[scale <= np.finfo(features.dtype).eps * np.abs(mean)] = 1.0  # constant
    x = ((features - mean) / scale).astype(np.float32)
    check_x = (check.get("features") - mean) / scale
    check_y = check.get("labels")[:, kept]
    network = MLPClassifier(
        (512,) if PENULTIMATE in train.arrays else (),
        alpha=0.0,
        batch_size=min(200, len(x)),
        learning_rate_init=3e-3,
        random_state=int(rng.integers(2**31)),
    )
    lowest, waited = np.inf, 0
    for epoch in range(100):
        network.partial_fit(x, labels, classes=[0, 1] if len(kept) == 1 else range(len(kept)))
        if epoch == 0:  # start from how often each label occurs, which saves many epochs
            network.coefs_[-1][:] = 0.0
            network.intercepts_[-1][:] = logit((labels.sum(0) + 0.5) / (len(labels) + 1))
        _, logits = forward(check_x, network.coefs_, network.intercepts_)
        loss = float((np.logaddexp(0, logits) - check_y * logits).mean())
        waited += 1
        if loss < lowest:
            lowest, waited = loss, 0
            weights, biases = (
                [array.astype(np.float64) for array in arrays]
                for arrays in (network.coefs_, network.intercepts_)
            )
            weights[0] /= scale[:, None]  # the head takes features that are not standardised
            biases[0] -= mean @ weights[0]
        if waited == 3:
            break
    return partial(with_head, kept=kept, weights=weights, biases=biases)
