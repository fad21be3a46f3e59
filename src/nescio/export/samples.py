"""Inputs to trace a model with and to check its graph on: given ones, or random ones."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from nescio._validation import Array, to_numpy
from nescio.data.preprocessing import Preprocessing
from nescio.errors import ExportError, InputError, ParameterError, ShapeError
from nescio.runners import Wrapped
from nescio.runners.batches import n_rows
from nescio.runners.onnx_models import DTYPES

__all__ = ["Feed", "Samples", "check_images", "given_samples", "random_samples"]

Feed = dict[str, Array]
"""What a graph takes, by name, samples first."""

_N_RANDOM = 12
_SCALES = (0.1, 1.0, 5.0)
_OPEN_SIZE = 32  # of a dimension that a graph leaves open
_LONGEST_TEXT = 17
_A_FEW_TOKENS = 100  # where the vocabulary is not known


@dataclass(frozen=True)
class Samples:
    """Inputs of a model, for Python and for its graph.

    Attributes
    ----------
    feed : dict of str to array
        What the graph takes.
    by_name : bool
        Whether Python takes them by name too, or by position.
    """

    feed: Feed
    by_name: bool

    @property
    def data(self) -> Any:
        """As `Wrapped.outputs` takes them."""
        return self.feed if self.by_name else tuple(self.feed.values())

    def __len__(self) -> int:
        return n_rows(self.feed)

    def resized(self, rows: int) -> Samples:
        """So many rows: the first ones, or all of them again and again."""
        at = np.resize(np.arange(len(self)), rows)
        return Samples({name: array[at] for name, array in self.feed.items()}, self.by_name)


def given_samples(wrapped: Wrapped, given: Any) -> Samples:
    """Samples in the types that the model takes; of batches, such as a DataLoader, the first."""
    model: Any = wrapped
    data = given if model._is_data(given) else next(model._batches(given, 1)).inputs
    if n_rows(data) < 1:
        raise ShapeError("samples have no rows.")
    if wrapped.kind == "onnx":
        feed = {name: _typed(model, name, part) for name, part in model._by_name(data).items()}
        return Samples(feed, by_name=True)
    by_name = isinstance(data, Mapping) or wrapped.kind == "transformers"
    if isinstance(data, Mapping):
        named = {name: data[name] for name in model.input_names(data)}
    else:
        parts = data if isinstance(data, tuple) else (data,)
        names = model.input_names() or _argument_names(model.model, len(parts))
        named = dict(zip(names, parts, strict=False))
    feed = {}
    for name, part in named.items():
        tensor = model._placed(part)
        if not isinstance(tensor, Tensor):
            raise ExportError(f"input {name!r} is {part!r}; a graph takes arrays and tensors only.")
        feed[name] = to_numpy(tensor)
    return Samples(feed, by_name)


def _typed(model: Any, name: str, part: Any) -> Array:
    """An input in the graph's type, however many rows it has."""
    array = to_numpy(part)
    [kind] = [node.type for node in model.session.get_inputs() if node.name == name]
    wanted = DTYPES.get(kind, array.dtype)
    if not np.can_cast(array.dtype, wanted, "same_kind"):
        raise InputError(f"input {name!r} must be {kind}, got {array.dtype}.")
    return array.astype(wanted, copy=False)


def _argument_names(model: Any, count: int) -> tuple[str, ...]:
    """The names of a module's first arguments; made up if it has none."""
    arguments = inspect.signature(model.forward).parameters.values()
    named = [a.name for a in arguments if a.kind in (a.POSITIONAL_ONLY, a.POSITIONAL_OR_KEYWORD)]
    made_up = [f"input_{position}" for position in range(count)]
    return tuple(named[:count] if len(named) >= count else made_up)


def random_samples(wrapped: Wrapped, input_shape: Sequence[int] | None = None) -> Samples:
    """Random inputs of a model, always the same."""
    return given_samples(wrapped, _random(wrapped, input_shape))


def _random(wrapped: Wrapped, input_shape: Sequence[int] | None) -> Any:
    rng = np.random.default_rng(0)
    if input_shape is not None:
        if wrapped.kind == "onnx":
            _check_shape(wrapped, tuple(input_shape))
        return _scaled(rng, (_N_RANDOM, *input_shape))
    if wrapped.kind == "onnx":
        return _of_graph(wrapped, rng)
    if wrapped.kind == "transformers":
        return _of_config(wrapped, rng)
    raise ExportError(
        "a torch module does not say what it takes. Give the shape of one input, such as 3,224,224 "
        "(--input-shape, in Python input_shape), or a few real inputs (--samples, samples)."
    )


