"""Log the metrics of an evaluation and the facts of a calibration to MLflow."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from nescio._io.files import existing_file
from nescio._io.tables import require
from nescio.calibration import Calibration
from nescio.detectors import Detector, NotCalibratedError
from nescio.errors import ParameterError
from nescio.metrics import Evaluation
from nescio.metrics.comparison import Comparison
from nescio.registries.card import chosen_params, result_rows
from nescio.runners import Wrapped

_FOLDER = "nescio"  # of artifacts
_LONGEST_TAG = 5000  # characters, in MLflow's database
_NOT_ALLOWED = re.compile(r"[^\w.\- /]")  # in the name of a metric


def log_evaluation(
    result: Evaluation | Comparison,
    *,
    model: Wrapped | Detector | Any | None = None,
    prefix: str = "",
    report: str | Path | None = None,
) -> dict[str, float]:
    """Log FPR, AUROC and AUPR with their intervals to MLflow's active run; return the metrics.

    The names are fpr95, auroc and aupr, with _low and _high for the ends of the interval. Those of
    a comparison begin with the OOD set and the detector: textures/joint_energy/auroc. Values are
    shares from 0 to 1. Everything else goes into the artifact nescio/evaluation.json, also which
    detectors were skipped.

    Parameters
    ----------
    result : Evaluation or Comparison
        From `nescio.evaluate` or `nescio.compare`.
    model : Wrapped, WithVerdict or Detector, optional
        With a calibrated detector, whose name, threshold, TPR and number of calibration samples
        become parameters of the run, and whose guarantee becomes the tag nescio.guarantee.
    prefix : str
        Put before the name of each metric, parameter, tag and artifact, such as "test/". Two
        models in one run need two prefixes.
    report : path, optional
        A file to keep as an artifact, such as the page that `nescio report` wrote.
    """
    mlflow = require("mlflow", "mlflow")
    metrics = metrics_of(result, prefix)
    facts = {} if model is None else calibration_facts(_detector(model))
    page = None if report is None else existing_file(report)
    if facts:
        _log_facts(mlflow, facts, prefix)  # first: it raises if the run is that of another model
    mlflow.log_metrics(metrics)
    mlflow.log_dict(result.as_dict(), f"{_FOLDER}/{prefix}evaluation.json")
    if page is not None:
        mlflow.log_artifact(str(page), f"{_FOLDER}/{prefix}".rpartition("/")[0])
    return metrics


def _log_facts(mlflow: Any, facts: dict[str, Any], prefix: str) -> None:
    """Log parameters and the guarantee of a calibration."""
    start = _NOT_ALLOWED.sub("_", f"{prefix}nescio.")
    guarantee = str(facts.pop("guarantee"))
    values = {k: v if isinstance(v, str) else json.dumps(v) for k, v in facts.items()}
    params = {f"{start}{name}": value for name, value in values.items()}
    run = mlflow.active_run()
    there = {} if run is None else mlflow.get_run(run.info.run_id).data.params
    for name, value in params.items():
        if there.get(name, value) != value:  # MLflow would not change it
            raise ParameterError(
                f"the run has the parameters of another model already: {name} is {there[name]!r}, "
                f"not {value!r}. Pass another prefix than {prefix!r}, or start another run."
            )
    mlflow.log_params(params)
    mlflow.set_tag(f"{start}guarantee", guarantee[:_LONGEST_TAG])


def metrics_of(result: Evaluation | Comparison, prefix: str = "") -> dict[str, float]:
    """Return the metrics by the names that MLflow accepts."""
    found: dict[str, float] = {}
    for ood, detector, evaluation in result_rows(result):
        start = prefix + "".join(f"{part}/" for part in (ood, detector) if part)
        measures = {
            evaluation.fpr_name.lower(): evaluation.fpr,
            "auroc": evaluation.auroc,
            "aupr": evaluation.aupr,
        }
        for measure, one in measures.items():
            values = {"": one.value, "_low": one.low, "_high": one.high}
            for end, value in values.items():
                name = _NOT_ALLOWED.sub("_", f"{start}{measure}{end}")
                if name in found:
                    raise ParameterError(
                        f"two metrics would have the name {name!r} in MLflow: rename {ood!r} or "
                        f"{detector!r}."
                    )
                if value is not None:
                    found[name] = value
    return found


def calibration_facts(detector: Detector) -> dict[str, Any]:
    """Return the detector and its calibration as plain data."""
    calibration: Calibration = detector.calibration_
    facts = calibration.facts()
    return {
        "detector": detector.name,
        "params": chosen_params(detector),
        "n_calibration": facts.pop("n_samples"),
        **facts,
        "guarantee": calibration.statement(),
    }


def _detector(model: Any) -> Detector:
    model = getattr(model, "wrapped_", model)  # of a fitted nescio.sklearn.WithVerdict
    detector = model.detector if isinstance(model, Wrapped) else model
    if not isinstance(detector, Detector) or not hasattr(detector, "calibration_"):
        raise NotCalibratedError(
            "model must be a wrapped model or a detector that is calibrated. Call "
            "calibrate(held_out) first."
        )
    return detector
