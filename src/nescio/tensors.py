"""The safetensors format: a JSON header and raw arrays. Nothing in it can run.

Written here rather than through the safetensors package for two reasons: arrays are memory-mapped
on reading and streamed on writing, so a file may be larger than memory; and the same input gives
the same bytes (the package writes its metadata in a random order).
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nescio.arrays import Array
from nescio.errors import FileError, FileFormatError
from nescio.files import existing_file, replacing

_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
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
    "BF16": np.dtype("<u2"),  # widened to float32 on reading
}
_CODES = {dtype: code for code, dtype in _DTYPES.items() if code != "BF16"}

# All of our metadata is one JSON text under this key.
_METADATA_KEY = "nescio"


def write_tensors(
    path: str | Path,
    tensors: Mapping[str, Array],
    metadata: Mapping[str, Any],
    *,
    force: bool = False,
) -> None:
    """Write arrays and JSON metadata as one safetensors file, atomically."""
    arrays = {name: _little_endian(tensors[name]) for name in sorted(tensors)}
    # Largest items first keeps every array aligned to its own size.
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
    with replacing(path, force=force) as temporary, temporary.open("wb") as stream:
        stream.write(len(encoded).to_bytes(8, "little"))
        stream.write(encoded)
        for name in names:
            stream.write(arrays[name].data)


def read_tensors(path: str | Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """The arrays of a safetensors file, memory-mapped and read-only, and its metadata.

    Metadata that nescio did not write comes back as an empty dict.
    """
    path = existing_file(path)
    try:
        with path.open("rb") as stream:
            data_start, header = _read_header(path, stream.read(8), stream)
            size = path.stat().st_size
            memory = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"cannot read {path}: {error.strerror}.") from error
    metadata = header.pop("__metadata__", {})
    tensors = {}
    end_of_data = data_start
    for name, entry in header.items():
        dtype, shape, begin, end = _checked_entry(path, name, entry)
        end_of_data = max(end_of_data, data_start + end)
        if data_start + end > size:
            raise FileFormatError(
                f"{path} is truncated: {name!r} should end at byte {data_start + end:,}, "
                f"the file has {size:,}."
            )
        flat = np.frombuffer(memory, dtype, math.prod(shape), data_start + begin)
        array = flat.reshape(shape)
        tensors[name] = _widen_bfloat16(array) if entry["dtype"] == "BF16" else array
    if end_of_data != size:
        raise FileFormatError(
            f"{path} has {size - end_of_data:,} bytes after its last array; it is damaged."
        )
    return tensors, _our_metadata(path, metadata)


def _little_endian(array: Array) -> Array:
    array = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
    if array.dtype not in _CODES:
        raise TypeError(f"cannot store an array of dtype {array.dtype}")
    return array


def _read_header(path: Path, prefix: bytes, stream: Any) -> tuple[int, dict[str, Any]]:
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or not 2 <= length <= _MAX_HEADER_BYTES:
        raise FileFormatError(f"{path} is not a safetensors file (or is truncated).")
    encoded = stream.read(length)
    if len(encoded) < length:
        raise FileFormatError(f"{path} is truncated within its header, or not a safetensors file.")
    try:
        header = json.loads(encoded)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is not a safetensors file: unreadable header.") from error
    if not isinstance(header, dict):
        raise FileFormatError(f"{path} is not a safetensors file: unreadable header.")
    return 8 + length, header


def _checked_entry(
    path: Path, name: str, entry: Any
) -> tuple[np.dtype[Any], tuple[int, ...], int, int]:
    """An entry of the header whose dtype, shape and place in the file agree with each other."""
    try:
        code, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        dtype = _DTYPES[code]
        numbers = [*shape, begin, end]
        whole = all(isinstance(number, int) and number >= 0 for number in numbers)
        if not whole or end - begin != math.prod(shape) * dtype.itemsize:
            raise ValueError
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(
            f"{path} is damaged: the header entry of {name!r} makes no sense."
        ) from error
    return dtype, tuple(shape), begin, end


def _our_metadata(path: Path, metadata: Any) -> dict[str, Any]:
    try:
        ours = json.loads(metadata.get(_METADATA_KEY, "{}"))
        if not isinstance(ours, dict):
            raise TypeError
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is damaged: unreadable metadata.") from error
    return ours


def _widen_bfloat16(bits: Array) -> Array:
    """bfloat16 is the upper half of a float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