def _check_shape(wrapped: Any, given: tuple[int, ...]) -> None:
    """Raise unless an input of this shape fits a graph's only one."""
    nodes = wrapped.session.get_inputs()
    if len(nodes) != 1:
        raise ParameterError(
            f"the shape of one input was given, and the graph takes "
            f"{', '.join(node.name for node in nodes)}. Pass a few real inputs instead (--samples)."
        )
    expected = (nodes[0].shape or [0])[1:]
    fits = len(given) == len(expected) and all(
        size == wanted or not isinstance(wanted, int)
        for size, wanted in zip(given, expected, strict=True)
    )
    if nodes[0].shape and not fits:
        raise ShapeError(
            f"one input of the graph has the shape ({_sizes(expected)}), and the shape given "
            f"(--input-shape) is ({_sizes(given)})."
        )


def _sizes(shape: Sequence[Any]) -> str:
    return ", ".join(map(str, shape))


def check_images(wrapped: Wrapped, preprocessing: Preprocessing, samples: Samples | None) -> None:
    """Raise unless the model takes one image, and one of the size that preprocessing gives."""
    model: Any = wrapped
    shapes: list[Sequence[Any]] = []
    if wrapped.kind == "onnx":
        shapes = [node.shape or [] for node in model.session.get_inputs()]
    elif samples is not None:
        shapes = [array.shape for array in samples.feed.values()]
    if (
        len(shapes) != 1
        or len(shapes[0]) != 4
        or (isinstance(shapes[0][1], int) and shapes[0][1] != 3)
    ):
        raise ParameterError(
            "preprocessing is for models with one input, images of shape (batch, 3, height, "
            f"width), and this one takes {' and '.join(f'({_sizes(s)})' for s in shapes)}. Leave "
            "it out (--image-size, --mean, --std)."
        )
    size, sides = preprocessing.size, shapes[0][2:]
    if any(isinstance(side, int) and side != size for side in sides):
        raise ParameterError(
            f"preprocessing makes images of {size} x {size} pixels (--image-size), and the model "
            f"takes {sides[0]} x {sides[1]}."
        )


def _scaled(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Normal noise, some rows small and some large."""
    scales = np.resize(_SCALES, shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    noise: Array = (rng.normal(size=shape) * scales).astype(np.float32)
    return noise


def _of_graph(wrapped: Any, rng: np.random.Generator) -> Feed:
    """By the shapes and types of an ONNX graph's inputs."""
    feed = {}
    for node in wrapped.session.get_inputs():
        fixed = node.shape and isinstance(node.shape[0], int)
        rows = node.shape[0] if fixed else _N_RANDOM
        sizes = [size if isinstance(size, int) else _OPEN_SIZE for size in (node.shape or [0])[1:]]
        shape = (rows, *sizes)
        if "float" in node.type or "double" in node.type:
            feed[node.name] = _scaled(rng, shape)
        elif "mask" in node.name:
            feed[node.name] = np.ones(shape, np.int64)
        elif "type" in node.name:
            feed[node.name] = np.zeros(shape, np.int64)
        elif "int" in node.type:
            feed[node.name] = rng.integers(0, _A_FEW_TOKENS, shape)
        else:
            raise ExportError(
                f"input {node.name!r} is {node.type}: pass a few real inputs (--samples, in Python "
                "samples)."
            )
    return feed


def _of_config(wrapped: Any, rng: np.random.Generator) -> Feed:
    """By the configuration of a transformers model: token ids, or pixels."""
    config = wrapped.model.config
    main, *others = wrapped.input_names()
    if main == "pixel_values" and getattr(config, "image_size", None) is not None:
        size = config.image_size
        sides = (size, size) if isinstance(size, int) else tuple(size)
        return {main: _scaled(rng, (_N_RANDOM, getattr(config, "num_channels", 3), *sides))}
    n_tokens = getattr(config, "vocab_size", None)
    if main != "input_ids" or n_tokens is None:
        raise ExportError(
            f"a {type(wrapped.model).__name__} takes {main}, and its config does not say of what "
            "size. Pass a few real inputs (--samples, in Python samples)."
        )
    length = min(_LONGEST_TEXT, getattr(config, "max_position_embeddings", _LONGEST_TEXT) - 2)
    feed = {main: rng.integers(0, n_tokens, (_N_RANDOM, length))}
    ends = rng.integers(2, length + 1, _N_RANDOM)
    for name in others:
        mask = name == "attention_mask"
        feed[name] = (np.arange(length) < ends[:, None]).astype(np.int64) * mask
    return feed
