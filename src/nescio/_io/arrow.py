"""Parquet and Arrow files: as one table, or in blocks of rows, in bounded memory."""

from __future__ import annotations

import mmap
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote

import numpy as np

from nescio._io.addresses import Files, find_files
from nescio._io.columns import UNNAMED_LEVEL
from nescio._io.tables import check_lengths, require
from nescio._validation import Array
from nescio.errors import FileFormatError, InputError, NescioError, about

_KINDS = {".parquet": "Parquet", ".arrow": "Arrow", ".feather": "Arrow"}
_BUFFERS = 1 << 26  # bytes that are read ahead, in all columns together
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


class ArrowTable:
    """A table of pyarrow, or some of its rows.

    Attributes
    ----------
    table : pyarrow.Table
    names : tuple of str
        The names of the columns.
    index : tuple of str
        The columns in which pandas stored an index.
    lists : frozenset of str
        The columns that hold lists.
    partitions : frozenset of str
        The columns whose values are in the names of folders.
    """

    def __init__(
        self, table: Any, what: object, partitions: Collection[str] = (), kind: str = "Parquet"
    ) -> None:
        self.table = table
        self._what = what
        self._kind = kind
        with arrow_errors(what, kind):
            table.validate(full=True)  # text that is not UTF-8, and offsets outside the data
            self.names = tuple(table.column_names)
            schema = table.schema
            stored = _stored_index(schema)
            self.index = tuple(name for name in self.names if name in stored)
            self.lists = frozenset(field.name for field in schema if _is_list(field.type))
            self.partitions = frozenset(partitions)

    def read(
        self, numbers: Collection[str], others: Collection[str]
    ) -> tuple[dict[str, Array], dict[str, str]]:
        """Return columns by name, each in its own type; a column of lists becomes a matrix.

        Nulls among numbers are NaN; among the other columns, whole numbers with nulls are Python
        objects. The second result is empty; it is for files without types.
        """
        with arrow_errors(self._what, self._kind):
            read = {name: _arrow_to_numpy(name, self.table.column(name)) for name in numbers}
            return read | {name: _exact(name, self.table.column(name)) for name in others}, {}


class ArrowFiles:
    """The rows of Parquet or Arrow files, which together may be larger than memory.

    All files must have the same columns. Names of folders such as year=2026 are columns too.

    Attributes
    ----------
    names : tuple of str
        The names of the columns.
    n_rows : int
    """

    def __init__(self, files: Files) -> None:
        self.files = files
        self.kind = _KINDS[files.suffix]
        self._rows: list[int] = []
        self._schema: Any = None
        self._folders = _folder_columns(files)
        for path in files.paths:
            with self._opened(path) as file:
                schema = _common(file.schema)
                self._schema = self._schema or schema
                self._check(path, schema)
                self._rows.append(file.n_rows)
        self.n_rows = sum(self._rows)
        self.names: tuple[str, ...] = (*self._schema.names, *self._folders)
        if len(set(self.names)) != len(self.names):
            raise FileFormatError(
                f"{files.address} has two columns of the same name. Names must be unique."
            )

    def blocks(
        self, size: int, start: int = 0, names: Sequence[str] | None = None
    ) -> Iterator[ArrowTable]:
        """Give blocks of `size` rows from row `start` on; the last block may be shorter.

        The borders of files and row groups do not matter.
        """
        pyarrow = require("pyarrow", "parquet")
        waiting: list[Any] = []
        n_waiting = 0
        for piece in self._pieces(size, start, names or self.names):
            waiting.append(piece)
            n_waiting += len(piece)
            while n_waiting >= size:
                whole = pyarrow.concat_tables(waiting)
                waiting = [whole.slice(size)] if n_waiting > size else []
                n_waiting -= size
                yield self._table(whole.slice(0, size))
                del whole
        if n_waiting:
            yield self._table(pyarrow.concat_tables(waiting))

    def whole(self) -> ArrowTable:
        """Return all rows as one table."""
        pieces = list(self._pieces(max(1, min(self.n_rows, 1 << 20)), 0, self.names))
        if not pieces:
            return self._table(self.empty())
        return self._table(require("pyarrow", "parquet").concat_tables(pieces))

    def empty(self) -> Any:
        """Return a table without rows."""
        pyarrow = require("pyarrow", "parquet")
        table = self._schema.empty_table()
        for name, (kind, _) in self._folders.items():
            table = table.append_column(name, pyarrow.array([], kind))
        return table

    def _table(self, table: Any) -> ArrowTable:
        return ArrowTable(table, self.files.address, self._folders, self.kind)

    def _pieces(self, size: int, start: int, names: Sequence[str]) -> Iterator[Any]:
        """Give the rows from `start` on, in pieces of at most `size` rows."""
        pyarrow = require("pyarrow", "parquet")
        of_file = [name for name in names if name not in self._folders]
        schema = pyarrow.schema([self._schema.field(name) for name in of_file])
        for at, (path, n_rows) in enumerate(zip(self.files.paths, self._rows, strict=True)):
            if start >= n_rows:
                start -= n_rows
                continue
            with self._opened(path) as file, arrow_errors(path, self.kind):
                for batch in file.batches(size, start, of_file):
                    table = pyarrow.Table.from_batches([batch]).select(of_file)
                    if table.schema != schema:
                        table = table.cast(schema)
                    for name in names:
                        if name in self._folders:
                            kind, values = self._folders[name]
                            value = pyarrow.scalar(values[at], kind)
                            column = pyarrow.repeat(value, len(table))
                            table = table.append_column(name, column)
                    yield table.select(names).replace_schema_metadata(self._schema.metadata)
            start = 0

    @contextmanager
    def _opened(self, path: str) -> Iterator[_ParquetFile | _IpcFile]:
        open_one = _ParquetFile if self.kind == "Parquet" else _IpcFile
        with self.files.open(path) as stream:
            with arrow_errors(path, self.kind):
                file = open_one(stream, None if self.files.remote else path)
            yield file

    def _check(self, path: str, schema: Any) -> None:
        """Raise unless a file has the columns of the first one."""
        ours, theirs = (dict(zip(s.names, s.types, strict=True)) for s in (self._schema, schema))
        if ours == theirs:
            return
        first = self.files.paths[0]
        for name in (*ours, *theirs):
            here, there = (
                f"is {kinds[name]}" if name in kinds else "is missing" for kinds in (theirs, ours)
            )
            if here != there:
                raise InputError(
                    f"{path} has other columns than {first}: {name!r} {here} here, and {there} "
                    "there. All files of one input must have the same columns and types."
                )


