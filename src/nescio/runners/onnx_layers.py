"""The layers of an ONNX graph: its last linear layer, what that reads, and any other tensor."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nescio._io.tables import require
from nescio._validation import Array
from nescio.errors import FileFormatError, ParameterError
from nescio.runners.features import PENULTIMATE, POOLED

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
    """The graph of a file, in memory."""

    def __init__(self, path: Path) -> None:
        self._onnx = require("onnx", "onnx")
        try:
            self.proto = self._onnx.load(path)
        except Exception as error:  # protobuf and the file system raise many kinds
            raise FileFormatError(f"cannot read the graph of {path}: {error}") from error
        graph = self.proto.graph
        self._made_by = {name: node for node in graph.node for name in node.output if name}
        self._constants = {value.name: value for value in graph.initializer}

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
        inputs = {value.name for value in self.proto.graph.input}
        return None if first is None or self._root(first.reads) in inputs else first.reads

    def add_outputs(self, tensors: Iterable[str]) -> None:
        """Make these tensors outputs too; the file stays as it is."""
        outputs = self.proto.graph.output
        present = {value.name for value in outputs}
        for name in dict.fromkeys(tensors):
            if name not in present:
                outputs.append(self._onnx.ValueInfoProto(name=name))

    def content(self) -> bytes:
        """Return the graph as the content of a file."""
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
        node = self._made_by.get(name)
        while node is not None and node.op_type in through:
            node = self._made_by.get(node.input[0])
        return node

    def _root(self, name: str) -> str:
        """Return the tensor before any reshaping and operation without a further tensor."""
        node = self._made_by.get(name)
        while node is not None and node.op_type in (*_WITHIN_HEAD, "Flatten", "Reshape"):
            name = node.input[0]
            node = self._made_by.get(name)
        return name

    def _constant(self, name: str) -> Array | None:
        found = self._constants.get(name)
        if found is None:
            node = self._made_by.get(name)
            if node is None or node.op_type != "Constant":
                return None
            found = next((entry.t for entry in node.attribute if entry.name == "value"), None)
        return None if found is None else np.asarray(self._onnx.numpy_helper.to_array(found))

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
