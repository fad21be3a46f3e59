"""A runner for ONNX files, which onnxruntime runs. It needs no torch."""

from __future__ import annotations

import copy
import importlib.util
import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from nescio._io.files import existing_file
from nescio._io.tables import require
from nescio._threads import available_cpus, cpu_limit
from nescio._validation import Array, is_torch, to_numpy
from nescio.data.images import content_hash
from nescio.data.preprocessing import PREPROCESSING_KEY, Preprocessing
from nescio.errors import (
    FileFormatError,
    InputError,
    ParameterError,
    ShapeError,
)
from nescio.runners.base import Runner
from nescio.runners.features import FEATURES, INPUT, PENULTIMATE, POOLED, flat_input, pooled
from nescio.runners.onnx_layers import Linear, OnnxGraph
from nescio.runners.openvino_models import OpenVinoSession
from nescio.runners.runtimes import ONNXRUNTIME, OPENVINO
from nescio.runners.tokenizing import NAMES, TOKENIZER_KEY, TextTokenizer, load_tokenizer

LABEL_NAMES_KEY = "nescio.label_names"
"""Where the metadata of a file keeps the label names."""

DTYPES: dict[str, Any] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
}
"""NumPy's type for each of onnxruntime's types that are supported."""

_FLOATS = ("tensor(float)", "tensor(float16)", "tensor(double)")


