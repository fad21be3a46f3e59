"""Checks of arrays, parameters and tables of settings.

Arrays can be NumPy or torch; the results are NumPy. An error names the parameter, what is allowed
and what was given. This module never imports torch: if the caller passes a tensor, torch is already
imported.
"""

from __future__ import annotations

import math
import reprlib
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass, replace
from numbers import Real
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from nescio.errors import (
    InputError,
    LabelMismatchError,
    NescioError,
    ParameterError,
    ProbabilitiesError,
    ShapeError,
    nearest,
)

Array = NDArray[Any]
FloatArray = NDArray[np.floating[Any]]
BoolArray = NDArray[np.bool_]

_FEWEST_EQUAL, _SHARE_EQUAL = 20, 0.2  # of the samples of a set, in another one
_ROWS_AT_ONCE = 1000  # a hash needs memory for as many rows
_FRAMES = (
    ("pandas", "DataFrame"),
    ("polars", "DataFrame"),
    ("polars", "LazyFrame"),  # which is refused with advice
    ("pyarrow", "Table"),
)

_NOT_REAL = (NoneType, bool, np.bool_, np.datetime64, np.timedelta64, np.void)
_ADVICE = "Pass an array or a list of rows; for a file, nescio.Outputs.load(path)."

# The limits of `check_logits`.
ENOUGH_VALUES = 50  # fewer prove nothing
_SUMMED_ROWS, _ROUNDED = 10, 0.005  # so many do not all sum to 1, so rounded, by chance

NO_SOFTMAX = (
    "They are for one label per sample, but a multi-label classifier has one sigmoid per label. If "
    "yours has, pass its outputs before the softmax."
)
_ENOUGH_ROWS = 100
_SURE = 0.1  # log-probabilities of a classifier that is sure of a label lie within [-0.1, 0]


def is_torch(value: object) -> bool:
    """Return whether `value` is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_frame(value: object) -> bool:
    """Return whether `value` is a data frame, without importing a library of data frames."""
    return any(
        isinstance(value, getattr(sys.modules[module], name, ()))
        for module, name in _FRAMES
        if sys.modules.get(module) is not None
    )


def index_of(value: object) -> Any:
    """Return the index of a pandas frame or column; None for others."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(value, (pandas.DataFrame, pandas.Series)):
        return None
    return value.index


def check_same_order(inputs: object, labels: object) -> None:
    """Raise if two pandas frames have the same index in another order."""
    index, other = index_of(inputs), index_of(labels)
    if index is None or other is None or len(index) != len(other) or index.equals(other):
        return
    if index.symmetric_difference(other).empty:
        row = int(np.argmax(index != other))
        raise LabelMismatchError(
            f"the index of the labels is that of the inputs in another order: row {row} is "
            f"{str(index[row])!r} of the inputs and {str(other[row])!r} of the labels. Pass "
            "labels.loc[inputs.index]; if the rows are in order, labels.to_numpy()."
        )


def check_no_labels(labels: object) -> None:
    """Raise if `calibrate` was given labels, which it needs as little as any second data set."""
    if labels is not None:
        raise InputError(
            f"calibrate takes held-out data alone, but got a {type(labels).__name__} beside it. "
            "Labels belong to fit, with the training data; pass options by name, such as tpr=0.95."
        )


def to_numpy(value: Any, dtype: Any = None) -> Array:
    """Return a NumPy array from any array-like; tensors are detached and copied to the CPU.

    bfloat16 is converted to float32, because NumPy does not support it.
    """
    kind = type(value).__name__
    try:
        if type(value) is not np.ndarray:
            check_values(value)
        if is_torch(value):
            wide = value.float() if str(value.dtype) == "torch.bfloat16" else value
            value = wide.numpy(force=True)
        array = np.asarray(value, dtype)
    except InputError:
        raise
    except Exception as error:  # tensors and objects of others raise many kinds
        raise InputError(f"cannot read this {kind} as an array: {error}") from error
    if array.dtype == np.object_ and array.ndim == 0:
        advice = "Sparse matrices have .toarray()." if hasattr(value, "toarray") else _ADVICE
        raise InputError(f"expected an array, got a {kind}. {advice}")
    # Check the kind first, because NumPy computes the name of a dtype again each time.
    bfloat16 = array.dtype.kind in "Vf" and array.dtype.num > 255 and array.dtype.name == "bfloat16"
    return array.astype(np.float32) if bfloat16 else array


def check_values(value: Any) -> None:
    """Raise if this is a masked array, or a tensor that is nested, quantised or without values."""
    if isinstance(value, np.ma.MaskedArray):
        raise InputError(
            "masked arrays are not supported: fill the masked labels with logits.filled(-np.inf)."
        )
    if is_torch(value) and (value.is_nested or value.is_quantized or value.is_meta):
        raise InputError(
            "nested tensors, quantised tensors and tensors on the device meta are not supported: "
            "pass tensor.to_padded_tensor(0.0), tensor.dequantize() or a tensor with values."
        )


