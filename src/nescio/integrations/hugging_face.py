"""Repositories in the layout of Hugging Face: a local folder, and the hub if the caller asks."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nescio._io.files import temporary_name
from nescio._optional import require
from nescio.calibration import Calibration
from nescio.detectors import Detector
from nescio.errors import FileError
from nescio.integrations.model_folder import (
    HASHED_FILES,
    SETTINGS_FILE,
    as_wrapped,
    chosen_params,
    read_model,
    result_rows,
    write_model,
)
from nescio.metrics import Comparison, Evaluation
from nescio.models import Runner, Wrapped

__all__ = ["from_pretrained", "push_to_hub", "save_pretrained"]

_CARD_FILE = "README.md"
_FILES = (SETTINGS_FILE, *HASHED_FILES, _CARD_FILE)
_TAGS = ("nescio", "multi-label-classification", "out-of-distribution-detection")
_MOST_LABELS = 100
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
    evaluation: Evaluation | Comparison | None = None,
    trusted: Sequence[str] = (),
    title: str | None = None,
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
    evaluation : Evaluation or Comparison, optional
        For the table of the model card.
    trusted : sequence of str
        Types of a scikit-learn estimator that skops does not trust, such as the trees of a forest.
        An error names them. Whoever loads the folder has to pass them too.
    title : str, optional
        The title of the model card; by default the name of the folder.
    force : bool
        Replace the files of an earlier model in the folder, including its README.md.
    """
    wrapped, target = as_wrapped(wrapped), Path(folder)
    if target.exists() and not target.is_dir():
        raise FileError(f"{target} is a file, but a folder is needed.")
    if not force and target.is_dir() and any(target.iterdir()):
        raise FileError(f"{target} is not empty. Pass force=True to replace the model in it.")
    rows = [] if evaluation is None else list(result_rows(evaluation))
    temporary = target.resolve().parent / temporary_name()
    try:
        temporary.mkdir(parents=True)
        loaded = write_model(
            wrapped, temporary, samples=samples, input_shape=input_shape, trusted=trusted
        )
        card = _card(title or target.resolve().name, loaded, rows)
        (temporary / _CARD_FILE).write_text(card, "utf-8")
        target.mkdir(exist_ok=True)
        for name in HASHED_FILES:  # of an earlier model, perhaps of another kind
            (target / name).unlink(missing_ok=True)
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
        Where an ONNX file runs: "cpu" or "cuda".
    """
    if download:
        hub = require("huggingface_hub", "registries")
        with _hub_errors(f"cannot download the repository {str(folder)!r}"):
            path = Path(
                hub.snapshot_download(str(folder), revision=revision, allow_patterns=[*_FILES])
            )
        return read_model(path, trusted=trusted, device=device)
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
    hub = require("huggingface_hub", "registries")
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "model"
        save_pretrained(wrapped, folder, **{"title": name, **options})
        with _hub_errors(f"cannot write the repository {name!r}"):
            api = hub.HfApi(token=token)
            api.create_repo(name, private=private, exist_ok=True)
            # It deletes only files that are not uploaded again.
            commit = api.upload_folder(
                repo_id=name, folder_path=folder, delete_patterns=[*HASHED_FILES]
            )
    return str(commit.commit_url)


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


# --- the model card: a README.md with the header that the hub reads -------------------------------


def _card(title: str, wrapped: Wrapped, rows: list[tuple[str, str, Evaluation]]) -> str:
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
        _USE,
        "## Calibration",
        _calibration_text(detector),
    ]
    if names is not None:
        more = [f"and {len(names) - _MOST_LABELS:,} more"] if len(names) > _MOST_LABELS else []
        shown = [f"`{_plain(name)}`" for name in names[:_MOST_LABELS]]
        sections += ["## Labels", ", ".join([*shown, *more])]
    if rows:
        sections += ["## Evaluation", _results_table(rows)]
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


def _results_table(rows: list[tuple[str, str, Evaluation]]) -> str:
    lines = [
        f"| OOD set | detector | {rows[0][2].fpr_name} ↓ | AUROC ↑ | AUPR ↑ |",
        "|---|---|---|---|---|",
        *(
            f"| {_cell(ood)} | {_cell(name)} | {result.fpr} | {result.auroc} | {result.aupr} |"
            for ood, name, result in rows
        ),
    ]
    return (
        "\n".join(lines) + "\n\nIn per cent, with intervals in brackets. In-distribution samples "
        "are the positive side."
    )


def _plain(text: str) -> str:
    """Return text on one line that cannot end a code span or start HTML."""
    return " ".join(text.split()).replace("`", "'").replace("<", "&lt;")


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|") or "-"
