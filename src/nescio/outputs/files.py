"""Outputs in files of arrays: safetensors, which has everything, and NumPy files."""

from __future__ import annotations

import itertools
import tokenize
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic

from nescio._io.files import Files, to_values
from nescio._io.tables import MATRICES
from nescio._io.tensors import FileKind, Stacked, decode_tensors, read_tensors, verify_checksum
from nescio._validation import Array
from nescio.errors import FileError, FileFormatError, InputError, ParameterError, ShapeError
from nescio.outputs.outputs import Head, Outputs, check_same_arrays, join_columns

ARRAYS = (".safetensors", ".npy", ".npz")
"""The endings of files that hold arrays and no table."""

_KIND = FileKind("nescio.outputs", "file of a model's outputs")
_OUR_HEADER = {*_KIND.header(), "sha256"}
_ARRAYS = "arrays."
_KEPT = "kept."
_HEAD = ("head.weight", "head.bias")

_DAMAGED = (
    "is not a NumPy file, is truncated or damaged, or holds Python objects; nescio never unpickles."
)
# What NumPy raises for damaged files, zip archives included.
_NUMPY_ERRORS = (
    AttributeError, EOFError, KeyError, MemoryError, NotImplementedError, OSError, RuntimeError,
    OverflowError, SyntaxError, TypeError, ValueError, tokenize.TokenError, zipfile.BadZipFile,
    zlib.error,
)  # fmt: skip


def read_arrays(files: Files, *, verify: bool = True) -> dict[str, Any]:
    """Return the arguments of `Outputs` from a .safetensors, .npy or .npz file."""
    path = files.paths[0]
    if files.remote is not None and files.suffix in (".npy", ".npz"):
        raise FileError(
            f"cannot read {files.address}: NumPy files cannot be remote. Copy it to a local file "
            "first."
        )
    if files.suffix == ".npy":
        return _read_npy(Path(path))
    if files.suffix == ".npz":
        return _read_npz(Path(path))
    if files.remote is None:
        return parse_tensors(files.address, *read_tensors(path), verify=verify)
    with files.open(path) as stream:
        tensors = decode_tensors(stream.read(), files.address)
    return parse_tensors(files.address, *tensors, verify=verify)


def check_outputs_target(path: str | Path) -> None:
    """Raise unless outputs can be written under this name.

    Examples
    --------
    >>> check_outputs_target("val.safetensors")
    >>> check_outputs_target("val.csv")
    Traceback (most recent call last):
    nescio.errors.ParameterError: cannot write val.csv: the name must end in .safetensors.
    """
    if Path(path).suffix.lower() != ".safetensors":
        raise ParameterError(f"cannot write {path}: the name must end in .safetensors.")


def save_in_parts(
    path: str | Path, parts: Sequence[Outputs], manifest: Mapping[str, Any], *, force: bool = False
) -> None:
    """Write the outputs of consecutive samples as one file.

    Parts that are memory-mapped stay on disk: together they may be larger than memory.

    Examples
    --------
    >>> import tempfile
    >>> from nescio import Outputs
    >>> part = Outputs(np.zeros((2, 3)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_in_parts(f"{folder}/all.safetensors", [part, part], {})
    ...     len(Outputs.load(f"{folder}/all.safetensors"))
    4
    """
    check_outputs_target(path)
    check_same_arrays(parts)
    first = parts[0]
    tensors: dict[str, Array | Stacked] = {}
    for name in (*(name for name in MATRICES if first.get(name) is not None), *first.arrays):
        key = name if name in MATRICES else _ARRAYS + name
        tensors[key] = Stacked([part.get(name) for part in parts])
    if first.head is not None:
        tensors |= dict(zip(_HEAD, (first.head.weight, first.head.bias), strict=True))
    if first.ids is not None:
        ids = [str(name) for part in parts if part.ids is not None for name in part.ids]
        tensors |= _pack_strings("ids", ids)
    metadata: dict[str, Any] = {"label_names": first.label_names, "manifest": dict(manifest)}
    kept = join_columns([part.kept for part in parts])
    if kept:
        metadata["kept"] = list(kept)
        for number, column in enumerate(kept.values()):
            key = f"{_KEPT}{number}"
            numbers = column.dtype.kind in "fiub"
            tensors |= {key: column} if numbers else _pack_strings(key, _as_text(column))
    try:
        _KIND.write(path, tensors, metadata, force=force)
    except TypeError as error:
        raise InputError(f"the manifest must hold what JSON can hold: {error}.") from error


# --- safetensors ------------------------------------------------------------------------------


