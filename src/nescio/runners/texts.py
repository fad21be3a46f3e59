"""Which inputs are texts: one text, a list, a column of a table, or an iterable of texts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nescio._io.frames import is_frame
from nescio.errors import InputError

_SHOWN_ROWS = 10


def texts_or_batches(inputs: Any) -> tuple[list[str] | None, Any]:
    """Return the texts that inputs are, or None and the inputs; an iterator stays whole."""
    if isinstance(inputs, Iterator):
        first = list(itertools.islice(inputs, 1))
        inputs = itertools.chain(first, inputs)
        return (texts_of(list(inputs)), None) if is_text_like(first) else (None, inputs)
    return texts_of(inputs), inputs


def texts_of(inputs: Any) -> list[str] | None:
    """Return the texts that inputs are, or None if they are something else, such as numbers.

    Only some of them may be texts: `is_texts` raises then.
    """
    if isinstance(inputs, str):
        return [inputs]
    items = _items(inputs)
    return items if items is not None and is_text_like(items) else None


def _items(inputs: Any) -> list[Any] | None:
    """Return the items of a list or of a column; None for anything else."""
    if isinstance(inputs, list | tuple):
        return list(inputs)
    if isinstance(inputs, Mapping) or is_frame(inputs):
        return None
    shape = getattr(inputs, "shape", None)
    if shape is not None and len(shape) != 1:
        return None
    if getattr(getattr(inputs, "dtype", None), "kind", "O") not in "OUST":  # numbers
        return None
    for name in ("to_pylist", "to_list", "tolist"):  # of pyarrow, of polars, of NumPy and pandas
        if hasattr(inputs, name):
            found = getattr(inputs, name)()
            return found if isinstance(found, list) else None
    # Such as a column of Hugging Face's datasets.
    return list(inputs) if isinstance(inputs, Sequence) and is_text_like(inputs[:1]) else None


def is_text_like(items: Sequence[Any]) -> bool:
    """Return whether some of the items are texts, or all are missing."""
    if any(isinstance(item, str | bytes) for item in items):
        return True
    return len(items) > 0 and all(map(is_missing, items))


def is_missing(item: Any) -> bool:
    """Return whether this is None, NaN or pandas' NA."""
    return item is None or (not hasattr(item, "__len__") and str(item) in ("nan", "<NA>"))


def check_texts(items: Sequence[Any], kinds: type | tuple[type, ...] = str) -> None:
    """Raise an error that names the rows that are not texts, such as None or NaN."""
    items = list(items)  # the rows of a pandas column have other labels
    rows = [at for at, item in enumerate(items) if not isinstance(item, kinds)]
    if not rows:
        return
    shown = ", ".join(map(str, rows[:_SHOWN_ROWS])) + (", ..." if len(rows) > _SHOWN_ROWS else "")
    raise InputError(
        f"{len(rows):,} of {len(items):,} inputs are not texts: rows {shown} (row {rows[0]} is "
        f"{str(items[rows[0]])[:40]}). Remove these rows, or replace them by an empty text."
    )


def is_texts(items: Any) -> bool:
    """Return whether this is a batch of texts; raise if only some of its items are texts."""
    if not isinstance(items, list) or not is_text_like(items):
        return False
    check_texts(items)
    return True
