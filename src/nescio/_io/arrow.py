"""Tables in files, read through pyarrow: as a whole, or in blocks of rows, in bounded memory.

Parquet and Arrow files may be several files of one input, and larger than memory. Text files (CSV,
TSV and JSON lines, also compressed with gzip) are read as a whole.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import numpy as np

from nescio._io.files import Files
from nescio._io.results import is_null, to_values
from nescio._validation import Array
from nescio.errors import FileError, FileFormatError, InputError, NescioError, require

if TYPE_CHECKING:
    from nescio._io.columns import Columns

_KINDS = {".parquet": "Parquet", ".arrow": "Arrow", ".feather": "Arrow"}
_BUFFERS = 1 << 26  # bytes that are read ahead, in all columns together
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # of a folder
_WHOLE = re.compile(r"0|-?[1-9]\d{0,17}")  # not 007, which is text
_UNNAMED_LEVEL = r"__index_level_\d+__"  # as pandas stores a level of an index without a name
_UNNAMED_COLUMN = "Unnamed: 0"  # as pandas calls the first column of a CSV file without a name
_MISSING = ["", "nan", "NaN", "NA", "N/A", "n/a", "null", "NULL", "None", "<NA>", "NaT", "#N/A"]
# A sign or a fraction: such a cell in a first line is data, and not the name of a column.
_DATA = re.compile(r"[-+]\d+|[-+]?\d*\.\d+(e[-+]?\d+)?", re.IGNORECASE)
WHOLE_NUMBERS = "whole numbers"
_SEPARATORS = {";": "semicolons", "\t": "tabs", ",": "commas"}
_JSON_BLOCK = 1 << 26  # bytes; a line must fit


class TableFiles:
    """The rows of a table in files: Parquet and Arrow files may together be larger than memory.

    All files must have the same columns. Names of folders such as year=2026 are columns too. A text
    file is one file, and is read as a whole. `columns` says how it is written.

    Attributes
    ----------
    schema : pyarrow.Schema
        The columns, those of folders last.
    folders : dict
        The columns of folders, with one value per file.
    n_rows : int
    row_bytes : float
        Approximately how many bytes a row of all columns has in memory.
    """

    def __init__(self, files: Files, columns: Columns) -> None:
        self._files = files
        self._kind = _KINDS.get(files.suffix, "text")
        self._text = _read_text(files, columns) if self._kind == "text" else None
        self._rows: list[int] = []
        self._written: dict[str, tuple[int, int]] = {}
        self.row_bytes = 0.0
        self.folders = _folder_columns(files)
        for path in files.paths:
            with self._opened(path) as part:
                if not self._rows:
                    self._schema = part.schema
                self._check_columns(path, part.schema)
                n_rows, row_bytes = part.measure()
                self._rows.append(n_rows)
                self.row_bytes = self.row_bytes or row_bytes
        self.n_rows = sum(self._rows)
        self.schema = self._schema
        for name, values in self.folders.items():
            self.schema = self.schema.append(require("pyarrow", "files").field(name, values.type))
        unique_names(self.schema)

    def blocks(self, size: int, start: int, names: Sequence[str]) -> Iterator[Any]:
        """Give blocks of `size` rows from row `start` on; the last block may be shorter.

        The borders of files and row groups do not matter.
        """
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
        of_file = [name for name in names if name not in self.folders]
        schema = pyarrow.schema([self._schema.field(name) for name in of_file])
        for number, (path, n_rows) in enumerate(zip(self._files.paths, self._rows, strict=True)):
            if start >= n_rows:
                start -= n_rows
                continue
            with self._opened(path) as part:
                for batch in part.batches(size, start, of_file):
                    table = pyarrow.Table.from_batches([batch]).select(of_file)
                    if table.schema != schema:
                        table = table.cast(schema)
                    for name in names:
                        if name in self.folders:
                            column = pyarrow.repeat(self.folders[name][number], len(table))
                            table = table.append_column(name, column)
                    yield table.select(names).replace_schema_metadata(self._schema.metadata)
            start = 0

    @contextmanager
    def _opened(self, path: str) -> Iterator[_Part]:
        """Open one of the files; raise if it was written to since it was first opened."""
        if self._text is not None:
            with arrow_errors(path, self._kind):
                yield _in_batches(self._text.schema, self._text.to_batches)
            return
        local = None if self._files.remote else path
        opened = _open_parquet if self._kind == "Parquet" else _open_ipc
        with self._files.open(path) as stream, arrow_errors(path, self._kind):
            self._check_unchanged(local)
            yield opened(stream, local)
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
        ours, theirs = (dict(zip(s.names, s.types, strict=True)) for s in (self._schema, schema))
        for name in (*ours, *theirs):
            here, there = (
                f"is {kinds[name]}" if name in kinds else "is missing" for kinds in (theirs, ours)
            )
            if here != there:
                raise InputError(
                    f"{path} has other columns than {self._files.paths[0]}: {name!r} {here} here, "
                    f"and {there} there. All files of one input must have the same columns and "
                    "types."
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


def _folder_columns(files: Files) -> dict[str, Any]:
    """Return the columns in the names of folders, such as year=2026, with one value per file."""
    pyarrow = require("pyarrow", "files")
    folders = [
        dict(part.split("=", 1) for part in files.folders(path) if "=" in part[1:])
        for path in files.paths
    ]
    first = list(folders[0])
    for path, values in zip(files.paths, folders, strict=True):
        if list(values) != first:
            raise InputError(
                f"{path} lies in other folders than {files.paths[0]}: the folders of one are for "
                f"the columns {', '.join(values) or 'none'}, of the other for "
                f"{', '.join(first) or 'none'}."
            )
    columns = {}
    for name in first:
        texts = [None if v[name] == _NO_VALUE else unquote(v[name]) for v in folders]
        column = pyarrow.array(texts, pyarrow.string())
        if all(text is None or _WHOLE.fullmatch(text) for text in texts):
            column = column.cast("int64")
        columns[name] = column
    return columns


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


def unique_names(schema: Any) -> tuple[str, ...]:
    """Return the names of the columns; raise if two have the same name."""
    name, count = Counter(schema.names).most_common(1)[0] if schema.names else ("", 0)
    if count > 1:
        raise InputError(f"there are two columns of the same name, {name!r}. Rename one of them.")
    return tuple(schema.names)


def stored_index(schema: Any) -> tuple[str, ...]:
    """Return the columns in which pandas stored an index, with or without its metadata."""
    stored: list[Any] = []
    with suppress(ValueError, AttributeError):  # not the metadata that pandas writes
        stored = (schema.pandas_metadata or {}).get("index_columns", [])
    return tuple(name for name in schema.names if is_unnamed_index(name) or name in stored)


def is_unnamed_index(name: str) -> bool:
    """Return whether pandas stores an index without a name under this name."""
    return name == _UNNAMED_COLUMN or re.fullmatch(_UNNAMED_LEVEL, name) is not None


# --- text files -------------------------------------------------------------------------------


def _read_text(files: Files, columns: Columns) -> Any:
    """Read a CSV, TSV or JSON lines file as one table."""
    suffix, what = files.suffix.removesuffix(".gz"), files.address
    with files.open(files.paths[0]) as stream:
        data = stream.read()
    if files.suffix.endswith(".gz"):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise FileFormatError(f"cannot read {what} as gzip: {error}.") from error
    if not data.strip():
        raise FileFormatError(f"{what} is empty.")
    if suffix == ".jsonl":
        pyarrow, json = require("pyarrow", "files"), require("pyarrow.json", "files")
        with arrow_errors(what, "JSON lines"):
            options = json.ReadOptions(block_size=min(_JSON_BLOCK, len(data) + 1))
            return json.read_json(pyarrow.BufferReader(data), options)
    separator = columns.sep or ("\t" if suffix == ".tsv" else ",")
    table = _read_csv(data, _csv_names(data, separator, what), separator, columns, what)
    if not len(table):  # its columns have no types either
        raise InputError("the table has no rows.")
    return table


def _read_csv(data: bytes, names: list[str], sep: str, columns: Columns, what: object) -> Any:
    """Return a table with the columns of a CSV file, in the types that are known or inferred."""
    pyarrow, csv_files = require("pyarrow", "files"), require("pyarrow.csv", "files")
    is_text = columns.text_columns(names)
    if names[0] == _UNNAMED_COLUMN:
        is_text[_UNNAMED_COLUMN] = True
    # The types are given by name: the first line is replaced by names without spaces around them.
    header = csv_files.ReadOptions(column_names=names, skip_rows_after_names=1)
    convert = csv_files.ConvertOptions(
        column_types={
            name: pyarrow.string() if text else pyarrow.float64() for name, text in is_text.items()
        },
        null_values=_MISSING,
        decimal_point=columns.decimal,
        # Times stay text, as they were written.
        timestamp_parsers=["never"],
    )
    parse = csv_files.ParseOptions(delimiter=sep, newlines_in_values=True)
    try:
        return csv_files.read_csv(pyarrow.BufferReader(data), header, parse, convert)
    except pyarrow.ArrowException as error:
        reason = re.sub(
            r"CSV column #(\d+)", lambda at: f"column {names[int(at[1])]!r}", str(error)
        )
        raise FileFormatError(f"cannot read {what} as CSV: {reason}.") from error


def _csv_names(data: bytes, separator: str, what: object) -> list[str]:
    """Return the names of the columns of a CSV file; raise unless they can be names."""
    try:
        text = io.TextIOWrapper(io.BytesIO(data), "utf-8-sig", newline="")
        cells = next(row for row in csv.reader(text, delimiter=separator) if row)
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{what} is not UTF-8 text. Save it as CSV in UTF-8.") from error
    except (csv.Error, StopIteration) as error:
        raise FileFormatError(f"cannot read {what} as CSV: {error}.") from error
    names = [cell.strip() for cell in cells]
    other = next((sep for sep in _SEPARATORS if sep in names[0]), None)
    if other is not None and len(names) == 1:
        shown = "$'\\t'" if other == "\t" else f"'{other}'"
        raise FileFormatError(
            f"{what} has a single column, {names[0][:80]!r}. If it is separated by "
            f"{_SEPARATORS[other]}, pass --sep {shown} (in Python: sep={other!r}), and --decimal "
            "',' (decimal=) if its numbers have decimal commas."
        )
    names[0] = names[0] or _UNNAMED_COLUMN
    if "" in names:
        raise FileFormatError(
            f"column {names.index('') + 1} of {what} has no name. Give it a name, or remove the "
            "separator at the end of each line."
        )
    number = next((name for name in names if _DATA.fullmatch(name)), None)
    if number is not None:
        raise FileFormatError(
            f"the first line of {what} must be a header, but holds the number {number}. Add a line "
            "with the names of the columns."
        )
    return names


# --- columns ----------------------------------------------------------------------------------


def is_list(kind: Any) -> bool:
    """Return whether a type of pyarrow is that of lists."""
    types = require("pyarrow.types", "files")
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def kind_of(kind: Any) -> str:
    """Return what a column of this type holds, in words."""
    types = require("pyarrow.types", "files")
    words = {
        WHOLE_NUMBERS: types.is_integer,
        "text": lambda t: types.is_string(t) or types.is_large_string(t) or types.is_dictionary(t),
        "true or false": types.is_boolean,
        "times": types.is_temporal,
        "nothing": types.is_null,
        "decimal numbers": types.is_decimal,
    }
    return next((word for word, is_kind in words.items() if is_kind(kind)), str(kind))


def label_matrix(table: Any, names: Sequence[str]) -> Array:
    """Return columns of numbers as a matrix, (n_rows, n_names); nulls are NaN."""
    return np.stack([_numbers(name, table.column(name)) for name in names], axis=1)


def _numbers(name: str, column: Any) -> Array:
    types = require("pyarrow.types", "files")
    kind = column.type
    if types.is_decimal(kind) or types.is_boolean(kind) or types.is_null(kind):
        column = column.cast("float64")
    elif not types.is_integer(kind) and not types.is_floating(kind):
        raise InputError(f"column {name!r} does not hold numbers, but {kind_of(kind)}.")
    return np.asarray(column)


def list_matrix(table: Any, name: str) -> Array:
    """Return lists of equal length as the rows of a matrix; a null is a row of NaN."""
    compute, types = require("pyarrow.compute", "files"), require("pyarrow.types", "files")
    column = table.column(name)
    leave_out = f"To leave it out, pass --ignore {name}."
    kind = column.type.value_type
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_null(kind)):
        raise InputError(f"the lists of column {name!r} do not hold numbers. {leave_out}")
    lengths = compute.list_value_length(column).unique().drop_null().to_pylist()
    if len(lengths) > 1:
        raise InputError(
            f"the lists of column {name!r} must have the same length, got lengths from "
            f"{min(lengths)} to {max(lengths)}. {leave_out}"
        )
    column = column.combine_chunks()
    width = lengths[0] if lengths else 0
    valid = len(column) - column.null_count
    values = np.asarray(column.flatten())
    if len(values) != valid * width:  # a damaged file
        raise InputError(f"the lists of column {name!r} cannot be read. {leave_out}")
    values = values.reshape(valid, width)
    if not column.null_count:
        return values
    matrix = np.full((len(column), width), np.nan)
    matrix[np.asarray(column.is_valid())] = values
    return matrix


def as_ids(column: Any) -> list[str]:
    """Return the values of a column of pyarrow or NumPy as text; missing ones are empty."""
    if hasattr(column, "to_pylist") and str(column.type) in ("string", "large_string"):
        return list(column.fill_null("").to_pylist())
    values = to_values(to_array(column) if hasattr(column, "to_pylist") else column)
    texts = []
    for value in values:
        whole = isinstance(value, float) and value % 1 == 0  # whole numbers with some missing
        texts.append("" if is_null(value) else str(int(value) if whole else value))
    return texts


def to_array(column: Any) -> Array:
    """Return a column as an array, without rounding; what NumPy has no type for becomes objects.

    Decimal numbers, times of day, times with a zone and bytes become text, and lists and structs
    become lists and dicts.
    """
    types = require("pyarrow.types", "files")
    kind = column.type
    if types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if types.is_timestamp(kind) and kind.tz is not None:  # NumPy has no time zones
        column = column.cast("string")
    exact = (types.is_decimal, types.is_time, types.is_binary, types.is_large_binary)
    if types.is_integer(kind) and column.null_count:
        return np.array(column.to_pylist(), dtype=object)
    if not types.is_nested(kind) and not any(is_kind(kind) for is_kind in exact):
        return np.asarray(column)
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