def to_float(array: Array, name: str = "logits") -> FloatArray:
    """Return `array` as floating point; float16, float32 and float64 are not changed."""
    if array.dtype.kind == "f" and array.dtype.itemsize <= 8:
        return array
    values = array.flat if array.dtype == np.object_ else array.flat[:1]
    for value in values:
        if isinstance(value, str | bytes):
            raise InputError(
                f"{name} must be numbers, got text: {value[:60]!r}. {_ADVICE} For texts, wrap the "
                "model that reads them: nescio.wrap."
            )
        if isinstance(value, complex | np.complexfloating):
            raise InputError(f"Complex data not supported: {name} must be real numbers.")
        if isinstance(value, _NOT_REAL):
            raise InputError(f"{name} must be real numbers, got a {type(value).__name__}.")
    try:
        return array.astype(np.float64)
    except Exception as error:  # objects of others raise many kinds
        raise InputError(f"{name} must be real numbers: {error}.") from error


def checked_list(name: str, values: Any) -> list[Any]:
    """Return a sequence as a list; raise if it is text, a set or a mapping."""
    try:
        if isinstance(values, str | bytes | set | frozenset | Mapping):
            raise TypeError
        return list(values)
    except Exception as error:  # objects of others raise many kinds
        raise InputError(
            f"{name} must be a sequence, such as a list, got a {type(values).__name__}."
        ) from error


def checked_rows(rows: Any, n_rows: int) -> Any:
    """Return a slice, a mask or indices as they can index arrays of `n_rows` rows, or raise."""
    if isinstance(rows, slice):
        steps = (rows.start, rows.stop, rows.step)
        if rows.step != 0 and all(step is None or hasattr(step, "__index__") for step in steps):
            return rows
    else:
        index = np.atleast_1d(to_numpy(rows))
        index = index if index.size else index.astype(np.intp)
        is_mask = index.dtype == np.bool_ and index.shape == (n_rows,)
        are_indices = index.dtype.kind in "iu" and index.ndim == 1
        if is_mask or (are_indices and ((index >= -n_rows) & (index < n_rows)).all()):
            return index
    raise InputError(
        f"choose from {n_rows:,} samples by a slice, by indices or by a mask of {n_rows:,} "
        f"booleans, got {reprlib.repr(rows)}."
    )


def check_matrix(array: Any, name: str = "logits") -> None:
    """Raise unless `array` has two dimensions and at least one column."""
    shape = tuple(array.shape)
    columns = "n_labels" if name == "logits" else "n_features"
    if len(shape) == 1 and shape[0]:
        raise ShapeError(
            f"{name} must have shape (n_samples, {columns}), got {shape}.",
            f"Reshape your data: for one sample, pass {name}[None, :].",
        )
    if len(shape) != 2 or shape[1] == 0:
        empty = " There are no samples." if shape == (0,) else ""
        raise ShapeError(f"{name} must have shape (n_samples, {columns}), got {shape}.{empty}")


def check_logits(values: Array) -> None:
    """Raise a `ProbabilitiesError` if an array looks like anything other than logits.

    The only rule of nescio; docs/errors/probabilities-error.md has it as a table. Callers ask once,
    where an array comes in, and not if the user has said what it holds (`from_probs`).

    Logits of shifted inputs may all be positive, but then even the lowest is large. Those of
    out-of-distribution data may all be negative, but then they do not crowd just below 0; those of
    a network that has learned little do, but none is low.
    """
    if values.size < ENOUGH_VALUES:
        return
    first = values[:1]
    if (first < 0).any() and (first > 0).any():  # the usual case
        return
    low, high = np.fmin.reduce(values, axis=None), np.fmax.reduce(values, axis=None)
    is_negative = low < -5 and high <= 0 and len(values) >= _ENOUGH_ROWS
    if low == 0 and high == 1 and np.isin(values, (0, 1)).all():
        raise ProbabilitiesError(
            "every value is 0 or 1: these look like labels, but logits are expected, the outputs "
            "of the model before its last activation. The truth is Outputs(logits, labels=...)."
        )
    if low >= 0 and 0 < high <= 1:
        what, how = "probabilities", "every value lies within [0, 1]"
    elif 0 <= low < 1 and 20 < high <= 100:
        what, how = "percentages", f"no value is negative, and the largest is {high:g}"
    elif is_negative and (values.max(1) >= -_SURE).mean() >= 0.1:
        what, how = "log-probabilities", "no value is positive, and many are close to 0"
    else:
        return
    convert = {"percentages": ", divided by 100", "log-probabilities": ", after exp"}.get(what, "")
    advice = (
        "Pass from_probs=True to wrap, calibrate, assess or another method, with "
        f"probabilities{convert}. If they are logits, pass from_probs=False."
    )
    if sum_to_one(np.exp(values) if high <= 0 else values):
        how, what = "the probabilities of every sample sum to 1", "softmax outputs"
        advice = NO_SOFTMAX
    raise ProbabilitiesError(
        f"{how}: these look like {what}, but logits are expected, the outputs of the model before "
        "its last activation.",
        advice,
    )


