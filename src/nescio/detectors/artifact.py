"""A detector on disk: one safetensors file of arrays and JSON. Loading one cannot run any code.

A detector that holds detectors is stored as a tree: the arrays of a part have a prefix, and the
JSON of a part is nested in that of its owner.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nescio._io.kinds import FileKind
from nescio._validation import Array, checked_share, checked_whole
from nescio.calibration import Calibration, Threshold
from nescio.errors import FileFormatError

_KIND = FileKind("nescio.detector", "saved detector", schema=2)

_LEARNED = "learned."
_PARTS = "parts."
_PROFILE = "profile."
_CALIBRATION_SCORES = "calibration.scores"
_MAX_DEPTH = 20  # detectors within detectors
_DATA = (".parquet", ".csv", ".jsonl", ".npy", ".npz")


@dataclass(frozen=True)
class Artifact:
    """What is kept of a detector.

    Attributes
    ----------
    detector : str
        The name in the registry.
    params : mapping
        The arguments of the constructor; a detector among them as {"detector": ..., "params": ...}.
    n_columns : mapping of str to int
        The number of columns of each array that the detector reads. In a file of schema 1, the
        name of the only array is not known and is "".
    threshold : float or None
        None for a part without a threshold.
    label_names : tuple of str or None
    calibration : Calibration or None
    learned : mapping of str to array
        The arrays that `fit` learned.
    parts : mapping of str to list of Artifact
        The detectors that `fit` learned, by attribute.
    profile : mapping of str to array
        What the calibration data looked like.
    """

    detector: str
    params: Mapping[str, Any]
    n_columns: Mapping[str, int]
    threshold: float | None = None
    label_names: tuple[str, ...] | None = None
    calibration: Calibration | None = None
    learned: Mapping[str, Array] = field(default_factory=dict)
    parts: Mapping[str, Sequence[Artifact]] = field(default_factory=dict)
    profile: Mapping[str, Array] = field(default_factory=dict)

    @property
    def groups(self) -> tuple[str, ...] | None:
        """The names of the calibration's groups; None if it has no groups."""
        if self.calibration is None or self.calibration.by is None:
            return None
        return tuple(self.calibration.thresholds)

    def write(self, path: str | Path, *, force: bool = False) -> None:
        """Write the file atomically; replace an existing one only with `force`."""
        _KIND.write_with_checksum(path, self._tensors(), self._json(), force=force)

    def _tensors(self) -> dict[str, Array]:
        tensors = {_LEARNED + name: array for name, array in self.learned.items()}
        tensors |= {_PROFILE + name: array for name, array in self.profile.items()}
        if self.calibration is not None:
            groups = self.calibration.thresholds.values()
            tensors[_CALIBRATION_SCORES] = np.concatenate([group.scores for group in groups])
        for name, parts in self.parts.items():
            for at, part in enumerate(parts):
                prefix = _part_prefix(name, at)
                tensors |= {prefix + inner: array for inner, array in part._tensors().items()}
        return tensors

    def _json(self) -> dict[str, Any]:
        return {
            "detector": self.detector,
            "params": dict(self.params),
            "n_columns": dict(self.n_columns),
            "threshold": self.threshold,
            "label_names": self.label_names,
            "calibration": _calibration_to_json(self.calibration),
            "parts": {name: [part._json() for part in parts] for name, parts in self.parts.items()},
        }

    @classmethod
    def read(cls, path: str | Path) -> Artifact:
        """Read and check a file; every flaw is a `FileFormatError` that names it."""
        try:
            tensors, metadata = _KIND.read(path, checksum=True)
        except FileFormatError as error:
            # A message about safetensors does not help someone who swapped two arguments.
            if _begins_like_ours(path):
                raise
            raise FileFormatError(_is_something_else(path)) from error
        try:
            if metadata["schema"] == 1:
                tensors, metadata = _from_schema_1(tensors, metadata)
            return cls._from_json(metadata, tensors)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FileFormatError(f"{path} is damaged: {_reason(error)}.") from error

    @classmethod
    def _from_json(
        cls, node: Mapping[str, Any], tensors: Mapping[str, Array], depth: int = 0
    ) -> Artifact:
        label_names, threshold = node["label_names"], node["threshold"]
        if depth > _MAX_DEPTH:
            raise ValueError("its detectors are nested too deeply")
        if not isinstance(label_names, list | None):
            raise TypeError("its label names are not a list")
        if threshold is None and depth == 0:
            raise ValueError("it has no threshold")
        return cls(
            detector=str(node["detector"]),
            params=dict(node["params"]),
            n_columns={
                str(name): checked_whole("n_columns", n, minimum=1)
                for name, n in node["n_columns"].items()
            },
            threshold=None if threshold is None else _finite(threshold),
            label_names=None if label_names is None else tuple(map(str, label_names)),
            calibration=_calibration_from_json(node["calibration"], tensors),
            learned=_under(_LEARNED, tensors),
            parts={
                str(name): [
                    cls._from_json(part, _under(_part_prefix(name, at), tensors), depth + 1)
                    for at, part in enumerate(parts)
                ]
                for name, parts in node["parts"].items()
            },
            profile=_under(_PROFILE, tensors),
        )


