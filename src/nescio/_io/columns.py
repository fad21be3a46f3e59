"""The columns of a table or data frame: which are labels, ids, kept or ignored.

Files and data frames share these rules. Without a choice by the user, a column that may be
something else than the logits of a label is an error: it would make a wrong threshold silently.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fnmatch import fnmatchcase
from numbers import Integral, Real
from typing import Any, NamedTuple, Protocol

import numpy as np

from nescio._io.csv_table import UNNAMED_INDEX
from nescio._io.doubts import has_fractions, kind_of, refuse_doubtful
from nescio._io.facts import ColumnFacts
from nescio._io.tables import check_lengths, is_null, to_values
from nescio._validation import Array
from nescio.errors import InputError, LabelMismatchError, label_difference, listed

MATRICES = ("logits", "features", "labels")
UNNAMED_LEVEL = r"__index_level_\d+__"  # as pandas stores a level of an index without a name


class Table(Protocol):
    """Columns with names: a CSV or Parquet file, or a data frame."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""

    @property
    def index(self) -> tuple[str, ...]:
        """The columns that are the index of a data frame."""

    @property
    def lists(self) -> frozenset[str]:
        """The columns that hold lists."""

    @property
    def partitions(self) -> frozenset[str]:
        """The columns whose values are in the names of folders, which are never labels."""

    def read(
        self, numbers: Collection[str], others: Collection[str]
    ) -> tuple[dict[str, Array], dict[str, str]]:
        """Return the columns, and why some that should hold numbers do not.

        Whole numbers among the others are exact, also if some are missing.
        """


class Roles(NamedTuple):
    """What each column is."""

    ids: str | None
    labels: tuple[str, ...]
    kept: tuple[str, ...]
    ignored: tuple[str, ...]
    chosen: bool  # whether the labels were named, so that their content is not questioned

    @property
    def read(self) -> tuple[str, ...]:
        """The columns that have to be read."""
        first = () if self.ids is None else (self.ids,)
        return tuple(dict.fromkeys((*first, *self.labels, *self.kept)))


