"""Repositories in the layout of Hugging Face: a local folder, and the hub if the caller asks."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from nescio._io.files import temporary_name
from nescio._io.tables import require
from nescio.errors import FileError
from nescio.metrics import Evaluation
from nescio.metrics.comparison import Comparison
from nescio.registries.card import CARD_FILE, card_text, result_rows
from nescio.registries.folder import (
    DECISIVE,
    DETECTOR_FILE,
    ESTIMATOR_FILE,
    GRAPH_FILE,
    PREPARE_FILE,
    SETTINGS_FILE,
    as_wrapped,
    decisive_files,
    read_model,
    write_model,
)
from nescio.runners import Wrapped

# What is downloaded: neither code nor pickled weights, which would not be read.
_FILES = (SETTINGS_FILE, DETECTOR_FILE, GRAPH_FILE, ESTIMATOR_FILE, PREPARE_FILE, CARD_FILE)
_PATTERNS = [*_FILES, "*.safetensors", "*.json", "*.txt", "*.model"]


def save_pretrained(
    wrapped: Wrapped | Any,
    folder: str | Path,
    *,
    samples: Any = None,
    input_shape: Sequence[int] | None = None,
    evaluation: Evaluation | Comparison | None = None,
    trusted: Sequence[str] = (),
    title: str | None = None,
    force: bool = False,
) -> None:
    """Write a wrapped model, its detector and a model card to a folder.

    A model of transformers is written by its own `save_pretrained`. A scikit-learn estimator
    becomes `model.skops`, and the transformer that makes its features, if there is one,
    `features.skops`. Any other model becomes `model.onnx`, which also holds the detector.

    Parameters
    ----------
    wrapped : Wrapped or WithVerdict
        A model with a calibrated detector.
    folder : path
        It is made if it does not exist.
    samples, input_shape : optional
        As `nescio.export_onnx` takes them, for a model that becomes an ONNX file. With samples,
        any model is checked to give the same outputs when it is read back; a transformers model
        without samples is checked on random inputs.
    evaluation : Evaluation or Comparison, optional
        For the table of the model card.
    trusted : sequence of str
        Types of a scikit-learn estimator that skops does not trust, such as the trees of a forest.
        An error names them. Whoever loads the folder has to pass them too.
    title : str, optional
        The title of the model card; by default the name of the folder.
    force : bool
        Replace the files of an earlier model in the folder: its README.md too, and all weights.
    """
    wrapped, target = as_wrapped(wrapped), Path(folder)
    if target.exists() and not target.is_dir():
        raise FileError(f"{target} is a file, but a folder is needed.")
    if not force and target.is_dir() and any(target.iterdir()):
        raise FileError(f"{target} is not empty. Pass force=True to replace the model in it.")
    result = None if evaluation is None else list(result_rows(evaluation))
    temporary = target.resolve().parent / temporary_name()
    options = {"samples": samples, "input_shape": input_shape, "trusted": trusted}
    try:
        temporary.mkdir(parents=True)
        found = write_model(wrapped, temporary, **options)
        text = card_text(title or target.resolve().name, found, result)
        (temporary / CARD_FILE).write_text(text, "utf-8")
        target.mkdir(exist_ok=True)
        for file in decisive_files(target):  # of an earlier model, perhaps of another kind
            file.unlink()
        for file in sorted(temporary.iterdir()):
            os.replace(file, target / file.name)
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"cannot write {target}: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


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
        Where the model runs: a device of torch or, for an ONNX file, "cpu" or "cuda".
    """
    if download:
        return read_model(_downloaded(str(folder), revision), trusted=trusted, device=device)
    path = Path(folder)
    if not path.is_dir():
        raise FileError(
            f"there is no folder {path}. For a repository of the Hugging Face hub, pass "
            f"download=True: from_pretrained({str(folder)!r}, download=True)."
        )
    if revision is not None:
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
    wrapped : Wrapped or WithVerdict
    name : str
        The repository, such as "owner/name". It is made if it does not exist. The files of an
        earlier model in it are replaced.
    private : bool
        Whether a new repository is private.
    token : str, optional
        By default that of `hf auth login`.
    **options
        samples, input_shape, evaluation, trusted and title, as `save_pretrained` takes them.

    Examples
    --------
    >>> push_to_hub(guarded, "owner/tagger", samples=inputs[:8])  # doctest: +SKIP
    """
    hub = require("huggingface_hub", "hf")
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "model"
        save_pretrained(wrapped, folder, **{"title": name, **options})
        with _hub_errors(f"cannot write the repository {name!r}"):
            api = hub.HfApi(token=token)
            api.create_repo(name, private=private, exist_ok=True)
            stale = [file for file in api.list_repo_files(name) if _is_decisive(file)]
            found = api.upload_folder(repo_id=name, folder_path=folder, delete_patterns=stale)
    return str(found.commit_url)


def _is_decisive(file: str) -> bool:
    """Return whether a file of a repository, not of a folder in it, would decide the scores."""
    return "/" not in file and any(fnmatch(file, pattern) for pattern in DECISIVE)


def _downloaded(name: str, revision: str | None) -> Path:
    hub = require("huggingface_hub", "hf")
    with _hub_errors(f"cannot download the repository {name!r}"):
        return Path(hub.snapshot_download(name, revision=revision, allow_patterns=_PATTERNS))


@contextmanager
def _hub_errors(what: str) -> Iterator[None]:
    """Say what failed: the hub's errors and those of its connections have no common class."""
    try:
        yield
    except Exception as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise FileError(
            f"{what} at the Hugging Face hub: {reason or type(error).__name__}. Check the name, "
            "your connection (HF_ENDPOINT, HF_HUB_OFFLINE) and your token (hf auth login)."
        ) from error
