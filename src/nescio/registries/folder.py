"""The files of a wrapped model in one folder: the model, the detector and how they belong together.

The model is `model.onnx` (the classifier and the detector as one graph), `model.skops` (a
scikit-learn estimator; `features.skops` is the transformer that makes its features, if there is
one) or what transformers writes. Loading imports no code that the folder names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nescio._io.files import existing_file
from nescio._io.kinds import FileKind
from nescio._io.tables import require
from nescio._io.toml import from_table
from nescio.data.images import content_hash
from nescio.data.preprocessing import Preprocessing
from nescio.detectors import load
from nescio.errors import ExportError, FileError, FileFormatError, NescioError, ParameterError
from nescio.registries.estimators import read_estimator, write_estimator
from nescio.registries.transformers_files import (
    CONFIG_FILE,
    TOKENIZER_FILE,
    has_own_files,
    read_transformers,
    write_transformers,
)
from nescio.runners import Wrapped, make_runner, wrap
from nescio.runners.features import PREPARED

SETTINGS_FILE = "nescio.json"
DETECTOR_FILE = "detector.nescio"
GRAPH_FILE = "model.onnx"
ESTIMATOR_FILE = "model.skops"
PREPARE_FILE = "features.skops"

ONNX, SKLEARN, TRANSFORMERS = "onnx", "sklearn", "transformers"

_KIND = FileKind("nescio.folder", "description of a model's folder")
_TOLERANCE = 1e-2  # a wrong layer differs by far more, and half precision by less

DECISIVE = (
    DETECTOR_FILE,
    GRAPH_FILE,
    ESTIMATOR_FILE,
    PREPARE_FILE,
    CONFIG_FILE,
    TOKENIZER_FILE,
    "*.safetensors",
    "*.index.json",
    "*.bin",
    "adapter_config.json",
)
"""The files that decide scores and verdicts, as far as a folder has them."""


@dataclass(frozen=True)
class Settings:
    """What `nescio.json` says: how the model was wrapped, and the files that decide its outputs."""

    model: str
    features: tuple[str, ...] = ()
    output: str | int | None = None
    from_probs: bool = False
    label_names: tuple[str, ...] | None = None
    preprocessing: Mapping[str, Any] | None = None
    files: Mapping[str, str] = field(default_factory=dict)  # name: SHA-256


def as_wrapped(model: Any) -> Wrapped:
    """Return a wrapped model; that of a fitted `nescio.sklearn.WithVerdict` too."""
    found = getattr(model, "wrapped_", model)
    if not isinstance(found, Wrapped):
        what = "wrap it with nescio.wrap and calibrate it"
        if hasattr(model, "estimator") and hasattr(model, "verdict"):
            what = "call fit(X, Y) first"
        raise ParameterError(f"a wrapped model is needed, got {type(model).__name__}: {what}.")
    return found


def write_model(
    wrapped: Wrapped,
    folder: Path,
    *,
    samples: Any = None,
    input_shape: Sequence[int] | None = None,
    trusted: Sequence[str] = (),
    as_graph: bool = False,
) -> Wrapped:
    """Write a wrapped model to a folder that exists; return it as the folder gives it back.

    With `as_graph`, a transformers model becomes an ONNX graph too.
    """
    wrapped.save(folder / DETECTOR_FILE)  # raises unless there is a calibrated one
    kind = _kind_of(wrapped, as_graph=as_graph)
    settings = Settings(kind, **(_of_runner(wrapped) if kind != ONNX else {}))
    if kind == SKLEARN:
        write_estimator(wrapped.runner.model, folder / ESTIMATOR_FILE, trusted)
        if PREPARED in settings.features:
            prepare = wrapped.runner.prepare  # type: ignore[attr-defined]
            write_estimator(prepare, folder / PREPARE_FILE, trusted)
    elif kind == TRANSFORMERS:
        samples = _random_samples(wrapped, input_shape) if samples is None else samples
        write_transformers(wrapped.runner, folder)
    else:
        require("torch", "export")
        from nescio.export import export_onnx

        export_onnx(wrapped, folder / GRAPH_FILE, samples=samples, input_shape=input_shape)
    _write_settings(settings, folder)
    found = read_model(folder, trusted=trusted)
    if samples is not None:
        check_same_arrays(wrapped, found, samples)
    return found


def _random_samples(wrapped: Wrapped, input_shape: Sequence[int] | None) -> Any:
    """Return inputs to check a model with; raise an error that asks for some if they are unknown.

    A model of transformers that was changed after it was built comes back different.
    """
    from nescio.export.samples import random_inputs

    return random_inputs(wrapped.runner, input_shape)


def check_same_arrays(wrapped: Wrapped, found: Wrapped, samples: Any) -> None:
    """Raise unless what was read back gives the detector the same arrays, up to rounding."""
    ours, theirs = wrapped.outputs(samples), found.outputs(samples)
    for name in dict.fromkeys(("logits", *getattr(found.detector, "scores_from", ()))):
        given, expected = theirs.get(name), ours.get(name)
        if isinstance(given, np.ndarray) and isinstance(expected, np.ndarray):
            scale = np.abs(expected, where=np.isfinite(expected), out=np.zeros_like(expected)).max()
            if not np.allclose(given, expected, rtol=_TOLERANCE, atol=_TOLERANCE * scale):
                raise ExportError(
                    f"the model that was read back gives other {name} than the model that was "
                    "saved: transformers or skops builds another one, perhaps because a part of "
                    "the model was replaced after it was made. Nothing was written. Export it with "
                    "nescio.export_onnx."
                )


def _kind_of(wrapped: Wrapped, *, as_graph: bool) -> str:
    if wrapped.runner.kind == SKLEARN:
        return SKLEARN
    return TRANSFORMERS if not as_graph and has_own_files(wrapped.runner) else ONNX


def _of_runner(wrapped: Wrapped) -> dict[str, Any]:
    """Return what a runner has to be made with again; a graph holds this itself."""
    runner = wrapped.runner
    return {
        "features": runner.layers,
        "output": runner.output,
        "from_probs": runner.from_probs,
        "label_names": runner.label_names,
        "preprocessing": None if runner.preprocessing is None else runner.preprocessing.as_dict(),
    }


def _write_settings(settings: Settings, folder: Path) -> None:
    content = {**_KIND.header(), **asdict(settings)}
    content["files"] = {path.name: content_hash(path) for path in decisive_files(folder)}
    text = json.dumps(content, indent=2, ensure_ascii=False)
    (folder / SETTINGS_FILE).write_text(text + "\n", "utf-8")


def decisive_files(folder: Path) -> list[Path]:
    """Return the files of a folder that decide scores and verdicts."""
    found = {path for pattern in DECISIVE for path in folder.glob(pattern)}
    return sorted(path for path in found if path.is_file())


def read_model(folder: Path, *, trusted: Sequence[str] = (), device: Any = None) -> Wrapped:
    """Return the wrapped model that `write_model` wrote."""
    settings = _read_settings(folder)
    detector = load(folder / DETECTOR_FILE)
    options: dict[str, Any] = {
        "features": settings.features or None,
        "output": settings.output,
        "from_probs": settings.from_probs,
        "label_names": settings.label_names,
        "preprocessing": settings.preprocessing and Preprocessing.from_dict(settings.preprocessing),
        "device": device,
    }
    model: Any = folder / GRAPH_FILE
    if settings.model == SKLEARN:
        model = read_estimator(folder / ESTIMATOR_FILE, trusted)
        if PREPARED in settings.features:
            model = make_runner(model, features=read_estimator(folder / PREPARE_FILE, trusted))
    elif settings.model == TRANSFORMERS:
        model = read_transformers(folder)
        if device is not None:
            model = model.to(device)
        if TOKENIZER_FILE in settings.files:
            options["tokenizer"] = folder / TOKENIZER_FILE
    return wrap(model, detector=detector, **options)


def _read_settings(folder: Path) -> Settings:
    path = folder / SETTINGS_FILE
    if not path.exists():
        raise FileError(
            f"there is no {SETTINGS_FILE} in {folder}: save_pretrained of a wrapped model, or "
            "nescio.mlflow, has not written it. To use a model from elsewhere, load it and wrap it."
        )
    try:
        content = json.loads(existing_file(path).read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise FileFormatError(f"{path} is damaged: it is not an object.")
    _KIND.check(content, path)
    table = {name: value for name, value in content.items() if name not in _KIND.header()}
    try:
        settings = from_table(Settings, table)
    except NescioError as error:
        raise FileFormatError(f"{path} is damaged: {error}") from error
    if settings.model not in (ONNX, SKLEARN, TRANSFORMERS):
        raise FileFormatError(f"{path} names an unknown kind of model: {settings.model!r}.")
    _check_files(settings, folder)
    return settings


def _check_files(settings: Settings, folder: Path) -> None:
    """Raise if the model or the detector is another one than those that were saved together."""
    if not settings.files:
        raise FileFormatError(f"{folder / SETTINGS_FILE} names no file of the model.")
    for name, expected in settings.files.items():
        if Path(name).name != name:
            raise FileFormatError(f"{folder / SETTINGS_FILE} names a file elsewhere: {name!r}.")
        if content_hash(existing_file(folder / name)) != expected:
            raise FileFormatError(
                f"{folder / name} has changed since the folder was saved, so that the calibration "
                "does not hold for it. If the model was trained again, calibrate it again too and "
                "save the wrapped model."
            )
    for path in decisive_files(folder):
        if path.name not in settings.files:  # transformers may prefer it to the model's own files
            raise FileFormatError(
                f"{path} does not belong to the model that was saved in this folder. Remove it, or "
                "save the wrapped model in a new folder."
            )