@dataclass(frozen=True)
class Columns:
    """What is known about the columns of a table before it is read.

    Parameters
    ----------
    id_column : str, optional
        The column with the ids.
    labels, ignore, keep : sequence of str, or str
        Names of columns or patterns such as "logit_*".
    expected : sequence of str, optional
        The label names of a detector or of other data: if the table names its columns, these are
        its labels.
    expected_by : str
        What these label names belong to, for messages.
    id_required : bool
        Whether it is an error if there is no column `id_column`.
    of_features : bool
        Whether the columns are features instead of the logits of labels.
    keep_rest : bool
        Without `keep`: whether the columns that are neither labels nor ids nor ignored are kept. If
        so, columns of lists can be kept too.
    """

    id_column: str | None = None
    labels: Sequence[str] | str | None = None
    ignore: Sequence[str] | str = ()
    keep: Sequence[str] | str = ()
    expected: Sequence[str] | None = None
    expected_by: str = "the detector"
    id_required: bool = True
    of_features: bool = False
    keep_rest: bool = False

    @property
    def needs_table(self) -> bool:
        """Whether something was said that has a meaning only for the columns of a table."""
        return bool(self.id_column or _several(self.ignore) or _several(self.keep))

    def read(self, table: Table) -> dict[str, Any]:
        """Read a table; return the arguments of `Outputs`."""
        reading = Reading(self, table)
        content = reading.content(table)
        reading.check()
        return content

    def roles(self, table: Table) -> Roles:
        """Decide what each column of a table is."""
        names = table.names
        kept = _matching(_several(self.keep), names, "keep")
        ignored = _matching(_several(self.ignore), names, "ignore")
        ids = self._id_column(table, {*kept, *ignored})
        conflict = next((name for name in kept if name in ignored or name == ids), None)
        if conflict is not None:
            raise InputError(
                f"column {conflict!r} cannot be kept and also be ignored or hold the ids."
            )
        nested = next((name for name in kept if name in table.lists), None)
        if nested is not None and not self.keep_rest:
            raise InputError(f"column {nested!r} holds lists and cannot be kept.")
        taken = {ids, *kept, *ignored, *table.index, *table.partitions}
        rest = tuple(name for name in names if name not in taken)
        labels, chosen = self._label_columns(table, rest, taken)
        if self.keep_rest and not kept:
            other = {ids, *labels, *ignored, *_unnamed(table)}
            kept = tuple(name for name in names if name not in other)
        used = {ids, *labels, *kept, *table.index}
        return Roles(ids, labels, kept, tuple(n for n in names if n not in used), chosen)

    def _id_column(self, table: Table, taken: set[str]) -> str | None:
        if self.id_column is not None and (self.id_required or self.id_column in table.names):
            if self.id_column not in table.names:
                raise _no_column(self.id_column, table.names, "id_column")
            if self.id_column in taken:
                raise InputError(
                    f"column {self.id_column!r} holds the ids, so it cannot be ignored or kept."
                )
            return self.id_column
        taken |= {*_several(self.labels or ()), *(self.expected or ())}
        named = [name for name in table.names if name.lower() == "id" and name not in taken]
        # The levels of an index are ids only together.
        index = [name for name in table.index if name not in taken] if len(table.index) == 1 else []
        return next(iter([*named, *index]), None)

    def _label_columns(
        self, table: Table, rest: tuple[str, ...], taken: Collection[str | None]
    ) -> tuple[tuple[str, ...], bool]:
        """Return the columns to read as labels, and whether they were named."""
        if self.labels is not None:
            return self.chosen(table.names, taken), True
        if self.expected is not None and set(self.expected) <= set(rest):
            return tuple(self.expected), True
        lists = tuple(name for name in rest if name in table.lists)
        if self.expected is not None and not lists and not _are_numbered(rest):
            raise LabelMismatchError(label_difference(self.expected, rest, self.expected_by))
        if not rest:
            raise InputError(
                "there are no columns of logits: the columns are "
                f"{listed(table.names) or 'none'}, and all of them are ids or ignored."
            )
        if lists:
            _refuse_numbers_beside_lists(table, lists, rest)
            return lists, False
        if _are_numbered(sorted(rest, key=_number)) and not _are_numbered(rest):
            raise InputError(
                f"the columns are numbered, but not in order: {listed(rest)}. Sort them, or choose "
                "their order with labels=... (--labels)."
            )
        return rest, False

    def chosen(self, names: Sequence[str], taken: Collection[str | None] = ()) -> tuple[str, ...]:
        """Return the names that `labels` chooses, except those that are taken for other roles."""
        patterns = _several(self.labels or ())
        if not patterns:
            raise InputError("labels must name at least one column.")
        twice = next((name for name in patterns if patterns.count(name) > 1), None)
        if twice is not None:
            raise InputError(f"labels names {twice!r} twice.")
        for name in patterns:
            if name in names and name in taken:
                raise InputError(
                    f"labels names {name!r}, but this column holds ids or is ignored or kept."
                )
        return _matching(patterns, [name for name in names if name not in taken], "labels")


