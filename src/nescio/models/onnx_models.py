"""A runner for ONNX files by onnxruntime, and the layers of their graphs. It needs no torch."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nescio._io.files import as_text, existing_file
from nescio._threads import cpu_limit
from nescio._validation import Array, is_frame, is_torch, to_float, to_numpy
from nescio.errors import (
    FileFormatError,
    InputError,
    ParameterError,
    ProbabilitiesError,
    ShapeError,
    listed,
    require,
)
from nescio.explain import ExplainedVerdicts
from nescio.models.base import FEATURES, POOLED, Runner, flat_input, pooled
from nescio.models.images import PREPROCESSING_KEY, Preprocessing, content_hash
from nescio.models.table_features import shown_numbers
from nescio.models.texts import NAMES, TOKENIZER_KEY, TextTokenizer, load_tokenizer
from nescio.outputs.outputs import INPUT, PENULTIMATE

LABEL_NAMES_KEY = "nescio.label_names"
"""Where the metadata of a file keeps the label names."""

DETECTOR_KEY, THRESHOLD_KEY = "nescio.detector", "nescio.threshold"
"""Where it keeps the name and the thresholds of the detector in it."""

COLUMNS_KEY, TABLE_KEY, EXAMPLE_KEY = "nescio.columns", "nescio.table", "nescio.example"
"""Where it keeps the columns of each input of a table, the units of its features, and a row."""

DTYPES: dict[str, Any] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
    "tensor(string)": np.str_,
}
"""NumPy's type for each of onnxruntime's types that are supported."""

FLOATS = ("tensor(float)", "tensor(float16)", "tensor(double)")


class OnnxRunner(Runner):
    """Runs an ONNX graph.

    Label names and preprocessing come from the file's metadata if `nescio export` wrote it. Layers
    that are not outputs of the file are added to a copy of the graph in memory.
    """

    kind = "onnx"
    automatic = (FEATURES, POOLED, PENULTIMATE)

    def __init__(self, model: Any, **settings: Any) -> None:
        self.path = existing_file(model)
        self.session = open_session(self.path, settings.get("device"))
        self._inputs = {node.name: node for node in self.session.get_inputs()}
        self._outputs = {node.name: node for node in self.session.get_outputs()}
        self.input_names, self.output_names = tuple(self._inputs), tuple(self._outputs)
        # A size that may change is a name or None.
        self.input_shapes = {name: list(node.shape or []) for name, node in self._inputs.items()}
        sizes = [shape[0] for shape in self.input_shapes.values() if shape]
        self.fixed_batch = min((size for size in sizes if isinstance(size, int)), default=None)
        settings["output"] = self._logits_name(settings.get("output"))
        if settings.get("label_names") is None:
            settings["label_names"] = self.metadata(LABEL_NAMES_KEY, list)
        if settings.get("preprocessing") is None:
            stored = self.metadata(PREPROCESSING_KEY, dict)
            settings["preprocessing"] = stored and Preprocessing.from_dict(stored)
        if settings.get("tokenizer") is None and importlib.util.find_spec("tokenizers"):
            stored = self.metadata(TOKENIZER_KEY, dict)
            settings["tokenizer"] = stored and load_tokenizer(json.dumps(stored))
        self.columns_of: dict[str, list[str]] = self.metadata(COLUMNS_KEY, dict) or {}
        super().__init__(model, **settings)
        if self.from_probs is None:
            self._check_logits(str(self.output))
        self.tensors = [self._tensor(layer) for layer in self.layers]
        graph = self._graph if self.layers else None
        self._last_layer = None if graph is None else graph.last_linear(str(self.output))
        inner = [name for name in self.tensors if name not in (*self._outputs, *self._inputs)]
        if graph is not None and inner:
            self.session = open_session(graph.with_outputs(inner), self.device)
        self.__dict__.pop("_graph", None)  # its weights take as much memory as those of the session

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of a table that the model takes, if the file has them."""
        return tuple(chain(*self.columns_of.values()))

    def explained(self, explanation: ExplainedVerdicts, inputs: Any) -> ExplainedVerdicts:
        """Return an explanation with the names and units of the columns, if the file has them."""
        if self.table is None or self.features != FEATURES:
            return super().explained(explanation, inputs)
        return explanation.with_columns(partial(shown_numbers, self.table))

    @property
    def table(self) -> dict[str, Any] | None:
        """What `TableFeatures.units` returned when the file was written."""
        table: dict[str, Any] | None = self.metadata(TABLE_KEY, dict)
        if table is None:
            return None
        with suppress(KeyError, ValueError):
            if len({np.shape(table[key]) for key in ("names", "bends", "mean", "scale")}) == 1:
                return table
        raise FileFormatError(f"the graph's metadata {TABLE_KEY} is damaged.")

    def metadata(self, key: str, kind: type) -> Any:
        """Return an entry of the graph's metadata, which is JSON; None if it has none."""
        text = ""
        try:
            text = self.session.get_modelmeta().custom_metadata_map.get(key, "null")
            value = json.loads(text) or None
        except (ValueError, RecursionError):  # also if the text is not Unicode
            value = text
        if not isinstance(value, kind | None):
            raise FileFormatError(f"the graph's metadata {key} is damaged: {text[:40]!r}.")
        return value

    # --- outputs ---

    def _logits_name(self, output: Any) -> str:
        if "logits" not in self._outputs and self.metadata(DETECTOR_KEY, str):
            raise ParameterError(
                f"{self.path} holds a detector without a model. Wrap the model itself; in 'nescio "
                "serve', leave out --model."
            )
        floats = {name: node for name, node in self._outputs.items() if node.type in FLOATS}
        matrices = [str(name) for name, n in floats.items() if not n.shape or len(n.shape) == 2]
        if output in matrices:
            return str(output)
        if output is None and "logits" in matrices:
            return "logits"
        if output is None and len(matrices) == 1:
            return matrices[0]
        hint = ""
        if "probabilities" in self._outputs or "output_probability" in self._outputs:
            hint = (
                " If skl2onnx made the graph, wrap and calibrate the estimator itself instead: "
                "nescio.export_onnx converts it."
            )
        raise ParameterError(
            "output must be an output of the graph that is a matrix of floating point "
            f"(output=..., --logits), got {output!r}. It has {self._listed()}.{hint}"
        )

    def _check_logits(self, output: str) -> None:
        """Raise if an output is known to hold probabilities, however few values a batch has."""
        if output.lower().startswith("prob") or (self._graph and self._graph.is_sigmoid(output)):
            raise ProbabilitiesError(
                f"the output {output!r} of the graph holds probabilities, but logits are expected.",
                "Export the model without its sigmoid, or pass from_probs=True (--from-probs). If "
                "they are logits, pass from_probs=False.",
            )

    # --- layers ---

    @cached_property
    def _graph(self) -> OnnxGraph | None:
        """The graph; None if the package onnx is not installed."""
        return OnnxGraph(self.path) if importlib.util.find_spec("onnx") else None

    def has_layer(self, name: str, n_columns: int | None = None) -> bool:
        """Return whether the graph has such a layer."""
        tensor = self._find(name)
        if name == POOLED and n_columns is not None and self._graph is not None:
            # It may be another one than "pooled" of the module that the graph was exported from.
            return self._graph.read_by_linear(n_columns) == {tensor}
        return tensor is not None

    def _find(self, layer: str) -> str | None:
        """Return the name of the input, output or other tensor that is a layer."""
        if layer in self._outputs:
            return layer
        if layer == INPUT:
            return str(next(iter(self._inputs)))
        return None if self._graph is None else self._graph.find(layer, str(self.output))

    def _tensor(self, layer: str) -> str:
        tensor = self._find(layer)
        if tensor is not None:
            return tensor
        why = ""
        if self._graph is None:
            require("onnx", "onnx")  # raises an error that says how to install it
        elif layer in (PENULTIMATE, POOLED):
            why = (
                " The graph does not end in a linear layer (Gemm, or MatMul and Add) with constant "
                "weights that follows other layers."
            )
        raise ParameterError(
            f"features must be an output of the graph or another of its tensors, got {layer!r}."
            f"{why} It has the outputs {self._listed()}."
        )

    def _listed(self) -> str:
        return ", ".join(
            f"{name} ({node.type} of shape {node.shape})" for name, node in self._outputs.items()
        )

    # --- running ---

    def _tokenizer_of(self, tokenizer: Any) -> TextTokenizer:
        names = self.input_names
        if "input_ids" not in names or not {*names} <= {*NAMES}:
            raise ParameterError(
                f"a tokenizer gives {', '.join(NAMES)}, but the graph takes {', '.join(names)}. "
                "Leave out the tokenizer, and pass the inputs by name."
            )
        shape = self.input_shapes["input_ids"]
        length = shape[1] if len(shape) == 2 else None
        return TextTokenizer(tokenizer, names, length=length if isinstance(length, int) else None)

    @property
    def _rounding(self) -> float:
        # A quantised graph rounds by the largest values of a batch. Without an attention mask, a
        # difference is more probably the padding.
        return 0.05 if "attention_mask" in self.input_names else super()._rounding

    def takes(self, inputs: Any) -> bool:
        """Return whether these are arrays or tensors, by position or by name, or a table."""
        is_table = is_frame(inputs) and bool(self.columns)
        return isinstance(inputs, np.ndarray | Mapping | tuple) or is_torch(inputs) or is_table

    def _run(self, inputs: Any) -> dict[str, Any]:
        feed = {name: self.typed(name, part) for name, part in self.by_name(inputs).items()}
        rows = max(map(len, feed.values()))
        if rows != (self.fixed_batch or rows):
            raise ShapeError(
                f"the graph takes exactly {self.fixed_batch} samples at a time, got {rows} "
                "(perhaps in the last batch).",
                "Export it with a dynamic batch size.",
            )
        names = dict.fromkeys((self.output, *self.tensors))
        wanted = [name for name in names if name not in feed]
        try:
            values = dict(zip(wanted, self.session.run(wanted, feed), strict=True)) | feed
        except Exception as error:  # onnxruntime's errors have no common class
            raise InputError(f"the graph cannot run on these inputs: {_reason(error)}") from error
        arrays = {"logits": values[self.output]}
        for name, tensor in zip(self.array_names, self.tensors, strict=True):
            as_matrix, what = (flat_input, "input") if tensor in feed else (pooled, "output")
            arrays[name] = as_matrix(values[tensor], f"{what} {tensor!r} has")
        return arrays

    def by_name(self, inputs: Any) -> dict[str, Any]:
        """Return inputs by the graph's names; raise if they are not those that it takes."""
        if is_frame(inputs) and self.columns:
            inputs = {name: with_columns(inputs, part) for name, part in self.columns_of.items()}
        if not isinstance(inputs, Mapping):
            parts = inputs if isinstance(inputs, tuple) else (inputs,)
            has_all = len(parts) == len(self._inputs)
            inputs = dict(zip(self._inputs, parts, strict=True) if has_all else enumerate(parts))
        if inputs.keys() != self._inputs.keys():
            raise InputError(
                f"the graph takes the inputs {', '.join(self._inputs)}, got "
                f"{', '.join(map(str, inputs)) or 'none'}. Pass a mapping by name."
            )
        return dict(inputs)

    def typed(self, name: str, part: Any) -> Array:
        """Return an input in the graph's type; integers may become floats, but not vice versa."""
        kind = self._inputs[name].type
        if DTYPES.get(kind) is np.str_:
            return words_of(part)
        array: Array = self.preprocessed((numbers_of if is_frame(part) else to_numpy)(part))
        wanted = DTYPES.get(kind, array.dtype)
        # Precision may be lost: NumPy's default, float64, is more than most graphs take. Pixels
        # from 0 to 255 are most probably not what a graph takes.
        are_pixels = array.dtype == np.uint8 != wanted and array.ndim > 2
        if are_pixels or not np.can_cast(array.dtype, wanted, "same_kind"):
            raise InputError(
                f"input {name!r} must be {kind}, got {array.dtype}. For images of bytes, pass "
                "wrap(..., preprocessing=nescio.Preprocessing(size, mean, std)), or prepare them."
            )
        return array.astype(wanted, copy=False)

    # --- what it is ---

    def _last_layers(self, shape: tuple[int, int]) -> Iterator[tuple[Array, Array]]:
        if self._last_layer is not None:
            yield self._last_layer.weight, self._last_layer.bias

    def content_hash(self) -> str:
        """Return a hash of the file."""
        return content_hash(self.path)

    def describe(self) -> dict[str, Any]:
        """Return what a manifest says about the model."""
        return {
            **super().describe(),
            "model": self.path.name,
            "model_hash": self.content_hash(),
            "device": "cpu" if self.device is None else str(self.device).partition(":")[0],
            "onnxruntime_version": require("onnxruntime", "onnx").__version__,
        }


