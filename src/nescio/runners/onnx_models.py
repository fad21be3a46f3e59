"""An ONNX file, run by onnxruntime. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from nescio._io.files import existing_file
from nescio._io.tables import require
from nescio._validation import Array, is_torch, to_numpy
from nescio.data.images import content_hash
from nescio.errors import FileFormatError, InputError, ParameterError, ShapeError
from nescio.runners.base import Wrapped

LABEL_NAMES_KEY = "nescio.label_names"
"""Where the metadata of a file keeps them."""

DTYPES: dict[str, Any] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
}
"""NumPy's type for what onnxruntime calls it, of those that are taken."""

_FLOATS = ("tensor(float)", "tensor(float16)", "tensor(double)")


class OnnxModel(Wrapped):
    """An ONNX graph.

    Attributes
    ----------
    path : Path or None
        The file; None if a session was wrapped.
    session : InferenceSession
    input_names : tuple of str
    """

    kind = "onnx"

    def __init__(self, model: Any, **settings: Any) -> None:
        opened, device = settings.pop("opened", (None, None))
        self.path = existing_file(model) if isinstance(model, str | Path) else None
        if self.path is not None:
            reuse = opened is not None and device == settings.get("device")
            self.session = opened if reuse else _opened(self.path, settings.get("device"))
        elif settings.get("device") is not None:
            raise ParameterError("a session runs where it was made for: leave device out.")
        else:
            self.session = model
        self._inputs = {node.name: node for node in self.session.get_inputs()}
        self._outputs = {node.name: node for node in self.session.get_outputs()}
        settings["output"] = self._logits_name(settings.get("output"))
        if settings.get("features") is not None:
            self._check_output("features", settings["features"])
        if settings.get("label_names") is None:
            settings["label_names"] = _label_names(self.session)
        super().__init__(model, **settings)

    def settings(self) -> dict[str, Any]:
        """What to wrap the model with again, without reading the file again."""
        return {**super().settings(), "opened": (self.session, self.device)}

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the graph's inputs."""
        return tuple(self._inputs)

    def _logits_name(self, output: Any) -> str:
        if output is not None:
            self._check_output("output", output)
        matrices = [
            str(name)
            for name, node in self._outputs.items()
            if node.type in _FLOATS and (not node.shape or len(node.shape) == 2)
        ]
        if output in matrices:
            return str(output)
        if output is not None:
            raise ParameterError(
                f"output {output!r} is no matrix of floating point. The graph has the outputs "
                f"{self._listed()}.{self._sklearn_hint()}"
            )
        if "logits" in matrices:
            return "logits"
        if len(matrices) == 1:
            return matrices[0]
        hint = "Say which holds the logits (--logits, in Python output)."
        if not matrices:
            hint = "None is a matrix of floating point." + self._sklearn_hint()
        raise ParameterError(f"the graph has the outputs {self._listed()}. {hint}")

    def _sklearn_hint(self) -> str:
        kinds = [node.type for node in self._outputs.values()]
        if any(kind.startswith("seq(map") for kind in kinds):
            return " Convert the scikit-learn model again, with zipmap=False."
        if any(kind.startswith("seq(") for kind in kinds) or "probabilities" in self._outputs:
            return (
                " skl2onnx gives one for OneVsRestClassifier and MLPClassifier. Run a forest or a "
                "MultiOutputClassifier in Python: wrap the estimator itself."
            )
        return ""

    def _check_output(self, parameter: str, name: Any) -> None:
        if name not in self._outputs:
            raise ParameterError(
                f"{parameter} must be an output of the graph, got {name!r}. It has "
                f"{self._listed()}."
            )

    def _listed(self) -> str:
        return ", ".join(
            f"{name} ({node.type} of shape {node.shape})" for name, node in self._outputs.items()
        )

    def _is_data(self, inputs: Any) -> bool:
        return isinstance(inputs, np.ndarray | Mapping | tuple) or is_torch(inputs)

    def _rows_a_batch(self, batch_size: int) -> int:
        """The graph's own number of rows, if it takes no other."""
        fixed = {
            node.shape[0]
            for node in self._inputs.values()
            if node.shape and isinstance(node.shape[0], int)
        }
        return int(min(fixed, default=batch_size))

    def _run(self, inputs: Any) -> tuple[Any, Any]:
        feed = {name: self._typed(name, part) for name, part in self._by_name(inputs).items()}
        names = [self.output] + ([] if self.features is None else [self.features])
        try:
            logits, *features = self.session.run(names, feed)
        except Exception as error:  # onnxruntime has no common class for these
            reason = str(error).strip().splitlines()[0]
            raise InputError(f"the graph cannot run on these inputs: {reason}") from error
        return logits, _pooled(features[0], self.features) if features else None

    def _by_name(self, inputs: Any) -> dict[str, Any]:
        if isinstance(inputs, Mapping):
            given = dict(inputs)
        else:
            parts = inputs if isinstance(inputs, tuple) else (inputs,)
            given = dict(zip(self._inputs, parts, strict=False))
            if len(parts) != len(self._inputs):
                given = {str(at): part for at, part in enumerate(parts)}
        if given.keys() != self._inputs.keys():
            raise InputError(
                f"the graph takes the inputs {', '.join(self._inputs)}, got "
                f"{', '.join(given) or 'none'}. Pass a mapping by name."
            )
        return given

    def _typed(self, name: str, part: Any) -> Array:
        """An input in the type that the graph takes; integers may become floats, not vice versa."""
        node, array = self._inputs[name], to_numpy(part)
        wanted = DTYPES.get(node.type)
        if wanted is not None and array.dtype != wanted:
            # Precision may go, as NumPy's own float64 is more than most graphs take.
            if not np.can_cast(array.dtype, wanted, "same_kind"):
                raise InputError(f"input {name!r} must be {node.type}, got {array.dtype}.")
            array = array.astype(wanted)
        if node.shape and isinstance(node.shape[0], int) and len(array) != node.shape[0]:
            raise ShapeError(
                f"the graph takes {node.shape[0]} samples at a time, no more and no fewer, and "
                f"{len(array)} came (at the end, perhaps). Export it with a dynamic batch."
            )
        return array

    @cached_property
    def _sha256(self) -> str | None:
        if self.path is None:
            return None
        return content_hash(self.path)

    def _describe(self) -> dict[str, Any]:
        name = "InferenceSession" if self.path is None else self.path.name
        return {"model": name}

    def _manifest(self) -> dict[str, Any]:
        version = require("onnxruntime", "onnx").__version__
        return {**super()._manifest(), "model_hash": self._sha256, "onnxruntime_version": version}


