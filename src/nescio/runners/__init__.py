"""Any trained multi-label model, with a verdict beside every prediction.

`wrap` takes a torch module, a transformers model, a scikit-learn classifier or an ONNX file as it
is, and leaves it as it is. What the model gives becomes `Outputs`; with a detector, a call gives
labels, probabilities and verdict together.

Importing this loads none of torch, transformers and onnxruntime: only what the model itself needs
is loaded, when it is wrapped.
"""

from __future__ import annotations

from nescio.runners.base import Wrapped
from nescio.runners.dispatch import wrap
from nescio.runners.prediction import PredictedRow, Prediction

__all__ = ["PredictedRow", "Prediction", "Wrapped", "wrap"]