def sum_to_one(probs: Array) -> bool:
    """Return whether every row sums to 1; False for few rows or a single label."""
    if probs.ndim != 2 or len(probs) < _SUMMED_ROWS or probs.shape[1] < 2:
        return False
    if abs(probs[0].sum(dtype=np.float64) - 1) > _ROUNDED:  # usually one row is enough to decide
        return False
    sums = probs.sum(1, dtype=np.float64)
    return bool((np.abs(sums[~np.isnan(sums)] - 1) <= _ROUNDED).all())


def checked_scores(scores: Any, name: str = "scores") -> NDArray[np.float64]:
    """Return scores as a one-dimensional float64 array; raise if there are none or some are NaN."""
    values = to_float(to_numpy(scores), name).astype(np.float64, copy=False)
    if values.ndim != 1 or not len(values):
        raise ShapeError(
            f"{name} must have shape (n_samples,) with at least one sample, got {values.shape}."
        )
    if np.isnan(values).any():
        first = int(np.flatnonzero(np.isnan(values))[0])
        raise InputError(f"{name} must not contain NaN, but the value at index {first} is NaN.")
    return values


def multi_hot(
    labels: Any, n_labels: int | None = None, name: str = "labels", *, or_classes: bool = False
) -> Array:
    """Return labels as an array of one row per sample and one column per label, each 0 or 1.

    A sparse matrix becomes dense. With `or_classes`, one class per sample is returned as it is.
    """
    must, odd = f"{name} must be multi-hot", np.array([])
    advice = (
        " sklearn.preprocessing.MultiLabelBinarizer(classes=label_names).fit_transform converts "
        "lists of labels; name the classes in the order of the model."
    )
    try:
        array = to_numpy(labels.toarray() if hasattr(labels, "toarray") else labels)
    except InputError as error:
        if not isinstance(error.__cause__, ValueError):
            raise
        raise ShapeError(f"{must}, but has lists of different lengths.{advice}") from error
    kind = array.dtype.kind
    if or_classes and array.ndim == 1 and (kind != "O" or isinstance(next(iter(array), ""), str)):
        return array
    if array.ndim == 2:
        with suppress(Exception):  # objects of others raise many kinds
            array = array.astype(np.float64) if kind == "O" else array
        if array.dtype.kind in "biuf":
            odd = array[~np.isin(array, (0, 1))]
        else:
            odd = np.array(
                [v for v in array.flat if not isinstance(v, Real) or v not in (0, 1)], "O"
            )
        if not len(odd) and n_labels in (None, array.shape[1]):
            return array
    elif kind in "biuf" and array.ndim == 1:
        advice = f" If there is only one label, pass {name}[:, None]."
        whole = f" For one class per sample, pass np.eye(n_labels)[{name}]."
        advice += whole if (array % 1 == 0).all() else " These are continuous numbers."
    elif kind not in "OU":
        to_float(array.ravel()[:1], name)  # raises if these are no real numbers
    if len(odd):
        if isinstance(odd[0], Real):
            advice = " If inputs and labels are exchanged, pass the inputs first."
            if (odd == -1).all():
                advice = f" For labels of -1 and 1, pass {name} > 0."
            elif odd[0] != odd[0]:
                advice = " For rows without known labels, leave out the inputs too."
        shown = repr(str(odd[0])) if isinstance(odd[0], str) else str(odd[0])
        raise InputError(f"{must}: every value must be 0 or 1, got {shown:.40}.{advice}")
    hint = "" if array.ndim > 1 else advice
    shape = f"(n_samples, {n_labels or 'n_labels'})"
    raise ShapeError(f"{must}, of shape {shape}, got {array.shape}.{hint}")


def checked_share(name: str, value: Any, *, of: int = 1) -> float:
    """Return `value` as a float; raise unless it is strictly between 0 and 1, or 0 and `of`."""
    number = float(value) if isinstance(value, Real) else -1.0
    if not 0 < number < of:
        hint = (
            f" For {number:g} %, pass {number / 100:g}." if of == 1 and 10 <= number < 100 else ""
        )
        raise ParameterError(
            f"{name} must lie between 0 and {of} (exclusive), got {value!r}.{hint}"
        )
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