def _opened(path: Path, device: Any) -> Any:
    """A session for the file."""
    runtime = require("onnxruntime", "onnx")
    kind = "cpu" if device is None else str(device).partition(":")[0].lower()
    providers = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
    if kind not in providers or providers[kind] not in runtime.get_available_providers():
        raise ParameterError(
            f"device must be 'cpu' or 'cuda', as far as onnxruntime has it here; got {device!r}."
        )
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors are raised; warnings about graphs help nobody here
    try:
        return runtime.InferenceSession(
            path, options, providers=[providers[kind], providers["cpu"]][: 1 + (kind != "cpu")]
        )
    except Exception as error:  # onnxruntime has no common class for these
        reason = str(error).strip().splitlines()[0]
        raise FileFormatError(f"cannot read {path} as ONNX: {reason}") from error


def _label_names(session: Any) -> list[str] | None:
    """The names in the file, if nescio has exported it."""
    text = session.get_modelmeta().custom_metadata_map.get(LABEL_NAMES_KEY, "null")
    try:
        names = json.loads(text)
    except ValueError:
        names = text
    if names is not None and not isinstance(names, list):
        raise FileFormatError(f"the graph's metadata {LABEL_NAMES_KEY} is damaged: {text[:40]!r}.")
    return names


def _pooled(features: Array, name: str | None) -> Array:
    if features.ndim == 4:
        return np.asarray(features.mean((2, 3)))
    if features.ndim != 2:
        raise ShapeError(
            f"output {name!r} has shape {features.shape}; features must have shape (n_samples, "
            "n_features), or (n_samples, n_features, height, width). Name another output."
        )
    return features
