"""Checks of arrays and parameters. Arrays can be NumPy or torch; the results are NumPy.

An error names the parameter, what is allowed and what was given. This module never imports torch:
if the caller passes a tensor, torch is already imported.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio.errors import InputError, ParameterError, ShapeError

Array = NDArray[Any]
FloatArray = NDArray[np.floating[Any]]
BoolArray = NDArray[np.bool_]

# A few logits can lie within [0, 1] by chance, but not as many as this.
_ENOUGH_TO_TELL = 50


def is_torch(value: object) -> bool:
    """Return whether `value` is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def to_numpy(value: Any) -> Array:
    """Return a NumPy array from any array-like; tensors are detached and copied to the CPU.

    bfloat16 is converted to float32, because NumPy does not support it.
    """
    if is_torch(value):
        value = value.detach()
        if str(value.dtype) == "torch.bfloat16":
            value = value.float()
        return np.asarray(value.cpu().numpy())
    if isinstance(value, np.ma.MaskedArray):
        raise InputError(
            "masked arrays are not supported: fill the masked labels with logits.filled(-np.inf)."
        )
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InputError(f"expected an array of numbers: {error}") from error
    # Check the kind first, because NumPy computes the name of a dtype again each time.
    bfloat16 = array.dtype.kind in "Vf" and array.dtype.num > 255 and array.dtype.name == "bfloat16"
    return array.astype(np.float32) if bfloat16 else array


def to_float(array: Array) -> FloatArray:
    """Return `array` as floating point; float16, float32 and float64 are not changed."""
    if array.dtype.kind == "f" and array.dtype.itemsize <= 8:
        return array
    if array.dtype.kind not in "fiub":
        raise InputError(f"logits must be real numbers, got an array of dtype {array.dtype}.")
    return array.astype(np.float64)


def check_matrix(array: Any, name: str = "logits") -> None:
    """Raise unless `array` has two dimensions and at least one column."""
    shape = tuple(array.shape)
    columns = "n_labels" if name == "logits" else "n_features"
    if len(shape) == 1:
        raise ShapeError(
            f"{name} must have shape (n_samples, {columns}), got {shape}. "
            f"Reshape your data: for one sample, pass {name}[None, :]."
        )
    if len(shape) != 2 or shape[1] == 0:
        raise ShapeError(f"{name} must have shape (n_samples, {columns}), got {shape}.")


def looks_like_probabilities(logits: Array, *, at_least: int = _ENOUGH_TO_TELL) -> bool:
    """Return whether all values except NaN lie within [0, 1].

    The result is False if there are fewer than `at_least` values.
    """
    largest = largest_of_non_negative(logits, at_least=at_least)
    return largest is not None and largest <= 1


def is_percentage(largest: float) -> bool:
    """Return whether values from 0 to `largest` may be percentages: logits are rarely above 20."""
    return 20 < largest <= 100


def largest_of_non_negative(logits: Array, *, at_least: int = _ENOUGH_TO_TELL) -> float | None:
    """Return the largest value if no value is negative; else None.

    NaN does not count. The result is None if there are fewer than `at_least` values.
    """
    if logits.size < max(at_least, 1):
        return None
    # Usually one value or row is enough: a classifier gives absent labels negative logits.
    if logits.flat[0] < 0 or (logits[:1] < 0).any() or not np.fmin.reduce(logits, axis=None) >= 0:
        return None
    return float(np.fmax.reduce(logits, axis=None))


def check_multi_hot(labels: Array) -> None:
    """Raise unless every value is 0 or 1."""
    if labels.dtype != np.bool_ and not np.isin(labels, (0, 1)).all():
        raise InputError("labels must be multi-hot: every value must be 0 or 1.")


def checked_share(name: str, value: Any) -> float:
    """Return `value` as a float; raise unless it is strictly between 0 and 1."""
    number = float(value) if isinstance(value, Real) else -1.0
    if not 0 < number < 1:
        raise ParameterError(f"{name} must lie between 0 and 1 (exclusive), got {value!r}.")
    return number


def checked_percentile(name: str, value: Any) -> float:
    """Return `value` as a float; raise unless it is strictly between 0 and 100."""
    number = float(value) if isinstance(value, Real) else -1.0
    if not 0 < number < 100:
        raise ParameterError(f"{name} must lie between 0 and 100 (exclusive), got {value!r}.")
    return number


def checked_number(name: str, value: Any, *, minimum: float, maximum: float = math.inf) -> float:
    """Return `value` as a float; raise unless it is finite and within the limits (inclusive)."""
    number = float(value) if isinstance(value, Real) else math.nan
    if not (math.isfinite(number) and minimum <= number <= maximum):
        most = "" if maximum == math.inf else f" and at most {maximum:g}"
        raise ParameterError(
            f"{name} must be a number of at least {minimum:g}{most}, got {value!r}."
        )
    return number


def checked_whole(name: str, value: Any, *, minimum: int) -> int:
    """Return `value` as an int; raise unless it is a whole number of at least `minimum`."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < minimum:
        raise ParameterError(f"{name} must be a whole number of at least {minimum}, got {value!r}.")
    return int(value)


def checked_choice(name: str, value: Any, allowed: Sequence[str]) -> str:
    """Return `value`; raise unless it is one of the allowed names."""
    if value not in allowed:
        raise ParameterError(f"{name} must be {' or '.join(map(repr, allowed))}, got {value!r}.")
    return str(value)


def checked_flag(name: str, value: Any) -> bool:
    """Return `value`; raise unless it is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ParameterError(f"{name} must be True or False, got {value!r}.")
    return bool(value)
