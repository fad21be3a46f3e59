"""Run a model on all inputs, batch by batch."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nescio._validation import Array, to_numpy
from nescio.errors import InputError, ShapeError
from nescio.outputs import Head
from nescio.outputs.outputs import TEXT
from nescio.runners.base import Runner


class Gathered(NamedTuple):
    """What a model gave for all inputs, and the truth labels if the batches had them."""

    arrays: dict[str, Array]
    head: Head | None
    labels: Array | None
    texts: list[str] | None  # if the inputs were texts
    n_truncated: int  # the number of texts that were cut off

    @property
    def kept(self) -> dict[str, Array]:
        """The texts as a column; NumPy would make all of them as long as the longest."""
        return {} if self.texts is None else {TEXT: np.array(self.texts, dtype=np.object_)}


def gathered(runner: Runner, inputs: Any, batch_size: int) -> Gathered:
    """Run all batches of the inputs, and join what the model gives for them."""
    parts: dict[str, list[Array]] = {"logits": []}
    truth: list[Array] = []
    texts: list[str] = []
    n_truncated = 0
    head = None
    for batch in runner.batches(inputs, batch_size):
        arrays = runner.run(batch.inputs)
        if not parts["logits"]:
            head = runner.head(arrays)
        for name, array in arrays.items():
            blocks = parts.setdefault(name, [])
            if blocks and blocks[0].shape[1] != array.shape[1]:
                raise ShapeError(
                    f"the model returned {name} of {blocks[0].shape[1]} columns for one batch "
                    f"and of {array.shape[1]} for another."
                )
            blocks.append(array)
        if batch.labels is not None:
            truth.append(to_numpy(batch.labels))
        if truth and len(truth) != len(parts["logits"]):
            raise InputError("some of the batches have labels, and others do not.")
        texts += batch.texts or []
        n_truncated += batch.n_truncated
    if not parts["logits"]:
        raise ShapeError("there are no inputs: not a single sample was given.")
    joined = {name: np.concatenate(blocks) for name, blocks in parts.items()}
    return Gathered(
        joined,
        head,
        np.concatenate(truth) if truth else None,
        texts if len(texts) == len(joined["logits"]) else None,
        n_truncated,
    )
