"""The files that transformers writes for a model, read without running code that they name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nescio._io.files import existing_file
from nescio._io.tables import require
from nescio.errors import FileFormatError
from nescio.runners import Runner
from nescio.runners.tokenizing import TextTokenizer, load_tokenizer

CONFIG_FILE = "config.json"
TOKENIZER_FILE = "tokenizer.json"


def has_own_files(runner: Runner) -> bool:
    """Return whether transformers can write this model, and build it again by its name."""
    kind = type(runner.model)
    return runner.kind == "transformers" and _class_of(kind.__name__) is kind


def write_transformers(runner: Runner, folder: Path) -> None:
    """Write config.json, the weights as safetensors, and the tokenizer, if there is one."""
    runner.model.save_pretrained(folder)
    if runner.tokenizer is not None:
        _write_tokenizer(runner.tokenizer, folder)


def _write_tokenizer(tokenizer: TextTokenizer, folder: Path) -> None:
    """Write the tokenizer as transformers does, so that its AutoTokenizer reads it too."""
    content = load_tokenizer(tokenizer.json())
    given = {
        "pad_token": (content.padding or {}).get("pad_token"),
        "model_max_length": tokenizer.max_tokens,
    }
    fast = require("transformers", "hf").PreTrainedTokenizerFast(
        tokenizer_object=content, **{name: value for name, value in given.items() if value}
    )
    fast.save_pretrained(folder)
    tokenizer.save(folder / TOKENIZER_FILE, force=True)  # exactly as it is


def read_transformers(folder: Path) -> Any:
    """Return the model of a folder, in eval mode. Its class is one of transformers' own."""
    kind = _class_of(_architecture(folder))
    if kind is None:
        raise FileFormatError(
            f"{folder / CONFIG_FILE} names {_architecture(folder)!r}, which is not a model of this "
            "version of transformers."
        )
    try:
        model, about = kind.from_pretrained(
            folder,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:  # transformers and safetensors raise many kinds
        raise FileFormatError(f"transformers cannot load the model of {folder}: {error}") from error
    for what in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if about.get(what):  # transformers would fill in random weights
            names = ", ".join(map(str, sorted(about[what], key=str)[:3]))
            raise FileFormatError(f"the weights of {folder} do not fit its config: {what} {names}.")
    return model.eval()


def _architecture(folder: Path) -> str:
    path = existing_file(folder / CONFIG_FILE)
    try:
        config = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is not JSON: {error}") from error
    names = config.get("architectures") if isinstance(config, dict) else None
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise FileFormatError(f"{path} does not name one architecture, but {names!r}.")
    key = _key_of_code(config)
    if key is not None:
        raise FileFormatError(
            f"{path} names code from elsewhere ({key}), which nescio does not run. Load the model "
            "yourself, and wrap it with the detector of the folder."
        )
    return names[0]


def _key_of_code(entries: Any) -> str | None:
    """Return the key of a config that names code: a module of its own, or a kernel of the hub."""
    if isinstance(entries, list):
        entries = dict(enumerate(entries))
    if not isinstance(entries, dict):
        return None
    for key, value in entries.items():
        if key == "auto_map" or (str(key).endswith("_implementation") and "/" in str(value)):
            return str(key)
        found = _key_of_code(value)
        if found is not None:
            return found
    return None


def _class_of(name: str) -> Any:
    """Return transformers' model class of this name; None if there is none."""
    transformers = require("transformers", "hf")
    kind = getattr(transformers, name, None)
    is_model = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
    return kind if is_model else None
