"""What `Outputs` are made of, converted and checked: matrices, labels, names, ids, columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio._io.frames import check_same_rows, is_frame, read_features, read_truth
from nescio._validation import Array, FloatArray, check_matrix, check_multi_hot, to_float, to_numpy
from nescio.errors import InputError, ShapeError

MAX_ID_LENGTH = 1024
_ROOM_FOR_IDS = 16_000_000  # bytes; below this, padding all ids to the longest does not matter


def check_label_names(names: Sequence[str], n_labels: int) -> tuple[str, ...]:
    """Return the names as a tuple; raise unless there is one distinct name per label.

    Examples
    --------
    >>> check_label_names(["cat", "dog"], 2)
    ('cat', 'dog')
    """
    names = tuple(map(str, names))
    if len(names) != n_labels:
        raise ShapeError(f"label_names must name {n_labels} labels, got {len(names)} names.")
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise InputError(f"label_names must be distinct; {name!r} appears {count} times.")
    return names


def as_matrix(values: Any, name: str, ids: Sequence[str] | None = None) -> FloatArray:
    """Return a matrix of floats, from an array, a tensor, a list or a data frame with these ids."""
    if type(values) is not np.ndarray and is_frame(values):
        found = read_features(values)
        check_same_rows(name, found.get("ids"), ids)
        values = found["logits"]
    array = to_float(to_numpy(values))
    check_matrix(array, name)
    return array


def as_column(name: str, values: Any) -> Array:
    """Return a kept column as an array; raise unless it has one dimension."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise ShapeError(f"kept column {name!r} must have one dimension, got shape {array.shape}.")
    return array


def as_ids(ids: Any) -> NDArray[np.str_]:
    """Return ids as strings; raise if they are too long or not in one dimension."""
    array = np.asarray(ids, dtype=np.object_)
    if array.ndim != 1:
        raise ShapeError(f"ids must have one dimension, got shape {array.shape}.")
    strings = [str(name) for name in array]
    lengths = [len(name) for name in strings]
    longest = max(lengths, default=0)
    if longest > MAX_ID_LENGTH:
        raise InputError(f"an id may have {MAX_ID_LENGTH:,} characters; one has {longest:,}.")
    # NumPy pads every string to the longest: wasteful if the others are short.
    room = 4 * longest * len(strings)
    wasteful = room > max(_ROOM_FOR_IDS, 16 * sum(lengths))
    return np.array(strings, dtype=np.object_ if wasteful else np.str_)


def as_multi_hot(
    labels: Any,
    n_labels: int,
    names: Sequence[str] | None,
    ids: Sequence[str] | None,
) -> NDArray[np.uint8]:
    """Return the multi-hot truth; the columns of a data frame are matched by name."""
    array = read_truth(labels, names, ids) if is_frame(labels) else to_numpy(labels)
    if array.ndim != 2 or array.shape[1] != n_labels:
        raise ShapeError(
            f"labels must be multi-hot, of shape (n_samples, {n_labels}), got {array.shape}."
        )
    check_multi_hot(array)
    return array.astype(np.uint8, copy=False)
