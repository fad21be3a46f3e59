"""Which adapter a model takes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nescio._io.tables import require
from nescio.detectors import Detector
from nescio.errors import ParameterError
from nescio.runners.base import Wrapped


def wrap(
    model: Any,
    *,
    detector: Detector | str | Path | None = None,
    features: str | None = None,
    label_names: Sequence[str] | None = None,
    from_probs: bool = False,
    device: Any = None,
    output: str | int | None = None,
) -> Wrapped:
    """A trained multi-label model that gives `Outputs` and, with a detector, verdicts.

    The model stays as it is: its predictions, parameters, buffers, hooks, device and train or eval
    mode, part by part.

    Parameters
    ----------
    model : torch Module, transformers model, scikit-learn classifier, path or InferenceSession
        A path is that of an .onnx file. A wrapped model is wrapped anew, with what is given here
        instead of what it had.
    detector : Detector or path, optional
        A calibrated detector, or the file of one. Without it there are outputs, and no verdicts.
    features : str, optional
        Where the features are. torch and transformers: the dotted name of a layer, as
        `model.named_modules()` has it, for what that layer gives; with ":input" after it, for what
        it reads, such as "fc:input". ONNX: the name of an output. scikit-learn: "inputs".
    label_names : sequence of str, optional
        One name a label, in the model's order. A transformers model brings its own.
    from_probs : bool
        The model gives probabilities, not logits.
    device : optional
        Where the model is, and inputs go: by default where its parameters are. ONNX: "cpu" or
        "cuda".
    output : str or int, optional
        Which output holds the logits, if there are several. torch: a key, an attribute or a
        position; ONNX: a name; scikit-learn: "decision_function" or "predict_proba".

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.multiclass import OneVsRestClassifier
    >>> x = np.random.default_rng(0).normal(size=(300, 3))
    >>> model = OneVsRestClassifier(LogisticRegression()).fit(x[:100], x[:100] > 0)
    >>> wrapped = wrap(model, label_names=["cat", "dog", "cow"]).calibrate(x[100:])
    >>> wrapped([[4.0, -1.0, 5.0], [-4.0, -3.0, -5.0]])
    2 predicted, 1 flagged
                    score   p_value  verdict  labels
           0       34.017    1.0000  in       cow 1.00, cat 1.00
           1   1.9707e-05    0.0050  OUT      none
    """
    settings: dict[str, Any] = {
        "detector": detector,
        "features": features,
        "label_names": label_names,
        "from_probs": from_probs,
        "device": device,
        "output": output,
    }
    if isinstance(model, Wrapped):
        given = {name: value for name, value in settings.items() if value not in (None, False)}
        return type(model)(model.model, **{**model.settings(), **given})
    if isinstance(model, type):
        raise ParameterError(
            f"{model.__name__} is a class. Pass a trained model, an instance of it."
        )
    return _adapter(model)(model, **settings)


def _adapter(model: Any) -> type[Wrapped]:
    if isinstance(model, str | Path):
        _check_name(model)
        require("onnxruntime", "onnx")
    if isinstance(model, str | Path) or _is_a(model, "onnxruntime", "InferenceSession"):
        from nescio.runners.onnx_models import OnnxModel

        return OnnxModel
    if _is_a(model, "transformers.modeling_utils", "PreTrainedModel"):
        from nescio.runners.transformers_models import TransformersModel

        return TransformersModel
    if _is_a(model, "torch.nn", "Module"):
        from nescio.runners.torch_models import TorchModel

        return TorchModel
    if hasattr(model, "predict") and hasattr(model, "get_params"):
        from nescio.runners.sklearn_models import SklearnModel

        return SklearnModel
    raise ParameterError(
        f"cannot wrap what is of type {type(model).__name__}. Pass a torch Module, a transformers "
        "model, a scikit-learn classifier, the path of an .onnx file or an onnxruntime "
        "InferenceSession. For anything else, make Outputs(logits) of what it gives."
    )


def _is_a(model: Any, module: str, name: str) -> bool:
    """Whether it is of a class whose module is loaded; if not, it cannot be."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(model, getattr(loaded, name, ()))


def _check_name(path: str | Path) -> None:
    """Raise unless this may be an ONNX file."""
    suffix = Path(path).suffix.lower()
    if suffix == ".onnx":
        return
    hints = {
        ".nescio": "That is a detector: wrap(model, detector=path).",
        ".pt": "Load it with torch and pass the module.",
        ".pth": "Load it with torch and pass the module.",
        ".safetensors": "Load it into its module and pass that.",
    }
    hint = hints.get(suffix, "nescio loads no model by its name: load it and pass the model.")
    raise ParameterError(f"{str(path)!r} is not the path of an .onnx file. {hint}")