class _ParquetFile:
    """One Parquet file. Rows are decoded as they are needed, also within a large row group."""

    def __init__(self, stream: IO[bytes], path: str | None) -> None:
        parquet = require("pyarrow.parquet", "parquet")
        metadata = parquet.read_metadata(stream)
        local = path is not None
        # Otherwise a row group is read as a whole, and a file may have only one. A request to a
        # remote store takes long, so that it should bring more.
        room = (_BUFFERS if local else 4 * _BUFFERS) // max(1, metadata.num_columns)
        self._file = parquet.ParquetFile(
            path or stream,
            metadata=metadata,
            buffer_size=max(1 << 16, min(1 << 20 if local else 1 << 23, room)),
            pre_buffer=False,
        )
        self.schema = self._file.schema_arrow
        self.n_rows = int(metadata.num_rows)

    def batches(self, size: int, start: int, names: Sequence[str]) -> Iterator[Any]:
        """Give the rows from `start` on."""
        groups = [
            self._file.metadata.row_group(i).num_rows for i in range(self._file.num_row_groups)
        ]
        first = 0
        while first < len(groups) and start >= groups[first]:
            start -= groups[first]
            first += 1
        for batch in self._file.iter_batches(
            size, row_groups=range(first, len(groups)), columns=list(names)
        ):
            if start < len(batch):
                yield batch.slice(start)
            start = max(0, start - len(batch))


class _IpcFile:
    """One Arrow file. A local one is memory-mapped, and its pages are given back after each batch.

    Without that, a file counts as memory of the process as far as it has been read. Who still needs
    a page gets it from the file again.
    """

    def __init__(self, stream: IO[bytes], path: str | None) -> None:
        pyarrow, ipc = require("pyarrow", "parquet"), require("pyarrow.ipc", "parquet")
        self._mapped: mmap.mmap | None = None
        source: Any = stream
        if path is not None:
            self._mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            source = pyarrow.BufferReader(pyarrow.py_buffer(self._mapped))
        self._reader = ipc.open_file(source)
        self.schema = self._reader.schema
        if hasattr(self._reader, "count_rows"):  # a newer pyarrow
            self.n_rows = int(self._reader.count_rows())
        else:
            batches = range(self._reader.num_record_batches)
            self.n_rows = sum(self._reader.get_batch(at).num_rows for at in batches)

    def batches(self, size: int, start: int, names: Sequence[str]) -> Iterator[Any]:
        """Give the rows from `start` on, in pieces of at most `size` rows."""
        for at in range(self._reader.num_record_batches):
            batch = self._reader.get_batch(at)
            if start < len(batch):
                batch = batch.select(list(names))
                for first in range(start, len(batch), size):
                    yield batch.slice(first, size)
                    self._give_back()
            start = max(0, start - len(batch))
            del batch

    def _give_back(self) -> None:
        if self._mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._mapped.madvise(mmap.MADV_DONTNEED)


def _common(schema: Any) -> Any:
    """Return a schema that files may share although they were written differently.

    Columns that cannot be null in one file can be in another. Categories of several files together
    may be too many for the small numbers that stand for those of each.
    """
    pyarrow, types = require("pyarrow", "parquet"), require("pyarrow.types", "parquet")
    fields = []
    for field in schema:
        kind = field.type
        if types.is_dictionary(kind):
            kind = pyarrow.dictionary(pyarrow.int32(), kind.value_type, kind.ordered)
        fields.append(pyarrow.field(field.name, kind))
    return pyarrow.schema(fields, metadata=schema.metadata)


