"""Safetensors files, a JSON header and raw arrays but no code, and the kinds that nescio writes.

Unlike those of the safetensors package, arrays are memory-mapped on reading and written in blocks,
so a file can be larger than memory. ADR 0002 has the measurements.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nescio._io.files import existing_file, explained, replacing
from nescio._validation import Array
from nescio._version import __version__
from nescio.errors import FileFormatError

_MAX_HEADER_BYTES = 100_000_000  # the limit of the format
_SHORT_HEADER_BYTES = 1_024
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

_Entry = tuple[str, list[int], int, int]  # dtype, shape, begin and end of an array

# All metadata of nescio is a single JSON text under this key.
_METADATA_KEY = "nescio"


class Stacked:
    """Blocks of rows that are written as one array, without concatenating them in memory."""

    def __init__(self, blocks: Sequence[Array]) -> None:
        self.blocks = [
            np.asarray(block, dtype=block.dtype.newbyteorder("<"), order="C") for block in blocks
        ]
        first = self.blocks[0]
        if first.dtype not in _CODES:
            raise TypeError(f"arrays of dtype {first.dtype} cannot be stored as safetensors")
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


def encode_tensors(tensors: Mapping[str, Array | Stacked], metadata: Mapping[str, Any]) -> bytes:
    """Return the bytes of a safetensors file with these arrays and JSON metadata."""
    return b"".join(_pieces(tensors, metadata))


def _pieces(
    tensors: Mapping[str, Array | Stacked], metadata: Mapping[str, Any]
) -> Iterator[bytes | memoryview]:
    """Give the bytes of a file in pieces, without concatenating the arrays."""
    arrays = {
        name: array if isinstance(array, Stacked) else Stacked([array])
        for name, array in tensors.items()
    }
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


def read_tensors(
    path: str | Path, *, copy: bool = False
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the arrays of a safetensors file, read-only, and its metadata.

    The arrays are memory-mapped, or read into memory with `copy`. If another program overwrites the
    file in place, mapped arrays change, and reading them ends the process (SIGBUS) while the file
    is shorter. The metadata is empty if the file was not written by nescio.
    """
    path = existing_file(path)
    memory: bytes | mmap.mmap
    with explained("read", path), path.open("rb") as stream:
        if copy or not os.fstat(stream.fileno()).st_size:
            memory = stream.read()
        else:
            memory = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    return decode_tensors(memory, path)


