"""Run any trained multi-label model, with a verdict for every prediction.

A `Runner` turns batches of inputs into named arrays. `wrap` makes one from a torch module, a
transformers model, a scikit-learn classifier or an ONNX file, and puts a detector next to it: a
call then returns labels, probabilities and verdicts together.

Importing this package loads none of torch, transformers and onnxruntime: what a model needs is
loaded when its runner is made.
"""

from __future__ import annotations

from nescio.models.base import Runner
from nescio.models.prediction import PredictedRow, Prediction
from nescio.models.wrapped import Wrapped, wrap

__all__ = ["PredictedRow", "Prediction", "Runner", "Wrapped", "wrap"]
