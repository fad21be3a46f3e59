"""Columns that may be something else than the logits of a label: ids, times, texts, the truth."""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections.abc import Mapping, Sequence

import numpy as np

from nescio._validation import Array
from nescio.errors import InputError

_NAMED = 10  # columns that a message names

# An "id" or "index" at the end of a name, as a word of its own: user_id, photoId, but not covid.
_ID_NAME = re.compile(r"(?i:(^|[^a-z])(id|ids|idx|uuid|guid|index)$)|[a-z0-9](Id|ID|Idx)$|^Unnamed")
_OF_A_SCORED_TABLE = frozenset({"score", "p_value", "in_distribution"})
_KINDS = {"b": "true or false", "M": "times", "m": "durations"}

_ENOUGH_ROWS = 10  # to see that a column holds only whole numbers, or that it is sorted
_ENOUGH_DISTINCT = 50  # quantised logits of so many samples are not all distinct
_LARGEST_LOGIT = 1e6  # a typical value above this is a time or a count
_SOME_ROWS = 100  # usually they show what the column holds


def refuse_doubtful(
    names: Sequence[str], ids: str | None, columns: Mapping[str, Array], problems: Mapping[str, str]
) -> None:
    """Raise if a column may be something else than the logits of a label."""
    doubts = dict(problems) | _doubts(columns)
    if not doubts:
        return
    doubtful = [name for name in names if name in doubts]
    reasons = ", ".join(f"{name!r} ({doubts[name]})" for name in doubtful[:_NAMED])
    more = f" and {len(doubtful) - _NAMED:,} more" if len(doubtful) > _NAMED else ""
    one = len(doubtful) == 1
    hint = ""
    if len(doubtful) <= _NAMED:
        which = "it" if one else "them"
        hint += (
            f"To leave {which} out, pass --ignore {_as_option(doubtful)} (in Python: "
            f"ignore={doubtful}). "
        )
        if ids is None:
            hint += f"If {'it' if one else 'one of them'} holds the ids, pass --id-column. "
    raise InputError(
        f"{len(doubtful):,} column{' does' if one else 's do'} not look like the logits of a "
        f"label: {reasons}{more}. {hint}To choose the columns of the labels yourself, pass "
        "--labels (labels=) with names or patterns."
    )


def _as_option(names: Sequence[str]) -> str:
    """Return names as the value of an option on the command line."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return shlex.quote(line.getvalue())


def _doubts(columns: Mapping[str, Array]) -> dict[str, str]:
    """Return the columns that may not be logits, each with the reason."""
    numbers = {name: column for name, column in columns.items() if column.dtype.kind in "fiu"}
    whole = {name for name, column in numbers.items() if is_whole(column)}
    fractions = any(name not in whole and np.isfinite(c).any() for name, c in numbers.items())
    found = {name: kind_of(column) for name, column in columns.items() if name not in numbers}
    scored = set(columns) >= _OF_A_SCORED_TABLE
    for name, column in numbers.items():
        doubt = _doubt(name, column, whole=name in whole, fractions=fractions)
        if scored and name in _OF_A_SCORED_TABLE:
            doubt = "written by nescio score"
        if doubt is not None:
            found[name] = doubt
    return found


def _doubt(name: str, column: Array, *, whole: bool, fractions: bool) -> str | None:
    finite = column[:_SOME_ROWS][np.isfinite(column[:_SOME_ROWS])]
    if not len(finite) and len(column) and np.isnan(column).all():
        return "empty"
    if whole and _ID_NAME.search(name):
        return "whole numbers, and named like an id"
    if whole and len(column) >= _ENOUGH_ROWS and column.any():  # zeros do no harm
        if fractions:
            return "only whole numbers, unlike other columns"
        if len(column) >= _ENOUGH_DISTINCT and len(np.unique(column)) == len(column):
            return "whole numbers that are all different, as ids are"
        steps = np.diff(column.astype(np.float64))
        if (steps >= 0).all() != (steps <= 0).all():
            return "whole numbers in sorted order, as a counter or a time"
    if len(finite) and np.median(np.abs(finite)) > _LARGEST_LOGIT:
        return "too large for logits"
    return None


def is_whole(column: Array) -> bool:
    """Return whether all finite values are whole numbers, and there are some."""
    if column.dtype.kind in "iu":
        return len(column) > 0
    for part in (column[:_SOME_ROWS], column):
        finite = part[np.isfinite(part)]
        if not np.array_equal(finite, np.floor(finite)):
            return False
    return len(finite) > 0


def has_fractions(column: Array) -> bool:
    """Return whether the values, or the text in the cells, are numbers that are not whole."""
    try:
        numbers = column.astype(np.float64) if column.dtype.kind in "OUST" else column
    except (TypeError, ValueError, OverflowError):
        return False
    return numbers.dtype.kind == "f" and bool(np.isfinite(numbers).any()) and not is_whole(numbers)


def kind_of(column: Array) -> str:
    """Return what a column that is not of numbers holds."""
    return _KINDS.get(column.dtype.kind, "text")
