"""Tables in files: which columns are labels, ids, kept or ignored, and the rows in blocks.

The rules for columns read names and types, never values: labels are named by the user or the
detector, or they are all floating-point columns. Any other column must be given a role by the user,
because a wrong label would make a wrong threshold silently.

Parquet and Arrow files may be several files of one input, and larger than memory. Text files are
read as a whole.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import IO, Any, NamedTuple

import numpy as np

from nescio._io.files import Files, as_groups, as_ids, to_array
from nescio._io.text_tables import UNNAMED_COLUMN, read_text
from nescio._validation import Array
from nescio.errors import (
    FileError,
    FileFormatError,
    IgnoredLabelsWarning,
    InputError,
    LabelMismatchError,
    NescioError,
    ShapeError,
    counted,
    label_difference,
    listed,
    nearest,
    require,
    warn,
)

MATRICES = ("logits", "features", "labels")
VERDICTS = ("score", "p_value", "in_distribution")  # columns of every table of verdicts
GROUP = "group"
"""The kept column of outputs that has the group of each sample."""

_NAMED = 10  # columns that a message names
_UNNAMED_LEVEL = re.compile(r"__index_level_\d+__")  # of an index of pandas without a name
_KINDS = {".parquet": "Parquet", ".arrow": "Arrow", ".feather": "Arrow"}
_BUFFERS = 1 << 26  # bytes that are read ahead, in all columns together


# --- the roles of columns -------------------------------------------------------------------------


class Roles(NamedTuple):
    """What each column is."""

    ids: str | None
    labels: tuple[str, ...]  # columns of numbers, or one of lists
    arrays: tuple[str, ...]  # other columns of lists of numbers: features, labels and others
    kept: tuple[str, ...]
    ignored: tuple[str, ...]
    group: str | None
    read: tuple[str, ...]  # all that have to be read, in the order of the table


@dataclass(frozen=True)
class Columns:
    """What the caller says about the columns of a table, and how a text file is written.

    `labels`, `ignore` and `keep` are names of columns or patterns such as "logit_*".
    """

    id_column: str | None = None
    labels: Sequence[str] | str | None = None
    ignore: Sequence[str] | str = ()
    keep: Sequence[str] | str = ()
    # The labels of a detector or of other data. If the table names its columns, these are its own.
    expected: Sequence[str] | None = None
    expected_by: str = "the detector"  # what these labels belong to, for messages
    id_required: bool = True  # whether `id_column` and `group_column` must exist
    of_features: bool = False  # the columns are features instead of the logits of labels
    keep_rest: bool = False  # without `keep`, keep all other columns; they may hold lists
    sep: str | None = None  # of a CSV file, if it is not to be found in the file
    decimal: str | None = None  # the same for the decimal sign
    group_column: str | None = None

    def text_columns(self, names: Sequence[str]) -> dict[str, bool]:
        """Return which columns of a text file are text (True) or numbers (False), if it is known.

        If the labels are known by name, all others are text, so that they are copied unchanged.
        """
        named = [*_several(self.keep), *_several(self.ignore), self.id_column, self.group_column]
        texts = {name for name in names if name.lower() == "id"}
        texts.update(_matching([name for name in named if name is not None], names))
        labels = self.labels
        if labels is None and self.expected and set(self.expected) <= set(names):
            labels = self.expected
        if labels is None:
            return dict.fromkeys(texts, True)
        numbers = set(_matching(labels, names)) - (texts - set(_several(labels)))
        return {name: name not in numbers for name in names}

    def roles(self, schema: Any) -> Roles:
        """Decide what each column is; warn of floating-point columns that the detector ignores."""
        names, index = schema.names, stored_index(schema)
        kept = matching_names(self.keep, names)
        ignored = matching_names(self.ignore, names)
        group = None
        if self.group_column is not None and (self.id_required or self.group_column in names):
            (group,) = matching_names([self.group_column], names)
        ids = self._id_column(names, index, {*kept, *ignored, group or ""})
        named = set(_several(self.labels or ())) & set(names)
        roles = [ids, group, *ignored, *named, *(name for name in kept if name != group)]
        name, n_roles = Counter(filter(None, roles)).most_common(1)[0] if any(roles) else ("", 0)
        if n_roles > 1:
            raise InputError(
                f"column {name!r} has {n_roles} roles: a column holds ids, groups or a label, is "
                "kept, or is ignored. Name it in one option only."
            )
        nested = next((name for name in kept if _is_list(schema.field(name).type)), None)
        if nested is not None and not self.keep_rest:
            raise InputError(f"column {nested!r} holds lists and cannot be kept.")
        taken = {ids, group, *kept, *ignored, *index}
        rest = [schema.field(name) for name in names if name not in taken]
        lists = tuple(field.name for field in rest if _is_matrix(field.type))
        labels = self._label_columns(names, rest, lists)
        arrays = tuple(name for name in lists if name not in {"logits", *labels[:1]})
        if self.keep_rest and not kept:
            # A column that is named like that of the verdicts becomes it.
            other = {ids, *labels, *arrays, *ignored, *filter(_is_unnamed_index, names)}
            other |= {group} & {GROUP}
            kept = tuple(name for name in names if name not in other)
        by_name = self.labels is None and labels == tuple(self.expected or ())
        if by_name and self.expected_by == Columns.expected_by:
            warn_of_ignored([name for name in _floats(rest) if name not in labels], "column")
        used = {ids, group, *labels, *arrays, *kept}
        read = tuple(name for name in names if name in used)
        used.update(index)
        left = tuple(name for name in names if name not in used)
        return Roles(ids, labels, arrays, kept, left, group, read)

    def _id_column(self, names: Sequence[str], index: Sequence[str], taken: set[str]) -> str | None:
        if self.id_column is not None and (self.id_required or self.id_column in names):
            if self.id_column not in names:
                raise no_column(self.id_column, names)
            return self.id_column
        taken |= {*_several(self.labels or ()), *(self.expected or ())}
        candidates = [name for name in names if name.lower() == "id"]
        candidates += index if len(index) == 1 else ()  # several levels are ids only together
        return next((name for name in candidates if name not in taken), None)

    def _label_columns(
        self, names: Sequence[str], fields: Sequence[Any], lists: tuple[str, ...]
    ) -> tuple[str, ...]:
        """Return the columns to read as logits: several of numbers, or one of lists.

        `fields` are the columns that have no other role; some are `lists` of numbers.
        """
        rest, floats = tuple(field.name for field in fields), _floats(fields)
        if self.labels is not None:
            chosen = self.chosen(rest)
            labels = tuple(name for name in chosen if name not in lists)  # '*' takes lists too
            return labels or (chosen if len(chosen) == 1 else _logits_of(chosen))
        if self.expected is not None and set(self.expected) <= set(rest):
            return tuple(self.expected)
        if "logits" in lists or (lists and not floats):
            return _logits_of(lists)
        if not self.of_features and {*VERDICTS[:2]} <= {*names}:
            raise InputError(
                f"this is a table of verdicts ({', '.join(VERDICTS)}): pass the outputs of the "
                "model, which were scored, or name their columns with labels=... (--labels)."
            )
        if self.expected is not None and not _are_numbered(floats):
            theirs = [name for name in rest if name in floats or name in self.expected]
            raise LabelMismatchError(label_difference(self.expected, theirs, self.expected_by))
        if not rest:
            raise InputError(
                "there are no columns of logits: the columns are "
                f"{listed(names) or 'none'}, and all of them are ids or ignored."
            )
        types = require("pyarrow.types", "files")
        numbers = [field for field in fields if field.name not in lists]
        doubtful = [
            field
            for field in numbers
            if field.name not in floats and not (self.of_features and types.is_integer(field.type))
        ]
        if doubtful:
            raise self._ambiguous(doubtful, names, has_others=len(doubtful) < len(numbers))
        labels = tuple(field.name for field in numbers)
        by_number = sorted(labels, key=lambda name: (len(name), name))
        if _are_numbered(by_number) and not _are_numbered(labels):
            raise InputError(
                f"the columns are numbered, but not in order: {listed(labels)}. Sort them, or "
                "choose their order with labels=... (--labels)."
            )
        return labels

    def _ambiguous(
        self, fields: Sequence[Any], all_names: Sequence[str], *, has_others: bool
    ) -> InputError:
        """Return the error for columns that may not be labels, with the options to paste."""
        names = [field.name for field in fields]
        shown = listed([f"{field.name!r} ({field.type})" for field in fields], _NAMED, quoted=False)
        if self.of_features:
            return InputError(
                f"not all columns hold numbers: {shown}. Drop those that do not from the data "
                "frame, or pass the features as an array."
            )
        advice, every = "Name", " ('*' for all)"
        if has_others:
            patterns, every = _shortened(names, set(all_names) - set(names)), ""
            line = io.StringIO()
            csv.writer(line, lineterminator="").writerow(patterns)
            option = f"ignore={patterns} (--ignore {shlex.quote(line.getvalue())})"
            if len(patterns) > _NAMED:
                option = "their names, or patterns, as ignore=... (--ignore)"
            advice = f"To leave out what is no label, pass {option}. Otherwise, name"
        return InputError(
            f"not all columns hold floating-point numbers: {shown}. {advice} with labels=... "
            f"(--labels) the columns of the logits{every}, or with id_column=... "
            "(--id-column) that of the ids. Features and the truth have to be lists, in columns "
            "named features and labels."
        )

    def chosen(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return those of the names that `labels` chooses."""
        patterns = _several(self.labels or ())
        if not patterns:
            raise InputError("labels must name at least one column.")
        name, count = Counter(patterns).most_common(1)[0]
        if count > 1:
            raise InputError(f"labels names {name!r} twice.")
        return matching_names(patterns, names)


