"""Columns that may be something else than the logits of a label: ids, times, texts, the truth."""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from nescio._io.facts import ColumnFacts, is_whole
from nescio._validation import Array
from nescio.errors import InputError

_NAMED = 10  # columns that a message names

# An "id" or "index" at the end of a name, as a word of its own: user_id, photoId, but not covid.
_ID_NAME = re.compile(r"(?i:(^|[^a-z])(id|ids|idx|uuid|guid|index)$)|[a-z0-9](Id|ID|Idx)$|^Unnamed")
_TIME_NAME = re.compile(
    r"(?i:(^|[^a-z])(date|time|datetime|timestamp|epoch)$)|_at$|[a-z0-9](Date|Time|At)$"
)
_OF_A_SCORED_TABLE = frozenset({"score", "p_value", "in_distribution"})
_KINDS = {"b": "true or false", "M": "times", "m": "durations"}

_ENOUGH_ROWS = 10  # to see that a column holds only whole numbers, or that it is sorted
_ENOUGH_DISTINCT = 50  # quantised logits of so many samples are not all distinct
_LARGEST_LOGIT = 1e6  # a typical value above this is a time or a count
_CERTAIN = 37  # the sigmoid of a larger logit is exactly 1
_MUCH_LARGER = 3  # times as large as the other columns


def refuse_doubtful(
    names: Sequence[str],
    ids: str | None,
    columns: Mapping[str, ColumnFacts],
    problems: Mapping[str, str],
    *,
    of_features: bool = False,
) -> None:
    """Raise if a column may be something else than the logits of a label, or than a feature.

    `columns` has what is known about each column; see `ColumnFacts`.
    """
    doubts = dict(problems) | _doubts(columns)
    if not of_features:  # features may have any scale
        doubts = _unlike_others(columns, doubts) | doubts
    if not doubts:
        return
    doubtful = [name for name in names if name in doubts]
    reasons = ", ".join(f"{name!r} ({doubts[name]})" for name in doubtful[:_NAMED])
    more = f" and {len(doubtful) - _NAMED:,} more" if len(doubtful) > _NAMED else ""
    one = len(doubtful) == 1
    verb = " does" if one else "s do"
    if of_features:
        raise InputError(
            f"{len(doubtful):,} column{verb} not look like a feature: {reasons}{more}. Drop "
            f"{'it' if one else 'them'} from the data frame, or pass the features as an array."
        )
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
        f"{len(doubtful):,} column{verb} not look like the logits of a label: {reasons}{more}. "
        f"{hint}To choose the columns of the labels yourself, pass --labels (labels=) with names "
        "or patterns."
    )


def _as_option(names: Sequence[str]) -> str:
    """Return names as the value of an option on the command line."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return shlex.quote(line.getvalue())


def _doubts(columns: Mapping[str, ColumnFacts]) -> dict[str, str]:
    """Return the columns that may not be logits, each with the reason."""
    numbers = {name: column for name, column in columns.items() if column.is_number}
    fractions = any(column.fraction for column in numbers.values())
    found = {name: kind_of(column) for name, column in columns.items() if name not in numbers}
    scored = set(columns) >= _OF_A_SCORED_TABLE
    for name, column in numbers.items():
        doubt = _doubt(name, column, fractions=fractions)
        if scored and name in _OF_A_SCORED_TABLE:
            doubt = "written by nescio score"
        if doubt is not None:
            found[name] = doubt
    return found


def _doubt(name: str, column: ColumnFacts, *, fractions: bool) -> str | None:
    if column.n_rows and column.all_nan:
        return "empty"
    if column.whole and _ID_NAME.search(name):
        return "whole numbers, and named like an id"
    if column.whole and column.n_rows >= _ENOUGH_ROWS and column.nonzero:  # zeros do no harm
        if fractions:
            return "only whole numbers, unlike other columns"
        if column.n_rows >= _ENOUGH_DISTINCT and column.distinct:
            return "whole numbers that are all different, as ids are"
        if column.rising != column.falling:
            return "whole numbers in sorted order, as a counter or a time"
    finite = column.finite_head()
    if len(finite) and np.median(np.abs(finite)) > _LARGEST_LOGIT:
        return "too large for logits"
    return None


def _unlike_others(columns: Mapping[str, ColumnFacts], doubtful: Collection[str]) -> dict[str, str]:
    """Return columns that are never negative, unlike most others, and look like something else.

    A classifier gives negative logits to absent labels. A label that is always present is never
    negative either, so this alone is no reason.
    """
    sure = {name: column for name, column in columns.items() if name not in doubtful}
    never_negative = {
        name: column
        for name, column in sure.items()
        if column.n_rows >= _ENOUGH_ROWS and column.low >= 0
    }
    if not never_negative or 2 * len(never_negative) >= len(sure):
        return {}
    usual = [_size(column) for name, column in sure.items() if name not in never_negative]
    limit = max(_CERTAIN, _MUCH_LARGER * float(np.median(usual)))
    doubts = {name: _positive_doubt(name, column, limit) for name, column in never_negative.items()}
    if not any(sure[name].hundredths for name in sure if name not in never_negative):
        for name, column in never_negative.items():
            if doubts[name] is None and column.hundredths and not column.constant:
                doubts[name] = "never negative, with two digits after the point, as prices are"
    return {name: doubt for name, doubt in doubts.items() if doubt is not None}


def _positive_doubt(name: str, column: ColumnFacts, limit: float) -> str | None:
    """Return what a column without negative values may be, if not an ever-present label."""
    if column.constant:  # a constant label gets a warning
        return None
    if _TIME_NAME.search(name):
        return "never negative, and named like a time"
    if column.high <= 1:
        return "from 0 to 1, unlike other columns, as probabilities are"
    if column.high > limit:
        return f"never negative and up to {column.high:g}, unlike other columns"
    if column.finite_rising or column.finite_falling:
        return "never negative and in sorted order, as a counter or a time"
    return None


def _size(column: ColumnFacts) -> float:
    """Return the largest absolute value in some rows; 0 if none is finite."""
    return float(np.abs(column.finite_head()).max(initial=0.0))


def has_fractions(column: Array) -> bool:
    """Return whether the values, or the text in the cells, are numbers that are not whole."""
    try:
        numbers = column.astype(np.float64) if column.dtype.kind in "OUST" else column
    except (TypeError, ValueError, OverflowError):
        return False
    return numbers.dtype.kind == "f" and bool(np.isfinite(numbers).any()) and not is_whole(numbers)


def kind_of(column: Array | ColumnFacts) -> str:
    """Return what a column that is not of numbers holds."""
    kind = column.kind if isinstance(column, ColumnFacts) else column.dtype.kind
    return _KINDS.get(kind, "text")
