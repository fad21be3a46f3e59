"""A detector on disk: one safetensors file of arrays and JSON. Loading one cannot run any code.

A detector that holds detectors is stored as a tree: the arrays of a part have a prefix, and the
JSON of a part is nested in that of its owner.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from nescio._io.tensors import FileKind
from nescio._validation import Array, checked_share, checked_whole
from nescio.calibration import Calibration, Medians, Threshold
from nescio.detectors.base import Detector, require_calibration
from nescio.detectors.registry import DETECTORS
from nescio.errors import FileFormatError, ParameterError
from nescio.outputs.outputs import check_label_names

DetectorT = TypeVar("DetectorT", bound=Detector)
Tensors = dict[str, Array]

_KIND = FileKind("nescio.detector", "saved detector")
_LEARNED = "learned."
_MEDIANS = "profile.medians."
_CALIBRATION_SCORES = "calibration.scores"


def save(detector: Detector, path: str | Path, *, force: bool = False) -> None:
    """Write a calibrated detector as one file."""
    require_calibration(detector)
    node, tensors = _to_file(detector)
    _KIND.write(path, tensors, node, force=force)


def load(path: str | Path) -> Detector:
    """Read a detector that was saved with `save`.

    A detector of your own class must be registered first (`nescio.register`, or `nescio --use` on
    the command line), or read with its class's own `load`: a file never chooses the code to run.
    """
    return load_as(Detector, path)  # type: ignore[type-abstract]  # it stands for any class


def plain_params(detector: Detector) -> dict[str, Any]:
    """Return the parameters as JSON has them; detectors by name and parameters."""
    return {name: _plain(value) for name, value in detector.get_params(deep=False).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Detector):
        return {"detector": value.name, "params": plain_params(value)}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def _to_file(detector: Detector) -> tuple[dict[str, Any], Tensors]:
    """Return the JSON and the arrays of a detector and of its parts."""
    if not detector.name:
        raise ParameterError(f"{type(detector).__name__} needs a class attribute name to be saved.")
    tensors: Tensors = {}
    parts: dict[str, list[Any]] = {}
    for name in detector.learned:
        value = getattr(detector, name)
        if isinstance(value, list | tuple) and all(isinstance(item, Detector) for item in value):
            parts[name] = []
            for number, item in enumerate(value):
                part, arrays = _to_file(item)
                parts[name].append(part)
                prefix = f"parts.{name}.{number}."
                tensors |= {prefix + inner: array for inner, array in arrays.items()}
        else:
            tensors[_LEARNED + name] = np.asarray(value)
    calibration: Calibration | None = getattr(detector, "calibration_", None)
    if calibration is not None:
        groups = calibration.thresholds.values()
        tensors[_CALIBRATION_SCORES] = np.concatenate([group.scores for group in groups])
        if detector.medians_ is not None:
            tensors[f"{_MEDIANS}labels"] = detector.medians_.labels
            tensors[f"{_MEDIANS}ranks"] = detector.medians_.ranks
    columns = getattr(detector, "feature_names_in_", None)
    node = {
        "detector": detector.name,
        "params": plain_params(detector),
        "n_columns": getattr(detector, "n_columns_", {}),
        "label_names": getattr(detector, "label_names_", None),
        "layers": getattr(detector, "layers_", None),
        "columns": None if columns is None else list(columns),
        "calibration": None if calibration is None else _as_json(calibration),
        "learned_from": getattr(detector, "_learned_from", {}),
        "made_with": getattr(detector, "_made_with", {}),
        "parts": parts,
    }
    return node, tensors


def _as_json(calibration: Calibration) -> dict[str, Any]:
    facts = ("n_samples", "tpr", "confidence", "rank")
    groups = [
        {"name": name, **{fact: getattr(threshold, fact) for fact in facts}}
        for name, threshold in calibration.thresholds.items()
    ]
    edges, ranks = list(calibration.edges), list(calibration.ranks)
    kind = {"by": calibration.by, "column": calibration.column}
    return {**kind, "edges": edges, "ranks": ranks, "groups": groups}


def load_as(kind: type[DetectorT], path: str | Path) -> DetectorT:
    """Read a detector of a known class, or any if it is `Detector`."""
    try:
        tensors, node = _KIND.read(path, copy=True)
    except FileFormatError as error:
        # A message about safetensors does not help someone who swapped two arguments.
        with open(path, "rb") as stream:
            first = stream.read(10)
        if len(first) < 10 or first[8:] == b'{"':  # a length, then JSON: ours, perhaps damaged
            raise
        model = Path(path).suffix.lower() == ".onnx"
        hint = ": it is an ONNX model, which nescio serve takes as --model" if model else ""
        raise FileFormatError(
            f"{path} is not a detector saved by nescio calibrate{hint}. Pass the file of a "
            "detector here."
        ) from error
    try:
        if kind is Detector:
            kind = _registered(node["detector"], path)
        elif node["detector"] != kind.name:
            raise FileFormatError(
                f"{path} holds a detector {node['detector']!r}, not {kind.name!r}."
            )
        detector = _from_file(kind, node, tensors, path)
        if not hasattr(detector, "calibration_"):
            raise ValueError("it has no calibration")
    except KeyError as error:
        raise FileFormatError(f"{path} is damaged: no entry {error}.") from error
    except (TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        raise FileFormatError(f"{path} is damaged: {error}") from error
    return detector


def _from_file(
    kind: type[DetectorT], node: Mapping[str, Any], tensors: Tensors, path: object
) -> DetectorT:
    """Return a detector of this class; its parts are of the classes registered by their names."""
    detector = kind(**{name: _revived(value, path) for name, value in node["params"].items()})
    detector._check_params()
    for name in detector.learned:
        if name in node["parts"]:
            parts = [
                _from_file(
                    _registered(part["detector"], path),
                    part,
                    _under(f"parts.{name}.{number}.", tensors),
                    path,
                )
                for number, part in enumerate(node["parts"][name])
            ]
            setattr(detector, name, parts)
        else:
            setattr(detector, name, tensors[_LEARNED + name])
    _restore_common(detector, node, tensors)
    if isinstance(detector.learned, Mapping):
        _check_shapes(detector, detector.learned)
    detector._check_learned()
    return detector


def _check_shapes(detector: Detector, declared: Mapping[str, str]) -> None:
    """Raise unless the learned arrays are as declared; only an axis that is a rank may be empty."""
    lengths = {"features": detector.n_features_in_}
    for name, text in declared.items():
        array = getattr(detector, name)
        kind, *axes = text.split()
        fits = array.dtype.kind == kind[0] and array.ndim == len(axes) and np.isfinite(array).all()
        for axis, length in zip(axes, array.shape, strict=False):
            fits &= lengths.setdefault(axis, length) == length and (length > 0 or "rank" in axis)
        if not fits:
            raise ValueError(f"{name} must be {text}, got {array.dtype} of shape {array.shape}")


def _restore_common(detector: Detector, node: Mapping[str, Any], tensors: Tensors) -> None:
    """Set what every detector has: columns, labels, threshold, calibration and medians."""
    detector._learned_from = dict(node["learned_from"])
    detector._made_with = dict(node["made_with"])
    first = detector.scores_from[0]
    detector.n_columns_ = {
        name: checked_whole("n_columns", n, minimum=1) for name, n in node["n_columns"].items()
    }
    if first in detector.n_columns_:
        detector.n_features_in_ = detector.n_columns_[first]
    label_names, n_labels = node["label_names"], detector.n_columns_.get("logits")
    if not isinstance(label_names, list | None):
        raise TypeError("its label names are not a list")
    detector.label_names_ = None if label_names is None else tuple(map(str, label_names))
    if detector.label_names_ is not None and n_labels is not None:
        check_label_names(detector.label_names_, n_labels)
    if node["layers"] is not None:
        detector.layers_ = tuple(map(str, node["layers"]))
    if node["columns"] is not None:
        detector.feature_names_in_ = np.array([str(name) for name in node["columns"]], dtype=object)
    if node["calibration"] is not None:
        calibration = _calibration_from_json(node["calibration"], tensors[_CALIBRATION_SCORES])
        detector.calibration_ = calibration
        detector.offset_ = calibration.first.value
        groups = None if calibration.by is None else tuple(calibration.thresholds)
        medians = _under(_MEDIANS, tensors)
        detector.medians_ = None
        if medians:
            detector.medians_ = Medians.from_arrays(medians, groups, n_labels)


def _calibration_from_json(stored: Mapping[str, Any], scores: Array) -> Calibration:
    scores = np.asarray(scores, dtype=np.float64).reshape(-1)
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
    edges, ranks = (
        tuple(checked_whole(name, number, minimum=0) for number in stored[name])
        for name in ("edges", "ranks")
    )
    return Calibration(thresholds, stored["by"], edges, ranks, stored.get("column"))


def _under(prefix: str, tensors: Tensors) -> Tensors:
    """Return the arrays whose names begin with the prefix, without it."""
    return {
        name.removeprefix(prefix): array
        for name, array in tensors.items()
        if name.startswith(prefix)
    }


def _revived(value: Any, path: object) -> Any:
    """Return a parameter with its detectors made again, as they were before `fit`."""
    if isinstance(value, Mapping) and set(value) == {"detector", "params"}:
        kind = _registered(value["detector"], path)
        return kind(**{name: _revived(inner, path) for name, inner in value["params"].items()})
    return [_revived(item, path) for item in value] if isinstance(value, list) else value


def _registered(name: Any, path: object) -> type[Detector]:
    if name not in DETECTORS:
        raise FileFormatError(
            f"{path} holds a detector {name!r}, which is not one of nescio's. If it is yours, name "
            "its class: nescio --use package.module:Class on the command line, or in Python "
            "nescio.register(Class) before nescio.load."
        )
    return DETECTORS[name]
