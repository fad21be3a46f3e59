"""Inputs to trace a model with and to check its graph on: given ones, a file's, or random ones."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from nescio._io.arrow import read_parquet
from nescio._io.files import existing_file
from nescio._io.kinds import verify_checksum
from nescio._io.tensors import read_tensors
from nescio._validation import Array, to_numpy
from nescio.errors import ExportError, FileFormatError, ParameterError, ShapeError
from nescio.runners import Runner
from nescio.runners.batches import n_rows

Feed = dict[str, Array]
"""What a graph takes, by name, samples first."""

_N_RANDOM = 12
_N_GIVEN = 64  # texts
_SCALES = (0.1, 1.0, 5.0)
_OPEN_SIZE = 32  # of a dimension that a graph leaves open
_LONGEST_TEXT = 17
_A_FEW_TOKENS = 100  # if the vocabulary is not known


@dataclass(frozen=True)
class Samples:
    """Inputs of a model, for Python and for its graph."""

    feed: Feed  # what the graph takes
    by_name: bool  # whether Python takes them by name as well, or by position

    @property
    def data(self) -> Any:
        """The inputs as `Runner.run` takes them."""
        return self.feed if self.by_name else tuple(self.feed.values())

    def __len__(self) -> int:
        return n_rows(self.feed)

    def resized(self, rows: int) -> Samples:
        """Return this many rows: the first ones, or all of them repeatedly."""
        at = np.resize(np.arange(len(self)), rows)
        return Samples({name: array[at] for name, array in self.feed.items()}, self.by_name)


def given_samples(runner: Runner, given: Any) -> Samples:
    """Return samples in the types that the model takes; the first batch of an iterable."""
    model: Any = runner
    data = given if runner.takes(given) else next(runner.batches(given, _N_GIVEN)).inputs
    if n_rows(data) < 1:
        raise ShapeError("samples have no rows.")
    if runner.kind == "onnx":
        feed = {name: model.typed(name, part) for name, part in model.by_name(data).items()}
        return Samples(feed, by_name=True)
    by_name = isinstance(data, Mapping) or runner.kind == "transformers"
    if isinstance(data, Mapping):
        named = {name: data[name] for name in model.input_names(data)}
    else:
        parts = data if isinstance(data, tuple) else (data,)
        names = model.input_names() or _argument_names(runner.model, len(parts))
        named = dict(zip(names, parts, strict=False))
    feed = {}
    for name, part in named.items():
        tensor = model.placed(part)
        if not isinstance(tensor, Tensor):
            raise ExportError(f"input {name!r} is {part!r}; a graph takes arrays and tensors only.")
        feed[name] = to_numpy(tensor)
    return Samples(feed, by_name)


def _argument_names(model: Any, count: int) -> tuple[str, ...]:
    """Return the names of a module's first arguments, or generic ones if it has none."""
    arguments = inspect.signature(model.forward).parameters.values()
    named = [a.name for a in arguments if a.kind in (a.POSITIONAL_ONLY, a.POSITIONAL_OR_KEYWORD)]
    generic = [f"input_{position}" for position in range(count)]
    return tuple(named[:count] if len(named) >= count else generic)


def random_inputs(runner: Runner, input_shape: Sequence[int] | None = None) -> Any:
    """Return random inputs of a model, always the same ones."""
    rng = np.random.default_rng(0)
    if input_shape is None and runner.preprocessing is not None:
        input_shape = (3, runner.preprocessing.size, runner.preprocessing.size)
    if input_shape is not None:
        if runner.kind == "onnx":
            _check_shape(runner, tuple(input_shape))
        return _scaled(rng, (_N_RANDOM, *input_shape))
    if runner.kind == "onnx":
        return _of_graph(runner, rng)
    if runner.kind == "transformers":
        return _of_config(runner, rng)
    raise ExportError(
        "a torch module does not say what it takes. Pass the shape of one input, such as 3,224,224 "
        "(input_shape=..., --input-shape), or a few real inputs (samples=..., --samples)."
    )


def _check_shape(runner: Any, given: tuple[int, ...]) -> None:
    """Raise unless an input of this shape fits the only input of a graph."""
    shapes = runner.input_shapes
    if len(shapes) != 1:
        raise ParameterError(
            f"the shape of one input was given, but the graph takes {', '.join(shapes)}. Pass a "
            "few real inputs instead (--samples)."
        )
    (shape,) = shapes.values()
    expected = shape[1:]
    fits = len(given) == len(expected) and all(
        size == wanted or not isinstance(wanted, int)
        for size, wanted in zip(given, expected, strict=True)
    )
    if shape and not fits:
        raise ShapeError(
            f"one input of the graph has the shape ({_sizes(expected)}), but the given shape "
            f"(--input-shape, --image-size) is ({_sizes(given)})."
        )


