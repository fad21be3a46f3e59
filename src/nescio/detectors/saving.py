"""From a detector to the artifact on disk and back; detectors may hold other detectors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from nescio.detectors.artifact import Artifact
from nescio.detectors.base import Detector
from nescio.detectors.profile import Profile
from nescio.detectors.registry import DETECTORS
from nescio.detectors.steps import require_threshold
from nescio.errors import FileFormatError, ParameterError
from nescio.outputs import check_label_names

DetectorT = TypeVar("DetectorT", bound=Detector)

_DETECTOR_KEYS = {"detector", "params"}


def save(detector: Detector, path: str | Path, *, force: bool = False) -> None:
    """Write a detector that has a threshold as one file."""
    require_threshold(detector)
    _artifact_of(detector).write(path, force=force)


def load(path: str | Path, kind: type[DetectorT]) -> DetectorT:
    """Read a detector of a known class."""
    artifact = Artifact.read(path)
    if artifact.detector != kind.name:
        raise FileFormatError(f"{path} holds a detector {artifact.detector!r}, not {kind.name!r}.")
    return _restored(kind, artifact, path)


def load_registered(path: str | Path) -> Detector:
    """Read a detector that was saved with `save`.

    A detector of your own class must be registered first (`nescio.register`, or `nescio --use` on
    the command line), or read with its class's own `load`: a file never chooses the code to run.
    """
    artifact = Artifact.read(path)
    return _restored(_registered(artifact.detector, path), artifact, path)


# --- to the file ------------------------------------------------------------------------------


def _artifact_of(detector: Detector) -> Artifact:
    if not detector.name:
        raise ParameterError(f"{type(detector).__name__} needs a class attribute name to be saved.")
    arrays, parts = {}, {}
    for name in detector.learned:
        value = getattr(detector, name)
        if isinstance(value, list | tuple) and all(isinstance(item, Detector) for item in value):
            parts[name] = [_artifact_of(item) for item in value]
        else:
            arrays[name] = np.asarray(value)
    profile: Profile | None = getattr(detector, "profile_", None)
    return Artifact(
        detector=detector.name,
        params=plain_params(detector),
        n_columns=getattr(detector, "n_columns_", {}),
        threshold=getattr(detector, "offset_", None),
        label_names=getattr(detector, "label_names_", None),
        calibration=getattr(detector, "calibration_", None),
        learned=arrays,
        parts=parts,
        profile={} if profile is None else profile.arrays(),
    )


def plain_params(detector: Detector) -> dict[str, Any]:
    """Return the parameters as JSON has them; detectors by name and parameters."""
    return {name: _plain(value) for name, value in detector.get_params(deep=False).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Detector):
        return {"detector": value.name, "params": plain_params(value)}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


# --- from the file ----------------------------------------------------------------------------


def _restored(kind: type[DetectorT], artifact: Artifact, path: str | Path) -> DetectorT:
    try:
        detector = kind(**{n: _revived(v, path) for n, v in artifact.params.items()})
        detector._check_params()
        for name in kind.learned:
            if name in artifact.parts:
                restored = [
                    _restored(_registered(part.detector, path), part, path)
                    for part in artifact.parts[name]
                ]
                setattr(detector, name, restored)
            else:
                setattr(detector, name, np.asarray(artifact.learned[name]))
        _restore_common(detector, artifact)
        detector._check_learned()
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise FileFormatError(f"{path} is damaged: {error}") from error
    return detector


def _restore_common(detector: Detector, artifact: Artifact) -> None:
    """Set what every detector has: columns, labels, threshold, calibration and profile."""
    first = detector.scores_from[0]
    detector.n_columns_ = {name or first: n for name, n in artifact.n_columns.items()}
    if first in detector.n_columns_:
        detector.n_features_in_ = detector.n_columns_[first]
    detector.label_names_ = artifact.label_names
    if artifact.label_names is not None and "logits" in detector.n_columns_:
        check_label_names(artifact.label_names, detector.n_columns_["logits"])
    if artifact.threshold is not None:
        detector.offset_ = artifact.threshold
    if artifact.calibration is not None:
        detector.calibration_ = artifact.calibration
        detector.offset_ = next(iter(artifact.calibration.threshold_values.values()))
        detector.profile_ = Profile.from_arrays(artifact.profile, artifact.groups)
        if detector.profile_.medians is not None:
            detector.profile_.medians.check(detector.n_columns_.get("logits"))


def _revived(value: Any, path: str | Path) -> Any:
    """Return a parameter with its detectors made again, as they were before `fit`."""
    if isinstance(value, Mapping) and set(value) == _DETECTOR_KEYS:
        kind = _registered(str(value["detector"]), path)
        return kind(**{name: _revived(inner, path) for name, inner in value["params"].items()})
    return [_revived(item, path) for item in value] if isinstance(value, list) else value


def _registered(name: str, path: str | Path) -> type[Detector]:
    if name not in DETECTORS:
        raise FileFormatError(
            f"{path} holds a detector {name!r}, which is not one of nescio's. If it is yours, name "
            "its class: nescio --use package.module:Class on the command line, or in Python "
            "nescio.register(Class) before nescio.load."
        )
    return DETECTORS[name]
