"""Arrow's stream format, from somebody whom we need not trust."""

from __future__ import annotations

import struct
from typing import Any

from nescio._io.tables import arrow_columns, require
from nescio._validation import Array
from nescio.errors import FileFormatError

_MAX_COLUMNS = 20_000  # each takes time of its own
_HEADER = 2  # the field of a Message that holds a RecordBatch
_COMPRESSION = 3  # the field of a RecordBatch that says how its buffers are compressed


def read_arrow(data: bytes | bytearray, what: str = "the body") -> dict[str, Array]:
    """The columns of an Arrow stream; compressed buffers and dictionaries are refused.

    A compressed buffer says itself how large it will be: a few bytes could ask for any memory.
    """
    pyarrow = require("pyarrow", "parquet")
    ipc = require("pyarrow.ipc", "parquet")
    buffer = pyarrow.py_buffer(data)
    try:
        for message in _messages(ipc, buffer):
            if message.type == "dictionary":
                raise FileFormatError(f"{what} has dictionary columns: send plain numbers.")
            if message.type == "record batch" and _is_compressed(message.metadata.to_pybytes()):
                raise FileFormatError(f"{what} has compressed buffers: write them plainly.")
        with ipc.open_stream(buffer) as reader:
            _check_types(pyarrow, reader.schema, what)
            table = reader.read_all()
        table.validate(full=True)
    except (pyarrow.ArrowException, OSError, ValueError, struct.error) as error:
        if isinstance(error, FileFormatError):
            raise
        reason = str(error).partition("\n")[0].rstrip(".")
        raise FileFormatError(f"{what} is not a stream of Arrow: {reason}.") from error
    return arrow_columns(table, what)


def write_arrow(columns: dict[str, Any]) -> bytes:
    """Columns of equal length as an Arrow stream."""
    pyarrow = require("pyarrow", "parquet")
    table = pyarrow.table(columns)
    sink = pyarrow.BufferOutputStream()
    with require("pyarrow.ipc", "parquet").new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _messages(ipc: Any, buffer: Any) -> Any:
    """The messages of a stream; their buffers are only pointed at."""
    reader = ipc.MessageReader.open_stream(buffer)
    while True:
        try:
            yield reader.read_next_message()
        except StopIteration:
            return


def _check_types(pyarrow: Any, schema: Any, what: str) -> None:
    """Only types whose rows are all there in the body: numbers, lists of numbers and text."""
    types = pyarrow.types
    if len(schema) > _MAX_COLUMNS:
        raise FileFormatError(
            f"{what} has {len(schema):,} columns: send one column of lists, named logits."
        )
    for field in schema:
        kind = field.type
        lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        value = kind.value_type if lists else kind
        if types.is_fixed_size_list(kind) and not kind.list_size:
            raise FileFormatError(f"the lists of column {field.name[:40]!r} of {what} are empty.")
        number = types.is_floating(value) or types.is_integer(value)
        text = not lists and (types.is_string(kind) or types.is_large_string(kind))
        if not number and not text:
            raise FileFormatError(
                f"column {field.name[:40]!r} of {what} is of type {str(kind)[:40]}: send numbers, "
                "or lists of them."
            )


def _is_compressed(metadata: bytes) -> bool:
    """Whether the record batch that a Message's flatbuffer describes is compressed."""
    message = struct.unpack_from("<I", metadata)[0]
    header = _field(metadata, message, _HEADER)
    if header is None:
        return False
    batch = header + struct.unpack_from("<I", metadata, header)[0]
    return _field(metadata, batch, _COMPRESSION) is not None


def _field(metadata: bytes, table: int, number: int) -> int | None:
    """Where a field of a flatbuffer's table lies; None if it is not there."""
    vtable = table - struct.unpack_from("<i", metadata, table)[0]
    size = struct.unpack_from("<H", metadata, vtable)[0]
    slot = 4 + 2 * number
    if slot + 2 > size:
        return None
    offset = struct.unpack_from("<H", metadata, vtable + slot)[0]
    return table + offset if offset else None
