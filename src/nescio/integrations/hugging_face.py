"""Folders in the layout of Hugging Face: a model and its detector without code, and the hub.

A folder holds `detector.nescio`, `nescio.json`, a model card, and the model as one of these:

- `model.onnx`, the classifier and the detector as one graph, with its labels, its preprocessing
  and its tokenizer;
- `model.skops`, a scikit-learn estimator. `features.skops` is the transformer that makes the
  features of the detector, if there is one.

`nescio.json` has the SHA-256 of these files. Nothing in a folder names a class, a path or a library
to load, except the types of a skops file, which the caller has to trust. MLflow keeps the same
folder, without the card.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nescio._io.files import existing_file, temporary_in
from nescio._io.tensors import FileKind
from nescio._validation import from_table
from nescio.calibration import Calibration
from nescio.detectors import Detector, load
from nescio.detectors.saving import plain_params
from nescio.errors import (
    ExportError,
    FileError,
    FileFormatError,
    NescioError,
    ParameterError,
    listed,
    require,
)
from nescio.models import Runner, Wrapped, wrap
from nescio.models.base import PREPARED, make_runner
from nescio.models.images import content_hash

__all__ = ["from_pretrained", "push_to_hub", "save_pretrained"]

DETECTOR_FILE = "detector.nescio"
GRAPH_FILE = "model.onnx"
ESTIMATOR_FILE = "model.skops"
PREPARE_FILE = "features.skops"
HASHED_FILES = (DETECTOR_FILE, GRAPH_FILE, ESTIMATOR_FILE, PREPARE_FILE)
"""The files that decide scores and verdicts, as far as a folder has them."""

_SETTINGS_FILE = "nescio.json"
_CARD_FILE = "README.md"
_FILES = (_SETTINGS_FILE, *HASHED_FILES, _CARD_FILE)
_KIND = FileKind("nescio.folder", "description of a model's folder")
# The only class of our own in skops files; and the dtype of words, which skops makes of the header
# of an array, and of nothing else. The list is here, not in a file.
_TRUSTED = ("nescio.models.table_features.TableFeatures", "numpy.dtype")
# The key of a path in a graph, after its length in each form that protobuf reads. Without it, there
# is no path; with it, it may be the name of a tensor, which the package onnx tells apart.
_PATH_KEY = re.compile(rb"(\x08|\x88\x80*\x00)location")
_TAGS = ("nescio", "multi-label-classification", "out-of-distribution-detection")
_MOST_LABELS = 100
_HUB = "Check the name, the connection (HF_ENDPOINT, HF_HUB_OFFLINE) and the token (hf auth login)."
_USE = """```python
import nescio as ns

model = ns.from_pretrained("path/of/this/folder")
print(model(inputs))
```"""


def save_pretrained(
    wrapped: Wrapped | Any,
    folder: str | Path,
    *,
    samples: Any = None,
    input_shape: Sequence[int] | None = None,
    trusted: Sequence[str] = (),
    force: bool = False,
) -> None:
    """Write a wrapped model, its detector and a model card to a folder.

    A scikit-learn estimator becomes `model.skops`, and the transformer that makes its features, if
    there is one, `features.skops`. Any other model becomes `model.onnx`, which also holds the
    detector, and the tokenizer if there is one.

    Parameters
    ----------
    wrapped : Wrapped or WithVerdict
        A model with a calibrated detector.
    folder : path
        It is made if it does not exist.
    samples, input_shape : optional
        As `nescio.export_onnx` takes them, for a model that becomes an ONNX file.
    trusted : sequence of str
        Types of a scikit-learn estimator that skops does not trust, such as the trees of a forest.
        An error names them. Whoever loads the folder has to pass them too.
    force : bool
        Replace the files of an earlier model in the folder, including its README.md.
    """
    wrapped, target = wrap(wrapped), Path(folder)
    if not force and target.is_dir() and any(target.iterdir()):
        raise FileError(f"{target} is not empty. Pass force=True to replace the model in it.")
    try:
        with temporary_in(target.resolve().parent, is_folder=True) as temporary:
            loaded = write_model(
                wrapped, temporary, samples=samples, input_shape=input_shape, trusted=trusted
            )
            card = _card(target.resolve().name, loaded, trusted)
            (temporary / _CARD_FILE).write_text(card, "utf-8")
            target.mkdir(exist_ok=True)
            for name in HASHED_FILES:  # of an earlier model, perhaps of another kind
                (target / name).unlink(missing_ok=True)
            for file in sorted(temporary.iterdir()):
                os.replace(file, target / file.name)
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"cannot write {target}: {error.strerror or error}.") from error


def from_pretrained(
    folder: str | Path,
    *,
    download: bool = False,
    revision: str | None = None,
    trusted: Sequence[str] = (),
    device: Any = None,
) -> Wrapped:
    """Return the wrapped model of a folder that `save_pretrained` wrote.

    No code is run that the folder names, and nothing is downloaded unless you ask for it.

    Parameters
    ----------
    folder : path, or name of a repository of the hub
    download : bool
        Take `folder` as the name of a repository of the hub, such as "owner/name", and download it.
    revision : str, optional
        A branch, tag or commit of this repository. Name a commit to get the same files each time.
    trusted : sequence of str
        Types of a scikit-learn estimator that skops does not trust, but that you do.
    device : optional
        Where an ONNX file runs: "cpu" or "cuda".
    """
    path = Path(folder)
    if download:
        hub = require("huggingface_hub", "registries")
        with foreign_errors(f"cannot download the repository {str(folder)!r}", _HUB):
            path = Path(
                hub.snapshot_download(str(folder), revision=revision, allow_patterns=[*_FILES])
            )
    elif not path.is_dir():
        raise FileError(
            f"there is no folder {path}. For a repository of the Hugging Face hub, pass "
            f"download=True: from_pretrained({str(folder)!r}, download=True)."
        )
    elif revision is not None:
        raise FileError("a local folder has no revision: leave it out, or pass download=True.")
    return read_model(path, trusted=trusted, device=device)


def push_to_hub(
    wrapped: Wrapped | Any,
    name: str,
    *,
    private: bool = True,
    token: str | None = None,
    **options: Any,
) -> str:
    """Write a wrapped model to a repository of the Hugging Face hub; return its address.

    Parameters
    ----------
    name : str
        The repository, such as "owner/name". It is made if it does not exist. The files of an
        earlier model in it are replaced.
    token : str, optional
        By default that of `hf auth login`.
    **options
        samples, input_shape and trusted, as `save_pretrained` takes them.

    Examples
    --------
    >>> push_to_hub(guarded, "owner/tagger", samples=inputs[:8])  # doctest: +SKIP
    """
    hub = require("huggingface_hub", "registries")
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / Path(name).name  # the title of the card
        save_pretrained(wrapped, folder, **options)
        with foreign_errors(f"cannot write the repository {name!r}", _HUB):
            api = hub.HfApi(token=token)
            api.create_repo(name, private=private, exist_ok=True)
            # It deletes only files that are not uploaded again.
            commit = api.upload_folder(
                repo_id=name, folder_path=folder, delete_patterns=[*HASHED_FILES]
            )
    return str(commit.commit_url)


@contextmanager
def foreign_errors(what: str, advice: str) -> Iterator[None]:
    """Turn the errors of a registry, which have no common class, into a `FileError`."""
    try:
        yield
    except NescioError:
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise FileError(f"{what}: {reason or type(error).__name__}. {advice}") from error


# --- the model in a folder ------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """The content of `nescio.json`.

    All but `files` is how a scikit-learn estimator was wrapped; a graph holds this itself.
    """

    features: tuple[str, ...] = ()
    output: str | None = None
    label_names: tuple[str, ...] | None = None
    files: Mapping[str, str] = field(default_factory=dict)  # name: SHA-256


def write_model(
    wrapped: Wrapped,
    folder: Path,
    *,
    samples: Any = None,
    input_shape: Sequence[int] | None = None,
    trusted: Sequence[str] = (),
) -> Wrapped:
    """Write a wrapped model to an existing folder; return it as it is read back."""
    wrapped._calibrated().save(folder / DETECTOR_FILE)  # raises unless there is a calibrated one
    settings = Settings()
    runner: Any = wrapped.runner
    if runner.kind == "sklearn":
        settings = Settings(runner.layers, runner.output, runner.label_names)
        write_estimator(runner.model, folder / ESTIMATOR_FILE)
        if PREPARED in runner.layers:
            write_estimator(runner.prepare, folder / PREPARE_FILE)
    else:
        require("torch", "torch")
        from nescio.export import export_onnx

        try:
            export_onnx(wrapped, folder / GRAPH_FILE, samples=samples, input_shape=input_shape)
        except ExportError as error:
            raise ExportError(
                f"{error} To use this model as it is, save the detector alone: wrapped.save(path). "
                "Later, load the model with your own code, and wrap(model, detector=path)."
            ) from error
    files = {name: folder / name for name in HASHED_FILES if (folder / name).exists()}
    hashes = {name: content_hash(path) for name, path in files.items()}
    content = {**_KIND.header(), **asdict(settings), "files": hashes}
    text = json.dumps(content, indent=2, ensure_ascii=False)
    (folder / _SETTINGS_FILE).write_text(text + "\n", "utf-8")
    return read_model(folder, trusted=trusted)


def read_model(folder: Path, *, trusted: Sequence[str] = (), device: Any = None) -> Wrapped:
    """Return the wrapped model that `write_model` wrote. Nothing is downloaded."""
    settings = _read_settings(folder)
    detector = load(folder / DETECTOR_FILE)
    if GRAPH_FILE in settings.files:
        _check_one_file(folder / GRAPH_FILE)
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
    path = folder / _SETTINGS_FILE
    if not path.exists():
        raise FileError(
            f"there is no {_SETTINGS_FILE} in {folder}: nescio has not written this folder. To use "
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
                f"{folder / name} has changed since the folder was saved. If the model was trained "
                "again, calibrate it again too and save the wrapped model."
            )
    return settings


def _check_one_file(graph: Path) -> None:
    """Raise if a graph has weights in other files: it names their paths, and they have no hash."""
    if _PATH_KEY.search(graph.read_bytes()) is None:
        return
    onnx = require("onnx", "onnx")
    try:
        names_files = _has_field(onnx.load(graph, load_external_data=False), "external_data")
    except Exception as error:  # protobuf's errors have no common class
        raise FileFormatError(f"cannot read {graph} as ONNX: {error}") from error
    if names_files:
        raise FileFormatError(
            f"{graph} has weights in other files, which nescio never writes. To use such a graph, "
            "wrap its path."
        )


def _has_field(message: Any, name: str) -> bool:
    """Return whether a message of protobuf, or one within it, has a field."""
    for kind, value in message.ListFields():
        parts = value if isinstance(value, Sequence) else [value]
        is_nested = kind.message_type is not None
        if kind.name == name or (is_nested and any(_has_field(part, name) for part in parts)):
            return True
    return False


# --- scikit-learn estimators as skops files -------------------------------------------------------


def write_estimator(model: Any, path: Path) -> None:
    """Write a fitted estimator."""
    io = require("skops.io", "registries")
    try:
        io.dump(model, path)
    except Exception as error:  # skops and what it calls raise many kinds
        raise ParameterError(
            f"skops cannot write this {type(model).__name__}: {error}. Functions and classes of "
            "your own cannot be loaded without your code. Use what scikit-learn has."
        ) from error


def read_estimator(path: Path, trusted: Sequence[str]) -> Any:
    """Return the estimator of a file; only types that skops or the caller trusts are made."""
    if isinstance(trusted, str):
        raise ParameterError(f"trusted must be a sequence of names, got the text {trusted!r}.")
    io = require("skops.io", "registries")
    try:
        unknown = {*io.get_untrusted_types(file=path)} - {*_TRUSTED, *trusted}
        if not unknown:
            return io.load(path, trusted=[*_TRUSTED, *trusted])
    except Exception as error:  # a damaged file can fail anywhere in skops
        raise FileFormatError(f"cannot read the estimator of {path}: {error}") from error
    nameless = [name for name in sorted(unknown) if "<" in name]  # <lambda>, or within <locals>
    if nameless:
        raise ParameterError(
            f"the estimator contains {', '.join(nameless)}, which cannot be found by this name "
            "when the model is loaded. Define it at the top level of a module."
        )
    raise ParameterError(
        f"the estimator contains types that skops does not trust: {', '.join(sorted(unknown))}. A "
        "hostile file could use them to crash the process or to run code. If you know where the "
        f"model comes from, pass trusted={[*trusted, *sorted(unknown)]!r}. Classes of your own can "
        "be loaded only where your code is installed."
    )


# --- the model card: a README.md with the header that the hub reads -------------------------------


def _card(title: str, wrapped: Wrapped, trusted: Sequence[str]) -> str:
    """Return the text of the card of a model as it was read back from its files."""
    detector: Any = wrapped.detector
    names = wrapped.label_names
    what = "several labels at once" if names is None else f"{len(names):,} labels"
    sections = [
        _header(wrapped.runner),
        f"# {_plain(title)}",
        f"A multi-label classifier of {what}. Each prediction comes with a verdict: whether the "
        "input is like the data that the model was calibrated on (in-distribution). Do not trust "
        "the labels of an input that is out.",
        "## Use",
        _USE.replace(")", f", trusted={[*trusted]})", 1) if trusted else _USE,
        "## Calibration",
        _calibration_text(detector),
    ]
    if names is not None:
        shown = [f"`{_plain(name)}`" for name in names]
        sections += ["## Labels", listed(shown, _MOST_LABELS, quoted=False)]
    return "\n\n".join(sections) + "\n"


def _header(runner: Runner) -> str:
    """Return the YAML header; the values are JSON, which is YAML too."""
    is_estimator = runner.kind == "sklearn"
    task = None
    if runner.tokenizer is not None:
        task = "text-classification"
    elif runner.preprocessing is not None:
        task = "image-classification"
    elif is_estimator and hasattr(runner.model, "n_features_in_"):
        task = "tabular-classification"
    entries = {"library_name": "sklearn" if is_estimator else "nescio", "pipeline_tag": task}
    lines = [f"{name}: {json.dumps(value)}" for name, value in entries.items() if value]
    return "\n".join(["---", *lines, "tags:", *(f"- {tag}" for tag in _TAGS), "---"])


def _calibration_text(detector: Detector) -> str:
    calibration: Calibration = detector.calibration_
    params = json.dumps(chosen_params(detector))
    thresholds = ", ".join(
        f"{value:.6g}" if calibration.by is None else f"{value:.6g} ({_plain(name)})"
        for name, value in calibration.threshold_values.items()
    )
    statement = "\n".join(f"> {_plain(line)}" for line in calibration.statement().splitlines())
    return (
        f"The detector is `{detector.name}` with `{_plain(params)}`. It was calibrated "
        f"on {calibration.n_samples:,} held-out samples. Threshold: {thresholds}.\n\n{statement}"
    )


def _plain(text: str) -> str:
    """Return text on one line that cannot end a code span or start HTML."""
    return " ".join(text.split()).replace("`", "'").replace("<", "&lt;")


def chosen_params(detector: Detector) -> dict[str, Any]:
    """Return the parameters without the TPR, because `calibrate` may have used another one."""
    return {name: value for name, value in plain_params(detector).items() if name != "tpr"}
