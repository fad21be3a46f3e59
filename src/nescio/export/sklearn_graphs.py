"""The graph of a scikit-learn model, in float64: skl2onnx converts its parts one by one.

Linear decisions, trees and the usual steps for a table are written here, because skl2onnx rounds
them to float32 and sends missing values another way. So are the columns of the labels: skl2onnx
gives one matrix per label, or for decisions other columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.base import OneToOneFeatureMixin
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import (
    BaseEnsemble,
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.impute import SimpleImputer
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils import get_tags

from nescio._validation import Array
from nescio.errors import ExportError, require
from nescio.export.parity import IN_PYTHON, Samples
from nescio.models.base import PREPARED
from nescio.models.onnx_models import open_session
from nescio.models.sklearn_models import SklearnRunner, split_steps
from nescio.models.table_features import TableFeatures, after
from nescio.outputs.outputs import INPUT, PENULTIMATE
from nescio.self_check import NEW_WORD

_BOOSTING = GradientBoostingClassifier | HistGradientBoostingClassifier
_FORESTS = DecisionTreeClassifier | RandomForestClassifier | ExtraTreesClassifier
_MIXED = "words and numbers"  # stands for inputs of both kinds, which no single tensor holds


def sklearn_graph(runner: SklearnRunner, samples: Samples, opset: int) -> tuple[Any, list[str]]:
    """Return a graph, and the names of its outputs: logits or probabilities, then the layers."""
    nodes = _Nodes(opset, samples, runner.columns)
    steps, final = split_steps(runner.model)
    by_label = isinstance(final, MultiOutputClassifier | OneVsRestClassifier)
    parts = final.estimators_ if by_label else [final]
    for part in parts:
        categorical = getattr(part, "is_categorical_", None) is not None
        if categorical or isinstance(part, ClassifierChain):
            name = type(part).__name__ + " with categorical features" * categorical
            raise ExportError(f"a {name} cannot become a graph. {IN_PYTHON}")
    tensors = {INPUT: nodes.table, PENULTIMATE: nodes.after(steps, nodes.table)}
    if PREPARED in runner.layers:
        before, last = split_steps(runner.prepare)
        tensors[PREPARED] = nodes.after([*before, last], nodes.table)
    logits = (nodes.probs if runner.from_probs else nodes.decisions)(parts, tensors[PENULTIMATE])
    if nodes.words or not all(isinstance(part, HistGradientBoostingClassifier) for part in parts):
        takes_nan = all(isinstance(p, _FORESTS | HistGradientBoostingClassifier) for p in parts)
        logits = nodes.or_nan(logits, tensors[PENULTIMATE], takes_nan=takes_nan)
    names = [logits, *(tensors[layer] for layer in runner.layers)]
    outputs = [nodes.add("Identity", name) for name in names]  # no output may be an input
    return nodes.graph(outputs), outputs


class _Nodes:
    """The nodes and constants of a graph that grows by operators and by estimators."""

    def __init__(self, opset: int, samples: Samples, columns: Sequence[str]) -> None:
        self.samples, self.columns = samples, columns  # the names of those of the model
        names = [name for name, array in samples.feed.items() if array.dtype == object]
        self.words: dict[str, list[Any]] = {name: [] for name in names}  # and what fills them
        self.table = _MIXED if len(samples.feed) > 1 else next(iter(samples.feed))
        self.onnx, self.ir = require("onnx", "onnx"), require("onnx_ir", "onnx")
        self.opsets = {"": opset, "ai.onnx.ml": 3}
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def graph(self, outputs: Sequence[str]) -> Any:
        """Return the whole, as an `onnx_ir.Model`."""
        helper, double = self.onnx.helper, self.onnx.TensorProto.DOUBLE
        values = [helper.make_tensor_value_info(name, double, ["batch", None]) for name in outputs]
        inputs = []
        for name, array in self.samples.feed.items():
            kind = self.onnx.TensorProto.STRING if name in self.words else double
            inputs.append(helper.make_tensor_value_info(name, kind, ["batch", array.shape[1]]))
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
            is_identity = isinstance(step, FunctionTransformer) and step.func is None
            if step == "passthrough" or is_identity:
                continue
            if isinstance(step, Pipeline):
                tensor = self.after([part for _, part in step.steps], tensor)
            elif tensor in self.words and hasattr(step, "categories_"):
                sizes = getattr(step, "_n_features_outs", [1] * len(step.categories_))
                transform = partial(after, [*self.words[tensor], step])
                tensor = self._encoded(tensor, transform, step.categories_, sizes)
            elif tensor in self.words and getattr(step, "add_indicator", None) is False:
                self.words[tensor].append(step)
            elif isinstance(step, ColumnTransformer) and not step.transformer_weights:
                tensor = self._column_transformer(step, tensor)
            elif isinstance(step, TableFeatures):
                tensor = self._table_features(step, tensor)
            elif tensor in (_MIXED, *self.words):
                raise ExportError(
                    f"{step!r} takes words, or words and numbers. In a graph, only OneHotEncoder "
                    "and OrdinalEncoder take words, in columns of a ColumnTransformer that hold "
                    f"nothing else, perhaps after a SimpleImputer. {IN_PYTHON}"
                )
            elif isinstance(step, SimpleImputer) and step.missing_values is np.nan:
                tensor = self._filled(step, tensor)
            elif isinstance(step, StandardScaler) and step.with_mean and step.with_std:
                tensor = self.add("Div", self.add("Sub", tensor, step.mean_), step.scale_)
            else:
                made, takes_nan = self._converted(step, tensor), get_tags(step).input_tags.allow_nan
                if takes_nan and isinstance(step, OneToOneFeatureMixin):  # which skl2onnx may fill
                    made = self.add("Where", self.add("IsNaN", tensor), tensor, made)
                tensor = self.or_nan(made, tensor, takes_nan=takes_nan)
        return tensor

    def or_nan(self, result: str, tensor: str, *, takes_nan: bool) -> str:
        """Return a result with NaN in the rows of a tensor for which scikit-learn raises."""
        nothing = self.add("Mul", tensor, np.zeros(1))  # NaN of infinity too
        if takes_nan:
            nothing = self.add("Where", self.add("IsNaN", tensor), np.zeros(1), nothing)
        return self.add("Add", result, self.add("ReduceSum", nothing, np.array([1])))

    def _column_transformer(self, transformer: ColumnTransformer, tensor: str) -> str:
        columns, parts = transformer._transformer_to_input_indices, []
        for name, part, _ in transformer.transformers_:
            if part != "drop" and len(columns[name]):
                parts.append(self.after([part], self._taken(tensor, columns[name])))
        return self.add("Concat", *parts, axis=1)

    def _taken(self, tensor: str, places: Any) -> str:
        """Return some columns of a tensor, or of the table: of the input that has all of them."""
        if tensor == self.table and self.columns:
            names = [self.columns[place] for place in places]
            held = [name for name, part in self.samples.columns.items() if {*names} <= {*part}]
            if not held:
                return _MIXED
            tensor = held[0]
            places = [self.samples.columns[tensor].index(name) for name in names]
        taken = self.add("Gather", tensor, np.array(places, np.int64), axis=1)
        self.words |= {taken: []} if tensor in self.words else {}
        return taken

    def _filled(self, imputer: SimpleImputer, tensor: str) -> str:
        values = imputer.statistics_.astype(np.float64)
        missing = self.add("IsNaN", tensor)
        filled = self.add("Where", missing, values, tensor)
        if np.isnan(values).any():  # columns without any value are dropped
            filled = self.add("Gather", filled, np.flatnonzero(~np.isnan(values)), axis=1)
        if not imputer.add_indicator:
            return filled
        flags = self.add("Gather", missing, imputer.indicator_.features_, axis=1)
        return self.add("Concat", filled, self._double(flags), axis=1)

    def _table_features(self, features: TableFeatures, tensor: str) -> str:
        kept = np.array(features.kept_, np.int64)
        if features.columns is not None:
            kept = np.array([self.columns.index(str(name)) for name in features.columns])[kept]
        numbers = self._double(self._taken(tensor, kept))  # of words alone: no columns
        missing = self.add("IsNaN", numbers)
        if (by_logarithm := features.bends_ > 0).any():
            at = np.where(by_logarithm, features.bends_, 1.0)
            logs = self.add("Log", self.add("Div", self.add("Max", numbers, at), at))
            line = self.add("Sub", self.add("Div", self.add("Min", numbers, at), at), np.ones(1))
            numbers = self.add("Where", by_logarithm, self.add("Add", logs, line), numbers)
        scaled = self.add("Div", self.add("Sub", numbers, features.mean_), features.scale_)
        scaled = self.add("Where", missing, np.zeros(1), scaled)
        n, sizes = len(kept), features.word_sizes_
        parts = [scaled, self.add("Mul", self._double(missing), features.weights_[:n])]
        if sizes:
            of_columns = zip(features.usual_words_, features.known_words_, strict=True)
            known = [["", *usual, *(others or ())] for usual, others in of_columns]

            def transform(rows: Array) -> Array:
                frame = self.samples.frame.iloc[[0] * len(rows)]
                frame = frame.assign(**dict(zip(features.words_, rows.T, strict=True)))
                return np.asarray(features.transform(frame)[:, 2 * n : -1])

            words = self._taken(tensor, [self.columns.index(str(w)) for w in features.words_])
            parts.append(self._encoded(words, transform, known, sizes))
        nothing = self.add("MatMul", parts[-1], np.zeros((sum(sizes) or n, 1)))
        constant = self.add("Add", nothing, np.array([(n + len(sizes)) ** 0.5]))
        return self.add("Concat", *parts, constant, axis=1)

    def _encoded(self, tensor: str, transform: Any, known: Any, sizes: Sequence[int]) -> str:
        """Add what a transformer makes of columns of words: infinity of a word that it rejects.

        What it makes of one column, in some columns, has at most one number that is not 0.
        """
        parts, ends = [], np.cumsum(sizes)
        for column, (words, size, end) in enumerate(zip(known, sizes, ends, strict=True)):
            n, missing = len(words), next((w for w in words if not isinstance(w, str)), np.nan)
            rows = np.array([[part[0] for part in known]] * (n + 2), dtype=object)
            rows[:, column] = [*words, NEW_WORD, missing]
            tables = []
            for some in np.split(rows, [n, n + 1]):
                try:
                    tables.append(sparse.csc_array(transform(some)))
                except ValueError:
                    tables.append(sparse.csc_array(np.full((len(some), ends[-1]), np.inf)))
            table = sparse.vstack(tables, "csc")[:, end - size : end].tocoo()
            place, value = np.zeros(n + 2, np.int64), np.zeros(n + 2)
            place[table.row], value[table.row] = table.col, table.data
            rows_of = {"": n + 1} | {str(w): i for i, w in enumerate(words) if isinstance(w, str)}
            row = self.add(
                "LabelEncoder",
                self.add("Gather", tensor, np.array([column]), axis=1),
                domain="ai.onnx.ml",
                keys_strings=list(rows_of),
                values_int64s=list(rows_of.values()),
                default_int64=n,
            )
            chosen = self.add("Equal", self.add("Gather", place, row), np.arange(size))
            parts.append(self.add("Where", chosen, self.add("Gather", value, row), np.zeros(1)))
        return self.add("Concat", *parts, axis=1)

    def decisions(self, parts: Sequence[Any], tensor: str) -> str:
        """Add the decisions of linear models or of boosted trees, one column per label."""
        if all(map(_is_boosting, parts)):
            return self.add("Concat", *(self._trees(part, tensor) for part in parts), axis=1)
        if not all(hasattr(part, "coef_") for part in parts):
            raise ExportError(
                "only decisions of linear models and of gradient boosting, of labels that the "
                "training data has, can be exported. If the model has predict_proba: wrap it with "
                "output='predict_proba', and calibrate again. If not, export only the detector "
                "(model=None)."
            )
        weight = np.vstack([part.coef_ for part in parts]).astype(np.float64)
        bias = np.hstack([part.intercept_ for part in parts]).astype(np.float64)
        return self.add("Add", self.add("MatMul", tensor, weight.T.copy()), bias)

    def probs(self, parts: Sequence[Any], tensor: str) -> str:
        """Add the probabilities that labels are present, one column per label."""
        if all(map(_is_boosting, parts)):
            return self.add("Sigmoid", self.decisions(parts, tensor))
        if all(isinstance(part, _FORESTS) for part in parts):
            columns = [self._trees(part, tensor) for part in parts]
        else:
            columns = [self._converted(part, tensor, zipmap=False) for part in parts]
            if isinstance(parts[0].classes_, list):  # of shape (n_labels, n_samples, 2)
                columns = [self.add("Transpose", self.add("Gather", *columns, np.array(1), axis=2))]
            elif len(parts) > 1:  # each of shape (n_samples, 2)
                columns = [self.add("Gather", each, np.array([1]), axis=1) for each in columns]
        probs = self.add("Concat", *columns, axis=1)
        return self.add("Clip", probs, np.array(0.0), np.array(1.0))  # sums of trees round

    def _trees(self, model: Any, tensor: str) -> str:
        """Add the trees of a model, compared in float64; return the sums of the leaves reached."""
        if not isinstance(model, HistGradientBoostingClassifier):  # the others round to float32
            tensor = self._double(self.add("Cast", tensor, to=self.onnx.TensorProto.FLOAT))
        start, trees = _trees_of(model)
        sizes = [len(tree.left) for tree in trees]
        tree_ids = np.repeat(np.arange(len(trees)), sizes)
        node_ids = np.concatenate([np.arange(size) for size in sizes])
        nodes = _Tree(*map(np.concatenate, zip(*trees, strict=True)))
        split = nodes.left.astype(np.int64) > 0
        held = ~split[:, None] & (nodes.values != 0)
        held[:, 0] = ~split  # no leaf may be empty
        leaves, targets = np.nonzero(held)
        doubles = self.onnx.numpy_helper.from_array
        sums = self.add(
            "TreeEnsembleRegressor",
            tensor,
            domain="ai.onnx.ml",
            n_targets=nodes.values.shape[1],
            nodes_treeids=tree_ids,
            nodes_nodeids=node_ids,
            nodes_modes=np.where(split, "BRANCH_LEQ", "LEAF").tolist(),
            nodes_featureids=np.where(split, nodes.feature, 0),
            nodes_values_as_tensor=doubles(np.where(split, nodes.threshold, 0.0)),
            nodes_truenodeids=np.where(split, nodes.left, 0),
            nodes_falsenodeids=np.where(split, nodes.right, 0),
            nodes_missing_value_tracks_true=nodes.missing_left,
            target_treeids=tree_ids[leaves],
            target_nodeids=node_ids[leaves],
            target_ids=targets,
            target_weights_as_tensor=doubles(nodes.values[leaves, targets]),
        )
        return self.add("Add", self._double(sums), np.ravel(start))

    def _double(self, tensor: str) -> str:
        return self.add("Cast", tensor, to=self.onnx.TensorProto.DOUBLE)

    def _converted(self, estimator: Any, tensor: str, **options: bool) -> str:
        """Add what skl2onnx makes of an estimator; return its last output.

        scikit-learn's trees read float32. For some other models, only that can be run.
        """
        for number in ("Float",) if isinstance(estimator, BaseEnsemble) else ("Double", "Float"):
            try:
                part = self._part(estimator, number, options)
                open_session(part.SerializeToString())
                break
            except Exception as error:  # of skl2onnx and onnxruntime, which have no common class
                cause = error
        else:
            raise ExportError(
                f"skl2onnx cannot convert this {type(estimator).__name__}: {str(cause)[:200]}. "
                f"{IN_PYTHON}"
            ) from cause
        part = self.onnx.compose.add_prefix(part, f"part_{len(self.nodes)}/")
        kind = getattr(self.onnx.TensorProto, number.upper())
        self.add("Cast", tensor, output=part.graph.input[0].name, to=kind)
        self.nodes += part.graph.node
        self.constants += part.graph.initializer
        return self._double(part.graph.output[0].name)

    def _part(self, estimator: Any, number: str, options: dict[str, bool]) -> Any:
        """Return the graph of an estimator that takes these numbers, with its last output only."""
        kind = getattr(require("skl2onnx.common.data_types", "onnx"), f"{number}TensorType")
        part = require("skl2onnx", "onnx").convert_sklearn(
            estimator,
            initial_types=[("x", kind([None, estimator.n_features_in_]))],
            options={id(estimator): options},
            target_opset=self.opsets,
        )
        del part.graph.output[:-1]  # predicted labels, which not every runtime computes
        pruned = self.ir.from_proto(part)
        self.ir.passes.common.RemoveUnusedNodesPass()(pruned)
        self.ir.passes.common.InlinePass()(pruned)  # only the nodes are taken from this graph
        return self.ir.to_proto(pruned)


class _Tree(NamedTuple):
    """The nodes of a tree: one row each, of `values` one column per label."""

    values: Array
    feature: Array
    threshold: Array
    left: Array
    right: Array
    missing_left: Array


def _trees_of(model: Any) -> tuple[Any, list[_Tree]]:
    """Return what the sum of the leaves starts from, and the trees."""
    if isinstance(model, HistGradientBoostingClassifier):
        names = ("feature_idx", "num_threshold", "left", "right", "missing_go_to_left")
        return model._baseline_prediction, [
            _Tree(tree.nodes["value"][:, None], *(tree.nodes[name] for name in names))
            for (tree,) in model._predictors
        ]
    if isinstance(model, GradientBoostingClassifier):
        trees = [part.tree_ for part in model.estimators_[:, 0]]
        start = model._raw_predict_init(np.zeros((1, model.n_features_in_)))
        values = [model.learning_rate * tree.value[:, :, 0] for tree in trees]
    else:
        trees = [part.tree_ for part in getattr(model, "estimators_", [model])]
        start, kinds = 0.0, model.classes_ if model.n_outputs_ > 1 else [model.classes_]
        present = np.zeros(trees[0].value.shape[1:])  # (n_labels, n_classes)
        for label, classes in enumerate(kinds):
            present[label, : len(classes)] = classes == 1
        counts = [tree.value / len(trees) for tree in trees]  # (n_nodes, n_labels, n_classes)
        values = [(count * present).sum(axis=2) for count in counts]
    return start, [
        _Tree(v, t.feature, t.threshold, t.children_left, t.children_right, t.missing_go_to_left)
        for t, v in zip(trees, values, strict=True)
    ]


def _is_boosting(model: Any) -> bool:
    """Return whether these are boosted trees whose decision is a log-odds."""
    is_plain = getattr(model, "init", None) in (None, "zero")  # and starts from no other model
    return isinstance(model, _BOOSTING) and model.loss == "log_loss" and is_plain
