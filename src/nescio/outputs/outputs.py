"""What a model gave for some data: logits and, where there are any, features, labels and ids.

`Outputs` is where the network ends: everything after it works without torch. On disk it is one
safetensors file, memory-mapped when loaded.
"""

from __future__ import annotations

import itertools
import re
import tokenize
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio._io.files import existing_file
from nescio._io.kinds import FileKind
from nescio._io.tables import read_csv, read_parquet
from nescio._io.tensors import Stacked, read_tensors
from nescio._validation import (
    Array,
    FloatArray,
    check_matrix,
    check_multi_hot,
    looks_like_probabilities,
    to_float,
    to_numpy,
)
from nescio.errors import (
    FileError,
    FileFormatError,
    InputError,
    ParameterError,
    ProbabilitiesWarning,
    ShapeError,
    about,
)
from nescio.scores import logits_from_probs

_KIND = FileKind("nescio.outputs", "file of a model's outputs")
_MATRICES = ("logits", "features", "labels")
_PERTURBED = "perturbed."
_MAX_ID_LENGTH = 1024
_ROOM_FOR_IDS = 16_000_000  # bytes that are not worth a thought

# What NumPy raises for damaged files, zip archives included.
_NUMPY_ERRORS = (
    AttributeError, EOFError, KeyError, MemoryError, NotImplementedError, OSError, RuntimeError,
    SyntaxError, TypeError, ValueError, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Outputs:
    """A model's outputs, one row a sample. Arrays, tensors and lists are taken.

    Parameters
    ----------
    logits : array of shape (n_samples, n_labels)
        Outputs before the sigmoid.
    features : array of shape (n_samples, n_features), optional
        Penultimate activations.
    labels : array of shape (n_samples, n_labels), optional
        Multi-hot truth.
    ids : sequence of str, optional
        One name a sample.
    label_names : sequence of str, optional
        One name a label.
    manifest : mapping, optional
        Where it came from: data set, split, model hash, transform, versions. Anything JSON holds.
    perturbed : mapping of str to array of shape (n_samples, n_columns), optional
        What the network gave for slightly changed inputs, for the detectors that read it, such as
        "odin_max". `nescio extract --tuned` makes it.

    Examples
    --------
    >>> outputs = Outputs([[1.0, -2.0], [0.5, 3.0]], label_names=["cat", "dog"])
    >>> len(outputs), outputs[1:].logits.tolist()
    (2, [[0.5, 3.0]])
    """

    logits: FloatArray
    features: FloatArray | None
    labels: NDArray[np.uint8] | None
    ids: NDArray[np.str_] | None
    label_names: tuple[str, ...] | None
    manifest: Mapping[str, Any]
    perturbed: Mapping[str, FloatArray]

    def __init__(
        self,
        logits: Any,
        features: Any = None,
        labels: Any = None,
        ids: Sequence[str] | NDArray[np.str_] | None = None,
        label_names: Sequence[str] | None = None,
        manifest: Mapping[str, Any] | None = None,
        perturbed: Mapping[str, Any] | None = None,
    ) -> None:
        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        put("logits", _matrix(logits, "logits"))
        n_samples, n_labels = self.logits.shape
        put("features", None if features is None else _matrix(features, "features"))
        put("labels", None if labels is None else _multi_hot(labels, n_labels))
        put("ids", None if ids is None else _checked_ids(ids))
        extra = {name: _matrix(value, name) for name, value in (perturbed or {}).items()}
        put("perturbed", extra)
        for name in ("features", "labels", "ids", *extra):
            value = self.read(name)
            if value is not None and len(value) != n_samples:
                raise ShapeError(
                    f"{name} must have one row per sample: logits have {n_samples:,}, "
                    f"{name} {len(value):,}."
                )
        names = None if label_names is None else check_label_names(label_names, n_labels)
        put("label_names", names)
        put("manifest", dict(manifest or {}))

    def __len__(self) -> int:
        return len(self.logits)

    @property
    def n_labels(self) -> int:
        """How many labels the model has."""
        return int(self.logits.shape[1])

    def read(self, name: str) -> Array | None:
        """What a detector reads: logits, features, labels, ids, or an array of `perturbed`."""
        if name in (*_MATRICES, "ids"):
            array: Array | None = getattr(self, name)
            return array
        return self.perturbed.get(name)

    def __getitem__(self, rows: slice | Sequence[int] | Array) -> Outputs:
        """Some of the samples: a slice, indices or a boolean mask."""
        if isinstance(rows, int | np.integer):
            rows = [int(rows)]
        kept = {
            name: getattr(self, name)[rows]
            for name in (*_MATRICES, "ids")
            if getattr(self, name) is not None
        }
        perturbed = {name: array[rows] for name, array in self.perturbed.items()}
        return replace(self, **kept, perturbed=perturbed)

    def __repr__(self) -> str:
        parts = [f"{len(self):,} samples x {self.n_labels} labels"]
        if self.features is not None:
            parts.append(f"{self.features.shape[1]} features")
        parts += [
            name for name in ("labels", "ids", "label_names") if getattr(self, name) is not None
        ]
        parts += self.perturbed
        return f"Outputs({', '.join(parts)})"

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write one safetensors file, atomically; an existing file only with `force`."""
        save_in_parts(path, [self], self.manifest, force=force)

    @classmethod
    def load(cls, path: str | Path, *, from_probs: bool = False) -> Outputs:
        """Read .safetensors, .npy, .npz, .csv or .parquet.

        A table has either one column of logits for each label, named after it, or a column of
        lists named logits (and, if there are any, features and labels); a column named id is
        the samples' ids. `from_probs` converts probabilities to the logits they came from.
        """
        path = existing_file(path)
        suffix = path.suffix.lower()
        if suffix not in _READERS:
            raise FileError(f"cannot read {path}: the name must end in {', '.join(READABLE)}.")
        with about(path):
            content = _READERS[suffix](path)
            if from_probs:
                content["logits"] = logits_from_probs(content["logits"])
            return cls(**content)

    @classmethod
    def from_tensors(
        cls,
        tensors: Mapping[str, Array],
        metadata: Mapping[str, Any],
        what: object = "the data",
    ) -> Outputs:
        """From what a .safetensors file holds; `what` is named in errors."""
        return cls(**_from_tensors(what, tensors, metadata))

    @classmethod
    def from_columns(cls, columns: Mapping[str, Array], what: object = "the data") -> Outputs:
        """From the columns of a table, as `load` reads them; `what` is named in errors."""
        return cls(**_from_columns(what, dict(columns)))


@contextmanager
def quiet_about_probabilities(outputs: Outputs) -> Iterator[None]:
    """Without a detector's warning that these look like probabilities, if the caller is told."""
    if not looks_like_probabilities(outputs.logits):
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProbabilitiesWarning)
        yield


