"""Write a wrapped model as a model of MLflow, and load it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from nescio._io.tables import require
from nescio._version import __version__
from nescio.calibration.calibration import CUSTOM
from nescio.detectors import Detector
from nescio.errors import FileError, ParameterError
from nescio.mlflow.evaluations import calibration_facts
from nescio.mlflow.signatures import as_example, signature_of
from nescio.mlflow.verdicts import Verdicts
from nescio.registries.folder import as_wrapped, read_model, write_model
from nescio.runners import Wrapped

LOADER = "nescio.mlflow"
"""The module that MLflow calls to load a model."""

_FOLDER = "nescio"


def log_model(
    wrapped: Wrapped | Any,
    name: str = "model",
    *,
    input_example: Any,
    registered_model_name: str | None = None,
    pip_requirements: Sequence[str] | None = None,
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
    name : str
        The name of the model in MLflow.
    input_example
        A few inputs, as the wrapped model takes them. They are kept with the model, decide the
        types of its signature, and check the graph.
    registered_model_name : str, optional
        Register the model under this name too.
    pip_requirements : sequence of str, optional
        What MLflow installs to serve the model; by default nescio, mlflow-skinny, pandas and
        onnxruntime or skops, in the versions that are installed here.
    trusted : sequence of str
        Types of a scikit-learn estimator that skops does not trust, such as the trees of a forest.
        An error names them.
    **options
        As `mlflow.pyfunc.log_model` takes them, such as metadata, tags, params and run_id.
    """
    with _prepared(wrapped, input_example, pip_requirements, trusted, options) as prepared:
        return require("mlflow.pyfunc", "mlflow").log_model(
            name=name, registered_model_name=registered_model_name, **prepared
        )


def save_model(
    wrapped: Wrapped | Any,
    path: str | Path,
    *,
    input_example: Any,
    pip_requirements: Sequence[str] | None = None,
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
    with _prepared(wrapped, input_example, pip_requirements, trusted, options) as prepared:
        require("mlflow.pyfunc", "mlflow").save_model(path=str(path), **prepared)


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
    mlflow = require("mlflow", "mlflow")
    folder = Path(mlflow.artifacts.download_artifacts(artifact_uri=str(uri)))
    model = require("mlflow.models", "mlflow").Model.load(str(folder))
    flavor = model.flavors.get("python_function", {})
    data = Path(str(flavor.get("data", "")))
    if flavor.get("loader_module") != LOADER or data.is_absolute() or ".." in data.parts:
        raise FileError(
            f"{uri} is not a model that nescio.mlflow has logged. Load it with MLflow, and wrap it."
        )
    return read_model(folder / data, trusted=trusted)


def _load_pyfunc(path: str, model_config: Mapping[str, Any] | None = None) -> Verdicts:
    """Return what MLflow calls a pyfunc: an object with `predict`."""
    return Verdicts(read_model(Path(path), trusted=(model_config or {}).get("trusted", ())))


@contextmanager
def _prepared(
    wrapped: Any,
    input_example: Any,
    pip_requirements: Sequence[str] | None,
    trusted: Sequence[str],
    options: Mapping[str, Any],
) -> Iterator[dict[str, Any]]:
    """Write the files of a model; give the parameters that MLflow's functions have in common."""
    wrapped = as_wrapped(wrapped)
    _check_detector(wrapped)
    example = as_example(input_example, wrapped)
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / _FOLDER
        folder.mkdir()
        loaded = write_model(wrapped, folder, samples=example, trusted=trusted, as_graph=True)
        requirements = pip_requirements or _requirements(loaded)
        detector: Any = loaded.detector
        yield {
            "loader_module": LOADER,
            "data_path": str(folder),
            "signature": signature_of(loaded, example),
            "input_example": example,
            "pip_requirements": list(requirements),
            "model_config": {"trusted": list(trusted)} if trusted else None,
            **options,
            "metadata": {
                "nescio": calibration_facts(detector),
                **(options.get("metadata") or {}),
            },
        }


def _check_detector(wrapped: Wrapped) -> None:
    """Raise if the verdicts would need something that MLflow does not have."""
    detector = wrapped.detector
    for part in (detector, *getattr(detector, "detectors_", ())):
        kind = type(part)
        if isinstance(part, Detector) and not kind.__module__.startswith("nescio."):
            raise ParameterError(
                f"the detector {kind.__name__} is a class of your own ({kind.__module__}), and "
                "MLflow would have to load it without your code. Choose a detector of nescio, or "
                "log the file of wrapped.save(...) with mlflow.log_artifact."
            )
    calibration = getattr(detector, "calibration_", None)
    if calibration is not None and calibration.by == CUSTOM:
        raise ParameterError(
            "the detector was calibrated with groups of your own, which MLflow cannot pass with "
            'the inputs. Calibrate without groups, or with groups="label_count".'
        )


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