def _sizes(shape: Sequence[Any]) -> str:
    return ", ".join(map(str, shape))


def check_images(runner: Runner, shapes: Sequence[Sequence[Any]]) -> None:
    """Raise if there is a preprocessing and inputs of these shapes are not images of its size."""
    if runner.preprocessing is None:
        return
    colours = shapes[0][1] if len(shapes) == 1 and len(shapes[0]) == 4 else 0
    if isinstance(colours, int) and colours != 3:
        raise ParameterError(
            "preprocessing is for models with one input, images of shape (batch, 3, height, "
            f"width), but this one takes {' and '.join(f'({_sizes(s)})' for s in shapes)}. Leave "
            "it out (--image-size, --mean, --std)."
        )
    size, sides = runner.preprocessing.size, shapes[0][2:]
    if any(isinstance(side, int) and side != size for side in sides):
        raise ParameterError(
            f"preprocessing makes images of {size} x {size} pixels (--image-size), but the model "
            f"takes {sides[0]} x {sides[1]}."
        )


def _scaled(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Return normal noise, some rows small and some large."""
    scales = np.resize(_SCALES, shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    noise: Array = (rng.normal(size=shape) * scales).astype(np.float32)
    return noise


def _of_graph(runner: Any, rng: np.random.Generator) -> Feed:
    """Return inputs by the shapes and types of an ONNX graph's inputs."""
    feed = {}
    for node in runner.session.get_inputs():
        sizes = [size if isinstance(size, int) else _OPEN_SIZE for size in (node.shape or [0])[1:]]
        shape = (runner.fixed_batch or _N_RANDOM, *sizes)
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
                f"input {node.name!r} is {node.type}: pass a few real inputs (samples=..., "
                "--samples)."
            )
    return feed


def _of_config(runner: Any, rng: np.random.Generator) -> Feed:
    """Return inputs by the configuration of a transformers model: token ids, or pixels."""
    config = runner.model.config
    main, *others = runner.input_names()
    if main == "pixel_values" and getattr(config, "image_size", None) is not None:
        size = config.image_size
        sides = (size, size) if isinstance(size, int) else tuple(size)
        return {main: _scaled(rng, (_N_RANDOM, getattr(config, "num_channels", 3), *sides))}
    n_tokens = getattr(config, "vocab_size", None)
    if main != "input_ids" or n_tokens is None:
        raise ExportError(
            f"a {type(runner.model).__name__} takes {main}, and its config does not say of what "
            "size. Pass a few real inputs (samples=..., --samples)."
        )
    length = min(_LONGEST_TEXT, getattr(config, "max_position_embeddings", _LONGEST_TEXT) - 2)
    feed = {main: rng.integers(0, n_tokens, (_N_RANDOM, length))}
    ends = rng.integers(2, length + 1, _N_RANDOM)
    for name in others:
        mask = name == "attention_mask"
        feed[name] = (np.arange(length) < ends[:, None]).astype(np.int64) * mask
    return feed


def read_samples(path: str | Path) -> Any:
    """Read inputs from .npy, .npz, .safetensors or .parquet: an array, or several by name.

    A Parquet file holds lists, with one column per input, or numbers, which are the columns of one
    input.
    """
    path = existing_file(path)
    readers = {
        ".npy": _read_numpy,
        ".npz": _read_numpy,
        ".safetensors": _read_safetensors,
        ".parquet": _read_parquet,
    }
    if path.suffix.lower() not in readers:
        raise FileFormatError(
            f"cannot read samples from {path}: expected one of {', '.join(readers)}."
        )
    found = readers[path.suffix.lower()](path)
    if isinstance(found, dict) and not found:
        raise FileFormatError(f"{path} holds no arrays.")
    return next(iter(found.values())) if isinstance(found, dict) and len(found) == 1 else found


def _read_safetensors(path: Path) -> dict[str, Array]:
    tensors, metadata = read_tensors(path)
    verify_checksum(tensors, metadata, path)  # if nescio wrote it
    return tensors


def _read_numpy(path: Path) -> Any:
    try:
        with path.open("rb") as stream:
            loaded = np.load(stream, allow_pickle=False)
            return loaded if isinstance(loaded, np.ndarray) else dict(loaded)
    except Exception as error:  # NumPy raises many kinds for damaged files
        raise FileFormatError(
            f"{path} is not a NumPy file, is damaged, or holds Python objects."
        ) from error


def _read_parquet(path: Path) -> dict[str, Array]:
    columns = {name: array for name, array in read_parquet(path).items() if name.lower() != "id"}
    if any(array.ndim > 1 for array in columns.values()):
        return columns
    if any(array.dtype.kind not in "fiub" for array in columns.values()):
        raise FileFormatError(f"{path} has columns that do not hold numbers. Drop them.")
    return {"": np.column_stack(list(columns.values()))} if columns else {}
