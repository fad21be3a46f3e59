"""Models in MLflow: a pyfunc that gives labels, probabilities and verdicts.

This module needs mlflow or mlflow-skinny: pip install '.[registries]'. Models of torch and
transformers need '.[torch,onnx]' to be logged and '.[onnx]' to be loaded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from nescio._validation import is_torch, to_numpy
from nescio._version import __version__
from nescio.errors import FileError, ParameterError, require
from nescio.integrations.hugging_face import chosen_params, foreign_errors, read_model, write_model
from nescio.models import Wrapped, wrap
from nescio.models.inputs import as_texts, n_rows

mlflow = require("mlflow", "registries")
pandas = require("pandas", "registries")
models, pyfunc, types = (
    require(f"mlflow.{part}", "registries") for part in ("models", "pyfunc", "types")
)

__all__ = ["load_model", "log_model", "save_model"]


def log_model(
    wrapped: Wrapped | Any,
    name: str = "model",
    *,
    input_example: Any,
    trusted: Sequence[str] = (),
    **options: Any,
) -> Any:
    """Log a wrapped model to MLflow's active run; return MLflow's ModelInfo.

    `mlflow.pyfunc.load_model(info.model_uri).predict(inputs)` gives a data frame with one row per
    sample: predicted (a list of labels), probs (each label's probability), score, p_value,
    in_distribution and, if calibrated by label count, group.

    A model of torch or transformers, or an ONNX file, is logged as one ONNX graph with its
    detector, a scikit-learn estimator as a file of skops. Loading it needs neither torch nor the
    code that trained it.

    Parameters
    ----------
    wrapped : Wrapped or WithVerdict
        A model with a calibrated detector.
    input_example
        A few inputs, as the wrapped model takes them. They are kept with the model, decide the
        types of its signature, and check the graph.
    trusted : sequence of str
        As `save_pretrained` takes it.
    **options
        As `mlflow.pyfunc.log_model` takes them, such as registered_model_name, metadata and tags.
        pip_requirements is what MLflow installs to serve the model: by default nescio,
        mlflow-skinny, pandas and onnxruntime or skops, in the versions that are installed here.
    """
    with _errors("cannot log it"), _prepared(wrapped, input_example, trusted, options) as prepared:
        return pyfunc.log_model(name=name, **prepared)


def save_model(
    wrapped: Wrapped | Any,
    path: str | Path,
    *,
    input_example: Any,
    trusted: Sequence[str] = (),
    **options: Any,
) -> None:
    """Write a wrapped model as a folder of MLflow, which must not exist yet.

    Takes what `log_model` takes; options are those of `mlflow.pyfunc.save_model`.

    Examples
    --------
    >>> save_model(guarded, "tagger", input_example=inputs[:4])  # doctest: +SKIP
    """
    if Path(path).exists():
        raise FileError(f"{path} exists already. Name a folder that does not exist.")
    with _errors("cannot save it"), _prepared(wrapped, input_example, trusted, options) as prepared:
        pyfunc.save_model(path=str(path), **prepared)


def load_model(uri: str, *, trusted: Sequence[str] = ()) -> Wrapped:
    """Return the wrapped model of a model of MLflow: it predicts, explains and has the detector.

    Unlike `mlflow.pyfunc.load_model`, it runs no code that the model names.

    Parameters
    ----------
    uri : str
        As MLflow has it, such as "models:/tagger/1", "runs:/<run>/model" or the path of a folder.
    trusted : sequence of str
        Types of a scikit-learn estimator that skops does not trust, but that you do.
    """
    with _errors(f"cannot load {uri}"):
        folder = Path(mlflow.artifacts.download_artifacts(artifact_uri=str(uri)))
        flavor = models.Model.load(str(folder)).flavors.get("python_function", {})
        data = Path(str(flavor.get("data", "")))
    if flavor.get("loader_module") != __name__ or data.is_absolute() or ".." in data.parts:
        raise FileError(
            f"{uri} is not a model that {__name__} has logged. Load it with MLflow, and wrap it."
        )
    return read_model(folder / data, trusted=trusted)


def _errors(what: str) -> AbstractContextManager[None]:
    return foreign_errors(f"MLflow: {what}", "Check the name and MLFLOW_TRACKING_URI.")


def _load_pyfunc(path: str, model_config: Mapping[str, Any] | None = None) -> _Verdicts:
    """Return the object whose `predict` MLflow calls. MLflow finds this function by its name."""
    return _Verdicts(read_model(Path(path), trusted=(model_config or {}).get("trusted", ())))


class _Verdicts:
    """A wrapped model as a pyfunc of MLflow."""

    def __init__(self, wrapped: Wrapped) -> None:
        self.wrapped = wrapped

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> Any:
        """Return a data frame with one row per sample; the index of a data frame is kept."""
        wrapped = self.wrapped
        index = model_input.index if isinstance(model_input, pandas.DataFrame) else None
        prediction = wrapped.predict(_column_of_texts(model_input, wrapped))
        probs = prediction.probs
        names = wrapped.label_names or tuple(map(str, range(probs.shape[1])))
        left_out = {"id", *prediction.assessment.kept}  # what the caller has
        columns = {
            name: column.tolist() if column.dtype.kind == "U" else column
            for name, column in prediction.assessment.columns().items()
            if name not in left_out
        }
        labels = [list(map(str, predicted)) for predicted in prediction.label_lists()]
        by_label = [dict(zip(names, map(float, row), strict=True)) for row in probs]
        return pandas.DataFrame({"predicted": labels, "probs": by_label, **columns}, index=index)


@contextmanager
def _prepared(
    wrapped: Any, input_example: Any, trusted: Sequence[str], options: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Write the files of a model; give the parameters that MLflow's functions have in common."""
    wrapped = wrap(wrapped)
    example = _as_example(input_example, wrapped)
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "nescio"
        folder.mkdir()
        loaded = write_model(wrapped, folder, samples=example, trusted=trusted)
        detector: Any = loaded.detector
        facts = {
            "detector": detector.name,
            "params": chosen_params(detector),
            **detector.calibration_.facts(),
            "guarantee": detector.calibration_.statement(),
        }
        yield {
            "loader_module": __name__,
            "data_path": str(folder),
            "signature": _signature(loaded, example),
            "input_example": example,
            "pip_requirements": _requirements(loaded),
            "model_config": {"trusted": list(trusted)} if trusted else None,
            **options,
            "metadata": {"nescio": facts, **(options.get("metadata") or {})},
        }


def _requirements(wrapped: Wrapped) -> list[str]:
    """Return what loading the model needs, in the versions of this environment."""
    packages = ["mlflow-skinny", "pandas"]
    if wrapped.runner.kind == "sklearn":
        packages += ["scikit-learn", "skops"]
    else:
        packages += ["onnxruntime"]
        if "head" in getattr(wrapped.detector, "scores_from", ()):
            packages += ["onnx"]  # finds the last layer of the graph
        if wrapped.runner.tokenizer is not None:
            packages += ["tokenizers"]
    return [f"nescio=={__version__}", *(f"{name}=={version(name)}" for name in packages)]


def _column_of_texts(inputs: Any, wrapped: Wrapped) -> Any:
    """Return the only column of a frame if it holds texts, as MLflow passes them."""
    # A scikit-learn model that was fitted on a data frame knows its columns, and gets a frame.
    is_column = isinstance(inputs, pandas.DataFrame) and inputs.shape[1] == 1
    if not is_column or hasattr(wrapped.runner.model, "feature_names_in_"):
        return inputs
    return inputs if as_texts(inputs.iloc[:, 0]) is None else inputs.iloc[:, 0]


def _as_example(inputs: Any, wrapped: Wrapped) -> Any:
    """Return inputs as MLflow keeps them: tensors as arrays, texts as a list."""
    inputs = _column_of_texts(inputs, wrapped)
    if (texts := as_texts(inputs)) is not None:
        inputs = texts
    elif isinstance(inputs, Mapping):
        inputs = {str(name): to_numpy(part) for name, part in inputs.items() if name != "labels"}
    elif is_torch(inputs):
        inputs = to_numpy(inputs)
    elif not hasattr(inputs, "shape") and not isinstance(inputs, list):
        raise ParameterError(
            f"input_example must be a few inputs of the model, got {type(inputs).__name__}: pass "
            "an array, a data frame, a list of texts or a dictionary of arrays."
        )
    if not len(inputs) or not n_rows(inputs):
        raise ParameterError("input_example has no rows: pass a few inputs of the model.")
    return inputs


def _signature(wrapped: Wrapped, example: Any) -> Any:
    """Return MLflow's signature: the types and shapes of inputs and outputs."""
    runner: Any = wrapped.runner
    if runner.kind == "onnx" and not isinstance(example, list):  # a list has texts
        named = isinstance(example, Mapping)
        parts = example if named else {runner.input_names[0]: example}
        sizes = {  # the graph says which of them may change
            name: [size if isinstance(size, int) else -1 for size in shape[1:]]
            for name, shape in runner.input_shapes.items()
        }
        specs = [
            types.TensorSpec(part.dtype, (-1, *sizes[name]), name if named else None)
            for name, part in parts.items()
        ]
        inputs = types.Schema(specs)
    else:
        inputs = models.infer_signature(example).inputs
    kinds = types.DataType
    of_name = {
        "predicted": types.schema.Array(kinds.string),
        "probs": types.schema.Map(kinds.double),
        "in_distribution": kinds.boolean,
        "group": kinds.string,
    }
    columns = _Verdicts(wrapped).predict(example).columns
    outputs = [types.ColSpec(of_name.get(name, kinds.double), name) for name in columns]
    return models.ModelSignature(inputs, types.Schema(outputs))