def warn_of_ignored(names: Sequence[str], what: str) -> None:
    """Warn of labels or columns that the detector does not read, if there are any."""
    if names:
        warn(
            f"ignored {counted(len(names), what)} that the detector was not made for: "
            f"{listed(names)}.",
            IgnoredLabelsWarning,
        )


def described_labels(n_labels: int, names: Sequence[str] | None) -> str:
    """Return how many labels there are, and their names: a column that is none is often last."""
    shown = list(names or ())
    shown[5:-2] = ["..."] if len(shown) > 7 else shown[5:-2]
    return counted(n_labels, "label") + (f" ({', '.join(shown)})" if shown else "")


def check_unique_names(schema: Any) -> None:
    """Raise if two columns have the same name."""
    name, count = Counter(schema.names).most_common(1)[0] if schema.names else ("", 0)
    if count > 1:
        raise InputError(f"there are two columns of the same name, {name!r}. Rename one of them.")


def stored_index(schema: Any) -> tuple[str, ...]:
    """Return the columns in which pandas stored an index, with or without its metadata."""
    stored: list[Any] = []
    with suppress(ValueError, AttributeError):  # not the metadata that pandas writes
        stored = (schema.pandas_metadata or {}).get("index_columns", [])
    return tuple(name for name in schema.names if _is_unnamed_index(name) or name in stored)