class OnnxRunner(Runner):
    """Runs an ONNX graph.

    Label names and preprocessing come from the file's metadata if `nescio export` wrote it.

    Parameters
    ----------
    model : path or InferenceSession
    features : str or sequence of str, optional
        The name of an output or of another tensor of the graph, "pooled" or "penultimate" (what the
        linear layers at the end and the last of them read), or "input". "auto" is the output named
        features, if there is one, else as for other models. Tensors that are not outputs are added
        to a copy of the graph in memory; for this, the model must be a path.
    device : {"cpu", "cuda"}, optional

    Attributes
    ----------
    path : Path or None
        The file; None if a session was given.
    session : InferenceSession
    """

    kind = "onnx"
    runtimes = (ONNXRUNTIME, OPENVINO)
    runtime = ONNXRUNTIME
    automatic = (FEATURES, POOLED, PENULTIMATE)

    def __init__(self, model: Any, **settings: Any) -> None:
        self.path = existing_file(model) if isinstance(model, str | Path) else None
        if self.path is not None:
            self.session = open_session(self.path, settings.get("device"))
        elif settings.get("device") is not None:
            raise ParameterError("a session has its own device: leave out device.")
        else:
            self.session = model
        self._inputs = {node.name: node for node in self.session.get_inputs()}
        self._outputs = {node.name: node for node in self.session.get_outputs()}
        sizes = [shape[0] for shape in self.input_shapes.values() if shape]
        self.fixed_batch = min((size for size in sizes if isinstance(size, int)), default=None)
        settings["output"] = self._logits_name(settings.get("output"))
        if settings.get("label_names") is None:
            settings["label_names"] = self._stored_names()
        if settings.get("preprocessing") is None:
            stored = self.metadata(PREPROCESSING_KEY)
            settings["preprocessing"] = stored and Preprocessing.from_dict(stored)
        if settings.get("tokenizer") is None:
            settings["tokenizer"] = self._stored_tokenizer()
        super().__init__(model, **settings)
        self.tensors = [self._tensor(layer) for layer in self.layers]
        if self.inner_tensors:
            assert self._graph is not None
            self._graph.add_outputs(self.inner_tensors)
            self.session = open_session(self._graph.content(), self.device)
        self.__dict__.pop("_graph", None)  # its weights take as much memory as those of the session

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the graph's inputs."""
        return tuple(self._inputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the graph's outputs."""
        return tuple(self._outputs)

    @property
    def input_shapes(self) -> dict[str, list[Any]]:
        """The shape of each input; a size that may change is a name or None."""
        return {name: list(node.shape or []) for name, node in self._inputs.items()}

    def metadata(self, key: str) -> Any:
        """Return an entry of the graph's metadata, which is JSON; None if there is none."""
        text = self.session.get_modelmeta().custom_metadata_map.get(key, "null")
        try:
            return json.loads(text)
        except ValueError as error:
            raise FileFormatError(
                f"the graph's metadata {key} is damaged: {text[:40]!r} is not JSON."
            ) from error

    def _stored_names(self) -> list[str] | None:
        names = self.metadata(LABEL_NAMES_KEY)
        if names is not None and not isinstance(names, list):
            raise FileFormatError(f"the graph's metadata {LABEL_NAMES_KEY} is damaged: {names!r}.")
        return names

    # --- outputs ---

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
                f"output {output!r} is not a matrix of floating point. The graph has the outputs "
                f"{self._listed()}.{self._sklearn_hint()}"
            )
        if "logits" in matrices:
            return "logits"
        if len(matrices) == 1:
            return matrices[0]
        hint = "Name the one that holds the logits (output=..., --logits)."
        if not matrices:
            hint = "None is a matrix of floating point." + self._sklearn_hint()
        raise ParameterError(f"the graph has the outputs {self._listed()}. {hint}")

    def _sklearn_hint(self) -> str:
        kinds = [node.type for node in self._outputs.values()]
        if any(kind.startswith("seq(map") for kind in kinds):
            return " Convert the scikit-learn model again, with zipmap=False."
        if any(kind.startswith("seq(") for kind in kinds) or "probabilities" in self._outputs:
            return (
                " skl2onnx makes one for OneVsRestClassifier and MLPClassifier. Run a forest or a "
                "MultiOutputClassifier in Python: wrap the estimator itself."
            )
        return ""

    # --- layers ---

    @property
    def inner_tensors(self) -> list[str]:
        """The chosen tensors that are not outputs of the file."""
        return [name for name in self.tensors if name not in (*self._outputs, *self._inputs)]

    @cached_property
    def _graph(self) -> OnnxGraph | None:
        """The graph; None if there is only a session, or the package onnx is not installed."""
        if self.path is None or importlib.util.find_spec("onnx") is None:
            return None
        return OnnxGraph(self.path)

    def has_layer(self, name: str) -> bool:
        """Return whether the graph has such a layer."""
        return self._find(name) is not None

    def _find(self, layer: str) -> str | None:
        """Return the name of the input, output or other tensor that is a layer."""
        if layer in self._outputs:
            return layer
        if layer == INPUT:
            return str(next(iter(self._inputs)))
        return None if self._graph is None else self._graph.find(layer, str(self.output))

    def _tensor(self, layer: str) -> str:
        found = self._find(layer)
        if found is not None:
            return found
        known = f"It has the outputs {self._listed()}."
        if self.path is None:
            raise ParameterError(
                f"features must be an output of the graph, got {layer!r}: a session does not give "
                f"access to other tensors. Pass the path of the file. {known}"
            )
        if self._graph is None:
            require("onnx", "onnx")  # raises an error that says how to install it
        if layer in (PENULTIMATE, POOLED):
            raise ParameterError(
                f"the graph has no layer {layer!r}: it does not end in a linear layer (Gemm, or "
                "MatMul and Add) with constant weights"
                + (" that follows other layers" if layer == POOLED else "")
                + f". Name an output or another tensor of the graph. {known}"
            )
        raise ParameterError(
            f"features must be an output of the graph or another of its tensors, got {layer!r}. "
            f"{known}"
        )

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

    # --- running ---

    def _stored_tokenizer(self) -> Any:
        """Return the tokenizer in the metadata of the file; None without the library for it."""
        stored = self.metadata(TOKENIZER_KEY)
        if stored is None or importlib.util.find_spec("tokenizers") is None:
            return None
        return load_tokenizer(json.dumps(stored))

    def _tokenizer_of(self, given: Any) -> TextTokenizer:
        names = self.input_names
        if "input_ids" not in names or not {*names} <= {*NAMES}:
            raise ParameterError(
                f"a tokenizer gives {', '.join(NAMES)}, but the graph takes {', '.join(names)}. "
                "Leave out the tokenizer, and pass the inputs by name."
            )
        shape = self.input_shapes["input_ids"]
        length = shape[1] if len(shape) == 2 else None
        return TextTokenizer(given, names, length=length if isinstance(length, int) else None)

    @property
    def _rounding(self) -> float:
        """How much of a logit the lengths of the inputs may change by rounding.

        A quantised graph rounds by the largest values of a batch. Without an attention mask, a
        difference is more probably the padding.
        """
        is_masked = "attention_mask" in self.input_names
        return 0.05 if is_masked else super()._rounding

    def takes(self, inputs: Any) -> bool:
        """Return whether these are arrays or tensors, by position or by name."""
        return isinstance(inputs, np.ndarray | Mapping | tuple) or is_torch(inputs)

    def _run(self, inputs: Any) -> dict[str, Any]:
        feed = {name: self.typed(name, part) for name, part in self.by_name(inputs).items()}
        rows = max(map(len, feed.values()))
        if rows != (self.fixed_batch or rows):
            raise ShapeError(
                f"the graph takes exactly {self.fixed_batch} samples at a time, got {rows} "
                "(perhaps in the last batch). Export it with a dynamic batch size."
            )
        names = dict.fromkeys((self.output, *self.tensors))
        wanted = [name for name in names if name not in feed]
        try:
            given = dict(zip(wanted, self.session.run(wanted, feed), strict=True)) | feed
        except Exception as error:  # onnxruntime's errors have no common class
            reason = str(error).strip().splitlines()[0]
            raise InputError(f"the graph cannot run on these inputs: {reason}") from error
        found = {"logits": given[self.output]}
        for array, tensor in zip(self.array_names, self.tensors, strict=True):
            as_matrix, what = (flat_input, "input") if tensor in feed else (pooled, "output")
            found[array] = as_matrix(given[tensor], f"{what} {tensor!r} has")
        return found

    def by_name(self, inputs: Any) -> dict[str, Any]:
        """Return inputs by the graph's names; raise if they are not those that it takes."""
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

    def typed(self, name: str, part: Any) -> Array:
        """Return an input in the graph's type; integers may become floats, but not vice versa."""
        array = to_numpy(part)
        if self.is_image_bytes(array):
            assert self.preprocessing is not None
            array = self.preprocessing.normalise(array)
        kind = self._inputs[name].type
        wanted = DTYPES.get(kind, array.dtype)
        # Precision may be lost: NumPy's default, float64, is more than most graphs take.
        if not np.can_cast(array.dtype, wanted, "same_kind"):
            raise InputError(f"input {name!r} must be {kind}, got {array.dtype}.")
        return array.astype(wanted, copy=False)

    def by(self, runtime: str, images: Array, shared: dict[str, Any]) -> Self:
        """Return a runner that runs the graph by another runtime."""
        if runtime != OPENVINO:
            return super().by(runtime, images, shared)
        if self.path is None or self.describe()["device"] != "cpu":
            raise ParameterError("OpenVINO runs files on the CPU, not a session or a GPU.")
        require("openvino", "openvino")
        graph: Path | bytes = self.path
        if self.inner_tensors:
            copied = OnnxGraph(self.path)
            copied.add_outputs(self.inner_tensors)
            graph = copied.content()
        other = copy.copy(self)
        other.session = OpenVinoSession(graph, threads=available_cpus())
        other.runtime = runtime
        return other

    # --- what it is ---

    def _last_layers(self, shape: tuple[int, int]) -> Iterator[tuple[Array, Array]]:
        if self._last_layer is not None:
            yield self._last_layer.weight, self._last_layer.bias

    @cached_property
    def _last_layer(self) -> Linear | None:
        if self.path is None or importlib.util.find_spec("onnx") is None:
            return None
        return OnnxGraph(self.path).last_linear(str(self.output))

    def content_hash(self) -> str | None:
        """Return a hash of the file; None for a session."""
        return self._content_hash

    @cached_property
    def _content_hash(self) -> str | None:
        return None if self.path is None else content_hash(self.path)

    def describe(self) -> dict[str, Any]:
        """Return what a manifest says about the model."""
        return {
            **super().describe(),
            "model": "InferenceSession" if self.path is None else self.path.name,
            "model_hash": self.content_hash(),
            "device": "cpu" if self.device is None else str(self.device).partition(":")[0],
            "onnxruntime_version": require("onnxruntime", "onnx").__version__,
        }


def open_session(graph: Path | bytes, device: Any = None, *, threads: int | None = None) -> Any:
    """Return a session for a file, or for its content; by default it chooses its threads.

    With a number of threads, they do not wait busily for the next batch, which would take the
    processor from the threads that read images.
    """
    runtime = require("onnxruntime", "onnx")
    kind = "cpu" if device is None else str(device).partition(":")[0].lower()
    providers = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
    if kind not in providers or providers[kind] not in runtime.get_available_providers():
        raise ParameterError(
            f"device must be 'cpu' or 'cuda', as far as onnxruntime supports it here; got "
            f"{device!r}."
        )
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors are raised; warnings about graphs are of no use here
    if threads is not None:
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    elif cpu_limit() is not None:
        options.intra_op_num_threads = cpu_limit()
    try:
        return runtime.InferenceSession(
            graph, options, providers=list(dict.fromkeys((providers[kind], providers["cpu"])))
        )
    except Exception as error:  # onnxruntime's errors have no common class
        what = graph if isinstance(graph, Path) else "the graph"
        reason = str(error).strip().splitlines()[0]
        raise FileFormatError(f"cannot read {what} as ONNX: {reason}") from error
