"""Inputs of any form in batches: slices of arrays, or the batches of an iterable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from nescio.errors import InputError, ShapeError

_FRAME = (
    "arrays or tensors",
    "Pass the columns that the model takes as an array: frame[names].to_numpy().",
)
_FRAME_OF_TEXTS = ("texts", 'Pass the column of the texts: frame["text"].')


class InputBatch(NamedTuple):
    """What a model takes at once, and the truth labels if they came with it.

    If the inputs were made of texts, these texts, and how many of them were cut off.
    """

    inputs: Any
    labels: Any = None
    texts: list[str] | None = None
    n_truncated: int = 0


def batches_of(
    inputs: Any, rows: int, is_data: Callable[[Any], bool], *, has_tokenizer: bool = False
) -> Iterator[InputBatch]:
    """Give slices of `rows` rows if `inputs` are data, or else the batches they iterate over."""
    if isinstance(inputs, tuple) and _is_text(inputs):  # not inputs by position
        raise InputError(_not_data(inputs))
    if is_data(inputs):
        whole = _split(inputs, None)
        n_samples = n_rows(whole.inputs)
        for start in range(0, n_samples, rows):
            part = slice(start, start + rows)
            some = (_rows_of(values, part, n_samples) for values in (whole.inputs, whole.labels))
            yield InputBatch(*some)
    elif hasattr(inputs, "columns") and hasattr(inputs, "to_numpy"):  # it iterates over its names
        takes, advice = _FRAME_OF_TEXTS if has_tokenizer else _FRAME
        raise InputError(f"this model takes {takes}, but got a {type(inputs).__name__}. {advice}")
    elif isinstance(inputs, Mapping):  # as above
        name = next(iter(inputs), "name")
        raise InputError(
            f"this model takes one input, but got a {type(inputs).__name__}. Pass its values, such "
            f"as inputs[{name!r}]."
        )
    elif isinstance(inputs, Iterable) and not isinstance(inputs, str | bytes):
        for item in inputs:
            yield _batch(item, is_data)
    else:
        raise InputError(_not_data(inputs))


def _batch(item: Any, is_data: Callable[[Any], bool]) -> InputBatch:
    """Return one item of an iterable: inputs, or inputs with their labels."""
    labels = None
    if isinstance(item, tuple | list) and not _is_text(item):
        if not 1 <= len(item) <= 2:
            raise InputError(
                f"a batch must be inputs or a pair (inputs, labels), got {len(item)} parts. Put "
                "several inputs together: ((first, second), labels), or a mapping by name."
            )
        item, labels = (*item, None)[:2]
    if isinstance(item, tuple) and _is_text(item):
        item = list(item)
    if not is_data(item):
        raise InputError(f"a batch is not what the model takes: {_not_data(item)}")
    return _split(item, labels)


def _split(inputs: Any, labels: Any) -> InputBatch:
    """Separate inputs and labels: transformers' data sets have labels among the inputs, by name."""
    if isinstance(inputs, Mapping) and "labels" in inputs:
        if labels is not None:
            raise InputError("a batch has labels twice: among its inputs and next to them.")
        labels = inputs["labels"]
        inputs = {name: value for name, value in inputs.items() if name != "labels"}
    if labels is not None and _length(labels) != (n_samples := n_rows(inputs)):
        raise ShapeError(f"labels have {_length(labels)} rows, but there are {n_samples} samples.")
    return InputBatch(inputs, labels)


def n_rows(inputs: Any) -> int:
    """Return the number of samples; all parts that have rows must have equally many."""
    if isinstance(inputs, Mapping | tuple):
        parts = dict(inputs) if isinstance(inputs, Mapping) else dict(enumerate(inputs))
        lengths = {name: n for name, part in parts.items() if (n := _length(part)) is not None}
        if not lengths:
            raise InputError("none of the inputs has rows; expected arrays or tensors.")
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            raise ShapeError(
                f"the inputs must have equally many rows, one per sample; got {found}."
            )
        return next(iter(lengths.values()))
    length = _length(inputs)
    if length is None:
        raise ShapeError("the input must have one row per sample. For one sample, pass x[None].")
    return length


def _length(part: Any) -> int | None:
    """Return the number of rows; None for what has none, such as a flag."""
    shape = getattr(part, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    return len(part) if isinstance(part, list | tuple) else None


def _rows_of(inputs: Any, rows: slice, n_samples: int) -> Any:
    if isinstance(inputs, Mapping):
        return {name: _rows_of(part, rows, n_samples) for name, part in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(_rows_of(part, rows, n_samples) for part in inputs)
    if _length(inputs) is None or (rows.start == 0 and rows.stop >= n_samples):
        return inputs  # a flag, or all rows: the same object
    if hasattr(inputs, "tocsr"):
        inputs = inputs.tocsr()  # not every sparse matrix can be sliced
    return inputs.iloc[rows] if hasattr(inputs, "iloc") else inputs[rows]


def _is_text(inputs: Any) -> bool:
    """Return whether this is a text or a list of texts."""
    first = inputs[0] if isinstance(inputs, list | tuple) and inputs else inputs
    return isinstance(first, str | bytes)


def _not_data(inputs: Any) -> str:
    if _is_text(inputs):
        return (
            "got text. Pass the model's tokenizer, wrap(model, tokenizer=...), or what the "
            "tokenizer returns for these texts."
        )
    return (
        "expected an array or a tensor with one row per sample, a mapping or a tuple of them, or "
        f"batches of these; got a {type(inputs).__name__}."
    )
