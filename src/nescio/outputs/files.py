"""Outputs on disk: one safetensors file; also read from .npy, .npz, .csv and .parquet."""

from __future__ import annotations

import itertools
import re
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nescio._io.files import existing_file
from nescio._io.kinds import FileKind
from nescio._io.tables import read_csv, read_parquet
from nescio._io.tensors import Stacked, read_tensors
from nescio._validation import Array
from nescio.errors import FileError, FileFormatError, InputError, ParameterError, about
from nescio.outputs.outputs import MATRICES, MAX_ID_LENGTH, Head, Outputs, check_same_arrays
from nescio.scores import logits_from_probs

_KIND = FileKind("nescio.outputs", "file of a model's outputs", schema=2)
_ARRAYS = "arrays."
_ARRAYS_OF_SCHEMA_1 = "perturbed."
_HEAD = ("head.weight", "head.bias")

# What NumPy raises for damaged files, zip archives included.
_NUMPY_ERRORS = (
    AttributeError, EOFError, KeyError, MemoryError, NotImplementedError, OSError, RuntimeError,
    SyntaxError, TypeError, ValueError, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def load_outputs(path: str | Path, *, from_probs: bool = False) -> Outputs:
    """Read a file by its ending; see `Outputs.load`."""
    path = existing_file(path)
    suffix = path.suffix.lower()
    if suffix not in _READERS:
        raise FileError(f"cannot read {path}: the name must end in {', '.join(READABLE)}.")
    with about(path):
        content = _READERS[suffix](path)
        if from_probs:
            content["logits"] = logits_from_probs(content["logits"])
        return Outputs(**content)


def check_outputs_target(path: str | Path) -> None:
    """Raise unless outputs can be written under this name."""
    if Path(path).suffix.lower() != ".safetensors":
        raise ParameterError(f"cannot write {path}: the name must end in .safetensors.")


def save_in_parts(
    path: str | Path, parts: Sequence[Outputs], manifest: Mapping[str, Any], *, force: bool = False
) -> None:
    """Write the outputs of consecutive samples as one file.

    Parts that are memory-mapped stay on disk: together they may be larger than memory.
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
        tensors |= _pack_strings(ids)
    metadata = {"label_names": first.label_names, "manifest": dict(manifest)}
    try:
        _KIND.write(path, tensors, metadata, force=force)
    except TypeError as error:
        raise InputError(f"the manifest must hold what JSON can hold: {error}.") from error


# --- safetensors ------------------------------------------------------------------------------


def parse_tensors(
    path: object, tensors: Mapping[str, Array], metadata: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of `Outputs` from the content of a .safetensors file."""
    _KIND.check({**_KIND.header(), **metadata}, path)  # files of other programs have no header
    if "logits" not in tensors:
        raise FileFormatError(f"{path} has no array named logits; it has {sorted(tensors)}.")
    content: dict[str, Any] = {name: tensors[name] for name in MATRICES if name in tensors}
    if all(name in tensors for name in _HEAD):
        content["head"] = Head(*(tensors[name] for name in _HEAD))
    if "ids.utf8" in tensors and "ids.ends" in tensors:
        content["ids"] = _unpack_strings(path, tensors)
    label_names, manifest = metadata.get("label_names"), metadata.get("manifest", {})
    try:
        "".join(label_names or ()).encode()  # all of them are text that UTF-8 can encode
        readable = isinstance(label_names, list | None) and isinstance(manifest, dict)
    except (TypeError, UnicodeEncodeError):
        readable = False
    if not readable:
        raise FileFormatError(f"{path} is damaged: unreadable metadata.")
    arrays = {
        name.removeprefix(prefix): array
        for prefix in (_ARRAYS, _ARRAYS_OF_SCHEMA_1)
        for name, array in tensors.items()
        if name.startswith(prefix)
    }
    return content | {"label_names": label_names, "manifest": manifest, "arrays": arrays}


def _pack_strings(strings: Sequence[str]) -> dict[str, Array]:
    encoded = [text.encode() for text in strings]
    ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
    return {"ids.utf8": np.frombuffer(b"".join(encoded), np.uint8), "ids.ends": ends}


def _unpack_strings(path: object, tensors: Mapping[str, Array]) -> list[str]:
    data, ends = tensors["ids.utf8"].tobytes(), tensors["ids.ends"].reshape(-1)
    bounds = [0, *ends.tolist()]
    lengths = [end - start for start, end in itertools.pairwise(bounds)]
    # UTF-8 takes up to four bytes per character.
    bounded = all(0 <= length <= 4 * MAX_ID_LENGTH for length in lengths)
    if ends.dtype.kind not in "iu" or not bounded or bounds[-1] != len(data):
        raise FileFormatError(f"{path} is damaged: its ids do not match their lengths.")
    try:
        return [data[start:end].decode() for start, end in itertools.pairwise(bounds)]
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is damaged: its ids are not text.") from error


# --- NumPy ------------------------------------------------------------------------------------


def _read_npy(path: Path) -> dict[str, Any]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except _NUMPY_ERRORS as error:
        raise FileFormatError(_numpy_reason(path)) from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise FileFormatError(f"{path} is an .npz archive: rename it to end in .npz.")
    return {"logits": array}


def _read_npz(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            arrays = dict(archive)
    except _NUMPY_ERRORS as error:
        raise FileFormatError(_numpy_reason(path)) from error
    if "logits" not in arrays and len(arrays) == 1:
        arrays = {"logits": next(iter(arrays.values()))}
    if "logits" not in arrays:
        raise FileFormatError(f"{path} has no array named logits; it has {sorted(arrays)}.")
    known = (*MATRICES, "ids", "label_names")
    content: dict[str, Any] = {name: arrays.pop(name) for name in known if name in arrays}
    if all(name in arrays for name in _HEAD):
        content["head"] = Head(*(arrays.pop(name) for name in _HEAD))
    return content | {"arrays": _own_matrices(arrays, len(content["logits"]))}


def _numpy_reason(path: Path) -> str:
    with path.open("rb") as stream:
        magic = stream.read(6)
    if magic.startswith((b"\x93NUMPY", b"PK")):
        return f"{path} is truncated or damaged, or holds Python objects; nescio never unpickles."
    return f"{path} is not a NumPy file."


def _own_matrices(columns: Mapping[str, Array], n_samples: int) -> dict[str, Array]:
    """Return the further matrices of numbers that have one row per sample."""
    return {
        name: array
        for name, array in columns.items()
        if array.ndim == 2 and len(array) == n_samples and array.dtype.kind in "fiu"
    }


# --- tables -----------------------------------------------------------------------------------


def _from_columns(path: object, columns: dict[str, Array]) -> dict[str, Any]:
    # pandas stores an index under such names; it is never a label.
    index = [name for name in columns if re.fullmatch(r"__index_level_\d+__", name)]
    id_columns = [name for name in columns if name.lower() == "id"]
    ids = next(iter([*id_columns, *index]), None)
    content: dict[str, Any] = {} if ids is None else {"ids": columns[ids]}
    columns = {name: column for name, column in columns.items() if name not in (ids, *index)}
    matrices = {name: column for name, column in columns.items() if column.ndim == 2}
    if len(columns) == 1 and matrices and not set(matrices) & set(MATRICES):
        matrices = {"logits": next(iter(matrices.values()))}
    if matrices:
        if "logits" not in matrices:
            raise FileFormatError(f"{path} has no list column named logits: {sorted(columns)}.")
        content |= {name: matrices.pop(name) for name in MATRICES if name in matrices}
        return content | {"arrays": _own_matrices(matrices, len(content["logits"]))}
    if not columns:
        raise FileFormatError(f"{path} has no columns of logits.")
    for name, column in columns.items():
        if column.dtype.kind not in "fiu":
            raise FileFormatError(
                f"column {name!r} of {path} does not hold numbers. Every column except id must be "
                "the logits of one label: rename the column to id, or remove it."
            )
    named = not all(re.fullmatch(r"\d+", name) for name in columns)
    return content | {
        "logits": np.column_stack(list(columns.values())),
        "label_names": tuple(columns) if named else None,
    }


_READERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    ".safetensors": lambda path: parse_tensors(path, *read_tensors(path)),
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".csv": lambda path: _from_columns(path, read_csv(path)),
    ".parquet": lambda path: _from_columns(path, read_parquet(path)),
}
READABLE = tuple(_READERS)
