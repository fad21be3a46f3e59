"""Which runner a model takes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nescio._optional import require
from nescio.errors import ParameterError
from nescio.models.base import Runner
from nescio.models.images import Preprocessing
from nescio.models.layers import Layers


def make_runner(
    model: Any,
    *,
    features: Layers | Any = None,
    label_names: Sequence[str] | None = None,
    from_probs: bool | None = None,
    device: Any = None,
    output: str | int | None = None,
    preprocessing: Preprocessing | None = None,
    tokenizer: Any = None,
) -> Runner:
    """Return a runner for any trained multi-label model.

    Parameters
    ----------
    model : torch Module, transformers model, scikit-learn classifier, Checkpoint, path or session
        A path is that of an .onnx file; a session is one of onnxruntime. Any other model with a
        method `make_runner(**settings)`, such as a checkpoint, makes its runner itself. A runner is
        made again with the parameters that are given here.
    features : str, sequence of str or transformer, optional
        Which activations are the features. "pooled" is the representation before the task head,
        "penultimate" the input of the last linear layer, "input" the model's own input, and "auto"
        the first of these that the model has. torch and transformers: also the dotted name of a
        layer, as `model.named_modules()` has it, for its output; the same followed by ":input",
        such as "fc:input", for its input. ONNX: also the name of an output or of another tensor.
        scikit-learn: only "input" and, for pipelines, "penultimate", the input of the last step; or
        a fitted transformer of the model's input, such as `nescio.TableFeatures`.
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
    }
    if isinstance(model, Runner):
        given = {name: value for name, value in settings.items() if value is not None}
        return model.changed(**given) if given else model
    if isinstance(model, type):
        raise ParameterError(f"{model.__name__} is a class. Pass a trained instance of it.")
    if hasattr(model, "make_runner"):
        runner: Runner = model.make_runner(**settings)
        return runner
    if isinstance(model, str | Path):
        model = _onnx_path(model)
    return _runner_class(model)(model, **settings)


def _onnx_path(name: str | Path) -> Path:
    """Return the path of an ONNX file; raise for any other text or path."""
    if Path(name).suffix.lower() == ".onnx":
        require("onnxruntime", "onnx")
        return Path(name)
    raise ParameterError(
        f"{str(name)!r} is not the path of an .onnx file. Load any other model and pass the model "
        "itself (a network of nescio train with nescio.lab.networks.checkpoint.load_checkpoint), "
        "and a detector as wrap(model, detector=path)."
    )


def _runner_class(model: Any) -> type[Runner]:
    if isinstance(model, Path) or _is_a(model, "onnxruntime", "InferenceSession"):
        from nescio.models.onnx_models import OnnxRunner

        return OnnxRunner
    if _is_a(model, "transformers.modeling_utils", "PreTrainedModel"):
        from nescio.models.torch_models import TransformersRunner

        return TransformersRunner
    if _is_a(model, "torch.nn", "Module"):
        from nescio.models.torch_models import TorchRunner

        return TorchRunner
    if hasattr(model, "predict") and hasattr(model, "get_params"):
        from nescio.models.sklearn_models import SklearnRunner

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
