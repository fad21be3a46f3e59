"""The columns of a table or data frame: which are labels, ids, kept or ignored.

Files and data frames share these rules. They read names and types, never values: labels are named
by the user or the detector, or they are all floating-point columns. Any other column must be given
a role by the user, because a wrong label would make a wrong threshold silently.
"""

from __future__ import annotations

import csv
import difflib
import io
import re
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from nescio._io.arrow import ArrowTable, as_ids, kind_of, label_matrix, list_matrix, to_array
from nescio.errors import (
    IgnoredLabelsWarning,
    InputError,
    LabelMismatchError,
    label_difference,
    listed,
    warn,
)

MATRICES = ("logits", "features", "labels")

_NAMED = 10  # columns that a message names


class Roles(NamedTuple):
    """What each column is."""

    ids: str | None
    labels: tuple[str, ...]
    kept: tuple[str, ...]
    ignored: tuple[str, ...]
    chosen: bool  # whether the labels were named

    @property
    def read(self) -> tuple[str, ...]:
        """The columns that have to be read."""
        first = () if self.ids is None else (self.ids,)
        return tuple(dict.fromkeys((*first, *self.labels, *self.kept)))


@dataclass(frozen=True)
class Columns:
    """What the caller says about the columns of a table, and how a text file is written.

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
    sep, decimal : str, optional
        The separator (default: a comma, in .tsv files a tab) and the decimal sign of CSV files.
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
    sep: str | None = None
    decimal: str = "."

    @property
    def needs_table(self) -> bool:
        """Whether an option was given that has a meaning only for tables."""
        return bool(self.id_column or _several(self.ignore) or _several(self.keep) or self.sep)

    def read(self, table: ArrowTable) -> dict[str, Any]:
        """Read a table; return the arguments of `Outputs`."""
        return content(self.roles(table), table)

    def text_columns(self, names: Sequence[str]) -> dict[str, bool]:
        """Return which columns of a text file are text (True) or numbers (False), if it is known.

        If the labels are known by name, all others are text, so that they are copied unchanged.
        """
        if self.labels is not None or (self.expected and set(self.expected) <= set(names)):
            known = self.labels if self.labels is not None else self.expected or ()
            numbers = _matching(known, names)
            return {name: name not in numbers for name in names}
        texts = _matching((*_several(self.keep), self.id_column or "id"), names)
        return {name: True for name in names if name in texts or name.lower() == "id"}

    def roles(self, table: ArrowTable) -> Roles:
        """Decide what each column is; warn of floating-point columns that the detector ignores."""
        names = table.names
        kept = matching_names(self.keep, names, "keep")
        ignored = matching_names(self.ignore, names, "ignore")
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
            other = {ids, *labels, *ignored, *table.unnamed}
            kept = tuple(name for name in names if name not in other)
        if chosen and self.labels is None:
            self._warn_of_unknown([n for n in rest if n in table.floats and n not in labels])
        used = {ids, *labels, *kept, *table.index}
        return Roles(ids, labels, kept, tuple(n for n in names if n not in used), chosen)

    def _warn_of_unknown(self, names: Sequence[str]) -> None:
        if names and self.expected_by == Columns.expected_by:
            count = "1 column" if len(names) == 1 else f"{len(names):,} columns"
            warn(
                f"ignored {count} that the detector was not made for: {listed(names)}.",
                IgnoredLabelsWarning,
            )

    def _id_column(self, table: ArrowTable, taken: set[str]) -> str | None:
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
        self, table: ArrowTable, rest: tuple[str, ...], taken: Collection[str | None]
    ) -> tuple[tuple[str, ...], bool]:
        """Return the columns to read as labels, and whether they were named."""
        if self.labels is not None:
            return self.chosen(table.names, taken), True
        if self.expected is not None and set(self.expected) <= set(rest):
            return tuple(self.expected), True
        lists = tuple(name for name in rest if name in table.lists)
        floats = tuple(name for name in rest if name in table.floats)
        if self.expected is not None and not lists and not _are_numbered(floats):
            raise LabelMismatchError(label_difference(self.expected, rest, self.expected_by))
        if not rest:
            raise InputError(
                "there are no columns of logits: the columns are "
                f"{listed(table.names) or 'none'}, and all of them are ids or ignored."
            )
        if lists:
            if floats and "logits" not in lists:
                raise InputError(
                    f"the logits may be in the lists of {listed(lists)}, or in the columns "
                    f"{listed(floats)}. Choose the column of the logits, or the columns of the "
                    "labels, with labels=... (--labels)."
                )
            return lists, False
        numbers = table.numbers if self.of_features else floats
        doubtful = [name for name in rest if name not in numbers]
        if doubtful:
            raise self._ambiguous(table, doubtful)
        if _are_numbered(sorted(rest, key=_number)) and not _are_numbered(rest):
            raise InputError(
                f"the columns are numbered, but not in order: {listed(rest)}. Sort them, or choose "
                "their order with labels=... (--labels)."
            )
        return rest, False

    def _ambiguous(self, table: ArrowTable, doubtful: Sequence[str]) -> InputError:
        """Return the error for columns that may not be labels, with the options to paste."""
        what = "numbers" if self.of_features else "floating-point numbers"
        named = ", ".join(
            f"{name!r} ({kind_of(table.table.field(name).type)})" for name in doubtful[:_NAMED]
        )
        more = f" and {len(doubtful) - _NAMED:,} more" if len(doubtful) > _NAMED else ""
        one = len(doubtful) == 1
        start = f"{len(doubtful):,} column{' does' if one else 's do'} not hold {what}: "
        which = "it" if one else "them"
        if self.of_features:
            return InputError(
                f"{start}{named}{more}. Drop {which} from the data frame, or pass the features as "
                "an array."
            )
        hint = ""
        if not more:
            hint += (
                f"To leave {which} out, pass --ignore {_as_option(doubtful)} (in Python: "
                f"ignore={list(doubtful)}). "
            )
        return InputError(
            f"{start}{named}{more}. {hint}If {'it' if one else 'one of them'} holds the ids, pass "
            "--id-column. To choose the columns of the labels yourself, pass --labels (labels=) "
            "with names or patterns; '*' takes all."
        )

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
        return matching_names(patterns, [name for name in names if name not in taken], "labels")


def content(roles: Roles, table: ArrowTable) -> dict[str, Any]:
    """Return the arguments of `Outputs` for a table whose columns have these roles."""
    found: dict[str, Any] = {"kept": {name: to_array(table.column(name)) for name in roles.kept}}
    if roles.ids is not None:
        found["ids"] = as_ids(table.column(roles.ids))
    if roles.ids == next(iter(table.index), None):  # no other ids, and not ignored
        found["index"] = table.own_index
    if roles.ignored:
        found["manifest"] = {"ignored_columns": list(roles.ignored)}
    return found | label_content(roles, table)


def label_content(roles: Roles, table: ArrowTable) -> dict[str, Any]:
    """Return the arguments of `Outputs` that come from the columns of the labels."""
    lists = [name for name in roles.labels if name in table.lists]
    if not lists:
        names = None if _are_numbered(roles.labels) else roles.labels
        return {"logits": label_matrix(table, roles.labels), "label_names": names}
    if len(lists) == 1 and (roles.chosen or lists[0] not in MATRICES):
        return {"logits": list_matrix(table, lists[0])}
    if roles.chosen or "logits" not in lists:
        raise InputError(
            f"there is no column of lists named logits; there are {listed(lists)}. Choose the "
            "column of the logits, or the columns of the labels, with labels=... (--labels)."
        )
    matrices: dict[str, Any] = {name: list_matrix(table, name) for name in lists}
    arrays = {name: array for name, array in matrices.items() if name not in MATRICES}
    return {name: matrices[name] for name in MATRICES if name in matrices} | {"arrays": arrays}


# --- names ------------------------------------------------------------------------------------


def _several(names: Sequence[str] | str) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(map(str, names))


def matching_names(
    patterns: Sequence[str] | str, names: Sequence[str], option: str
) -> tuple[str, ...]:
    """Return the names that patterns choose; raise if one of them chooses none."""
    chosen: dict[str, None] = {}
    existing = set(names)
    for pattern in _several(patterns):
        matched = [pattern] if pattern in existing else _matching(pattern, names)
        if not matched:
            raise _no_column(pattern, names, option)
        chosen |= dict.fromkeys(matched)
    return tuple(chosen)


def _matching(patterns: Sequence[str] | str, names: Sequence[str]) -> dict[str, None]:
    """Return the names that patterns choose; they need not choose any."""
    exact = set(_several(patterns))
    wild = [pattern for pattern in exact if set(pattern) & set("*?[")]
    return {
        name: None
        for name in names
        if name in exact or any(fnmatchcase(name, pattern) for pattern in wild)
    }


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
    counts = ([str(start + at) for at in range(len(names))] for start in (0, 1))
    return len(names) > 0 and list(names) in counts


def _number(name: str) -> tuple[int, str]:
    """Return a key that sorts names by their numbers."""
    return int(name) if re.fullmatch(r"\d{1,18}", name) else -1, name


def _as_option(names: Sequence[str]) -> str:
    """Return names as the value of an option on the command line."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return shlex.quote(line.getvalue())