def check_outputs_target(path: str | Path) -> None:
    """Raise unless outputs may be written under this name."""
    if Path(path).suffix.lower() != ".safetensors":
        raise ParameterError(f"cannot write {path}: the name must end in .safetensors.")


def save_in_parts(
    path: str | Path, parts: Sequence[Outputs], manifest: Mapping[str, Any], *, force: bool = False
) -> None:
    """Write the outputs of consecutive samples as one file, as if they had come in one piece.

    Parts that are memory-mapped stay on disk: they may be larger than memory together.
    """
    check_outputs_target(path)
    first = parts[0]
    tensors: dict[str, Array | Stacked] = {
        name: Stacked([getattr(part, name) for part in parts])
        for name in _MATRICES
        if getattr(first, name) is not None
    }
    for name in first.perturbed:
        tensors[_PERTURBED + name] = Stacked([part.perturbed[name] for part in parts])
    if first.ids is not None:
        tensors |= _pack_strings(
            [str(name) for part in parts if part.ids is not None for name in part.ids]
        )
    metadata = {
        "label_names": first.label_names,
        "manifest": dict(manifest),
    }
    try:
        _KIND.write(path, tensors, metadata, force=force)
    except TypeError as error:
        raise InputError(f"the manifest must hold what JSON holds: {error}.") from error


def check_label_names(names: Sequence[str], n_labels: int) -> tuple[str, ...]:
    """The names as a tuple, one for each label and none twice."""
    names = tuple(map(str, names))
    if len(names) != n_labels:
        raise ShapeError(f"label_names must name {n_labels} labels, got {len(names)} names.")
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise InputError(f"label_names must differ from each other; {name!r} stands there twice.")
    return names


def _matrix(values: Any, name: str) -> FloatArray:
    array = to_float(to_numpy(values))
    check_matrix(array, name)
    return array


def _checked_ids(ids: Any) -> NDArray[np.str_]:
    array = np.asarray(ids, dtype=np.object_)
    if array.ndim != 1:
        raise ShapeError(f"ids must have one dimension, got shape {array.shape}.")
    strings = [str(name) for name in array]
    lengths = [len(name) for name in strings]
    longest = max(lengths, default=0)
    if longest > _MAX_ID_LENGTH:
        raise InputError(f"ids may have {_MAX_ID_LENGTH:,} characters; one has {longest:,}.")
    # NumPy gives every string the room of the longest: far too much if the others are short.
    room = 4 * longest * len(strings)
    wasteful = room > max(_ROOM_FOR_IDS, 16 * sum(lengths))
    return np.array(strings, dtype=np.object_ if wasteful else np.str_)


def _multi_hot(labels: Any, n_labels: int) -> NDArray[np.uint8]:
    array = to_numpy(labels)
    if array.ndim != 2 or array.shape[1] != n_labels:
        raise ShapeError(
            f"labels must be multi-hot, of shape (n_samples, {n_labels}), got {array.shape}."
        )
    check_multi_hot(array)
    return array.astype(np.uint8, copy=False)


