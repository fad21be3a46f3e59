"""Run any trained multi-label model, with a verdict for every prediction.

A `Runner` turns batches of inputs into named arrays; `make_runner` makes one from a torch module, a
transformers model, a scikit-learn classifier, an ONNX file or a checkpoint of nescio. `wrap` puts a
detector next to it: a call then returns labels, probabilities and verdicts together. `extract`
writes the outputs of a runner on a data set of images.

Importing this package loads none of torch, transformers and onnxruntime: what a model needs is
loaded when its runner is made.
"""

from __future__ import annotations

from nescio.runners.base import Runner
from nescio.runners.dispatch import make_runner
from nescio.runners.extract import Extraction, extract
from nescio.runners.prediction import PredictedRow, Prediction
from nescio.runners.wrapped import Wrapped, wrap

__all__ = [
    "Extraction",
    "PredictedRow",
    "Prediction",
    "Runner",
    "Wrapped",
    "extract",
    "make_runner",
    "wrap",
]
