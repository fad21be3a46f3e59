"""The folder format that Hugging Face and MLflow share: a model and its detector without code.

A folder holds `detector.nescio`, `nescio.json`, and the model as one of these:

- `model.onnx`, the classifier and the detector as one graph, with its labels, its preprocessing
  and its tokenizer;
- `model.skops`, a scikit-learn estimator. `features.skops` is the transformer that makes the
  features of the detector, if there is one.

`nescio.json` has the SHA-256 of these files. Nothing in a folder names a class, a path or a library
to load, except the types of a skops file, which the caller has to trust.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nescio._io.files import existing_file
from nescio._io.tensors import FileKind
from nescio._io.toml import from_table
from nescio._optional import require
from nescio.detectors import Detector, load
from nescio.detectors.saving import plain_params
from nescio.errors import FileError, FileFormatError, NescioError, ParameterError
from nescio.metrics import Comparison, Evaluation
from nescio.models import Wrapped, make_runner, wrap
from nescio.models.base import PREPARED
from nescio.models.images import content_hash

SETTINGS_FILE = "nescio.json"
DETECTOR_FILE = "detector.nescio"
GRAPH_FILE = "model.onnx"
ESTIMATOR_FILE = "model.skops"
PREPARE_FILE = "features.skops"
HASHED_FILES = (DETECTOR_FILE, GRAPH_FILE, ESTIMATOR_FILE, PREPARE_FILE)
"""The files that decide scores and verdicts, as far as a folder has them."""

_KIND = FileKind("nescio.folder", "description of a model's folder")
# The only class of our own in skops files. The list is here, not in a file.
_OWN_TYPES = ("nescio.integrations.sklearn.TableFeatures",)


@dataclass(frozen=True)
class Settings:
    """The content of `nescio.json`.

    All but `files` is how a scikit-learn estimator was wrapped; a graph holds this itself.
    """

    features: tuple[str, ...] = ()
    output: str | None = None
    label_names: tuple[str, ...] | None = None
    files: Mapping[str, str] = field(default_factory=dict)  # name: SHA-256


def as_wrapped(model: Any) -> Wrapped:
    """Return a wrapped model, also that of a fitted `nescio.WithVerdict`."""
    wrapped = getattr(model, "wrapped_", model)
    if not isinstance(wrapped, Wrapped):
        raise ParameterError(
            f"a wrapped model is needed, got {type(model).__name__}: wrap it with nescio.wrap and "
            "calibrate it. A WithVerdict must be fitted."
        )
    return wrapped


def write_model(
    wrapped: Wrapped,
    folder: Path,
    *,
    samples: Any = None,
    input_shape: Sequence[int] | None = None,
    trusted: Sequence[str] = (),
) -> Wrapped:
    """Write a wrapped model to an existing folder; return it as it is read back."""
    wrapped.save(folder / DETECTOR_FILE)  # raises unless there is a calibrated one
    settings = Settings()
    runner: Any = wrapped.runner
    if runner.kind == "sklearn":
        settings = Settings(runner.layers, runner.output, runner.label_names)
        write_estimator(runner.model, folder / ESTIMATOR_FILE, trusted)
        if PREPARED in runner.layers:
            write_estimator(runner.prepare, folder / PREPARE_FILE, trusted)
    else:
        require("torch", "torch")
        from nescio.export import export_onnx

        export_onnx(wrapped, folder / GRAPH_FILE, samples=samples, input_shape=input_shape)
    files = {name: folder / name for name in HASHED_FILES if (folder / name).exists()}
    hashes = {name: content_hash(path) for name, path in files.items()}
    content = {**_KIND.header(), **asdict(settings), "files": hashes}
    text = json.dumps(content, indent=2, ensure_ascii=False)
    (folder / SETTINGS_FILE).write_text(text + "\n", "utf-8")
    return read_model(folder, trusted=trusted)


def read_model(folder: Path, *, trusted: Sequence[str] = (), device: Any = None) -> Wrapped:
    """Return the wrapped model that `write_model` wrote. Nothing is downloaded."""
    settings = _read_settings(folder)
    detector = load(folder / DETECTOR_FILE)
    if GRAPH_FILE in settings.files:
        return wrap(folder / GRAPH_FILE, detector=detector, device=device)
    model = read_estimator(folder / ESTIMATOR_FILE, trusted)
    if PREPARE_FILE in settings.files:
        model = make_runner(model, features=read_estimator(folder / PREPARE_FILE, trusted))
    return wrap(
        model,
        detector=detector,
        features=settings.features or None,
        output=settings.output,
        label_names=settings.label_names,
    )


def _read_settings(folder: Path) -> Settings:
    path = folder / SETTINGS_FILE
    if not path.exists():
        raise FileError(
            f"there is no {SETTINGS_FILE} in {folder}: nescio has not written this folder. To use "
            "a model from elsewhere, load it and wrap it."
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
    if DETECTOR_FILE not in settings.files or not {GRAPH_FILE, ESTIMATOR_FILE} & {*settings.files}:
        raise FileFormatError(f"{path} names no model, or no detector.")
    for name, expected in settings.files.items():
        if name not in HASHED_FILES:
            raise FileFormatError(f"{path} names an unknown file: {name!r}.")
        if content_hash(existing_file(folder / name)) != expected:
            raise FileFormatError(
                f"{folder / name} has changed since the folder was saved, so that the calibration "
                "does not hold for it. If the model was trained again, calibrate it again too and "
                "save the wrapped model."
            )
    return settings


# --- scikit-learn estimators as skops files -------------------------------------------------------


def write_estimator(model: Any, path: Path, trusted: Sequence[str]) -> None:
    """Write a fitted estimator; raise if reading it would need types that are not trusted."""
    io = require("skops.io", "registries")
    try:
        io.dump(model, path)
    except Exception as error:  # skops and what it calls raise many kinds
        raise ParameterError(
            f"skops cannot write this {type(model).__name__}: {error}. Functions and classes of "
            "your own cannot be loaded without your code. Use what scikit-learn has."
        ) from error
    _check_types(io, path, trusted)


def read_estimator(path: Path, trusted: Sequence[str]) -> Any:
    """Return the estimator of a file; only types that skops or the caller trusts are made."""
    io = require("skops.io", "registries")
    existing_file(path)
    try:
        _check_types(io, path, trusted)
        return io.load(path, trusted=[*_OWN_TYPES, *trusted])
    except ParameterError:
        raise
    except Exception as error:  # a damaged file can fail anywhere in skops
        raise FileFormatError(f"cannot read the estimator of {path}: {error}") from error


def _check_types(io: Any, path: Path, trusted: Sequence[str]) -> None:
    if isinstance(trusted, str):
        raise ParameterError(f"trusted must be a sequence of names, got the text {trusted!r}.")
    unknown = sorted(set(io.get_untrusted_types(file=path)) - {*_OWN_TYPES, *trusted})
    nameless = [name for name in unknown if "<" in name]  # <lambda>, or within <locals>
    if nameless:
        raise ParameterError(
            f"the estimator contains {', '.join(nameless)}, which cannot be found by this name "
            "when the model is loaded. Define it at the top level of a module."
        )
    if unknown:
        raise ParameterError(
            f"the estimator contains types that skops does not trust: {', '.join(unknown)}. A "
            "hostile file could use them to crash the process or to run code. If you know where "
            f"the model comes from, pass trusted={[*trusted, *unknown]!r}. Classes of your own can "
            "be loaded only where your code is installed."
        )


# --- what model cards and MLflow runs say about a model -------------------------------------------


def chosen_params(detector: Detector) -> dict[str, Any]:
    """Return the parameters without the TPR, because `calibrate` may have used another one."""
    return {name: value for name, value in plain_params(detector).items() if name != "tpr"}


def result_rows(result: Any) -> Iterator[tuple[str, str, Evaluation]]:
    """Yield OOD set, detector (both empty for a single evaluation) and evaluation, best first."""
    if isinstance(result, Evaluation):
        yield "", "", result
    elif isinstance(result, Comparison):
        for ood, results in result.results.items():
            for name in result.ranked(ood):
                yield ood, name, results[name]
    else:
        raise ParameterError(
            f"an Evaluation or a Comparison is needed, got {type(result).__name__}. "
            "nescio.evaluate returns the one, nescio.compare the other."
        )
