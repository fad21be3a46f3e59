"""Folds that leave labels out, made from in-distribution data only.

In each fold a part of the labels is unknown. The samples that carry only unknown labels stand for
out-of-distribution data that is near: the same kind of data, with something that the model has not
learned. Far data is made of features that do not belong together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nescio._validation import BoolArray
from nescio.choosing.head import refit_head
from nescio.errors import InputError, TooFewSamplesError
from nescio.outputs import Outputs
from nescio.outputs.head import PENULTIMATE

FEWEST = 10  # in-distribution samples, and others, that an FPR is computed from
SHUFFLED = "shuffled"
_REFERENCE_ONE_IN = 5

Indices = NDArray[np.intp]


@dataclass(frozen=True)
class Rows:
    """The labels that a fold keeps, and the samples it has.

    No training sample is in two of `train`, `reference` and `near_train`, and no held-out sample
    in two of `reference`, `id` and `near_held_out`.
    """

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


@dataclass(frozen=True)
class Fold:
    """The outputs of a model that does not know the removed labels."""

    train: Outputs
    reference: Outputs  # in place of held-out data, for detectors that learn from it
    id: Outputs
    near: Outputs
    far: Mapping[str, Outputs]


def label_folds(
    train: Outputs, held_out: Outputs, n_folds: int, seed: int, *, refit: bool
) -> list[Rows]:
    """Divide the labels into folds, and find the samples of each.

    Labels that no sample or every sample has tell no samples apart: they stay in every fold, and do
    not count as known or unknown. Samples without any other label are in no fold.
    """
    assert train.labels is not None
    assert held_out.labels is not None
    both = np.concatenate([train.labels, held_out.labels]) > 0
    telling = np.flatnonzero(both.any(0) & ~both.all(0))
    if len(telling) < 2:
        raise InputError(
            f"{len(telling)} of {train.n_labels} labels are carried by some samples but not by "
            "all of them, and leaving labels out needs at least two. Check that `labels` holds the "
            "truth, with one column per label."
        )
    rng = np.random.default_rng([seed, 0])
    parts = np.array_split(rng.permutation(telling), min(n_folds, len(telling)))
    return [_rows(train, held_out, telling, removed, rng, refit=refit) for removed in parts]


def _rows(
    train: Outputs,
    held_out: Outputs,
    telling: Indices,
    removed: Indices,
    rng: np.random.Generator,
    *,
    refit: bool,
) -> Rows:
    known = np.setdiff1d(telling, removed)
    fitted = rng.permutation(np.flatnonzero(_carries(train, known)))
    tested = rng.permutation(np.flatnonzero(_carries(held_out, known)))
    near = [
        np.flatnonzero(_carries(outputs, removed) & ~_carries(outputs, known))
        for outputs in (train, held_out)
    ]
    if refit:
        n_reference = len(fitted) // _REFERENCE_ONE_IN
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
    assert outputs.labels is not None
    return np.asarray(outputs.labels[:, labels].any(1))


def check_usable(folds: list[Rows]) -> None:
    """Raise if no fold has enough samples."""
    if any(rows.usable for rows in folds):
        return
    most_id, most_near = (
        max(len(rows.id) for rows in folds),
        max(rows.n_near for rows in folds),
    )
    if most_id < FEWEST:
        raise TooFewSamplesError(
            f"at most {most_id} held-out samples of a fold have a known label, and {FEWEST} are "
            "needed. Pass more held-out data."
        )
    raise TooFewSamplesError(
        f"at most {most_near} samples of a fold carry only left-out labels, and {FEWEST} are "
        f"needed, because these samples stand for unknown inputs ({len(folds)} folds). Use fewer "
        "folds, which leave out more labels at a time (n_folds=2), pass more data, or drop labels "
        "that almost every sample has (Outputs.select_labels)."
    )


def make_fold(
    train: Outputs,
    held_out: Outputs,
    far: Mapping[str, Outputs],
    rows: Rows,
    rng: np.random.Generator,
    *,
    refit: bool,
) -> Fold:
    """Return what a model that does not know the removed labels gives.

    With `refit`, its head is trained anew on the features; else the columns of the removed labels
    are dropped.
    """
    kept = rows.kept.tolist()
    far = {name: outputs[rows.id] for name, outputs in far.items()}
    if not refit:
        return Fold(
            train=train[rows.train].select_labels(kept),
            reference=held_out[rows.reference].select_labels(kept),
            id=held_out[rows.id].select_labels(kept),
            near=held_out[rows.near_held_out].select_labels(kept),
            far={name: outputs.select_labels(kept) for name, outputs in far.items()},
        )
    fitted, reference, tested = train[rows.train], train[rows.reference], held_out[rows.id]
    # A hidden layer only if the model has one between the features and the logits.
    hidden = PENULTIMATE in train.arrays
    head = refit_head(fitted, reference, kept, hidden=hidden, rng=rng)
    far = {SHUFFLED: shuffled(tested, rng), **far}
    near = [train[rows.near_train], held_out[rows.near_held_out]]
    return Fold(
        train=head.outputs(fitted),
        reference=head.outputs(reference),
        id=head.outputs(tested),
        near=Outputs.concat([head.outputs(some) for some in near]),
        far={name: head.outputs(outputs) for name, outputs in far.items()},
    )


def shuffled(outputs: Outputs, rng: np.random.Generator) -> Outputs:
    """Return the outputs with each feature permuted over the samples, also those of other layers.

    Every value is one of in-distribution data, but the values of a sample do not belong together.
    """
    assert outputs.features is not None
    return replace(
        outputs,
        features=rng.permuted(outputs.features, axis=0),
        arrays={name: rng.permuted(array, axis=0) for name, array in outputs.arrays.items()},
    )
