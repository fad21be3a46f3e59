"""Tables and data frames: which columns are labels, ids, kept or ignored.

Files and data frames share these rules. They read names and types, never values: labels are named
by the user or the detector, or they are all floating-point columns. Any other column must be given
a role by the user, because a wrong label would make a wrong threshold silently.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
import re
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np

from nescio._io.arrow import (
    WHOLE_NUMBERS,
    arrow_errors,
    as_ids,
    is_list,
    is_unnamed_index,
    kind_of,
    label_matrix,
    list_matrix,
    stored_index,
    to_array,
    unique_names,
)
from nescio._validation import Array
from nescio.errors import (
    IgnoredLabelsWarning,
    InputError,
    LabelMismatchError,
    label_difference,
    listed,
    require,
    warn,
)

MATRICES = ("logits", "features", "labels")

_NAMED = 10  # columns that a message names
_FRAMES = (
    ("pandas", "DataFrame"),
    ("polars", "DataFrame"),
    ("polars", "LazyFrame"),  # `_arrow_table` says what to do with it
    ("pyarrow", "Table"),
)
_INDEX = "__index_level_0__"  # as in a Parquet file of pandas


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

    def read_frame(self, frame: Any) -> dict[str, Any]:
        """Read a data frame of pandas, polars or pyarrow; return the arguments of `Outputs`."""
        table = _arrow_table(frame)
        roles = self.roles(table.schema)
        arguments = content(roles, table)
        if roles.ids == next(iter(stored_index(table.schema)), None):  # no ids but the index
            arguments["index"] = index_of(frame)
        return arguments

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

    def roles(self, schema: Any, folders: Collection[str] = ()) -> Roles:
        """Decide what each column is; warn of floating-point columns that the detector ignores.

        The values of `folders` are in the names of folders: they are no labels unless chosen.
        """
        names, index = unique_names(schema), stored_index(schema)
        kept = matching_names(self.keep, names, "keep")
        ignored = matching_names(self.ignore, names, "ignore")
        ids = self._id_column(names, index, {*kept, *ignored})
        conflict = next((name for name in kept if name in ignored or name == ids), None)
        if conflict is not None:
            raise InputError(
                f"column {conflict!r} cannot be kept and also be ignored or hold the ids."
            )
        nested = next((name for name in kept if is_list(schema.field(name).type)), None)
        if nested is not None and not self.keep_rest:
            raise InputError(f"column {nested!r} holds lists and cannot be kept.")
        taken = {ids, *kept, *ignored, *index, *folders}
        rest = [schema.field(name) for name in names if name not in taken]
        labels, chosen = self._label_columns(names, rest, taken)
        if self.keep_rest and not kept:
            other = {ids, *labels, *ignored, *filter(is_unnamed_index, names)}
            kept = tuple(name for name in names if name not in other)
        if chosen and self.labels is None and self.expected_by == Columns.expected_by:
            warn_of_ignored([name for name in _floats(rest) if name not in labels], "column")
        used = {ids, *labels, *kept, *index}
        return Roles(ids, labels, kept, tuple(n for n in names if n not in used), chosen)

    def _id_column(self, names: Sequence[str], index: Sequence[str], taken: set[str]) -> str | None:
        if self.id_column is not None and (self.id_required or self.id_column in names):
            if self.id_column not in names:
                raise _no_column(self.id_column, names, "id_column")
            if self.id_column in taken:
                raise InputError(
                    f"column {self.id_column!r} holds the ids, so it cannot be ignored or kept."
                )
            return self.id_column
        taken |= {*_several(self.labels or ()), *(self.expected or ())}
        candidates = [name for name in names if name.lower() == "id"]
        candidates += index if len(index) == 1 else ()  # several levels are ids only together
        return next((name for name in candidates if name not in taken), None)

    def _label_columns(
        self, names: Sequence[str], fields: Sequence[Any], taken: Collection[str | None]
    ) -> tuple[tuple[str, ...], bool]:
        """Return the columns to read as labels, and whether they were named.

        `fields` are the columns that have no other role.
        """
        if self.labels is not None:
            return self.chosen(names, taken), True
        rest = tuple(field.name for field in fields)
        if self.expected is not None and set(self.expected) <= set(rest):
            return tuple(self.expected), True
        lists = tuple(field.name for field in fields if is_list(field.type))
        floats = _floats(fields)
        if self.expected is not None and not lists and not _are_numbered(floats):
            raise LabelMismatchError(label_difference(self.expected, rest, self.expected_by))
        if not rest:
            raise InputError(
                "there are no columns of logits: the columns are "
                f"{listed(names) or 'none'}, and all of them are ids or ignored."
            )
        if lists:
            if floats and "logits" not in lists:
                raise InputError(
                    f"the logits may be in the lists of {listed(lists)}, or in the columns "
                    f"{listed(floats)}. Choose the column of the logits, or the columns of the "
                    "labels, with labels=... (--labels)."
                )
            return lists, False
        doubtful = {field.name: kind_of(field.type) for field in fields if field.name not in floats}
        if self.of_features:
            doubtful = {name: kind for name, kind in doubtful.items() if kind != WHOLE_NUMBERS}
        if doubtful:
            raise self._ambiguous(doubtful)
        if _are_numbered(sorted(rest, key=_number)) and not _are_numbered(rest):
            raise InputError(
                f"the columns are numbered, but not in order: {listed(rest)}. Sort them, or choose "
                "their order with labels=... (--labels)."
            )
        return rest, False

    def _ambiguous(self, kinds: Mapping[str, str]) -> InputError:
        """Return the error for columns that may not be labels, with the options to paste."""
        shown = ", ".join(f"{name!r} ({kind})" for name, kind in [*kinds.items()][:_NAMED])
        if len(kinds) > _NAMED:
            shown += f" and {len(kinds) - _NAMED:,} more"
        one = len(kinds) == 1
        start = f"{len(kinds):,} column{' does' if one else 's do'} not hold "
        which = "it" if one else "them"
        if self.of_features:
            return InputError(
                f"{start}numbers: {shown}. Drop {which} from the data frame, or pass the features "
                "as an array."
            )
        hint = (
            f"To leave {which} out, pass --ignore {_as_option(list(kinds))} (in Python: "
            f"ignore={list(kinds)}). "
        )
        has_text = "text" in kinds.values()
        comma = " Decimal commas make text of numbers: --decimal ," if has_text else ""
        return InputError(
            f"{start}floating-point numbers: {shown}. {hint if len(kinds) <= _NAMED else ''}If "
            f"{'it' if one else 'one of them'} holds the ids, pass --id-column. To choose the "
            "columns of the labels yourself, pass --labels (labels=) with names or patterns; '*' "
            f"takes all.{comma}"
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


def _floats(fields: Sequence[Any]) -> tuple[str, ...]:
    is_floating = require("pyarrow.types", "files").is_floating
    return tuple(field.name for field in fields if is_floating(field.type))


def warn_of_ignored(names: Sequence[str], what: str) -> None:
    """Warn of labels or columns that the detector does not read, if there are any."""
    if names:
        count = f"1 {what}" if len(names) == 1 else f"{len(names):,} {what}s"
        warn(
            f"ignored {count} that the detector was not made for: {listed(names)}.",
            IgnoredLabelsWarning,
        )


def content(roles: Roles, table: Any) -> dict[str, Any]:
    """Return the arguments of `Outputs` for a table of pyarrow whose columns have these roles."""
    arguments: dict[str, Any] = {
        "kept": {name: to_array(table.column(name)) for name in roles.kept}
    }
    if roles.ids is not None:
        arguments["ids"] = as_ids(table.column(roles.ids))
    if roles.ignored:
        arguments["manifest"] = {"ignored_columns": list(roles.ignored)}
    return arguments | label_content(roles, table)


def label_content(roles: Roles, table: Any) -> dict[str, Any]:
    """Return the arguments of `Outputs` that come from the columns of the labels."""
    lists = [name for name in roles.labels if is_list(table.schema.field(name).type)]
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


# --- data frames of pandas, polars and pyarrow --------------------------------------------------


def is_frame(value: object) -> bool:
    """Return whether `value` is a data frame, without importing a library of data frames."""
    return any(
        isinstance(value, getattr(sys.modules[module], name, ()))
        for module, name in _FRAMES
        if sys.modules.get(module) is not None
    )


def read_frame(frame: Any, expected: Sequence[str] | None = None) -> dict[str, Any]:
    """Read a data frame without options, except the names of the labels to look for.

    Returns the arguments of `Outputs`.
    """
    try:
        return Columns(expected=expected).read_frame(frame)
    except InputError as error:
        raise type(error)(
            f"{error} Pass such options to Outputs.from_frame(frame, ...), and its result here."
        ) from error


def read_features(frame: Any, expected: Sequence[str] | None = None) -> dict[str, Any]:
    """Read a data frame of features; they are the logits in the result, as of any table."""
    return Columns(expected=expected, of_features=True).read_frame(frame)


def read_truth(
    frame: Any, names: Sequence[str] | None = None, ids: Sequence[str] | None = None
) -> Array:
    """Read the multi-hot truth from a data frame.

    Its columns are matched by name with the labels, unless none of them has the name of a label.

    Parameters
    ----------
    frame : data frame
    names : sequence of str, optional
        The names of the labels.
    ids : sequence of str, optional
        The ids of the samples. It is an error if the frame has other ids.
    """
    table = _arrow_table(frame)
    columns = [name for name in table.column_names if name not in stored_index(table.schema)]
    shared = [name for name in names or () if name in columns]
    if names and shared and len(shared) < len(names):
        raise LabelMismatchError(f"labels: {label_difference(names, columns, 'the logits')}")
    arguments = Columns(labels=shared or "*").read_frame(table)
    check_same_rows("labels", arguments.get("ids"), ids)
    return np.asarray(arguments["logits"])


def check_same_rows(
    name: str, theirs: Sequence[str] | None, ours: Sequence[str] | None, owner: str = "the logits"
) -> None:
    """Raise if the ids of a data frame show that it has other rows than the owner of `ours`.

    Ids that have nothing in common with the others are of another kind, and show nothing.
    """
    if theirs is None or ours is None or len(theirs) != len(ours):
        return
    row = next((row for row, (a, b) in enumerate(zip(theirs, ours, strict=True)) if a != b), None)
    if row is None or set(theirs).isdisjoint(ours):
        return
    raise InputError(
        f"row {row} of {name} has the id {theirs[row]!r}, but row {row} of {owner} has "
        f"{ours[row]!r}. Both must have the same rows in the same order: sort the data frame "
        f"(in pandas with .loc). If only the ids differ, pass {name} as an array."
    )


def index_of(value: object) -> Any:
    """Return the index of a pandas frame or column; None for others."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(value, (pandas.DataFrame, pandas.Series)):
        return None
    return value.index