def _from_schema_1(
    tensors: Mapping[str, Array], metadata: Mapping[str, Any]
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the content of a file of schema 1 as schema 2 has it."""
    profile = {
        (_PROFILE + name if name.startswith(("medians.", "firing.")) else name): array
        for name, array in tensors.items()
    }
    node = {
        **metadata,
        "n_columns": {"": metadata["n_inputs"]},
        "threshold": _finite(metadata["tau"]),
        "parts": {},
    }
    return profile, node


def _part_prefix(name: str, at: int) -> str:
    return f"{_PARTS}{name}.{at}."


def _begins_like_ours(path: str | Path) -> bool:
    """Return whether a file could be a detector, even a damaged one: a length, then JSON."""
    with open(path, "rb") as stream:
        first = stream.read(10)
    return len(first) < 10 or first[8:] == b'{"'


def _is_something_else(path: str | Path) -> str:
    suffix = Path(path).suffix.lower()
    guess = "it looks like data"
    if suffix == ".onnx":
        guess = "it is an ONNX model, which nescio serve takes as --model"
    hint = f": {guess}. Did you swap the arguments?" if suffix in (".onnx", *_DATA) else "."
    return f"{path} is not a detector saved by nescio calibrate{hint}"


def _under(prefix: str, tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays whose names begin with the prefix, without it."""
    return {
        name.removeprefix(prefix): array
        for name, array in tensors.items()
        if name.startswith(prefix)
    }


def label_fingerprint(label_names: Sequence[str] | None) -> str | None:
    """Return a short hash of the label names in their order; None if they are not known."""
    if label_names is None:
        return None
    encoded = json.dumps(list(label_names), ensure_ascii=False).encode()
    return hashlib.sha256(encoded).hexdigest()[:16]


def _calibration_to_json(calibration: Calibration | None) -> dict[str, Any] | None:
    if calibration is None:
        return None
    return {
        "by": calibration.by,
        "edges": list(calibration.edges),
        "groups": [
            {
                "name": name,
                "n_samples": threshold.n_samples,
                "tpr": threshold.tpr,
                "confidence": threshold.confidence,
                "rank": threshold.rank,
            }
            for name, threshold in calibration.thresholds.items()
        ],
    }


def _calibration_from_json(
    stored: Mapping[str, Any] | None, tensors: Mapping[str, Array]
) -> Calibration | None:
    if stored is None:
        return None
    scores = np.asarray(tensors[_CALIBRATION_SCORES], dtype=np.float64).reshape(-1)
    thresholds: dict[str, Threshold] = {}
    start = 0
    for group in stored["groups"]:
        end = start + checked_whole("n_samples", group["n_samples"], minimum=1)
        confidence = group["confidence"]
        thresholds[str(group["name"])] = Threshold(
            scores=scores[start:end],
            tpr=checked_share("tpr", group["tpr"]),
            confidence=None if confidence is None else checked_share("confidence", confidence),
            rank=checked_whole("rank", group["rank"], minimum=1),
        )
        start = end
    if start != len(scores):
        raise ValueError("its calibration does not match its scores")
    edges = tuple(checked_whole("edges", edge, minimum=0) for edge in stored["edges"])
    return Calibration(thresholds, stored["by"], edges)


def _finite(value: Any) -> float:
    if not math.isfinite(value):
        raise ValueError("its threshold is not a finite number")
    return float(value)


def _reason(error: Exception) -> str:
    return f"no entry {error}" if isinstance(error, KeyError) else str(error)
