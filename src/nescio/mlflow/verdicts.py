"""What MLflow calls to predict: inputs in, a data frame of labels and verdicts out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nescio._io.tables import require
from nescio.runners import Wrapped


class Verdicts:
    """A wrapped model as a pyfunc of MLflow."""

    def __init__(self, wrapped: Wrapped) -> None:
        self.wrapped = wrapped

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> Any:
        """Return a data frame with one row per sample; the index of a data frame is kept."""
        return frame_of(self.wrapped, model_input)


def frame_of(wrapped: Wrapped, inputs: Any) -> Any:
    """Return predicted labels, probabilities and verdicts as a pandas frame."""
    pandas = require("pandas", "mlflow")
    index = inputs.index if isinstance(inputs, pandas.DataFrame) else None
    prediction = wrapped.predict(as_texts(inputs, wrapped))
    probs = prediction.probs
    names = wrapped.label_names or tuple(map(str, range(probs.shape[1])))
    left_out = {"id", *prediction.assessment.kept}  # what the caller has
    columns = prediction.assessment.columns()
    return pandas.DataFrame(
        {
            "predicted": [[names[at] for at in row.nonzero()[0]] for row in prediction.predicted],
            "probs": [dict(zip(names, map(float, row), strict=True)) for row in probs],
            **{name: _plain(columns[name]) for name in columns if name not in left_out},
        },
        index=index,
    )


def _plain(column: Any) -> Any:
    return column.tolist() if column.dtype.kind == "U" else column


def as_texts(inputs: Any, wrapped: Wrapped) -> Any:
    """Return texts in a column, an array or a frame of one column as a list; others as they are.

    A scikit-learn model that was fitted on a data frame knows its columns, and gets a frame.
    """
    pandas = require("pandas", "mlflow")
    runner = wrapped.runner
    column = inputs
    if isinstance(inputs, pandas.DataFrame):
        if inputs.shape[1] != 1 or hasattr(runner.model, "feature_names_in_"):
            return inputs
        column = inputs.iloc[:, 0]
    if len(getattr(column, "shape", ())) != 1 or not hasattr(column, "tolist"):
        return inputs
    texts = column.tolist()
    # Of a model of texts, also what is no text: the runner says which rows these are.
    of_texts = runner.tokenizer is not None or (
        runner.kind == "sklearn" and not hasattr(runner.model, "n_features_in_")
    )
    return texts if of_texts or all(isinstance(text, str) for text in texts) else inputs
