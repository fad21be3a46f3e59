"""A runner runs a trained model: batches of inputs in, named NumPy arrays out.

`make_runner` makes one from any model; `Runner` is what all of them share.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from nescio._validation import Array, check_matrix, index_of, is_torch, to_numpy
from nescio._version import __version__
from nescio.errors import InputError, ParameterError, ShapeError
from nescio.explain import ExplainedVerdicts, RangesExplanation
from nescio.models.images import Preprocessing
from nescio.models.inputs import InputBatch, batches_of, n_rows
from nescio.models.texts import TextTokenizer, Tokens
from nescio.outputs.outputs import INPUT, PENULTIMATE, Head, check_label_names
from nescio.scores import log, logits_from_probs

POOLED, AUTO_LAYER = "pooled", "auto"
"""Choices of features that are not the name of a layer or of an output."""

PREPARED = "prepared"
"""What a transformer makes of the input of a scikit-learn model."""

FEATURES = "features"
"""The name of the first layer among the arrays of a runner; the others have their own."""

Layers = str | Sequence[str]
"""One layer, or several: "pooled,penultimate" or ["pooled", "penultimate"]."""

HEAD_TOLERANCE = 1e-4
"""How far features @ weight.T + bias may be from the logits, relative to the largest of them."""

_NO_CONTRAST = 0.01  # a standard deviation of pixels: less is rounding, or as good as none


def layer_names(features: Layers | None) -> tuple[str, ...]:
    """Return the names of the layers that were chosen; the first are the features.

    >>> layer_names("pooled, penultimate"), layer_names(["fc:input"]), layer_names(None)
    (('pooled', 'penultimate'), ('fc:input',), ())
    """
    if features is None:
        return ()
    parts = features.split(",") if isinstance(features, str) else features
    names = [str(part or "").strip() for part in parts] if isinstance(parts, Sequence) else []
    if not all(names) or not names:
        raise ParameterError(
            "features must be the name of a layer, or several: 'pooled,penultimate' or "
            f"['pooled', 'penultimate']; got {features!r}."
        )
    first, *further = names
    for name in further:
        if name in ("logits", FEATURES, "labels", "head"):
            raise ParameterError(
                f"{name!r} cannot be the name of a further array of the outputs. Name this layer "
                f"first: features='{name},...'."
            )
    # The first may be repeated: it is then also an array under its own name.
    return (first, *dict.fromkeys(further))


def pooled(values: Any, what: str) -> Any:
    """Return features, an array or tensor, as a matrix; average maps over height and width.

    `what` starts the error message, such as "layer 'norm' returns".
    """
    n_dimensions = getattr(values, "ndim", 0)
    if n_dimensions == 4:
        return values.mean((2, 3))
    if n_dimensions == 2:
        return values
    kind = f"shape {tuple(values.shape)}" if hasattr(values, "shape") else type(values).__name__
    raise ShapeError(
        f"{what} {kind}; features must have shape (n_samples, n_features), or (n_samples, "
        "n_features, height, width). Name another layer, or the input of the last one, such as "
        "'classifier:input'."
    )


def flat_input(values: Any, what: str) -> Any:
    """Return the input of a model as a matrix: flattened, or what `of_channels` names of images."""
    kind = str(getattr(values, "dtype", type(values).__name__))
    if "float" not in kind:
        raise InputError(
            f"{what} {kind}, but the detector reads the input as numbers of floating point, as in "
            "calibration. Pass x.astype(np.float32). For images of bytes (uint8), pass "
            "preprocessing=... to wrap; for tokens, name another layer than 'input' (features=...)."
        )
    if values.ndim == 4:
        means = values.mean((2, 3))
        spreads = ((values - means[..., None, None]) ** 2).mean((2, 3)) ** 0.5
        columns = (means, log(spreads + _NO_CONTRAST))
        return sys.modules["torch"].cat(columns, 1) if is_torch(values) else np.hstack(columns)
    if values.ndim < 3:
        return pooled(values, what)
    return values.reshape(values.shape[0], -1)  # len() would fix the batch size of a graph


def of_channels(part: RangesExplanation) -> dict[str, Any]:
    """Name the columns that `flat_input` makes of images: mean and contrast of each channel."""

    def shown(columns: Array) -> Array:
        means, logarithms = np.split(columns, 2, axis=-1)
        contrasts = np.maximum(np.round(np.exp(logarithms) - _NO_CONTRAST, 6), 0)
        return np.concatenate([means, contrasts], axis=-1)

    channels = range(part.features.shape[1] // 2)
    return {
        "names": [f"{what} of channel {c}" for what in ("mean", "contrast") for c in channels],
        "values": shown(part.features),
        "low": shown(part.low),
        "high": shown(part.high),
    }


def is_head(weight: Array, bias: Array, features: Array, logits: Array) -> bool:
    """Return whether features @ weight.T + bias equals the logits, within `HEAD_TOLERANCE`."""
    if weight.shape != (logits.shape[1], features.shape[1]) or bias.shape != (len(weight),):
        return False
    expected = features.astype(np.float64) @ weight.T.astype(np.float64) + bias
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    return bool(np.abs(expected - logits).max(initial=0.0) <= HEAD_TOLERANCE * scale)


class Runner(ABC):
    """A trained multi-label model that turns a batch of inputs into named arrays.

    `wrap` makes one from any model, as `wrapped.runner`, and documents the parameters. The model
    itself stays unchanged.
    """

    kind: ClassVar[str] = ""
    automatic: ClassVar[tuple[str, ...]] = (POOLED, PENULTIMATE)  # what "auto" tries, in order
    _ignores_padding = False  # whether a batch of texts has shown it
    fixed_batch: int | None = None  # the only batch size that the model takes; None for any

    def __init__(
        self,
        model: Any,
        *,
        features: Layers | None = None,
        output: str | int | None = None,
        from_probs: bool | None = None,
        label_names: Sequence[str] | None = None,
        device: Any = None,
        preprocessing: Preprocessing | None = None,
        tokenizer: Any = None,
    ) -> None:
        self.source = self.model = model
        self.output = output
        self.from_probs = from_probs
        self.label_names = None if label_names is None else check_label_names(label_names)
        self.device = device
        if not isinstance(preprocessing, Preprocessing | None):
            raise ParameterError(
                f"preprocessing must be a nescio.Preprocessing, got {preprocessing!r}. Do other "
                "steps yourself, and pass what the model takes."
            )
        self.preprocessing = preprocessing
        self.tokenizer = None if tokenizer is None else self._tokenizer_of(tokenizer)
        self.layers = layer_names(features)
        if AUTO_LAYER in self.layers and not self.has_layer(AUTO_LAYER):
            first = [name for name in self.automatic if self.has_layer(name)][:1]
            parts = (first if name == AUTO_LAYER else [name] for name in self.layers)
            self.layers = tuple(itertools.chain.from_iterable(parts))
        self.features = self.layers[0] if self.layers else None
        self.layers_are_default = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of a table that the model takes, if it knows them."""
        return ()

    @property
    def table(self) -> dict[str, Any] | None:
        """How features show the numbers of a table: `TableFeatures.units`; None if they do not."""
        return None

    @property
    def array_names(self) -> tuple[str, ...]:
        """The names of the arrays that the layers become, in their order."""
        return (FEATURES, *self.layers[1:]) if self.layers else ()

    def changed(self, **settings: Any) -> Self:
        """Return a runner of the same model with some parameters changed."""
        names = ("output", "from_probs", "label_names", "device", "preprocessing")
        kept = {name: getattr(self, name) for name in (*names, "tokenizer")}
        kept["features"] = None if self.layers_are_default else self.layers or None
        return type(self)(self.source, **{**kept, **settings})

    # --- what each kind of model writes ---

    @abstractmethod
    def _run(self, inputs: Any) -> dict[str, Any]:
        """Return "logits" and the arrays of the chosen layers for one batch."""

    @abstractmethod
    def takes(self, inputs: Any) -> bool:
        """Return whether these are the inputs of samples, not batches to iterate over."""

    def read(self, columns: Sequence[Any]) -> list[Any]:
        """Return those of the columns of a table that the model, or the detector, reads."""
        return [name for name in columns if name in (self.columns or columns)]

    def has_layer(self, name: str, n_columns: int | None = None) -> bool:
        """Return whether the model has such a layer, as `features` may name it.

        With `n_columns`, it is one of so many columns of the same model in another form.
        """
        return False

    def fitted_to(self, train: Any) -> Self:
        """Return a runner whose features have learned from training inputs, if they learn."""
        return self

    def explained(self, explanation: ExplainedVerdicts, inputs: Any) -> ExplainedVerdicts:
        """Return an explanation with the names of the features, if they have any."""
        is_image = self.preprocessing is not None or getattr(inputs, "ndim", 0) == 4
        return explanation.with_columns(of_channels, INPUT) if is_image else explanation

    def _last_layers(self, shape: tuple[int, int]) -> Iterator[tuple[Array, Array]]:
        """Give weight, of this shape, and bias of layers that may be the last, likeliest first."""
        yield from ()

    def _tokenizer_of(self, tokenizer: Any) -> TextTokenizer:
        """Return a tokenizer for the inputs of the model; raise if it takes no tokens."""
        raise ParameterError(f"a {self.kind} model takes no tokenizer.")

    def content_hash(self) -> str:
        """Return a hash of what decides the outputs; raise if it cannot be known."""
        raise ParameterError(f"a {self.kind} model has no hash to tell its outputs from others'.")

    def describe(self) -> dict[str, Any]:
        """Return what a manifest says about the model."""
        kind = type(self.model)
        return {
            "kind": self.kind,
            "model": f"{kind.__module__}.{kind.__qualname__}",
            "features": self.features,
            "layers": list(self.layers),
            "output": self.output,
            "from_probs": bool(self.from_probs),
            **({} if self.tokenizer is None else self.tokenizer.describe()),
            "nescio_version": __version__,
        }

    # --- running ---

    def run(self, inputs: Any) -> dict[str, Array]:
        """Run one batch; return "logits" and the chosen layers, with one row per sample.

        The first layer is "features", each further one has its own name.
        """
        try:
            arrays = {name: to_numpy(values) for name, values in self._run(inputs).items()}
            for name, array in arrays.items():
                check_matrix(array, name)
        except InputError as error:
            if not self._takes_as_one(inputs):
                raise
            raise ShapeError(
                f"the inputs, of shape {tuple(np.shape(inputs))}, are a single sample. Reshape "
                "your data: pass x[None] (of a list [x], of a data frame frame.iloc[[row]]). A "
                "list of samples is taken as batches: pass np.stack(samples)."
            ) from error
        logits = arrays["logits"]
        if self.label_names is not None and len(self.label_names) != logits.shape[1]:
            raise ShapeError(
                f"the model returns {logits.shape[1]} outputs per sample, but there are "
                f"{len(self.label_names)} label names. Name each label, in the model's order."
            )
        if self.from_probs:
            arrays["logits"] = np.asarray(logits_from_probs(logits))
        return arrays

    def _takes_as_one(self, inputs: Any) -> bool:
        """Return whether the model takes a vector or an image, which it did not take, as one."""
        with warnings.catch_warnings(), suppress(Exception):  # any error says that it does not
            warnings.simplefilter("ignore")
            batch = inputs[None] if is_torch(inputs) else np.asarray(inputs)[None]
            return batch.ndim in (2, 4) and bool(self._run(batch))
        return False

    def batches(self, inputs: Any, batch_size: int) -> Iterator[InputBatch]:
        """Cut inputs into batches, or take the batches that iterating over them gives.

        With a tokenizer, texts become what the model takes.
        """
        names = index_of(inputs) if getattr(inputs, "ndim", 2) == 1 else None
        if self.columns and names is not None and {*self.columns} <= {*map(str, names)}:
            raise ShapeError(
                "the inputs are one row of a table, as a pandas Series. Pass a table of one row: "
                "frame.iloc[[row]]."
            )
        first_row = 0
        for batch in batches_of(inputs, self.fixed_batch or batch_size, self._takes_batch):
            if batch.texts is not None and self.tokenizer is not None:
                tokens = self.tokenizer(batch.texts, first_row)
                self.check_padding(batch.texts, tokens)
                batch = batch._replace(inputs=tokens.arrays, n_truncated=len(tokens.truncated))
            first_row += n_rows(batch.inputs)
            yield batch

    def _takes_batch(self, batch: InputBatch) -> bool:
        is_text = self.tokenizer is not None and batch.texts is not None
        return is_text or self.takes(batch.inputs)

    def check_padding(self, texts: Sequence[str], tokens: Tokens) -> None:
        """Raise if padding changes the logits: a text would be scored by the others in its batch.

        One batch of texts of unequal lengths shows it; the later ones are not checked.
        """
        if self._ignores_padding or self.tokenizer is None or len(set(tokens.lengths)) == 1:
            return
        row = int(np.argmin(tokens.lengths))
        n_rows = self.fixed_batch or 1
        padded = {name: array[[row] * n_rows] for name, array in tokens.arrays.items()}
        alone = self.tokenizer([texts[row]] * n_rows).arrays
        logits, expected = (self.run(inputs)["logits"] for inputs in (padded, alone))
        tolerance = self._rounding
        if not np.allclose(logits, expected, atol=tolerance, rtol=tolerance, equal_nan=True):
            raise InputError(
                "padding changes the logits of the model: it does not use an attention_mask, or it "
                "counts positions from the padding. Send the texts one by one.",
                'In Python, this is batch_size=1; or set tokenizer.padding_side = "right".',
            )
        self._ignores_padding = True

    @property
    def _rounding(self) -> float:
        """How much of a logit the lengths of the inputs may change by rounding."""
        return 1e-3

    def is_image_bytes(self, inputs: Any) -> bool:
        """Return whether these are uint8 images that the runner has to preprocess."""
        dtype = str(getattr(inputs, "dtype", ""))
        return self.preprocessing is not None and dtype.removeprefix("torch.") == "uint8"

    def preprocessed(self, images: Any) -> Any:
        """Return images of bytes as the model takes them; anything else as it is."""
        if self.preprocessing is None or not self.is_image_bytes(images):
            return images
        shape = tuple(images.shape)
        if len(shape) != 4 or shape[1] != 3:
            raise ShapeError(
                f"images must have shape (n_samples, 3, height, width), got {shape}. If the "
                "colours are last, pass np.moveaxis(images, -1, 1); a single image as x[None]."
            )
        return self.preprocessing.normalise(images)

    def head(self, arrays: Mapping[str, Array]) -> Head | None:
        """Return the model's last layer if it is linear and its input is among the arrays.

        The input is "penultimate" if that is there, else the features.
        """
        inputs, logits = arrays.get(PENULTIMATE, arrays.get(FEATURES)), arrays["logits"]
        if inputs is None:
            return None
        for weight, bias in self._last_layers((logits.shape[1], inputs.shape[1])):
            if is_head(weight, bias, inputs, logits):
                return Head(weight, bias)
        return None

    def __repr__(self) -> str:
        chosen = f", features={','.join(self.layers)!r}" if self.layers else ""
        return f"{type(self).__name__}({self.describe()['model']}{chosen})"


