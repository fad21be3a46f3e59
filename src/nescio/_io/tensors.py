"""Reading and writing of safetensors files: a JSON header and raw arrays, but no code.

This module does not use the safetensors package, because that package copies each NumPy array into
memory on reading and needs whole arrays for writing. Here, arrays are memory-mapped on reading and
written in blocks, so a file can be larger than memory. ADR 0002 lists the other differences.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nescio._io.files import existing_file, replacing
from nescio._validation import Array
from nescio.errors import FileError, FileFormatError

_MAX_HEADER_BYTES = 100_000_000  # the limit of the format
_MAX_DIMENSIONS = 8
_MAX_SIZE = 1 << 48  # maximum size of a dimension, and of a file in bytes
_DTYPES = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "BF16": np.dtype("<u2"),  # converted to float32 on reading
}
_CODES = {dtype: code for code, dtype in _DTYPES.items() if code != "BF16"}

# All metadata of nescio is a single JSON text under this key.
_METADATA_KEY = "nescio"


class Stacked:
    """Blocks of rows that are written as one array, without concatenating them in memory."""

    def __init__(self, blocks: Sequence[Array]) -> None:
        self.blocks = [_little_endian(block) for block in blocks]
        first = self.blocks[0]
        self.dtype = first.dtype
        rows = first.shape[:1] if len(blocks) == 1 else (sum(map(len, self.blocks)),)
        self.shape = (*rows, *first.shape[1:])
        self.nbytes = sum(block.nbytes for block in self.blocks)
        if any(b.dtype != first.dtype or b.shape[1:] != first.shape[1:] for b in self.blocks):
            raise TypeError("all blocks of an array must have the same dtype and the same columns")


def write_tensors(
    path: str | Path,
    tensors: Mapping[str, Array | Stacked],
    metadata: Mapping[str, Any],
    *,
    force: bool = False,
) -> None:
    """Write arrays and JSON metadata as one safetensors file, atomically."""
    with replacing(path, force=force) as temporary, temporary.open("wb") as stream:
        for piece in _pieces(tensors, metadata):
            stream.write(piece)


def encode_tensors(tensors: Mapping[str, Array], metadata: Mapping[str, Any]) -> bytes:
    """Return the bytes of a safetensors file with these arrays and JSON metadata."""
    return b"".join(_pieces(tensors, metadata))


def _pieces(
    tensors: Mapping[str, Array | Stacked], metadata: Mapping[str, Any]
) -> Iterator[bytes | memoryview]:
    """Give the bytes of a file in pieces, without concatenating the arrays."""
    arrays = {name: _stacked(tensors[name]) for name in sorted(tensors)}
    # The arrays with the largest items come first, so that each array is aligned to its item size.
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": {_METADATA_KEY: json.dumps(metadata, sort_keys=True)}}
    offset = 0
    for name in names:
        array = arrays[name]
        header[name] = {
            "dtype": _CODES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    yield len(encoded).to_bytes(8, "little")
    yield encoded
    for name in names:
        for block in arrays[name].blocks:
            yield block.data


def read_tensors(path: str | Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the arrays of a safetensors file, memory-mapped and read-only, and its metadata.

    The metadata is empty if the file was not written by nescio.
    """
    path = existing_file(path)
    try:
        with path.open("rb") as stream:
            size = path.stat().st_size
            memory = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}.") from error
    return decode_tensors(memory, path)


def decode_tensors(
    data: bytes | bytearray | mmap.mmap, what: object
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the arrays and the metadata of a safetensors file that is given as bytes.

    The arrays are views of the bytes. Errors name the data as `what`.
    """
    encoded = _encoded_header(what, data)
    header = _header(encoded, what)
    data_start = 8 + len(encoded)
    _check_size(what, header.n_bytes, len(data) - data_start)
    tensors = {}
    for name, entry in header.entries.items():
        flat = np.frombuffer(data, entry.dtype, entry.n_elements, data_start + entry.begin)
        try:
            array = flat.reshape(entry.shape)
        except ValueError as error:
            raise FileFormatError(
                f"{what} is damaged: the shape of {name[:40]!r} is invalid."
            ) from error
        tensors[name] = _widen_bfloat16(array) if entry.code == "BF16" else array
    return tensors, header.metadata


class _Entry(NamedTuple):
    code: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    n_elements: int
    begin: int
    end: int


class _Header(NamedTuple):
    metadata: dict[str, Any]
    entries: Mapping[str, _Entry]
    n_bytes: int  # the total size of all arrays


def _header(encoded: bytes, what: object) -> _Header:
    """Parse a header, and check that its arrays are valid and stored without gaps or overlaps."""
    try:
        header = json.loads(encoded)
        if not isinstance(header, dict):
            raise TypeError
    except (TypeError, ValueError, RecursionError) as error:
        raise FileFormatError(
            f"{what} is not a safetensors file: its header is not valid JSON."
        ) from error
    metadata = _our_metadata(what, header.pop("__metadata__", {}))
    entries = {name: _checked_entry(what, name, entry) for name, entry in header.items()}
    end = 0
    for entry in sorted(entries.values(), key=lambda entry: (entry.begin, entry.end)):
        if entry.begin != end:
            raise FileFormatError(f"{what} is damaged: its arrays overlap or leave gaps.")
        end = entry.end
    return _Header(metadata, entries, end)


def _check_size(what: object, expected: int, size: int) -> None:
    """Raise unless the arrays fill the file exactly."""
    if expected > size:
        raise FileFormatError(
            f"{what} is truncated: its arrays need {expected:,} bytes, but only {size:,} are there."
        )
    if expected < size:
        raise FileFormatError(
            f"{what} is damaged: there are {size - expected:,} bytes after its last array."
        )


def _stacked(array: Array | Stacked) -> Stacked:
    return array if isinstance(array, Stacked) else Stacked([array])


def _little_endian(array: Array) -> Array:
    array = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
    if array.dtype not in _CODES:
        raise TypeError(f"arrays of dtype {array.dtype} cannot be stored as safetensors")
    return array


def _encoded_header(what: object, data: bytes | bytearray | mmap.mmap) -> bytes:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or not 2 <= length <= _MAX_HEADER_BYTES:
        raise FileFormatError(f"{what} is not a safetensors file, or it is truncated.")
    encoded = bytes(data[8 : 8 + length])
    if len(encoded) < length:
        raise FileFormatError(
            f"{what} is truncated in its header, or it is not a safetensors file."
        )
    return encoded


def _checked_entry(path: object, name: str, entry: Any) -> _Entry:
    """Return an entry of the header; raise unless its dtype, shape and offsets are consistent."""
    try:
        code, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        dtype = _DTYPES[code]
        numbers = [*shape, begin, end]
        if len(shape) > _MAX_DIMENSIONS or not all(map(_is_size, numbers)):
            raise ValueError
        count = math.prod(shape)
        if end - begin != count * dtype.itemsize:
            raise ValueError
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(
            f"{path} is damaged: the header entry of {name[:40]!r} is invalid."
        ) from error
    return _Entry(code, dtype, tuple(shape), count, begin, end)


def _is_size(number: Any) -> bool:
    return type(number) is int and 0 <= number < _MAX_SIZE


def _our_metadata(path: object, metadata: Any) -> dict[str, Any]:
    try:
        ours = json.loads(metadata.get(_METADATA_KEY, "{}"))
        if not isinstance(ours, dict):
            raise TypeError
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is damaged: its metadata is not valid JSON.") from error
    return ours


def _widen_bfloat16(bits: Array) -> Array:
    """Convert bfloat16 to float32: its bits are the upper half of a float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