class Reading:
    """Reads the blocks of a table, one after the other, as columns of the roles that it has.

    Parameters
    ----------
    columns : Columns
    table : Table
        The first rows.

    Attributes
    ----------
    roles : Roles
    """

    def __init__(self, columns: Columns, table: Table) -> None:
        self.roles = columns.roles(table)
        self._columns = columns
        self._facts: dict[str, ColumnFacts] = {}
        self._problems: dict[str, str] = {}
        self._counts_rows: bool | None = None  # whether the index does

    def content(self, table: Table, start: int = 0) -> dict[str, Any]:
        """Return the arguments of `Outputs` for the next rows, which are those from `start` on."""
        roles = self.roles
        others = [name for name in (roles.ids, *roles.kept) if name is not None]
        read, problems = table.read(roles.labels, others)
        columns = {name: _tidy(name, column, exact=name in others) for name, column in read.items()}
        content: dict[str, Any] = {"kept": {name: columns[name] for name in roles.kept}}
        if roles.ids is not None:
            content["ids"] = self._ids(table, roles.ids, columns[roles.ids], start)
        if roles.ids == next(iter(table.index), None):  # no other ids, and not ignored
            content["index"] = getattr(table, "own_index", None)
        if roles.ignored:
            content["manifest"] = {"ignored_columns": list(roles.ignored)}
        labels = {name: columns[name] for name in roles.labels if name in columns}
        if any(column.ndim == 2 for column in labels.values()):
            return content | _from_lists(labels, roles)
        if roles.chosen:
            _check_numbers(labels, problems)
        else:
            self._problems |= problems
            for name, column in labels.items():
                self._facts.setdefault(name, ColumnFacts(column.dtype.kind)).add(column)
            self.check(only_kinds=True)
        return content | {
            "logits": np.column_stack([labels[name] for name in roles.labels]),
            "label_names": None if _are_numbered(roles.labels) else roles.labels,
        }

    def check(self, *, only_kinds: bool = False) -> None:
        """Raise if a column of labels may be something else, after all rows that were read."""
        numbers = all(facts.is_number for facts in self._facts.values())
        if only_kinds and numbers and not self._problems:
            return
        refuse_doubtful(
            self.roles.labels,
            self.roles.ids,
            self._facts,
            self._problems,
            of_features=self._columns.of_features,
        )

    @property
    def settled(self) -> bool:
        """Whether no later row can make a column of labels doubtful."""
        return self.roles.chosen or all(facts.settled for facts in self._facts.values())

    def _ids(self, table: Table, name: str, column: Array, start: int) -> list[str] | None:
        if name == self._columns.id_column:
            return as_ids(column)
        if name not in table.index:
            _refuse_fractions(name, column)
            return as_ids(column)
        counts = counts_rows(column, start)
        if self._counts_rows is None:  # an index is all ids or none: the first rows decide
            self._counts_rows = counts
        if self._counts_rows and not counts:
            raise InputError(
                f"the index {name!r} counts the first rows, but not these, so it may hold ids. If "
                f"it does, pass id_column={name!r} (--id-column). If not, pass --ignore {name}."
            )
        return None if self._counts_rows else as_ids(column)


# --- names ------------------------------------------------------------------------------------


def _unnamed(table: Table) -> set[str]:
    """Return the levels of an index that have no name."""
    return {n for n in table.index if n == UNNAMED_INDEX or re.fullmatch(UNNAMED_LEVEL, n)}


def _several(names: Sequence[str] | str) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(map(str, names))


def _matching(patterns: Sequence[str], names: Sequence[str], option: str) -> tuple[str, ...]:
    """Return the columns with these names, or that match these patterns; raise if one has none."""
    found: dict[str, None] = {}
    known = set(names)
    for pattern in patterns:
        matched = [pattern] if pattern in known else []
        matched = matched or [name for name in names if fnmatchcase(name, pattern)]
        if not matched:
            raise _no_column(pattern, names, option)
        found |= dict.fromkeys(matched)
    return tuple(found)


def matching_names(
    patterns: Sequence[str] | str, names: Sequence[str], option: str
) -> tuple[str, ...]:
    """Return the names that patterns choose; raise if one of them chooses none."""
    return _matching(_several(patterns), names, option)


def _no_column(name: str, names: Sequence[str], option: str) -> InputError:
    near = difflib.get_close_matches(name, names, n=3)
    hint = f"The columns are {listed(names)}." if names else "The columns have no names."
    if near:
        hint = f"Did you mean {' or '.join(map(repr, near))}?"
    spelled = option.replace("_", "-")
    return InputError(f"there is no column {name!r} ({option}, --{spelled}). {hint}")


def _are_numbered(names: Sequence[str]) -> bool:
    """Return whether the names only count the columns, from 0 or 1.

    Other numbers, such as the ids of COCO's categories, are names.
    """
    return any(list(names) == [str(start + at) for at in range(len(names))] for start in (0, 1))


def _number(name: str) -> tuple[int, str]:
    """Return a key that sorts names by their numbers."""
    return int(name) if name.isdecimal() else -1, name


