"""nescio tells a multi-label classifier's user which inputs the model should not be trusted on.

>>> import nescio as ns
>>> detector = ns.JointEnergy().calibrate(val_logits, tpr=0.95)  # doctest: +SKIP
>>> detector.assess(new_logits)  # doctest: +SKIP
"""

from __future__ import annotations

import importlib

from nescio._version import __version__ as __version__

# Not that of typing: Ctrl-C while typing is imported here would print a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from nescio import (
        calibration as calibration,
        checks as checks,
        errors as errors,
        metrics as metrics,
        scores as scores,
    )
    from nescio.calibration import (
        Calibration as Calibration,
        Threshold as Threshold,
        benjamini_hochberg as benjamini_hochberg,
    )
    from nescio.choosing import Choice as Choice, choose as choose
    from nescio.detectors import (
        ASH as ASH,
        DETECTORS as DETECTORS,
        DICE as DICE,
        GEN as GEN,
        MSP as MSP,
        ODIN as ODIN,
        Arrays as Arrays,
        Assessment as Assessment,
        Combined as Combined,
        ConditionalJointEnergy as ConditionalJointEnergy,
        Detector as Detector,
        ExpJointEnergy as ExpJointEnergy,
        GradNorm as GradNorm,
        IsolationForest as IsolationForest,
        JointEnergy as JointEnergy,
        LabelNeighbours as LabelNeighbours,
        LinearProbe as LinearProbe,
        LocalOutlierFactor as LocalOutlierFactor,
        Mahalanobis as Mahalanobis,
        MaxEnergy as MaxEnergy,
        MaxLogit as MaxLogit,
        MaxProb as MaxProb,
        NearestNeighbours as NearestNeighbours,
        NNGuide as NNGuide,
        NotCalibratedError as NotCalibratedError,
        OutOfRange as OutOfRange,
        PerturbedMahalanobis as PerturbedMahalanobis,
        ReAct as ReAct,
        RelativeMahalanobis as RelativeMahalanobis,
        Scale as Scale,
        SumLogit as SumLogit,
        SumProb as SumProb,
        TopKJointEnergy as TopKJointEnergy,
        TopKLogit as TopKLogit,
        TopKProb as TopKProb,
        ViM as ViM,
        load as load,
        register as register,
    )
    from nescio.detectors.combined import default_detector as default_detector
    from nescio.displays import (
        RocDisplay as RocDisplay,
        ScoreHistogramDisplay as ScoreHistogramDisplay,
    )
    from nescio.errors import NescioError as NescioError
    from nescio.explain import Explanation as Explanation
    from nescio.export import DetectorHead as DetectorHead, export_onnx as export_onnx
    from nescio.integrations.hugging_face import from_pretrained as from_pretrained
    from nescio.integrations.sklearn import WithVerdict as WithVerdict
    from nescio.metrics import (
        Comparison as Comparison,
        Evaluation as Evaluation,
        LabelRates as LabelRates,
        compare as compare,
        evaluate as evaluate,
        label_rates as label_rates,
    )
    from nescio.models import Prediction as Prediction, Wrapped as Wrapped, wrap as wrap
    from nescio.models.images import Preprocessing as Preprocessing
    from nescio.models.table_features import TableFeatures as TableFeatures
    from nescio.monitor import Monitor as Monitor
    from nescio.outputs import Head as Head, Outputs as Outputs
    from nescio.self_check import SelfCheck as SelfCheck

# The public names of each module. They are imported at first use, so that `import nescio` is quick
# and imports neither scikit-learn nor torch. Detectors are found through their registry.
_NAMES = {
    "calibration": "Calibration Threshold benjamini_hochberg",
    "choosing": "Choice choose",
    "detectors": "Arrays Assessment DETECTORS Detector NotCalibratedError load register",
    "detectors.combined": "default_detector",
    "displays": "RocDisplay ScoreHistogramDisplay",
    "errors": "NescioError",
    "explain": "Explanation",
    "export": "DetectorHead export_onnx",
    "integrations.hugging_face": "from_pretrained",
    "integrations.sklearn": "WithVerdict",
    "metrics": "Comparison Evaluation LabelRates compare evaluate label_rates",
    "models": "Prediction Wrapped wrap",
    "models.images": "Preprocessing",
    "models.table_features": "TableFeatures",
    "monitor": "Monitor",
    "outputs": "Head Outputs",
    "self_check": "SelfCheck",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}
_MODULES = ("calibration", "checks", "detectors", "errors", "metrics", "scores")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"nescio.{name}")
    if name in _MODULE_OF:
        value = getattr(importlib.import_module(f"nescio.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value
    if not name.startswith("_") and name in _detectors():
        return _detectors()[name]
    from nescio.errors import nearest

    hint = "" if name.startswith("_") else nearest(name, __dir__())
    raise AttributeError(f"module 'nescio' has no attribute {name!r}.{hint}")


def __dir__() -> list[str]:
    return sorted({"__version__", *_MODULES, *_MODULE_OF, *_detectors()})


def _detectors() -> dict[str, Any]:
    """Return nescio's own detectors by the name of their class."""
    kinds = importlib.import_module("nescio.detectors").DETECTORS.values()
    return {kind.__name__: kind for kind in kinds if kind.__module__.startswith("nescio.")}