def _folder_columns(files: Files) -> dict[str, tuple[Any, list[Any]]]:
    """Return the columns in the names of folders: name, type and the value of each file."""
    pyarrow = require("pyarrow", "parquet")
    found = [
        [(name, unquote(value)) for name, mark, value in parts if mark and name]
        for parts in ([part.partition("=") for part in files.folders(p)] for p in files.paths)
    ]
    names = [[name for name, _ in pairs] for pairs in found]
    for path, these in zip(files.paths, names, strict=True):
        if these != names[0]:
            raise InputError(
                f"{path} lies in other folders than {files.paths[0]}: the folders of one are for "
                f"the columns {', '.join(these) or 'none'}, of the other for "
                f"{', '.join(names[0]) or 'none'}."
            )
    columns: dict[str, tuple[Any, list[Any]]] = {}
    for at, name in enumerate(names[0]):
        values: list[Any] = [None if p[at][1] == _NO_VALUE else p[at][1] for p in found]
        whole = all(v is None or re.fullmatch(r"0|-?[1-9]\d{0,17}", v) for v in values)
        if whole:
            values = [None if v is None else int(v) for v in values]
        columns[name] = (pyarrow.int64() if whole else pyarrow.string(), values)
    return columns


@contextmanager
def arrow_errors(what: object, kind: str = "Parquet") -> Iterator[None]:
    """Say that a file is damaged where pyarrow raises its own errors, or text is not UTF-8."""
    pyarrow = require("pyarrow", "parquet")
    try:
        yield
    except NescioError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise FileFormatError(f"cannot read {what} as {kind}: {reason}") from error


def open_table(path: str | Path) -> ArrowTable:
    """Read Parquet or Arrow files as one table."""
    return ArrowFiles(find_files(path)).whole()


def read_parquet(path: str | Path) -> dict[str, Array]:
    """Return the columns of a Parquet file by name; a column of lists becomes a matrix."""
    table = open_table(path)
    with about(path):
        return table.read(table.names, ())[0]


def _stored_index(schema: Any) -> set[str]:
    """Return the names under which pandas stores an index, with or without its metadata."""
    found = {name for name in schema.names if re.fullmatch(UNNAMED_LEVEL, name)}
    with suppress(ValueError, AttributeError):  # not the metadata that pandas writes
        stored = (schema.pandas_metadata or {}).get("index_columns", [])
        found |= {name for name in stored if isinstance(name, str)}
    return found


def _is_list(kind: Any) -> bool:
    types = require("pyarrow.types", "parquet")
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _exact(name: str, column: Any) -> Array:
    """Return a column without rounding its whole numbers, also if there are nulls."""
    types, kind = require("pyarrow.types", "parquet"), column.type
    if types.is_decimal(kind) and kind.scale <= 0:
        values = [None if value is None else int(value) for value in column.to_pylist()]
        return np.array(values, dtype=object)
    if column.null_count and types.is_integer(kind):
        return np.array(column.to_pylist(), dtype=object)
    return _arrow_to_numpy(name, column)


def _arrow_to_numpy(name: str, column: Any) -> Array:
    pyarrow, types = require("pyarrow", "parquet"), require("pyarrow.types", "parquet")
    column = column.combine_chunks()
    kind = column.type
    if _is_list(kind):
        return _matrix(name, column)
    if types.is_dictionary(kind):
        column = column.dictionary_decode()
    elif types.is_decimal(kind):
        column = column.cast(pyarrow.float64())
    elif types.is_timestamp(kind) and kind.tz is not None:  # NumPy has no time zones
        column = column.cast(pyarrow.string())
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _matrix(name: str, column: Any) -> Array:
    """Return lists of equal length as rows; a null is a row of NaN."""
    lengths = require("pyarrow.compute", "parquet").list_value_length(column).unique().to_pylist()
    known = [length for length in lengths if length is not None]
    check_lengths(name, known)
    values = np.asarray(column.flatten().to_numpy(zero_copy_only=False))
    width = known[0] if known else 0
    if not column.null_count:
        return values.reshape(len(column), width)
    matrix = np.full((len(column), width), np.nan)
    matrix[column.is_valid().to_numpy(zero_copy_only=False)] = values.reshape(-1, width)
    return matrix


def plain_column(column: Any) -> Array:
    """Return a column as values that text files can hold, without rounding.

    Decimal numbers, times of day and bytes become text; lists and structs become lists and dicts.
    """
    types = require("pyarrow.types", "parquet")
    kind = column.type
    exact = (types.is_decimal, types.is_time, types.is_binary, types.is_large_binary)
    nested = types.is_nested(kind)
    if not nested and not any(is_kind(kind) for is_kind in exact):
        if not hasattr(column, "combine_chunks"):
            column = require("pyarrow", "parquet").chunked_array([column])
        return _exact("", column)
    values = np.empty(len(column), dtype=object)  # np.array would make a matrix of lists
    values[:] = [_plain(value) for value in column.to_pylist()]
    return values


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)
