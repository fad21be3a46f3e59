"""Models and metrics in MLflow: a pyfunc that gives labels, probabilities and verdicts.

This package needs mlflow or mlflow-skinny: pip install '.[mlflow]'. Models of torch and
transformers need '.[export]' to be logged and '.[onnx]' to be loaded, scikit-learn models need
'.[skops]'.
"""

from __future__ import annotations

from nescio._io.tables import require

require("mlflow", "mlflow")

from nescio.mlflow.evaluations import log_evaluation  # noqa: E402
from nescio.mlflow.models import (  # noqa: E402
    _load_pyfunc as _load_pyfunc,  # MLflow calls it by this name
    load_model,
    log_model,
    save_model,
)

__all__ = ["load_model", "log_evaluation", "log_model", "save_model"]