def index_ids(value: object) -> list[str] | None:
    """Return the index of a pandas frame or column as ids; None for others.

    An index that only counts the rows, or has several levels, gives no ids.
    """
    index = index_of(value)
    return None if index is None or not _holds_ids(index) else as_ids(np.asarray(index))


def _holds_ids(index: Any) -> bool:
    """Return whether an index has one level, and is not the one that pandas makes by default."""
    default = sys.modules["pandas"].RangeIndex(len(index))
    return bool(index.nlevels == 1 and not index.equals(default))


def _arrow_table(frame: Any) -> Any:
    """Return a data frame as a table of pyarrow; the index of a pandas frame is a column."""
    pyarrow = require("pyarrow", "files")
    if hasattr(frame, "collect"):
        raise InputError("the data frame is lazy: pass frame.collect().")
    if not is_frame(frame):
        raise InputError(
            f"expected a data frame of pandas, polars or pyarrow, got {type(frame).__name__}."
        )
    index = index_of(frame)
    if index is None:
        table = frame if isinstance(frame, pyarrow.Table) else frame.to_arrow()
        with arrow_errors("the data frame", "a table"):
            table.validate(full=True)
        return table
    if frame.columns.nlevels > 1:
        raise InputError("the columns of the data frame have several levels; one is needed.")
    names = [str(name) for name in frame.columns]
    columns = [_arrow_column(frame.iloc[:, at]) for at in range(len(names))]
    stored: list[str] = []
    if _holds_ids(index):
        plain = index.name is None or str(index.name) in names
        stored = [_INDEX if plain else str(index.name)]
        columns.append(_arrow_column(index.to_series()))
    metadata = {"pandas": json.dumps({"index_columns": stored})}
    return pyarrow.Table.from_arrays(columns, names=[*names, *stored], metadata=metadata)


def _arrow_column(series: Any) -> Any:
    """Return a column of pandas as pyarrow has it; objects that it does not know become text."""
    pyarrow = require("pyarrow", "files")
    try:
        column = pyarrow.array(series, from_pandas=True)
    except (pyarrow.ArrowException, TypeError):
        texts = [
            None if missing else str(value)
            for value, missing in zip(series, series.isna(), strict=True)
        ]
        return pyarrow.array(texts, pyarrow.string())
    if isinstance(column.type, pyarrow.BaseExtensionType):
        column = column.storage
    return column.combine_chunks() if hasattr(column, "chunks") else column
