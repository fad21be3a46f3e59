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
    prediction = wrapped.predict(_as_texts(inputs, pandas))
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


def _as_texts(inputs: Any, pandas: Any) -> Any:
    """Return the texts of the frame that MLflow makes of a list of texts: its column has no name"""
    is_frame = isinstance(inputs, pandas.DataFrame) and inputs.shape[1] == 1
    if is_frame and str(inputs.columns[0]) == "0":
        column = inputs.iloc[:, 0].tolist()
        if all(isinstance(text, str) for text in column):
            return column
    return inputs
