"""Which runner a model takes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nescio._io.tables import require
from nescio.data.preprocessing import Preprocessing
from nescio.errors import ParameterError
from nescio.runners.base import Runner
from nescio.runners.features import Layers

_OWN = "module:"


def make_runner(
    model: Any,
    *,
    features: Layers | Any = None,
    label_names: Sequence[str] | None = None,
    from_probs: bool = False,
    device: Any = None,
    output: str | int | None = None,
    preprocessing: Preprocessing | None = None,
    tokenizer: Any = None,
    crops: bool = False,
) -> Runner:
    """Return a runner for any trained multi-label model.

    Parameters
    ----------
    model : torch Module, transformers model, scikit-learn classifier, Checkpoint, path or session
        A path is that of an .onnx file or of a checkpoint (.safetensors); a session is one of
        onnxruntime. "module:package.module:factory" names a function that returns a torch module.
        A runner is made again with the parameters that are given here.
    features : str, sequence of str or transformer, optional
        Which activations are the features. "pooled" is the representation before the task head,
        "penultimate" the input of the last linear layer, "input" the model's own input, and "auto"
        the first of these that the model has. torch and transformers: also the dotted name of a
        layer, as `model.named_modules()` has it, for its output; the same followed by ":input",
        such as "fc:input", for its input. ONNX: also the name of an output or of another tensor.
        scikit-learn: only "input" and, for pipelines, "penultimate", the input of the last step; or
        a fitted transformer of the model's input, such as `nescio.sklearn.TableFeatures`.
        Features of shape (n_samples, n_features, height, width) are averaged over height and width.
        Of several layers, "pooled,penultimate" or a list, the first are the features, and the
        others are arrays under their own names. The default is none; for checkpoints,
        "pooled,penultimate".
    label_names : sequence of str, optional
        One name per label, in the model's order. Checkpoints, transformers models and files of
        `nescio export` have their own.
    from_probs : bool
        The model returns probabilities, not logits.
    device : optional
        torch and transformers: where the model is and where inputs go; by default where its
        parameters are. A checkpoint is moved there. ONNX: "cpu" or "cuda".
    output : str or int, optional
        Which output holds the logits, if there are several. torch: a key, an attribute or a
        position. ONNX: a name. scikit-learn: "decision_function" or "predict_proba".
    preprocessing : Preprocessing, optional
        How an image becomes the model's input. With it, uint8 images are preprocessed.
    tokenizer : transformers tokenizer, tokenizers.Tokenizer or path, optional
        torch, transformers and ONNX models that take `input_ids`: makes texts their inputs. A path
        is that of a tokenizer.json, or of a folder with one. Texts are padded to the longest of
        their batch. A text with more tokens than the tokenizer and the model allow is cut off, and
        a warning says how many were. Files of `nescio.export_onnx` have their own.
    crops : bool
        For models of images: run nine crops of each image too, for the detector "mixed".

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.multioutput import MultiOutputClassifier
    >>> rng = np.random.default_rng(0)
    >>> inputs = rng.normal(size=(100, 4))
    >>> model = MultiOutputClassifier(LogisticRegression()).fit(inputs, inputs[:, :3] > 0)
    >>> make_runner(model, features="input").run(inputs)["features"].shape
    (100, 4)
    """
    settings: dict[str, Any] = {
        "features": features,
        "label_names": label_names,
        "from_probs": from_probs,
        "device": device,
        "output": output,
        "preprocessing": preprocessing,
        "tokenizer": tokenizer,
        "crops": crops,
    }
    if isinstance(model, Runner):
        given = {name: value for name, value in settings.items() if value not in (None, False)}
        return model.changed(**given) if given else model
    if isinstance(model, type):
        raise ParameterError(f"{model.__name__} is a class. Pass a trained instance of it.")
    if isinstance(model, str | Path):
        model = _opened(model)
    return _runner_class(model)(model, **settings)


def _opened(name: str | Path) -> Any:
    """Return the model that a text or a path stands for; an ONNX file stays a path."""
    text = str(name)
    if text.startswith(_OWN):
        require("torch", "torch")
        from nescio.networks.own import load_own

        return load_own(text.removeprefix(_OWN))
    suffix = Path(text).suffix.lower()
    if suffix == ".onnx":
        require("onnxruntime", "onnx")
        return Path(text)
    if suffix == ".safetensors":
        for package in ("torch", "torchvision"):
            require(package, "vision")
        from nescio.networks.checkpoint import load_checkpoint

        return load_checkpoint(text)
    hints = {
        ".nescio": "That is a detector: wrap(model, detector=path).",
        ".pt": "Load it with torch and pass the module.",
        ".pth": "Load it with torch and pass the module.",
    }
    hint = hints.get(suffix, "nescio does not load models by name: load it and pass the model.")
    raise ParameterError(f"{text!r} is not the path of an .onnx or .safetensors file. {hint}")


def _runner_class(model: Any) -> type[Runner]:
    if isinstance(model, Path) or _is_a(model, "onnxruntime", "InferenceSession"):
        from nescio.runners.onnx_models import OnnxRunner

        return OnnxRunner
    if _is_a(model, "nescio.networks.checkpoint", "Checkpoint"):
        from nescio.runners.checkpoints import CheckpointRunner

        return CheckpointRunner
    if _is_a(model, "transformers.modeling_utils", "PreTrainedModel"):
        from nescio.runners.transformers_models import TransformersRunner

        return TransformersRunner
    if _is_a(model, "torch.nn", "Module"):
        from nescio.runners.torch_models import TorchRunner

        return TorchRunner
    if hasattr(model, "predict") and hasattr(model, "get_params"):
        from nescio.runners.sklearn_models import SklearnRunner

        return SklearnRunner
    raise ParameterError(
        f"cannot run a model of type {type(model).__name__}. Pass a torch Module, a transformers "
        "model, a scikit-learn classifier, the path of an .onnx file or an onnxruntime "
        "InferenceSession. For any other model, pass its logits to Outputs(logits)."
    )


def _is_a(model: Any, module: str, name: str) -> bool:
    """Return whether the model is of a class whose module is loaded; if not, it cannot be."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(model, getattr(loaded, name, ()))
