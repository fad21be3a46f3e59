"""The graph of a scikit-learn model, in float64: skl2onnx converts its parts one by one.

Linear decisions and `TableFeatures` are written here, and so are the columns of the labels:
skl2onnx gives one matrix per label, or for decisions other columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import BaseEnsemble
from sklearn.impute import SimpleImputer
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import BaseDecisionTree

from nescio._validation import Array
from nescio.errors import ExportError, require
from nescio.models.base import PREPARED
from nescio.models.onnx_models import open_session
from nescio.models.sklearn_models import SklearnRunner, split_steps
from nescio.models.table_features import TableFeatures
from nescio.outputs.outputs import INPUT, PENULTIMATE


def sklearn_graph(runner: SklearnRunner, input_name: str, opset: int) -> tuple[Any, list[str]]:
    """Return a graph, and the names of its outputs: logits or probabilities, then the layers."""
    nodes = _Nodes(opset, runner.columns)
    steps, final = split_steps(runner.model)
    tensors = {INPUT: input_name, PENULTIMATE: nodes.after(steps, input_name)}
    if PREPARED in runner.layers:
        before, last = split_steps(runner.prepare)
        tensors[PREPARED] = nodes.after([*before, last], input_name)
    by_label = isinstance(final, MultiOutputClassifier | OneVsRestClassifier)
    parts = final.estimators_ if by_label else [final]
    add = nodes.probs if runner.from_probs else nodes.decisions
    names = [add(parts, tensors[PENULTIMATE]), *(tensors[layer] for layer in runner.layers)]
    outputs = [nodes.add("Identity", name) for name in names]  # no output may be an input
    return nodes.graph(input_name, runner.model.n_features_in_, outputs), outputs


class _Nodes:
    """The nodes and constants of a graph that grows by operators and by estimators."""

    def __init__(self, opset: int, columns: Sequence[str]) -> None:
        self.columns = columns  # the names of those of the input
        self.onnx, self.ir = require("onnx", "onnx"), require("onnx_ir", "onnx")
        self.opsets = {"": opset, "ai.onnx.ml": 3}
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def graph(self, input_name: str, n_columns: int, outputs: Sequence[str]) -> Any:
        """Return the whole, as an `onnx_ir.Model`."""
        helper, double = self.onnx.helper, self.onnx.TensorProto.DOUBLE
        values = [helper.make_tensor_value_info(name, double, ["batch", None]) for name in outputs]
        inputs = [helper.make_tensor_value_info(input_name, double, ["batch", n_columns])]
        graph = helper.make_graph(self.nodes, "graph", inputs, values, self.constants)
        opsets = [helper.make_opsetid(*opset) for opset in self.opsets.items()]
        return self.ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10))

    def add(self, operator: str, *inputs: str | Array, output: str = "", **attributes: Any) -> str:
        """Add an operator on tensors and constants; return the name of its output."""
        output, names = output or f"{operator}_{len(self.nodes)}", []
        for place, values in enumerate(inputs):
            names.append(values if isinstance(values, str) else f"{output}_constant_{place}")
            if not isinstance(values, str):
                self.constants.append(self.onnx.numpy_helper.from_array(values, names[-1]))
        node = self.onnx.helper.make_node(operator, names, [output], output, **attributes)
        self.nodes.append(node)
        return output

    def after(self, steps: Sequence[Any], tensor: str) -> str:
        """Add the steps of a pipeline; return what they make of a tensor."""
        for step in steps:
            fills = isinstance(step, SimpleImputer) and not step.add_indicator
            if isinstance(step, Pipeline):
                tensor = self.after([part for _, part in step.steps], tensor)
            elif isinstance(step, TableFeatures):
                tensor = self._table_features(step, tensor)
            elif fills and step.missing_values is np.nan:  # skl2onnx would round to float32
                filled = step.statistics_.astype(np.float64)
                tensor = self.add("Where", self.add("IsNaN", tensor), filled, tensor)
            elif isinstance(step, StandardScaler) and step.with_mean and step.with_std:
                tensor = self.add("Div", self.add("Sub", tensor, step.mean_), step.scale_)
            elif step != "passthrough":
                tensor = self._converted(step, tensor)
        return tensor

    def _table_features(self, features: TableFeatures, tensor: str) -> str:
        if features.words_:
            raise ExportError("the table has columns of words, but a graph takes numbers only.")
        kept = np.array(features.kept_, np.int64)
        if features.columns is not None:
            kept = np.array([self.columns.index(str(name)) for name in features.columns])[kept]
        numbers = self.add("Gather", tensor, kept, axis=1)
        missing = self.add("IsNaN", numbers)
        if (by_logarithm := features.bends_ > 0).any():
            at = np.where(by_logarithm, features.bends_, 1.0)
            logs = self.add("Log", self.add("Div", self.add("Max", numbers, at), at))
            line = self.add("Sub", self.add("Div", self.add("Min", numbers, at), at), np.ones(1))
            numbers = self.add("Where", by_logarithm, self.add("Add", logs, line), numbers)
        scaled = self.add("Div", self.add("Sub", numbers, features.mean_), features.scale_)
        scaled = self.add("Where", missing, np.zeros(1), scaled)
        flags = self.add("Cast", missing, to=self.onnx.TensorProto.DOUBLE)
        flags = self.add("Mul", flags, features.weights_)
        nothing = self.add("MatMul", flags, np.zeros((len(features.kept_), 1)))
        constant = self.add("Add", nothing, np.array([len(features.kept_) ** 0.5]))
        return self.add("Concat", scaled, flags, constant, axis=1)

    def decisions(self, parts: Sequence[Any], tensor: str) -> str:
        """Add the decisions of linear models, one column per label."""
        if not all(hasattr(part, "coef_") for part in parts):
            raise ExportError(
                "only linear decisions, of labels that the training data has, can be exported. If "
                "the model has predict_proba: wrap it with output='predict_proba', and calibrate "
                "again. If not, export only the detector (model=None)."
            )
        weight = np.vstack([part.coef_ for part in parts]).astype(np.float64)
        bias = np.hstack([part.intercept_ for part in parts]).astype(np.float64)
        return self.add("Add", self.add("MatMul", tensor, weight.T.copy()), bias)

    def probs(self, parts: Sequence[Any], tensor: str) -> str:
        """Add the probabilities that labels are present, one column per label."""
        matrices = [self._converted(part, tensor, zipmap=False) for part in parts]
        if isinstance(parts[0].classes_, list):  # of shape (n_labels, n_samples, 2)
            matrices = [self.add("Transpose", self.add("Gather", *matrices, np.array(1), axis=2))]
        elif len(parts) > 1:  # each of shape (n_samples, 2)
            matrices = [self.add("Gather", matrix, np.array([1]), axis=1) for matrix in matrices]
        probs = self.add("Concat", *matrices, axis=1)
        return self.add("Clip", probs, np.array(0.0), np.array(1.0))  # sums of trees round

    def _converted(self, estimator: Any, tensor: str, **options: bool) -> str:
        """Add what skl2onnx makes of an estimator; return its last output.

        scikit-learn's trees read float32. For some other models, only that can be run.
        """
        is_tree = isinstance(estimator, BaseEnsemble | BaseDecisionTree)
        for number in ("Float",) if is_tree else ("Double", "Float"):
            try:
                part = self._part(estimator, number, options)
                open_session(part.SerializeToString())
                break
            except Exception as error:  # of skl2onnx and onnxruntime, which have no common class
                cause = error
        else:
            raise ExportError(
                f"skl2onnx cannot convert this {type(estimator).__name__}: {str(cause)[:200]}. Run "
                "the model in Python, wrapped, and export only the detector (model=None)."
            ) from cause
        part = self.onnx.compose.add_prefix(part, f"part_{len(self.nodes)}/")
        inputs, types = part.graph.input, self.onnx.TensorProto
        for column, value in enumerate(inputs):  # a matrix, or columns by their names
            columns = [column] if len(inputs) > 1 else range(estimator.n_features_in_)
            taken = self.add("Gather", tensor, np.array(columns), axis=1)
            self.add("Cast", taken, output=value.name, to=getattr(types, number.upper()))
        self.nodes += part.graph.node
        self.constants += part.graph.initializer
        return self.add("Cast", part.graph.output[0].name, to=types.DOUBLE)

    def _part(self, estimator: Any, number: str, options: dict[str, bool]) -> Any:
        """Return the graph of an estimator that takes these numbers, with its last output only."""
        kind = getattr(require("skl2onnx.common.data_types", "onnx"), f"{number}TensorType")
        inputs = [("x", kind([None, estimator.n_features_in_]))]
        if isinstance(estimator, ColumnTransformer) and hasattr(estimator, "feature_names_in_"):
            inputs = [(name, kind([None, 1])) for name in estimator.feature_names_in_]
        part = require("skl2onnx", "onnx").convert_sklearn(
            estimator,
            initial_types=inputs,
            options={id(estimator): options},
            target_opset=self.opsets,
        )
        del part.graph.output[:-1]  # predicted labels, which not every runtime computes
        pruned = self.ir.from_proto(part)
        self.ir.passes.common.RemoveUnusedNodesPass()(pruned)
        return self.ir.to_proto(pruned)