# --- content ----------------------------------------------------------------------------------


def _tidy(name: str, column: Array, *, exact: bool) -> Array:
    """Return a column of Python objects as numbers, as a matrix or as text with None.

    With `exact`, whole numbers stay what they are: a float cannot hold all of them.
    """
    if column.dtype.kind not in "OUST":
        return column
    values = [None if is_null(value) else value for value in column.tolist()]
    present = [value for value in values if value is not None]
    if present and all(isinstance(value, list | tuple | np.ndarray) for value in present):
        return _stacked(name, values)
    if exact and all(isinstance(v, Integral) and not isinstance(v, bool) for v in present):
        return np.array(values, dtype=object)
    if all(isinstance(value, Real | Decimal) and not isinstance(value, bool) for value in present):
        return np.array([np.nan if value is None else float(value) for value in values])
    if present and all(isinstance(value, bool) for value in values):
        return np.array(values)
    return np.array([None if value is None else str(value) for value in values], dtype=object)


def _stacked(name: str, rows: list[Any]) -> Array:
    lengths = {len(row) for row in rows if row is not None}
    check_lengths(name, lengths)
    missing = [np.nan] * lengths.pop()
    try:
        return np.array([missing if row is None else row for row in rows], dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the lists of column {name!r} do not hold numbers. To leave it out, pass --ignore "
            f"{name}."
        ) from error


def counts_rows(column: Array, start: int = 0) -> bool:
    """Return whether an index only counts the rows, which are those from `start` on."""
    rows = np.arange(start, start + len(column))
    return column.dtype.kind in "iu" and np.array_equal(column, rows)


def as_ids(column: Array) -> list[str]:
    """Return the values of a column as text; missing ones are empty."""
    values = to_values(column)
    if column.dtype.kind == "f":  # whole numbers with some missing
        values = [int(value) if value % 1 == 0 else value for value in values]
    return ["" if is_null(value) else str(value) for value in values]


def _refuse_fractions(name: str, column: Array) -> None:
    """Raise if a column that was taken for ids only because of its name may be a label."""
    if has_fractions(column):
        raise InputError(
            f"column {name!r} holds numbers with fractions, so it may be a label and not ids. If "
            f"it holds the ids, pass id_column={name!r} (--id-column). If not, choose the columns "
            "of the labels with labels=... (--labels)."
        )


def _refuse_numbers_beside_lists(table: Table, lists: Sequence[str], rest: Sequence[str]) -> None:
    """Raise if both lists and single numbers may be the logits."""
    if "logits" in lists:
        return
    others = [name for name in rest if name not in lists]
    read, _ = table.read(others, ())
    numbers = [
        n for n in others if n in read and _tidy(n, read[n], exact=False).dtype.kind in "fiu"
    ]
    if numbers:
        raise InputError(
            f"the logits may be in the lists of {listed(lists)}, or in the columns of numbers "
            f"{listed(numbers)}. Choose the column of the logits, or the columns of the labels, "
            "with labels=... (--labels)."
        )


def _from_lists(columns: dict[str, Array], roles: Roles) -> dict[str, Any]:
    """Return logits and other arrays from columns of lists."""
    matrices = dict(columns)
    if len(matrices) == 1 and (roles.chosen or not set(matrices) & set(MATRICES)):
        return {"logits": next(iter(matrices.values()))}
    if roles.chosen or "logits" not in matrices:
        raise InputError(
            f"there is no column of lists named logits; there are {listed(list(columns))}. Choose "
            "the column of the logits, or the columns of the labels, with labels=... (--labels)."
        )
    content: dict[str, Any] = {name: matrices.pop(name) for name in MATRICES if name in matrices}
    return content | {"arrays": matrices}


def _check_numbers(columns: Mapping[str, Array], problems: Mapping[str, str]) -> None:
    for name, problem in problems.items():
        raise InputError(f"column {name!r}, {problem}.")
    for name, column in columns.items():
        if column.dtype.kind not in "fiu":
            raise InputError(f"column {name!r} does not hold numbers, but {kind_of(column)}.")
