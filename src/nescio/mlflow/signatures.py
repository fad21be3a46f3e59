"""The signature of a model: the types and shapes that MLflow checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nescio._io.tables import require
from nescio._validation import Array, is_torch, to_numpy
from nescio.errors import ParameterError
from nescio.mlflow.verdicts import as_texts, frame_of
from nescio.runners import Wrapped
from nescio.runners.batches import n_rows


def as_example(inputs: Any, wrapped: Wrapped) -> Any:
    """Return inputs as MLflow keeps them: tensors as arrays, texts as a list."""
    inputs = as_texts(inputs, wrapped)
    if isinstance(inputs, Mapping):
        parts = {str(name): to_numpy(part) for name, part in inputs.items() if name != "labels"}
        if not parts:
            raise ParameterError("input_example is empty: pass a few inputs of the model.")
        return parts
    if is_torch(inputs) or isinstance(inputs, np.ndarray):
        return to_numpy(inputs)
    if isinstance(inputs, tuple):
        raise ParameterError(
            "input_example must have its inputs by name, because MLflow has no positions: pass a "
            "dictionary of arrays."
        )
    if not hasattr(inputs, "shape") and not isinstance(inputs, list):
        raise ParameterError(
            f"input_example must be a few inputs of the model, got {type(inputs).__name__}: an "
            "array, a data frame, a list of texts or a dictionary of arrays."
        )
    return inputs


def signature_of(wrapped: Wrapped, example: Any) -> Any:
    """Return MLflow's signature of what `Verdicts` takes and returns."""
    types, models = (require(f"mlflow.{name}", "mlflow") for name in ("types", "models"))
    if not n_rows(example):
        raise ParameterError("input_example has no rows: pass a few inputs of the model.")
    inputs: Any
    if wrapped.runner.kind == "onnx" and not isinstance(example, list):  # a list has texts
        inputs = _tensors(wrapped.runner, example, types)
    else:
        inputs = models.infer_signature(example).inputs
    return models.ModelSignature(inputs, _outputs(frame_of(wrapped, example), types))


def _tensors(runner: Any, example: Any, types: Any) -> Any:
    """Return a schema with the example's types; the graph says which sizes may change."""
    if not isinstance(example, Mapping):
        [shape] = runner.input_shapes.values()
        return types.Schema([types.TensorSpec(example.dtype, _sizes(shape, example))])
    return types.Schema(
        [
            types.TensorSpec(part.dtype, _sizes(runner.input_shapes[name], part), name)
            for name, part in example.items()
        ]
    )


def _sizes(shape: list[Any], part: Array) -> tuple[int, ...]:
    return (-1, *(size if isinstance(size, int) else -1 for size in shape[1:]))


def _outputs(frame: Any, types: Any) -> Any:
    kinds = types.DataType
    of_name = {
        "predicted": types.schema.Array(kinds.string),
        "probs": types.schema.Map(kinds.double),
        "in_distribution": kinds.boolean,
        "group": kinds.string,
    }
    return types.Schema(
        [types.ColSpec(of_name.get(name, kinds.double), name) for name in frame.columns]
    )
