"""The inputs of a model: how they become batches, and which are texts. It needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nescio._validation import check_values, index_of, is_frame, is_torch, to_numpy
from nescio.errors import InputError, ShapeError, listed
from nescio.models.images import IMAGE_SUFFIXES
from nescio.self_check import IMAGES, NUMBERS, TABLES, TEXTS, spread_rows


class InputBatch(NamedTuple):
    """What a model takes at once, and the truth labels if they came with it."""

    inputs: Any
    labels: Any = None
    texts: list[str] | None = None  # if the inputs are texts, or were made of them
    n_truncated: int = 0  # the number of texts that were cut off


def batches_of(
    inputs: Any, rows: int, is_data: Callable[[InputBatch], bool]
) -> Iterator[InputBatch]:
    """Give slices of `rows` rows if `inputs` are data, or else the batches they iterate over."""
    whole = _read(inputs)
    is_whole = isinstance(inputs, str | bytes) or hasattr(inputs, "shape")  # and no batches
    if is_data(whole):
        whole = _split(whole)
        n_samples = n_rows(whole.inputs)
        for start in range(0, n_samples, rows):
            part = slice(start, start + rows)
            yield InputBatch(*(_rows_of(values, part, n_samples) for values in whole[:3]))
    elif is_frame(inputs) or isinstance(inputs, Mapping) or index_of(inputs) is not None:
        advice = (
            "its values: frame[names].to_numpy(), of one row frame[names].iloc[[row]].to_numpy(), "
            'or for texts their column, frame["text"].'
        )
        if isinstance(inputs, Mapping):
            advice = (
                "a table as a data frame: pd.DataFrame([row]) of one row, or pd.DataFrame(dict)."
            )
        raise InputError(
            f"this model takes one array or list of texts, but got a {type(inputs).__name__}. "
            f"Pass {advice}"
        )
    elif whole.texts is None and isinstance(inputs, Iterable) and not is_whole:
        for item in inputs:
            batch = _read_item(item)
            if not is_data(batch):
                raise InputError(f"a batch is not what the model takes: {_not_data(batch)}")
            yield _split(batch)
    else:
        raise InputError(_not_data(whole))


def _read(inputs: Any, labels: Any = None) -> InputBatch:
    check_values(inputs)
    first = inputs
    while isinstance(first, list) and first:
        first = first[0]
    if isinstance(inputs, list) and isinstance(first, int | float):  # rows, not batches
        with suppress(ValueError):  # of different lengths, which a runner explains
            inputs = np.asarray(inputs)
    texts = as_texts(inputs)
    return InputBatch(inputs if texts is None else texts, labels, texts)


def _read_item(item: Any) -> InputBatch:
    """Return one item of an iterable: inputs, or inputs with their labels."""
    batch = _read(item)
    if batch.texts is not None or not isinstance(item, tuple | list):
        return batch
    if not 1 <= len(item) <= 2:
        raise InputError(
            f"a batch must be inputs or a pair (inputs, labels), got {len(item)} parts. Put "
            "several inputs together: ((first, second), labels), or a mapping by name."
        )
    return _read(*item)


def _split(batch: InputBatch) -> InputBatch:
    """Separate inputs and labels: transformers' data sets have labels among the inputs, by name."""
    inputs, labels = batch.inputs, batch.labels
    if isinstance(inputs, Mapping) and "labels" in inputs:
        if labels is not None:
            raise InputError("a batch has labels twice: among its inputs and next to them.")
        labels = inputs["labels"]
        inputs = {name: value for name, value in inputs.items() if name != "labels"}
    if labels is not None and length_of(labels) != (n_samples := n_rows(inputs)):
        raise ShapeError(
            f"labels have {length_of(labels)} rows, but there are {n_samples} samples."
        )
    return batch._replace(inputs=inputs, labels=labels)


def n_rows(inputs: Any) -> int:
    """Return the number of samples; all parts that have rows must have equally many."""
    if isinstance(inputs, Mapping | tuple):
        parts = dict(inputs) if isinstance(inputs, Mapping) else dict(enumerate(inputs))
        lengths = {name: n for name, part in parts.items() if (n := length_of(part)) is not None}
        if not lengths:
            raise InputError("none of the inputs has rows; expected arrays or tensors.")
        if len(set(lengths.values())) > 1:
            sizes = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            raise ShapeError(
                f"the inputs must have equally many rows, one per sample; got {sizes}."
            )
        return next(iter(lengths.values()))
    length = length_of(inputs)
    if length is None:
        raise ShapeError("the input must have one row per sample. For one sample, pass x[None].")
    return length