def _is_unnamed_index(name: str) -> bool:
    """Return whether pandas stores an index without a name under this name."""
    return name == UNNAMED_COLUMN or _UNNAMED_LEVEL.fullmatch(name) is not None


def _several(names: Sequence[str] | str) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(map(str, names))


def matching_names(patterns: Sequence[str] | str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names that patterns choose; raise if one of them chooses none."""
    chosen: dict[str, None] = {}
    existing = set(names)
    for pattern in _several(patterns):
        matched = [pattern] if pattern in existing else _matching(pattern, names)
        if not matched:
            raise no_column(pattern, names)
        chosen |= dict.fromkeys(matched)
    return tuple(chosen)


def _matching(patterns: Sequence[str] | str, names: Sequence[str]) -> list[str]:
    """Return the names that patterns choose; they need not choose any."""
    exact = set(_several(patterns))
    wild = [pattern for pattern in exact if set(pattern) & set("*?[")]
    return [
        name
        for name in names
        if name in exact or any(fnmatchcase(name, pattern) for pattern in wild)
    ]


def no_column(name: str, names: Sequence[str]) -> InputError:
    """Return the error for a column that does not exist, with what may be meant."""
    hint = f" The columns are {listed(names)}." if names else " The columns have no names."
    return InputError(f"there is no column {name!r}.{nearest(name, names) or hint}")


def _are_numbered(names: Sequence[str]) -> bool:
    """Return whether the names only count the columns, from 0 or 1.

    Other numbers, such as the ids of COCO's categories, are names.
    """
    counts = ([str(start + number) for number in range(len(names))] for start in (0, 1))
    return len(names) > 0 and list(names) in counts


def _shortened(names: Sequence[str], others: Iterable[str]) -> list[str]:
    """Return patterns for names: those that share a beginning, which no other has, become one."""
    patterns: dict[str, None] = {}
    for name in names:
        start = "".join(re.split("([_. :/-])", name, maxsplit=1)[:2])
        alone = any(other.startswith(start) for other in others)
        alone |= sum(each.startswith(start) for each in names) == 1
        patterns[name if alone else f"{start}*"] = None
    return list(patterns)


# --- from columns to arrays -----------------------------------------------------------------------


def content(roles: Roles, table: Any) -> dict[str, Any]:
    """Return the arguments of `Outputs` for a table of pyarrow whose columns have these roles."""
    kept = {name: to_array(table.column(name)) for name in roles.kept}
    if roles.group is not None:
        kept[GROUP] = as_groups(table.column(roles.group))
    arguments: dict[str, Any] = {"kept": kept}
    if roles.ids is not None:
        arguments["ids"] = as_ids(table.column(roles.ids))
    if roles.ignored:
        arguments["manifest"] = {"ignored_columns": list(roles.ignored)}
    return arguments | label_content(roles, table)


def label_content(roles: Roles, table: Any) -> dict[str, Any]:
    """Return the arguments of `Outputs` that come from the logits and from columns of lists."""
    made: dict[str, Any] = {name: _list_matrix(table, name) for name in roles.arrays}
    made = {"arrays": made} | {name: made.pop(name) for name in MATRICES if name in made}
    if _is_matrix(table.schema.field(roles.labels[0]).type):
        return {"logits": _list_matrix(table, roles.labels[0])} | made
    columns = [_numbers(name, table.column(name)) for name in roles.labels]
    names = None if _are_numbered(roles.labels) else roles.labels
    if "labels" in made:
        if made["labels"].shape[1] != len(columns):
            raise ShapeError(
                f"the lists of column 'labels' have {made['labels'].shape[1]} entries, but "
                f"{described_labels(len(columns), roles.labels)} were read. Leave out the columns "
                "that are no labels with ignore=... (--ignore)."
            )
        # The lists of the truth have the order of the table, and the logits may have another.
        place = {name: number for number, name in enumerate(roles.read)}
        order = np.argsort(np.argsort([place[name] for name in roles.labels]))
        made["labels"] = made["labels"][:, order]
    return {"logits": np.stack(columns, axis=1), "label_names": names} | made


def _numbers(name: str, column: Any) -> Array:
    """Return a column of numbers as an array; nulls are NaN."""
    types = require("pyarrow.types", "files")
    kind = column.type
    if types.is_decimal(kind) or types.is_boolean(kind) or types.is_null(kind):
        column = column.cast("float64")
    elif not types.is_integer(kind) and not types.is_floating(kind):
        raise InputError(f"column {name!r} does not hold numbers, but has the type {kind}.")
    return np.asarray(column)


def _list_matrix(table: Any, name: str) -> Array:
    """Return lists of equal length as the rows of a matrix; a null is a row of NaN."""
    compute, column = require("pyarrow.compute", "files"), table.column(name)
    leave_out = f"To leave it out, pass --ignore {name}."
    lengths = compute.list_value_length(column).unique().drop_null().to_pylist()
    if len(lengths) > 1:
        raise InputError(
            f"the lists of column {name!r} must have the same length, got lengths from "
            f"{min(lengths)} to {max(lengths)}. {leave_out}"
        )
    column = column.combine_chunks()
    width = lengths[0] if lengths else 0
    n_valid = len(column) - column.null_count
    values = np.asarray(column.flatten())
    if len(values) != n_valid * width:  # a damaged file
        raise InputError(f"the lists of column {name!r} cannot be read. {leave_out}")
    values = values.reshape(n_valid, width)
    if not column.null_count:
        return values
    matrix = np.full((len(column), width), np.nan)
    matrix[np.asarray(column.is_valid())] = values
    return matrix


def _floats(fields: Sequence[Any]) -> tuple[str, ...]:
    is_floating = require("pyarrow.types", "files").is_floating
    return tuple(field.name for field in fields if is_floating(field.type))


def _is_matrix(kind: Any) -> bool:
    """Return whether a column holds lists of numbers."""
    types = require("pyarrow.types", "files")
    numbers = (types.is_integer, types.is_floating, types.is_boolean, types.is_null)
    return _is_list(kind) and any(is_of(kind.value_type) for is_of in numbers)


def _logits_of(lists: tuple[str, ...]) -> tuple[str, ...]:
    """Return the one of these columns of lists that holds the logits."""
    if "logits" not in lists and (len(lists) > 1 or lists[0] in MATRICES):
        raise InputError(
            f"there is no column of lists named logits; there are {listed(lists)}. Choose the "
            "column of the logits, or the columns of the labels, with labels=... (--labels)."
        )
    return ("logits",) if "logits" in lists else lists


def _is_list(kind: Any) -> bool:
    types = require("pyarrow.types", "files")
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


# --- the rows of files ----------------------------------------------------------------------------


class TableFiles:
    """The rows of a table in files: Parquet and Arrow files may together be larger than memory.

    All files must have the same columns. A text file is one file, and is read as a whole. `columns`
    says how it is written.
    """

    def __init__(self, files: Files, columns: Columns) -> None:
        self._files = files
        self._kind = _KINDS.get(files.suffix, "text")
        self._text = read_text(files, columns) if self._kind == "text" else None
        self._rows: list[int] = []
        self._written: dict[str, tuple[int, int]] = {}
        self.row_bytes = 0.0  # of a row of all columns in memory, approximately
        for path in files.paths:
            with self._opened(path) as part:
                if not self._rows:
                    self.schema = part.schema
                self._check_columns(path, part.schema)
                n_rows, row_bytes = part.measure()
                self._rows.append(n_rows)
                self.row_bytes = self.row_bytes or row_bytes
        self.n_rows = sum(self._rows)
        check_unique_names(self.schema)

    def blocks(self, size: int, start: int, names: Sequence[str]) -> Iterator[Any]:
        """Give blocks of `size` rows, across files, from row `start`; the last may be shorter."""
        pyarrow = require("pyarrow", "files")
        waiting: list[Any] = []
        n_waiting = 0
        for piece in self._pieces(size, start, names):
            waiting.append(piece)
            n_waiting += len(piece)
            while n_waiting >= size:
                whole = pyarrow.concat_tables(waiting)
                waiting = [whole.slice(size)] if n_waiting > size else []
                n_waiting -= size
                yield whole.slice(0, size)
                del whole
        if n_waiting:
            yield pyarrow.concat_tables(waiting)

    def whole(self, names: Sequence[str]) -> Any:
        """Return some columns of all rows as one table."""
        empty = self.schema.empty_table().select(names)
        pieces = self._pieces(max(1, min(self.n_rows, 1 << 20)), 0, names)
        return require("pyarrow", "files").concat_tables([empty, *pieces])

    def _pieces(self, size: int, start: int, names: Sequence[str]) -> Iterator[Any]:
        """Give the rows from `start` on, in pieces; those of Parquet have at most `size` rows."""
        pyarrow = require("pyarrow", "files")
        schema = pyarrow.schema([self.schema.field(name) for name in names])
        for path, n_rows in zip(self._files.paths, self._rows, strict=True):
            if start >= n_rows:
                start -= n_rows
                continue
            with self._opened(path) as part:
                for batch in part.batches(size, start, names):
                    table = pyarrow.Table.from_batches([batch]).select(names)
                    yield table if table.schema == schema else table.cast(schema)
            start = 0

    @contextmanager
    def _opened(self, path: str) -> Iterator[_Part]:
        """Open one of the files; raise if it was written to since it was first opened."""
        if self._text is not None:
            with arrow_errors(path, self._kind):
                yield _in_batches(self._text.schema, self._text.to_batches)
            return
        local = None if self._files.remote else path
        open_part = _open_parquet if self._kind == "Parquet" else _open_ipc
        with self._files.open(path) as stream, arrow_errors(path, self._kind):
            self._check_unchanged(local)
            yield open_part(stream, local)
            self._check_unchanged(local)

    def _check_unchanged(self, path: str | None) -> None:
        if path is None:
            return
        status = os.stat(path)
        written = (status.st_size, status.st_mtime_ns)
        if self._written.setdefault(path, written) != written:
            raise FileError(
                f"{path} was replaced or written to while the input was read. Start again when "
                "all files are complete."
            )

    def _check_columns(self, path: str, schema: Any) -> None:
        """Raise unless a file has the columns of the first one."""
        ours, theirs = ({field.name: str(field.type) for field in s} for s in (self.schema, schema))
        for name in (*ours, *theirs):
            here, there = theirs.get(name, "missing"), ours.get(name, "missing")
            if here != there:
                raise InputError(
                    f"{path} has other columns than {self._files.paths[0]}: {name!r} is {here} "
                    f"here, and is {there} there. All files of one input must have the same "
                    "columns and types."
                )


class _Part(NamedTuple):
    """One file that is open."""

    schema: Any
    measure: Callable[[], tuple[int, float]]  # the number of rows, and of bytes per row in memory
    batches: Callable[[int, int, Sequence[str]], Iterator[Any]]  # at most so many rows, from row


def _open_parquet(stream: IO[bytes], path: str | None) -> _Part:
    """Open a Parquet file. Rows are decoded as they are needed, also within a large row group."""
    parquet = require("pyarrow.parquet", "files")
    metadata = parquet.read_metadata(stream)
    local = path is not None
    # Otherwise a row group is read as a whole, and a file may have only one. A request to a remote
    # store takes long, so that it should bring more.
    room = (_BUFFERS if local else 4 * _BUFFERS) // max(1, metadata.num_columns)
    file = parquet.ParquetFile(
        path or stream,
        metadata=metadata,
        buffer_size=max(1 << 16, min(1 << 20 if local else 1 << 23, room)),
        pre_buffer=False,
    )
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]

    def measure() -> tuple[int, float]:
        n_bytes = sum(group.total_byte_size for group in groups)
        return metadata.num_rows, n_bytes / max(1, metadata.num_rows)

    def batches(size: int, start: int, names: Sequence[str]) -> Iterator[Any]:
        first = 0
        while first < len(groups) and start >= groups[first].num_rows:
            start -= groups[first].num_rows
            first += 1
        return _from_row(file.iter_batches(size, range(first, len(groups)), list(names)), start)

    return _Part(_common(file.schema_arrow), measure, batches)


def _open_ipc(stream: IO[bytes], path: str | None) -> _Part:
    """Open an Arrow file; a local one is memory-mapped."""
    pyarrow, ipc = require("pyarrow", "files"), require("pyarrow.ipc", "files")
    reader = ipc.open_file(stream if path is None else pyarrow.memory_map(path))
    numbers = range(reader.num_record_batches)
    return _in_batches(reader.schema, lambda: map(reader.get_batch, numbers))


def _in_batches(schema: Any, read: Callable[[], Iterable[Any]]) -> _Part:
    """Return record batches of pyarrow, which `read` gives, as a part."""

    def measure() -> tuple[int, float]:
        row_bytes = next((batch.nbytes / len(batch) for batch in _from_row(read(), 0)), 0.0)
        return sum(map(len, read())), row_bytes

    def batches(size: int, start: int, names: Sequence[str]) -> Iterator[Any]:
        return _from_row((batch.select(names) for batch in read()), start)

    return _Part(_common(schema), measure, batches)


def _from_row(batches: Iterable[Any], start: int) -> Iterator[Any]:
    """Give the rows from `start` on; raise if text is not UTF-8, or offsets lie outside the data.

    pyarrow may end the process if it is asked for anything else of a damaged Arrow file.
    """
    for batch in batches:
        batch.validate(full=True)
        if start < len(batch):
            yield batch.slice(start)
        start = max(0, start - len(batch))


def _common(schema: Any) -> Any:
    """Return a schema that files may share although they were written differently.

    Columns that cannot be null in one file can be in another, and each file has its own categories,
    which are read as their values.
    """
    pyarrow, types = require("pyarrow", "files"), require("pyarrow.types", "files")
    fields = [
        (field.name, field.type.value_type if types.is_dictionary(field.type) else field.type)
        for field in schema
    ]
    return pyarrow.schema(fields, metadata=schema.metadata)


@contextmanager
def arrow_errors(what: object, kind: str = "Parquet") -> Iterator[None]:
    """Raise `FileFormatError` where pyarrow raises its own errors, or text is not UTF-8."""
    pyarrow = require("pyarrow", "files")
    try:
        yield
    except NescioError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise FileFormatError(f"cannot read {what} as {kind}: {reason}") from error
