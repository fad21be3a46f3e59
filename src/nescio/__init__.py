"""nescio tells a multi-label classifier's user which inputs the model should not be trusted on.

>>> import nescio as ns
>>> detector = ns.JointEnergy().calibrate(val_logits, tpr=0.95)  # doctest: +SKIP
>>> detector.assess(new_logits)  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from nescio._version import __version__ as __version__

if TYPE_CHECKING:
    from nescio import calibration, checks, errors, metrics, scores
    from nescio.calibration import Calibration, Threshold, benjamini_hochberg
    from nescio.data.preprocessing import Preprocessing
    from nescio.detectors import (
        DETECTORS,
        MSP,
        ODIN,
        Detector,
        IsolationForest,
        JointEnergy,
        LocalOutlierFactor,
        Mahalanobis,
        MaxEnergy,
        MaxLogit,
        MaxProb,
        NotCalibratedError,
        PerturbedMahalanobis,
        SumLogit,
        SumProb,
        TopKJointEnergy,
        TopKLogit,
        TopKProb,
        load,
    )
    from nescio.detectors.assessment import Assessment
    from nescio.errors import NescioError
    from nescio.explain import Explanation
    from nescio.export import FusedModel, export_onnx
    from nescio.metrics import Evaluation, evaluate
    from nescio.monitor import Monitor
    from nescio.outputs import Outputs
    from nescio.runners import Prediction, Wrapped, wrap

# Where each public name lives. Names are imported at first use, so that `import nescio` is quick
# and brings in neither scikit-learn nor torch.
_MODULE_OF = {
    "Assessment": "detectors.assessment",
    "Calibration": "calibration",
    "DETECTORS": "detectors",
    "Detector": "detectors",
    "Evaluation": "metrics",
    "Explanation": "explain",
    "FusedModel": "export",
    "IsolationForest": "detectors",
    "JointEnergy": "detectors",
    "LocalOutlierFactor": "detectors",
    "MSP": "detectors",
    "Mahalanobis": "detectors",
    "MaxEnergy": "detectors",
    "MaxLogit": "detectors",
    "MaxProb": "detectors",
    "Monitor": "monitor",
    "NescioError": "errors",
    "NotCalibratedError": "detectors",
    "ODIN": "detectors",
    "Outputs": "outputs",
    "PerturbedMahalanobis": "detectors",
    "Preprocessing": "data.preprocessing",
    "Prediction": "runners",
    "SumLogit": "detectors",
    "SumProb": "detectors",
    "Threshold": "calibration",
    "TopKJointEnergy": "detectors",
    "TopKLogit": "detectors",
    "TopKProb": "detectors",
    "Wrapped": "runners",
    "benjamini_hochberg": "calibration",
    "evaluate": "metrics",
    "export_onnx": "export",
    "load": "detectors",
    "wrap": "runners",
}
_MODULES = ("calibration", "checks", "detectors", "errors", "metrics", "scores")

__all__ = [
    "DETECTORS",
    "MSP",
    "ODIN",
    "Assessment",
    "Calibration",
    "Detector",
    "Evaluation",
    "Explanation",
    "FusedModel",
    "IsolationForest",
    "JointEnergy",
    "LocalOutlierFactor",
    "Mahalanobis",
    "MaxEnergy",
    "MaxLogit",
    "MaxProb",
    "Monitor",
    "NescioError",
    "NotCalibratedError",
    "Outputs",
    "PerturbedMahalanobis",
    "Prediction",
    "Preprocessing",
    "SumLogit",
    "SumProb",
    "Threshold",
    "TopKJointEnergy",
    "TopKLogit",
    "TopKProb",
    "Wrapped",
    "benjamini_hochberg",
    "calibration",
    "checks",
    "errors",
    "evaluate",
    "export_onnx",
    "load",
    "metrics",
    "scores",
    "wrap",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"nescio.{name}")
    if name in _MODULE_OF:
        value = getattr(importlib.import_module(f"nescio.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'nescio' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
