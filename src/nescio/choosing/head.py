"""A head that is trained again: from features to the logits of some of the labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from nescio._validation import Array
from nescio.outputs import Head, Outputs
from nescio.outputs.head import PENULTIMATE

_N_HIDDEN = 512
_BATCH = 64
_RATE = 1e-3
_MOST_EPOCHS = 100
_PATIENCE = 3  # epochs without a lower loss
_DECAY = (0.9, 0.999)  # of Adam's running means

Weights = list[NDArray[np.float32]]


@dataclass(frozen=True)
class RefittedHead:
    """A head for the labels `kept`: linear, or with one hidden layer."""

    kept: list[int]
    weights: list[NDArray[np.float64]]  # two matrices and biases; for a linear head one of each

    def outputs(self, outputs: Outputs) -> Outputs:
        """Return the outputs as a model with this head would give them."""
        assert outputs.features is not None
        *inner, weight, bias = self.weights
        # In float64: features may be large numbers that differ little.
        hidden = _hidden(inner, outputs.features.astype(np.float64))
        logits = (hidden @ weight + bias).astype(np.float32)
        arrays = {n: outputs.arrays[n] for n in outputs.layers if n != PENULTIMATE}
        if inner:
            arrays[PENULTIMATE] = hidden.astype(np.float32)
        # Arrays that are no layers, such as logits of perturbed inputs, depend on the old head.
        known = replace(outputs, head=None, arrays={}).select_labels(self.kept)
        return replace(known, logits=logits, head=Head(weight.T, bias), arrays=arrays)


def refit_head(
    train: Outputs, check: Outputs, kept: list[int], *, hidden: bool, rng: np.random.Generator
) -> RefittedHead:
    """Train a head on the features for the labels `kept`, by Adam on binary cross-entropy.

    It is linear, or has one hidden layer. Its weights are those of the epoch with the lowest loss
    on `check`. Features are standardised for the training; the result takes them as they are.
    """
    assert train.features is not None
    mean = train.features.mean(0, dtype=np.float64)
    scale = train.features.std(0, dtype=np.float64)
    rounding = np.finfo(train.features.dtype).eps
    scale[scale <= rounding * np.abs(mean)] = 1.0  # constant
    sets = [_Set.of(outputs, kept, mean, scale) for outputs in (train, check)]
    weights = [w.astype(np.float64) for w in _trained(*sets, hidden=hidden, rng=rng)]
    weights[0] /= scale[:, None]
    weights[1] -= mean @ weights[0]
    return RefittedHead(kept, weights)


class _Set(NamedTuple):
    """Standardised features and multi-hot labels, in float32."""

    x: Array
    y: Array

    @classmethod
    def of(cls, outputs: Outputs, kept: list[int], mean: Array, scale: Array) -> _Set:
        assert outputs.features is not None
        assert outputs.labels is not None
        x = ((outputs.features - mean) / scale).astype(np.float32)
        return cls(x, outputs.labels[:, kept].astype(np.float32))


def _trained(train: _Set, check: _Set, *, hidden: bool, rng: np.random.Generator) -> Weights:
    n_batches = max(1, len(train.x) // _BATCH)
    weights = best = _start(train, hidden=hidden, rng=rng)
    means = [(np.zeros_like(w), np.zeros_like(w)) for w in weights]
    lowest, waited, step = np.inf, 0, 0
    for _ in range(_MOST_EPOCHS):
        for rows in np.array_split(rng.permutation(len(train.x)), n_batches):
            step += 1
            gradients = _gradients(weights, train.x[rows], train.y[rows])
            weights = _adam(weights, gradients, means, step)
        loss = _loss(weights, check)
        if loss < lowest:
            best, lowest, waited = weights, loss, 0
        else:
            waited += 1
        if waited == _PATIENCE:
            break
    return best


def _start(train: _Set, *, hidden: bool, rng: np.random.Generator) -> Weights:
    """Return weights that predict how often each label occurs, for every sample."""
    n_inputs = train.x.shape[1]
    inner: Weights = []
    if hidden:
        drawn = rng.standard_normal((n_inputs, _N_HIDDEN), np.float32)
        inner = [drawn * np.float32(np.sqrt(2 / n_inputs)), np.zeros(_N_HIDDEN, np.float32)]
        n_inputs = _N_HIDDEN
    share = (train.y.sum(0) + 0.5) / (len(train.y) + 1)
    last = np.zeros((n_inputs, train.y.shape[1]), np.float32)
    return [*inner, last, logit(share).astype(np.float32)]


def _hidden(inner: Sequence[Array], x: Array) -> Array:
    return np.maximum(x @ inner[0] + inner[1], 0) if inner else x


def _gradients(weights: Weights, x: Array, y: Array) -> Weights:
    *inner, weight, bias = weights
    hidden = _hidden(inner, x)
    error = (expit(hidden @ weight + bias) - y) / len(x)  # (n_rows, n_labels)
    last = [hidden.T @ error, error.sum(0)]
    if not inner:
        return last
    back = error @ weight.T * (hidden > 0)  # (n_rows, n_hidden)
    return [x.T @ back, back.sum(0), *last]


def _adam(
    weights: Weights, gradients: Weights, means: list[tuple[Array, Array]], step: int
) -> Weights:
    """Return the next weights; update the running means of the gradients and of their squares."""
    first, second = _DECAY
    moved = []
    for w, g, (mean, square) in zip(weights, gradients, means, strict=True):
        mean += (1 - first) * (g - mean)
        square += (1 - second) * (g * g - square)
        size = np.sqrt(square / (1 - second**step)) + 1e-8
        moved.append((w - _RATE * mean / (1 - first**step) / size).astype(np.float32))
    return moved


def _loss(weights: Weights, check: _Set) -> float:
    *inner, weight, bias = weights
    logits = (_hidden(inner, check.x) @ weight + bias).astype(np.float64)
    return float((np.logaddexp(0, logits) - check.y * logits).mean())