def parse_tensors(
    path: object,
    tensors: Mapping[str, Array],
    metadata: Mapping[str, Any],
    *,
    verify: bool = True,
    kept: bool = True,
) -> dict[str, Any]:
    """Return the arguments of `Outputs` from the content of a .safetensors file."""
    if not _OUR_HEADER.isdisjoint(metadata):  # other programs may write our metadata without it
        _KIND.check(metadata, path)
        if verify:
            verify_checksum(tensors, metadata, path)
    if "logits" not in tensors:
        raise FileFormatError(f"{path} has no array named logits; it has {sorted(tensors)}.")
    content: dict[str, Any] = {name: tensors[name] for name in MATRICES if name in tensors}
    if all(name in tensors for name in _HEAD):
        content["head"] = Head(*(tensors[name] for name in _HEAD))
    if "ids.utf8" in tensors and "ids.ends" in tensors:
        content["ids"] = _unpack_strings(path, "ids", tensors)
    if kept:
        content["kept"] = _unpack_kept(path, tensors, metadata.get("kept", []))
    label_names, manifest = metadata.get("label_names"), metadata.get("manifest", {})
    try:
        "".join(label_names or ()).encode()  # all of them are text that UTF-8 can encode
        readable = isinstance(label_names, list | None) and isinstance(manifest, dict)
    except (TypeError, UnicodeEncodeError):
        readable = False
    if not readable:
        raise FileFormatError(f"{path} is damaged: unreadable metadata.")
    arrays = {
        name.removeprefix(_ARRAYS): array
        for name, array in tensors.items()
        if name.startswith(_ARRAYS)
    }
    return content | {"label_names": label_names, "manifest": manifest, "arrays": arrays}


def _as_text(column: Array) -> list[str]:
    return ["" if value is None else str(value) for value in to_values(column)]


def _pack_strings(key: str, strings: Sequence[str]) -> dict[str, Array | Stacked]:
    encoded = [text.encode() for text in strings]
    ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
    return {f"{key}.utf8": np.frombuffer(b"".join(encoded), np.uint8), f"{key}.ends": ends}


def _unpack_strings(path: object, key: str, tensors: Mapping[str, Array]) -> list[str]:
    data, ends = tensors[f"{key}.utf8"].tobytes(), tensors[f"{key}.ends"].reshape(-1)
    bounds = [0, *ends.tolist()]
    in_order = all(start <= end for start, end in itertools.pairwise(bounds))
    if ends.dtype.kind not in "iu" or not in_order or bounds[-1] != len(data):
        raise FileFormatError(f"{path} is damaged: its {key} do not match their lengths.")
    try:
        return [data[start:end].decode() for start, end in itertools.pairwise(bounds)]
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is damaged: its {key} are not text.") from error


def _unpack_kept(path: object, tensors: Mapping[str, Array], names: Any) -> dict[str, Array]:
    """Return the kept columns of a .safetensors file; text has two arrays, numbers have one."""
    columns: dict[str, Array] = {}
    for number, name in enumerate(names if isinstance(names, list) else ()):
        key = f"{_KEPT}{number}"
        if f"{key}.utf8" in tensors and f"{key}.ends" in tensors:
            strings = _unpack_strings(path, key, tensors)
            columns[str(name)] = np.array(strings, dtype=object)
        elif key in tensors:
            columns[str(name)] = np.asarray(tensors[key])
        else:
            raise FileFormatError(f"{path} is damaged: the kept column {name!r} is missing.")
    return columns


# --- NumPy ------------------------------------------------------------------------------------


def _read_npy(path: Path) -> dict[str, Any]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except _NUMPY_ERRORS as error:
        raise FileFormatError(f"{path} {_DAMAGED}") from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise FileFormatError(f"{path} is an .npz archive: rename it to end in .npz.")
    return {"logits": array}


def _read_npz(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            names = list(archive.files)
            logits = names[0] if len(names) == 1 else "logits"
            if logits not in names:
                raise FileFormatError(f"{path} has no array named logits; it has {sorted(names)}.")
            content: dict[str, Any] = {"logits": archive[logits]}
            optional = (*MATRICES[1:], "ids", "label_names")
            content |= {name: archive[name] for name in optional if name in names}
            head = [archive[name] for name in _HEAD if name in names]
            own_names = [name for name in names if name not in (logits, *optional, *_HEAD)]
            n_samples = len(content["logits"])
            arrays = {
                name: archive[name] for name in own_names if _is_matrix(archive, name, n_samples)
            }
    except FileFormatError:
        raise
    except _NUMPY_ERRORS as error:
        raise FileFormatError(f"{path} {_DAMAGED}") from error
    # An entry of the archive that is no array is given as bytes.
    if not all(isinstance(array, np.ndarray) for array in (*content.values(), *head)):
        raise FileFormatError(f"{path} {_DAMAGED}")
    for name in ("ids", "label_names"):
        if name in content and content[name].ndim != 1:
            raise ShapeError(f"{name} must have one dimension, got shape {content[name].shape}.")
    if len(head) == len(_HEAD):
        content["head"] = Head(*head)
    return content | {"arrays": arrays}


def _is_matrix(archive: Any, name: str, n_samples: int) -> bool:
    """Return whether an array has numbers and one row per sample; read only its header.

    A small archive may hold an array of gigabytes that is not needed.
    """
    members = archive.zip.namelist()
    with archive.zip.open(name if name in members else f"{name}.npy") as stream:
        read = (read_array_header_1_0, read_array_header_2_0)[read_magic(stream) != (1, 0)]
        shape, _, dtype = read(stream)
    return len(shape) == 2 and shape[0] == n_samples and dtype.kind in "fiu"