def length_of(part: Any) -> int | None:
    """Return the number of rows; None for what has none, such as a flag."""
    shape = getattr(part, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    return len(part) if isinstance(part, list | tuple) else None


def check_order(inputs: Any, **beside: Any) -> None:
    """Raise if values by row come beside a DataLoader of torch that gives a random order."""
    names = [name for name, rows in beside.items() if not isinstance(rows, str | None)]
    sampler = getattr(getattr(inputs, "batch_sampler", None) or inputs, "sampler", None)
    if names and any("Random" in kind.__name__ for kind in type(sampler).__mro__):
        raise InputError(
            f"{names[0]} came beside a DataLoader in random order, so its rows do not match. Pass "
            "shuffle=False; labels can also come as pairs (inputs, labels) in the batches."
        )


def _rows_of(inputs: Any, rows: slice, n_samples: int) -> Any:
    if isinstance(inputs, Mapping):
        return {name: _rows_of(part, rows, n_samples) for name, part in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(_rows_of(part, rows, n_samples) for part in inputs)
    if length_of(inputs) is None or (rows.start == 0 and rows.stop >= n_samples):
        return inputs  # a flag, or all rows: the same object
    if hasattr(inputs, "tocsr"):
        inputs = inputs.tocsr()  # not every sparse matrix can be sliced
    return inputs.iloc[rows] if hasattr(inputs, "iloc") else inputs[rows]


def _not_data(batch: InputBatch) -> str:
    kind, advice = type(batch.inputs).__name__, ""
    are_paths = any(Path(text).suffix.lower() in IMAGE_SUFFIXES for text in batch.texts or ())
    if are_paths or hasattr(batch.inputs, "convert"):  # an image of Pillow
        return (
            "the model takes arrays. Make one of the images: p = nescio.Preprocessing(size), "
            "np.stack([p.pixels(PIL.Image.open(path).convert('RGB')) for path in paths]), and "
            "wrap(model, preprocessing=p)."
        )
    if isinstance(batch.inputs, bytes) or batch.texts is not None:
        return (
            "got text. Pass the model's tokenizer, wrap(model, tokenizer=...), or what the "
            "tokenizer returns for these texts."
        )
    if hasattr(batch.inputs, "__getitem__"):  # a data set of torch
        advice = " Pass a data set as DataLoader(dataset, batch_size=64)."
    return (
        "expected an array or a tensor with one row per sample, a mapping or a tuple of them, or "
        f"batches of these; got a {kind}.{advice}"
    )


# --- texts ----------------------------------------------------------------------------------------


def as_texts(inputs: Any) -> list[str] | None:
    """Return the texts that inputs are: one text, a list or a column of a table; None if none are.

    Raise an error that names the rows that are not texts, such as None or NaN, if only some are.
    """
    if isinstance(inputs, str):
        return [inputs]
    items = _items(inputs)
    texts = [item for item in items if isinstance(item, str)]
    if not texts and (not items or any(item is not None for item in items)):
        return None
    rows = [row for row, item in enumerate(items) if not isinstance(item, str)]
    if rows:
        raise InputError(
            f"{len(rows):,} of {len(items):,} inputs are not texts: rows {listed(rows)} (row "
            f"{rows[0]} is {str(items[rows[0]])[:40]}). Remove these rows, or replace them by an "
            "empty text."
        )
    return texts


def _items(inputs: Any) -> Sequence[Any]:
    """Return the items of a list or of a column; nothing for anything else."""
    if isinstance(inputs, list | tuple):
        return inputs
    if isinstance(inputs, Mapping) or is_frame(inputs) or is_torch(inputs):
        return ()
    if hasattr(inputs, "to_pylist"):  # a column of pyarrow
        return list(inputs.to_pylist())
    kind = getattr(getattr(inputs, "dtype", None), "kind", "O")  # of NumPy and pandas
    if len(getattr(inputs, "shape", ())) == 1 and kind in "OUT":
        return list(inputs)
    # Such as a column of Hugging Face's datasets.
    is_column = isinstance(inputs, Sequence) and len(inputs) and isinstance(inputs[0], str)
    return list(inputs) if is_column else ()


# --- inputs that a self-check can change ----------------------------------------------------------


class Changeable(NamedTuple):
    """Some of the inputs, which a fault can change."""

    kind: str  # one of the kinds of faults
    rows: NDArray[np.intp]
    values: Any


def rows_of(values: Any, rows: NDArray[np.intp]) -> Any:
    """Return some of the values that a fault has changed."""
    if isinstance(values, list):
        return [values[row] for row in rows]
    return values.iloc[rows] if hasattr(values, "iloc") else values[rows]


def changeable(inputs: Any, n_samples: int, *, is_table: bool, is_bytes: bool) -> Changeable | None:
    """Return a few inputs if they are numbers, tables, images or texts; None for anything else.

    `is_table` allows whole numbers and lists, which elsewhere are tokens and batches. `is_bytes`
    says that images of uint8 are preprocessed.
    """
    texts, is_pandas = as_texts(inputs), hasattr(inputs, "select_dtypes")
    arrays = (np.ndarray, list) if is_table else np.ndarray
    if texts is None and not (is_pandas or is_torch(inputs) or isinstance(inputs, arrays)):
        return None
    rows = spread_rows(len(inputs if texts is None else texts), n_samples)
    if texts is not None:
        return Changeable(TEXTS, rows, [texts[row] for row in rows])
    if is_pandas:
        return Changeable(TABLES, rows, inputs.iloc[rows])
    values = to_numpy((np.asarray(inputs) if isinstance(inputs, list) else inputs)[rows])
    if is_table and values.ndim == 2 and values.dtype.kind in "iu":
        values = values.astype(np.float64)
    if values.ndim < 2 or not (is_bytes or values.dtype.kind == "f"):
        return None
    # Signals, such as sound, have three dimensions.
    return Changeable(IMAGES if values.ndim > 3 else NUMBERS, rows, values)