# --- tables of settings ---------------------------------------------------------------------------

# The types of settings, in words.
_DESCRIBED = {str: "a string", bool: "true or false", int: "a whole number", float: "a number"}
_PLURAL = {str: "strings", int: "whole numbers", float: "numbers"}
_LARGEST = 2**53  # of a whole number in the place of a floating-point number

Settings = TypeVar("Settings")


def from_table(
    kind: type[Settings], table: Any, *, where: str = "", base: Settings | None = None, **fixed: Any
) -> Settings:
    """Return a dataclass from a table, as `tomllib` or `json` returns it.

    Its annotations and its own checks say what is allowed. `where` names the table in errors, such
    as "train.model". `base` has the values of the keys that the table leaves out, instead of the
    defaults. `fixed` are fields that the table may not contain.
    """
    if not isinstance(table, Mapping):
        raise ParameterError(f"{where} must be a table, written as [{where}], got {table!r}.")
    place = f"[{where}]: " if where else ""
    allowed = {field.name: field for field in fields(kind) if field.name not in fixed}  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    values = {}
    for key, value in table.items():
        if key not in allowed:
            raise ParameterError(
                f"{place}there is no key {key!r}.{nearest(key, allowed, 1)} The keys are "
                f"{', '.join(sorted(allowed))}."
            )
        inside = f"{where}.{key}" if where else key
        values[key] = _value(value, hints[key], key, inside, getattr(base, key, None), place)
    for key, field in allowed.items():
        has_default = field.default is not MISSING or field.default_factory is not MISSING
        if base is None and key not in values and not has_default:
            raise ParameterError(f"{place}the key {key!r} is missing.")
    try:
        return kind(**fixed, **values) if base is None else replace(base, **fixed, **values)  # type: ignore[type-var]
    except NescioError as error:
        raise ParameterError(f"{place}{error}") from error


def _value(value: Any, hint: Any, key: str, inside: str, base: Any, place: str) -> Any:
    """Return a value of a table as its field wants it."""
    if isinstance(hint, type) and is_dataclass(hint):
        return from_table(hint, value, where=inside, base=base)
    parts = get_args(hint)
    if get_origin(hint) is tuple and isinstance(parts[0], type) and is_dataclass(parts[0]):
        if not isinstance(value, list):
            raise ParameterError(f"{key} must be a list of tables, written as [[{inside}]].")
        return tuple(from_table(parts[0], entry, where=f"[{inside}]") for entry in value)
    if not _fits(value, hint):
        raise ParameterError(f"{place}{key} must be {_described(hint)}, got {value!r}.")
    return tuple(value) if isinstance(value, list) else value


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the type that a field is annotated with."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            return False
        if parts[-1] is Ellipsis:
            return all(_fits(entry, parts[0]) for entry in value)
        return len(value) == len(parts) and all(map(_fits, value, parts))
    if origin is Mapping:
        return isinstance(value, Mapping) and all(
            _fits(entry, parts[1]) for entry in value.values()
        )
    if origin is UnionType:
        return any(_fits(value, part) for part in parts)
    if hint is float:
        return type(value) is float or (type(value) is int and abs(value) < _LARGEST)
    return hint is Any or type(value) is hint


def _described(hint: Any) -> str:
    """Return a type in words."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is tuple:
        count = "" if parts[-1] is Ellipsis else f"{len(parts)} "
        return f"a list of {count}{_PLURAL[parts[0]]}"
    if origin is Mapping:
        return f"a table of {_PLURAL[parts[1]]}" if parts[1] in _PLURAL else "a table"
    if origin is UnionType:
        return " or ".join(_described(part) for part in parts if part is not NoneType)
    return _DESCRIBED[hint]


def row_hashes(matrix: Array) -> NDArray[np.uint64]:
    """Return a hash of each row, for float32 as for float64.

    It is the sum of the row's bits, as whole numbers, times fixed random numbers.
    """
    factors = np.random.default_rng(0).integers(2**64, size=matrix.shape[1], dtype=np.uint64)
    rows = np.empty(len(matrix), np.uint64)
    for start in range(0, len(matrix), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        with np.errstate(over="ignore"):  # values that float32 does not have
            values = np.ascontiguousarray(matrix[part], dtype=np.float32)
        rows[part] = values.view(np.uint32) @ factors
    return rows


def n_equal(values: Array, others: Array) -> int:
    """Return how many values are among others; 0 if few are, or if others are equal by nature."""
    distinct = np.unique(others)
    n = int(np.count_nonzero(np.isin(values, distinct)))
    few = n < max(_FEWEST_EQUAL, _SHARE_EQUAL * len(values))
    return 0 if few or len(distinct) < len(others) / 2 else n