def with_columns(frame: Any, names: Sequence[str]) -> Any:
    """Return some columns of a data frame."""
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise InputError(
            f"the table lacks the columns {listed(missing)} of the model. It has "
            f"{listed(list(map(str, frame.columns)))}."
        )
    return frame[list(names)]


def numbers_of(table: Any) -> Array:
    """Return a data frame or an array of numbers as float64; what is missing is NaN."""
    if hasattr(table, "select_dtypes"):  # of pandas, whose columns differ in type
        try:
            return np.array(table.to_numpy(np.float64, na_value=np.nan))
        except (TypeError, ValueError) as error:
            raise InputError(f"the table must hold numbers: {error}.") from error
    return to_float(to_numpy(table), "samples").astype(np.float64)


def words_of(table: Any) -> Array:
    """Return a data frame or an array of words as text; what is missing is ""."""
    cells = np.asarray(table, dtype=object)
    for (row, *_), cell in np.ndenumerate(cells):
        if as_text(cell) and not isinstance(cell, str):
            raise InputError(f"columns of words must hold text, but row {row} has {cell!r}.")
    return np.asarray(np.frompyfunc(as_text, 1, 1)(cells), dtype=object)


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
        session = runtime.InferenceSession(
            graph,
            options,
            providers=list(dict.fromkeys((providers[kind], providers["cpu"]))),
            enable_fallback=0,  # it would print to standard output and try again
        )
        for node in (*session.get_inputs(), *session.get_outputs()):
            str((node.name, node.shape))  # raises if a name is not Unicode
        return session
    except Exception as error:  # onnxruntime's errors have no common class
        what = graph if isinstance(graph, Path) else "the graph"
        raise FileFormatError(f"cannot read {what} as ONNX: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Return what onnxruntime says, in one line and without its numbers of errors."""
    return " ".join(str(error).split(" : ", 3)[-1].split())[:300]


# What may follow the last linear layer, and what may lie between linear layers of a head.
_AFTER_LOGITS = frozenset({"Identity", "Sigmoid", "Cast"})
_WITHIN_HEAD = frozenset(
    {"Relu", "LeakyRelu", "Elu", "Selu", "Celu", "Gelu", "Tanh", "Sigmoid", "HardSwish",
     "HardSigmoid", "Softplus", "Clip", "Dropout", "Identity", "Cast", "BatchNormalization"}
)  # fmt: skip


class Linear(NamedTuple):
    """A linear layer of a graph."""

    weight: Array  # (n_outputs, n_inputs)
    bias: Array
    reads: str  # the name of the tensor that is its input


class OnnxGraph:
    """The graph of a file, in memory; weights in a file of their own are read when needed."""

    def __init__(self, path: Path) -> None:
        self._onnx = require("onnx", "onnx")
        self._folder = str(path.parent)
        self.proto = self._onnx.load(path, load_external_data=False)
        graph = self.proto.graph
        self._made_by = {name: node for node in graph.node for name in node.output if name}
        self._constants = {value.name: value for value in graph.initializer}

    def is_sigmoid(self, output: str) -> bool:
        """Return whether a sigmoid gives an output."""
        node = self._source(output, frozenset({"Identity", "Cast"}))
        return node is not None and node.op_type == "Sigmoid"

    def last_linear(self, output: str) -> Linear | None:
        """Return the Gemm, or the MatMul and Add, that an output comes from; None if another."""
        return self._linear(self._source(output, _AFTER_LOGITS))

    def find(self, layer: str, output: str) -> str | None:
        """Return the name of the tensor that is a layer; None if the graph has no such layer.

        "penultimate" is the input of the last linear layer. "pooled" is the input of the first of
        the linear layers at the end, with nothing but activations, dropout and batch norm between
        them; there is none if that is an input of the graph. Other names are those of tensors.
        """
        last = self.last_linear(output)
        if layer == PENULTIMATE:
            return None if last is None else last.reads
        if layer != POOLED:
            return layer if layer in self._made_by else None
        first = last
        while last is not None:
            first = last
            last = self._linear(self._source(first.reads, _WITHIN_HEAD))
        if first is None:
            return None
        inputs = {value.name for value in self.proto.graph.input}
        root = self._root(first.reads, _WITHIN_HEAD | {"Flatten", "Reshape"})
        return None if root in inputs else first.reads

    def read_by_linear(self, n_columns: int) -> set[str]:
        """Return the inputs of the linear layers that take or give so many columns."""
        layers = map(self._linear, self.proto.graph.node)
        return {layer.reads for layer in layers if layer and n_columns in layer.weight.shape}

    def with_outputs(self, tensors: Iterable[str]) -> bytes:
        """Return the content of a file in which these tensors are outputs too."""
        self._onnx.load_external_data_for_model(self.proto, self._folder)
        for name in dict.fromkeys(tensors):
            self.proto.graph.output.append(self._onnx.ValueInfoProto(name=name))
        try:
            content: bytes = self.proto.SerializeToString()
        except Exception as error:  # protobuf's errors have no common class
            raise ParameterError(
                "the graph is too large to be changed in memory (2 GB at most). Export it again "
                "with the features as an output."
            ) from error
        return content

    def _source(self, name: str, through: frozenset[str]) -> Any:
        """Return the node that makes a tensor, before any of the operations in `through`."""
        return self._made_by.get(self._root(name, through))

    def _root(self, name: str, through: frozenset[str]) -> str:
        """Return the tensor before any of the operations in `through`."""
        while (node := self._made_by.get(name)) is not None and node.op_type in through:
            name = node.input[0]
        return name

    def _constant(self, name: str) -> Array | None:
        tensor = self._constants.get(name)
        node = self._made_by.get(name)
        if tensor is None and node is not None and node.op_type == "Constant":
            tensor = next((entry.t for entry in node.attribute if entry.name == "value"), None)
        read = self._onnx.numpy_helper.to_array
        return None if tensor is None else np.asarray(read(tensor, self._folder))

    def _linear(self, node: Any) -> Linear | None:
        bias = None
        if node is not None and node.op_type == "Add":
            first, second = node.input
            bias = self._constant(second)
            name = first
            if bias is None:
                bias, name = self._constant(first), second
            node = None if bias is None else self._source(name, frozenset({"Identity", "Cast"}))
        if node is None or node.op_type not in ("Gemm", "MatMul"):
            return None
        weight = self._constant(node.input[1])
        flags = {entry.name: entry.i for entry in node.attribute}
        if weight is None or weight.ndim != 2 or flags.get("transA"):
            return None
        if node.op_type == "Gemm" and len(node.input) > 2:
            bias = self._constant(node.input[2])
        weight = weight if flags.get("transB") else weight.T
        bias = np.zeros(len(weight), weight.dtype) if bias is None else bias.reshape(-1)
        return Linear(weight, bias, str(node.input[0]))