def decode_tensors(
    data: bytes | bytearray | mmap.mmap, what: object
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the arrays, views of these bytes, and the metadata of a safetensors file, `what`."""
    start = 8 + int.from_bytes(data[:8], "little")
    if not 10 <= start <= 8 + _MAX_HEADER_BYTES or start > len(data):
        raise FileFormatError(f"{what} is truncated, or it is not a safetensors file.")
    # The requests to a service have a few different headers, which are short.
    read_header = _read_short_header if start <= _SHORT_HEADER_BYTES else _read_header
    entries, places, ours = read_header(bytes(data[8:start]), what)
    # Without gaps, overlaps and further bytes, each array begins where the one before it ends.
    if [begin for begin, _ in places] + [len(data) - start] != [0] + [end for _, end in places]:
        raise FileFormatError(
            f"{what} is truncated or damaged: its arrays do not fill it without gaps and overlaps."
        )
    tensors = {}
    for name, (code, shape, begin, _) in entries.items():
        array = np.frombuffer(data, _DTYPES[code], math.prod(shape), start + begin).reshape(shape)
        if code == "BF16":  # its bits are the upper half of a float32
            array = (array.astype(np.uint32) << 16).view(np.float32)
        tensors[name] = array
    return tensors, _json_object(ours, f"{what} is damaged: its metadata")


def _read_header(header: bytes, what: object) -> tuple[dict[str, _Entry], list[Any], Any]:
    """Return the entries of the arrays, the places of their bytes, and our metadata as JSON."""
    fields = _json_object(header, f"{what} is not a safetensors file: its header")
    texts = fields.pop("__metadata__", {})
    ours = texts.get(_METADATA_KEY, "{}") if isinstance(texts, dict) else None
    if ours == "{}" and any(f'"{_METADATA_KEY}.' in str(text) for text in texts.values()):
        ours = None  # the key of our own metadata is damaged
    entries = {name: _checked_entry(what, name, entry) for name, entry in fields.items()}
    return entries, sorted((begin, end) for _, _, begin, end in entries.values()), ours


_read_short_header = functools.lru_cache(maxsize=64)(_read_header)


def _json_object(text: Any, what: str) -> dict[str, Any]:
    """Return a JSON object; an error says that `what` is not one."""
    try:
        value = json.loads(text)
        if not isinstance(value, dict):
            raise TypeError
    except (TypeError, ValueError, RecursionError) as error:
        raise FileFormatError(f"{what} is not valid JSON.") from error
    return value


def _checked_entry(what: object, name: str, entry: Any) -> _Entry:
    """Return dtype, shape, begin and end of an array; raise unless they are consistent."""
    try:
        code, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        sizes = [*shape, begin, end]
        whole = all(type(size) is int and 0 <= size < _MAX_SIZE for size in sizes)
        if not whole or len(shape) > _MAX_DIMENSIONS:
            raise ValueError
        # NumPy limits the product of the dimensions even if one of them is 0.
        too_large = math.prod(size or 1 for size in shape) >= _MAX_SIZE
        if too_large or end - begin != math.prod(shape) * _DTYPES[code].itemsize:
            raise ValueError
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(
            f"{what} is damaged: the header entry of {name[:40]!r} is invalid."
        ) from error
    return code, shape, begin, end


@dataclass(frozen=True)
class FileKind:
    """One kind of file, such as a saved detector."""

    name: str  # as the header states it, such as "nescio.detector"
    what: str  # in an error message, such as "saved detector"
    schema: int = 1  # the schema that is written, and the only one that can be read

    def header(self) -> dict[str, Any]:
        """Return the entries that identify a file of this kind."""
        return {"kind": self.name, "schema": self.schema, "nescio_version": __version__}

    def check(self, metadata: Mapping[str, Any], path: object) -> None:
        """Raise if this version of nescio cannot read the file."""
        kind = metadata.get("kind")
        if kind != self.name:
            reason = f"it holds {kind!r}" if kind else "nescio did not write it"
            raise FileFormatError(f"{path} is not a {self.what}: {reason}.")
        schema = metadata.get("schema")
        if schema is True or schema != self.schema:
            raise FileFormatError(
                f"{path} was written by another version of nescio "
                f"({metadata.get('nescio_version')!r}, schema {schema}; this one reads schema "
                f"{self.schema}). Make the file again."
            )

    def read(
        self, path: str | Path, *, verify: bool = True, copy: bool = False
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return the arrays and the metadata of a file, and verify its checksum.

        With `copy`, the arrays are in memory: what was verified is what is used, even if the file
        is overwritten later.
        """
        tensors, metadata = read_tensors(path, copy=copy)
        self.check(metadata, path)
        if verify:
            verify_checksum(tensors, metadata, path)
        metadata.pop("sha256", None)
        return tensors, metadata

    def write(
        self,
        path: str | Path,
        tensors: Mapping[str, Array | Stacked],
        metadata: Mapping[str, Any],
        *,
        force: bool = False,
    ) -> None:
        """Write a file with its checksum, atomically; replace an existing one only with `force`."""
        # As it will be read: numbers that are keys, for example, become text.
        content = json.loads(json.dumps({**self.header(), **metadata}))
        hashed = digest(tensors, content)
        write_tensors(path, tensors, {**content, "sha256": hashed}, force=force)


def verify_checksum(
    tensors: Mapping[str, Array], metadata: Mapping[str, Any], path: object
) -> None:
    """Raise unless the contents of a file match its checksum."""
    content = dict(metadata)
    stored = content.pop("sha256", None)
    if stored is None:
        raise FileFormatError(f"{path} is damaged: its checksum is missing.")
    if stored != digest(tensors, content):
        raise FileFormatError(f"{path} is damaged: its contents do not match their checksum.")


def digest(tensors: Mapping[str, Array | Stacked], metadata: Mapping[str, Any]) -> str:
    """Return a hash of everything in a file but the hash itself."""
    hashed = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        array = Stacked([tensor]) if isinstance(tensor, np.ndarray) else tensor
        # A damaged name may hold half of a surrogate pair, which UTF-8 does not have.
        hashed.update(f"{name}:{array.dtype.str}:{array.shape};".encode("utf-8", "surrogatepass"))
        for block in array.blocks:
            hashed.update(block.data)
    return hashed.hexdigest()