# --- files ------------------------------------------------------------------------------------


def _pack_strings(strings: Sequence[str]) -> dict[str, Array]:
    encoded = [text.encode() for text in strings]
    ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
    return {"ids.utf8": np.frombuffer(b"".join(encoded), np.uint8), "ids.ends": ends}


def _unpack_strings(path: object, tensors: Mapping[str, Array]) -> list[str]:
    data, ends = tensors["ids.utf8"].tobytes(), tensors["ids.ends"].reshape(-1)
    bounds = [0, *ends.tolist()]
    lengths = [end - start for start, end in itertools.pairwise(bounds)]
    # UTF-8 takes up to four bytes a character.
    bounded = all(0 <= length <= 4 * _MAX_ID_LENGTH for length in lengths)
    if ends.dtype.kind not in "iu" or not bounded or bounds[-1] != len(data):
        raise FileFormatError(f"{path} is damaged: its ids do not fit their lengths.")
    try:
        return [data[start:end].decode() for start, end in itertools.pairwise(bounds)]
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is damaged: its ids are not text.") from error


def _read_safetensors(path: Path) -> dict[str, Any]:
    return _from_tensors(path, *read_tensors(path))


def _from_tensors(
    path: object, tensors: Mapping[str, Array], metadata: Mapping[str, Any]
) -> dict[str, Any]:
    _KIND.check({**_KIND.header(), **metadata}, path)  # files of other programs have no header
    if "logits" not in tensors:
        raise FileFormatError(f"{path} has no array named logits; it has {sorted(tensors)}.")
    content: dict[str, Any] = {name: tensors[name] for name in _MATRICES if name in tensors}
    if "ids.utf8" in tensors and "ids.ends" in tensors:
        content["ids"] = _unpack_strings(path, tensors)
    label_names, manifest = metadata.get("label_names"), metadata.get("manifest", {})
    if not _are_names(label_names) or not isinstance(manifest, dict):
        raise FileFormatError(f"{path} is damaged: unreadable metadata.")
    perturbed = {
        name.removeprefix(_PERTURBED): array
        for name, array in tensors.items()
        if name.startswith(_PERTURBED)
    }
    return content | {"label_names": label_names, "manifest": manifest, "perturbed": perturbed}


def _are_names(names: Any) -> bool:
    """Whether these are names as JSON may hold them: None, or a list of text that UTF-8 has."""
    if names is None:
        return True
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return False
    try:
        "".join(names).encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_npy(path: Path) -> dict[str, Any]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except _NUMPY_ERRORS as error:
        raise FileFormatError(_numpy_reason(path)) from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise FileFormatError(f"{path} is an .npz archive: rename it so.")
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
    known = (*_MATRICES, "ids", "label_names")
    return {name: arrays[name] for name in known if name in arrays}


def _numpy_reason(path: Path) -> str:
    with path.open("rb") as stream:
        magic = stream.read(6)
    if magic.startswith((b"\x93NUMPY", b"PK")):
        return f"{path} is truncated or damaged, or holds Python objects; nescio never unpickles."
    return f"{path} is not a NumPy file."


def _from_columns(path: object, columns: dict[str, Array]) -> dict[str, Any]:
    # pandas keeps an index of its own under this name.
    id_names = ("id", "__index_level_0__")
    ids = next((name for name in columns if name.lower() in id_names), None)
    content: dict[str, Any] = {} if ids is None else {"ids": columns.pop(ids)}
    matrices = {name: column for name, column in columns.items() if column.ndim == 2}
    if len(columns) == 1 and matrices and not set(matrices) & set(_MATRICES):
        matrices = {"logits": next(iter(matrices.values()))}
    if matrices:
        if "logits" not in matrices:
            raise FileFormatError(f"{path} has no list column named logits: {sorted(columns)}.")
        return content | {name: matrices[name] for name in _MATRICES if name in matrices}
    if not columns:
        raise FileFormatError(f"{path} has no columns of logits.")
    for name, column in columns.items():
        if column.dtype.kind not in "fiu":
            raise FileFormatError(
                f"column {name!r} of {path} does not hold numbers. Every column but id must be "
                "the logits of one label: rename it to id, or drop it."
            )
    named = not all(re.fullmatch(r"\d+", name) for name in columns)
    return content | {
        "logits": np.column_stack(list(columns.values())),
        "label_names": tuple(columns) if named else None,
    }


def _read_csv(path: Path) -> dict[str, Any]:
    return _from_columns(path, read_csv(path))


def _read_parquet(path: Path) -> dict[str, Any]:
    return _from_columns(path, read_parquet(path))


_READERS = {
    ".safetensors": _read_safetensors,
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
READABLE = tuple(_READERS)
