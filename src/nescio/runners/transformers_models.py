"""A runner for transformers models for multi-label classification of text or images."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from nescio._io.tables import require
from nescio.errors import InputError, ParameterError
from nescio.runners.torch_models import TorchRunner

_MULTI_LABEL = "multi_label_classification"
_AFTER_INPUT_IDS = ("attention_mask", "token_type_ids")


class TransformersRunner(TorchRunner):
    """Runs a `PreTrainedModel` whose config says multi-label classification."""

    kind = "transformers"

    def __init__(self, model: Any, **settings: Any) -> None:
        _check_problem(model)
        if settings.get("label_names") is None:
            settings["label_names"] = _label_names(model.config)
        if settings.get("output") is None and not getattr(model.config, "return_dict", True):
            settings["output"] = 0
        super().__init__(model, **settings)

    def input_names(self, example: Any = None) -> tuple[str, ...]:
        """Return the names of the inputs that `module` takes by position.

        `example` is what the tokenizer or the image processor returns. Without it, the names are
        the usual ones of models of this kind.
        """
        main = str(self.model.main_input_name)
        known = inspect.signature(self.model.forward).parameters if main == "input_ids" else ()
        usual = (main, *(name for name in _AFTER_INPUT_IDS if name in known))
        if not isinstance(example, Mapping):
            return usual
        given = [
            name
            for name, part in example.items()
            if name != "labels" and isinstance(part, Tensor | np.ndarray | list)
        ]
        return (*(n for n in usual if n in given), *(n for n in given if n not in usual))

    def _run(self, inputs: Any) -> dict[str, Any]:
        if isinstance(inputs, tuple):
            raise InputError(
                "pass the inputs by name, as the tokenizer or the image processor returns them."
            )
        if not isinstance(inputs, Mapping):
            inputs = {self.model.main_input_name: inputs}
        return super()._run(inputs)

    def describe(self) -> dict[str, Any]:
        """Return what a manifest says about the model."""
        version = require("transformers", "hf").__version__
        return {**super().describe(), "transformers_version": version}


def _check_problem(model: Any) -> None:
    """Raise unless the config says that the model has one sigmoid per label."""
    problem = getattr(model.config, "problem_type", None)
    if problem == _MULTI_LABEL:
        return
    name = type(model).__name__
    if problem is None:
        raise ParameterError(
            f"the config of this {name} does not say whether several labels can be present at "
            "once. If it was trained that way (one sigmoid per label), set "
            f"model.config.problem_type = {_MULTI_LABEL!r}. nescio is not made for labels that "
            "exclude each other (softmax)."
        )
    raise ParameterError(
        f"this {name} is for {problem}, but nescio is for models whose labels can be present "
        f"together: train one with config.problem_type = {_MULTI_LABEL!r}. If this one was and the "
        "config is wrong, correct it and wrap the model again."
    )


def _label_names(config: Any) -> tuple[str, ...] | None:
    """Return the names in the config, unless they are only numbers."""
    names = getattr(config, "id2label", None)
    if not names or all(re.fullmatch(r"LABEL_\d+", str(name)) for name in names.values()):
        return None
    return tuple(str(names[at]) for at in sorted(names, key=int))
