"""A detector on disk: one safetensors file of arrays and JSON. Loading one cannot run anything."""

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

_KIND = FileKind("nescio.detector", "saved detector")

_LEARNED = "learned."
_CALIBRATION_SCORES = "calibration.scores"
_MEDIANS = "medians."
_FIRING = "firing."
_DATA = (".parquet", ".csv", ".jsonl", ".npy", ".npz")


@dataclass(frozen=True)
class Artifact:
    """What is kept of a detector.

    Attributes
    ----------
    detector : str
        Its name in the registry.
    params : mapping
        What its constructor takes.
    n_inputs : int
        Columns of what it reads: labels, for a detector that reads logits.
    tau : float
        The threshold of a detector that is not calibrated.
    learned : mapping of str to array
        The arrays that `fit` learned.
    label_names : tuple of str or None
    calibration : Calibration or None
    medians : mapping of str to array
        What `explain` compares with; empty if the detector cannot be explained, and in a file of an
        older nescio.
    firing : mapping of str to array
        How often each label fired in the calibration data; empty if there were no logits, and in a
        file of an older nescio.
    """

    detector: str
    params: Mapping[str, Any]
    n_inputs: int
    tau: float
    learned: Mapping[str, Array]
    label_names: tuple[str, ...] | None
    calibration: Calibration | None
    medians: Mapping[str, Array] = field(default_factory=dict)
    firing: Mapping[str, Array] = field(default_factory=dict)

    @property
    def groups(self) -> tuple[str, ...] | None:
        """The names of the calibration's groups; None where inputs are not grouped."""
        if self.calibration is None or self.calibration.by is None:
            return None
        return tuple(self.calibration.thresholds)

    def write(self, path: str | Path, *, force: bool = False) -> None:
        """Write the file, atomically; an existing one only with `force`."""
        tensors = {_LEARNED + name: array for name, array in self.learned.items()}
        tensors |= {_MEDIANS + name: array for name, array in self.medians.items()}
        tensors |= {_FIRING + name: array for name, array in self.firing.items()}
        if self.calibration is not None:
            parts = [threshold.scores for threshold in self.calibration.thresholds.values()]
            tensors[_CALIBRATION_SCORES] = np.concatenate(parts)
        metadata: dict[str, Any] = {
            "detector": self.detector,
            "params": {name: _plain(value) for name, value in self.params.items()},
            "n_inputs": self.n_inputs,
            "tau": self.tau,
            "label_names": self.label_names,
            "label_fingerprint": label_fingerprint(self.label_names),
            "calibration": _calibration_to_json(self.calibration),
        }
        _KIND.write_with_checksum(path, tensors, metadata, force=force)

    @classmethod
    def read(cls, path: str | Path) -> Artifact:
        """Read and check a file; every flaw is a `FileFormatError` that says which."""
        try:
            tensors, metadata = _KIND.read(path, checksum=True)
        except FileFormatError as error:
            # Who swapped two arguments is not helped by a word about safetensors.
            if _begins_like_ours(path):
                raise
            raise FileFormatError(_is_something_else(path)) from error
        try:
            label_names = metadata["label_names"]
            if not isinstance(label_names, list | None):
                raise TypeError("its label names are not a list")
            if metadata["label_fingerprint"] != label_fingerprint(label_names):
                raise ValueError("its label names do not match their fingerprint")
            return cls(
                detector=str(metadata["detector"]),
                params=dict(metadata["params"]),
                n_inputs=checked_whole("n_inputs", metadata["n_inputs"], minimum=1),
                tau=_finite(metadata["tau"]),
                learned=_under(_LEARNED, tensors),
                label_names=None if label_names is None else tuple(map(str, label_names)),
                calibration=_calibration_from_json(metadata["calibration"], tensors),
                medians=_under(_MEDIANS, tensors),
                firing=_under(_FIRING, tensors),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FileFormatError(f"{path} is damaged: {_reason(error)}.") from error


def _begins_like_ours(path: str | Path) -> bool:
    """Whether it could be a detector, perhaps a damaged one: a length, and then JSON."""
    with open(path, "rb") as stream:
        first = stream.read(10)
    return len(first) < 10 or first[8:] == b'{"'


def _is_something_else(path: str | Path) -> str:
    suffix = Path(path).suffix.lower()
    guess = "that looks like data"
    if suffix == ".onnx":
        guess = "that is an ONNX model, which nescio serve takes as --model"
    hint = f": {guess}. Did you swap the arguments?" if suffix in (".onnx", *_DATA) else "."
    return f"{path} is not a detector saved by nescio fit{hint}"


def _under(prefix: str, tensors: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays whose names begin so, without it."""
    return {
        name.removeprefix(prefix): array
        for name, array in tensors.items()
        if name.startswith(prefix)
    }


def label_fingerprint(label_names: Sequence[str] | None) -> str | None:
    """A short hash of the label names in their order; None where they are not known."""
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
        raise ValueError("its calibration does not fit its scores")
    edges = tuple(checked_whole("edges", edge, minimum=0) for edge in stored["edges"])
    return Calibration(thresholds, stored["by"], edges)


def _plain(value: Any) -> Any:
    """A parameter as JSON has it."""
    return value.item() if isinstance(value, np.generic) else value


def _finite(value: Any) -> float:
    if not math.isfinite(value):
        raise ValueError("its threshold is not a finite number")
    return float(value)


def _reason(error: Exception) -> str:
    return f"no entry {error}" if isinstance(error, KeyError) else str(error)