# --- which runner a model takes ------------------------------------------------------------------


def make_runner(model: Any, **settings: Any) -> Runner:
    """Return a runner for any trained model; `wrap` documents the models and the settings."""
    if isinstance(model, Runner):
        changes = {name: value for name, value in settings.items() if value is not None}
        return model.changed(**changes) if changes else model
    if isinstance(model, type):
        raise ParameterError(f"{model.__name__} is a class. Pass a trained instance of it.")
    if hasattr(model, "make_runner"):
        runner: Runner = model.make_runner(**settings)
        return runner
    model = getattr(model, "_orig_mod", model)  # of torch.compile, which does not call its hooks
    if isinstance(model, str | Path):
        if Path(model).suffix.lower() != ".onnx":
            raise ParameterError(
                f"{str(model)!r} is not the path of an .onnx file. Load any other model and pass "
                "the model itself (a network of nescio train with "
                "nescio.lab.networks.network.load_checkpoint), and a detector as wrap(model, "
                "detector=path)."
            )
        model = Path(model)
    return _runner_class(model)(model, **settings)


def _runner_class(model: Any) -> type[Runner]:
    if isinstance(model, Path):
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
        "model, a scikit-learn classifier or the path of an .onnx file. Of any other model, pass "
        "the outputs: Outputs(logits, features=...), or calibrate(probabilities, from_probs=True)."
    )


def _is_a(model: Any, module: str, name: str) -> bool:
    """Return whether the model is of a class whose module is loaded; if not, it cannot be."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(model, getattr(loaded, name, ()))
