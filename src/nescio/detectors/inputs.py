"""What a detector may be given, and what is wrong with it if it cannot be used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.utils.validation import check_array

from nescio._validation import BoolArray, FloatArray, check_matrix, is_torch, to_numpy
from nescio.errors import InputError, MissingInputError, NonFiniteError
from nescio.outputs import Outputs

ONE_COLUMN_A_LABEL = frozenset({"logits", "odin_max", "odin_sum"})
_NAMED_ROWS = 5


def what_it_reads(data: Any, reads: str, detector: str) -> tuple[Any, tuple[str, ...] | None]:
    """The matrix a detector reads (a data frame stays one), and the label names where known."""
    if isinstance(data, Outputs):
        names = label_names(data)
        data = data.read(reads)
        if data is None:
            hint = "" if reads in ("logits", "features") else " Add it: nescio extract --tuned."
            raise MissingInputError(f"{detector} reads {reads}, which these outputs lack.{hint}")
    else:
        names = column_names(data) if reads == "logits" else None
    if is_torch(data) or isinstance(data, list | tuple | np.ma.MaskedArray):
        data = to_numpy(data)
    if len(getattr(data, "shape", (0, 0))) != 2:
        check_matrix(data, reads)
    return data, names


def checked_matrix(data: Any, detector: Any, *, checked_before: bool = False) -> FloatArray:
    """`data` as float32 or float64 with a row at least; values may still be NaN or infinite.

    An array that was checked when its `Outputs` were made is passed on: for a thousand rows,
    scikit-learn's check takes half as long as their score.
    """
    if checked_before and len(data) and data.dtype in (np.float16, np.float32, np.float64):
        wide: FloatArray = data.astype(np.float32) if data.dtype == np.float16 else data
        return wide
    if getattr(data, "dtype", None) == np.float16:
        data = data.astype(np.float32)
    try:
        inputs: FloatArray = check_array(
            data, dtype=[np.float64, np.float32], ensure_all_finite=False, estimator=detector
        )
    except ValueError as error:
        raise InputError(" ".join(str(error).split())) from error
    return inputs


def usable_rows(inputs: FloatArray, *, masked_allowed: bool) -> BoolArray:
    """Rows without NaN or infinity; -inf may be allowed, as a masked label."""
    # One pass without a temporary: max shows NaN and +inf, min -inf.
    if np.isfinite(inputs.max()) and (masked_allowed or np.isfinite(inputs.min())):
        return np.ones(len(inputs), dtype=np.bool_)
    fine = np.isfinite(inputs)
    if masked_allowed:
        fine |= np.isneginf(inputs)
    return np.asarray(fine.all(1))


def bad_rows_error(inputs: FloatArray, usable: BoolArray, reads: str) -> NonFiniteError:
    """The error that names the first rows that cannot be used."""
    bad = np.flatnonzero(~usable)
    rows = ", ".join(map(str, bad[:_NAMED_ROWS])) + (", ..." if len(bad) > _NAMED_ROWS else "")
    what = "NaN or infinity"
    if usable_rows(inputs, masked_allowed=True).all():
        what = "-inf (masked labels), which this detector does not take,"
    return NonFiniteError(
        f"{reads} hold {what} in {len(bad):,} of {len(inputs):,} rows: {rows}. Clean them, or pass "
        "nonfinite='out' (--nonfinite out) to count such rows as out-of-distribution."
    )


def label_names(data: Any) -> tuple[str, ...] | None:
    """The names of the labels, of Outputs or of a data frame that has any."""
    return data.label_names if isinstance(data, Outputs) else column_names(data)


def column_names(data: Any) -> tuple[str, ...] | None:
    """The column names of a data frame that has any."""
    columns = getattr(data, "columns", ())
    names = tuple(column for column in columns if isinstance(column, str))
    return names if names and len(names) == len(columns) else None


def label_difference(ours: Sequence[str], theirs: Sequence[str]) -> str:
    """What is different between a detector's labels and those of the data."""
    if sorted(ours) == sorted(theirs):
        at = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
        return (
            f"the labels stand in another order than the detector's: at position {at} it has "
            f"{ours[at]!r}, the data {theirs[at]!r}."
        )
    missing = next((name for name in ours if name not in set(theirs)), None)
    extra = next((name for name in theirs if name not in set(ours)), None)
    return (
        f"the data has other labels than the detector was made for: {missing!r} is missing, "
        f"{extra!r} is new."
    )
