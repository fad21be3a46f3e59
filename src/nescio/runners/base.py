"""A runner runs a trained model: batches of inputs in, named NumPy arrays out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from nescio._validation import Array, check_matrix, to_numpy
from nescio._version import __version__
from nescio.data.preprocessing import Preprocessing
from nescio.data.split import Split
from nescio.errors import InputError, ParameterError, ShapeError
from nescio.outputs import Head, check_label_names
from nescio.runners.batches import InputBatch, batches_of, n_rows
from nescio.runners.crops import run_crops
from nescio.runners.features import (
    AUTO,
    FEATURES,
    PENULTIMATE,
    POOLED,
    Layers,
    is_head,
    layer_names,
)
from nescio.runners.texts import is_texts, texts_or_batches
from nescio.runners.tokenizing import TextTokenizer, Tokens
from nescio.scores import logits_from_probs


class Runner(ABC):
    """A trained multi-label model that turns a batch of inputs into named arrays.

    `make_runner` makes one from any model. The model itself stays unchanged.

    Parameters
    ----------
    model
        The model: a module, an estimator, a session or a path.
    features : str or sequence of str, optional
        Which activations are the features: the name of a layer or an output, "pooled",
        "penultimate" or "input", as far as the model has them; "auto" for the first of these that
        it has. Of several layers, the first are the features, and the others are arrays under
        their own names.
    output : str or int, optional
        Which of the model's outputs holds the logits.
    from_probs : bool
        Whether the model returns probabilities, which are then converted to logits.
    label_names : sequence of str, optional
        One name per label, in the model's order.
    device : optional
        Where the model runs.
    preprocessing : Preprocessing, optional
        How an image becomes the model's input. With it, a batch of uint8 images is preprocessed;
        images of floating point are taken as already preprocessed.
    tokenizer : optional
        How a text becomes the model's input; see `make_runner`. With it, texts are inputs.
    crops : bool
        Run nine crops of each image too. Their arrays are named crops_logits, crops_features and so
        on, with the columns of the nine crops side by side.
    """

    kind: ClassVar[str] = ""
    automatic: ClassVar[tuple[str, ...]] = (POOLED, PENULTIMATE)  # what "auto" tries, in order
    runtimes: ClassVar[tuple[str, ...]] = ()  # what `by` takes, in the order to prefer them
    runtime: str = ""  # the one that runs the model; empty if there is no choice
    _ignores_padding = False  # whether a batch of texts has shown it
    fixed_batch: int | None = None  # the only batch size that the model takes; None for any

    def __init__(
        self,
        model: Any,
        *,
        features: Layers | None = None,
        output: str | int | None = None,
        from_probs: bool = False,
        label_names: Sequence[str] | None = None,
        device: Any = None,
        preprocessing: Preprocessing | None = None,
        tokenizer: Any = None,
        crops: bool = False,
    ) -> None:
        self.source = self.model = model
        self.output = output
        self.from_probs = from_probs
        self.label_names = None if label_names is None else _checked_names(label_names)
        self.device = device
        self.preprocessing = preprocessing
        self.tokenizer = None if tokenizer is None else self._tokenizer_of(tokenizer)
        self.crops = crops
        self.layers = self._resolved(layer_names(features))
        self.features = self.layers[0] if self.layers else None
        self.layers_are_default = False

    def _resolved(self, layers: tuple[str, ...]) -> tuple[str, ...]:
        """Return the layers with "auto" replaced by a layer that the model has, if any."""
        if AUTO not in layers or self.has_layer(AUTO):
            return layers
        found = next((name for name in self.automatic if self.has_layer(name)), "")
        return tuple(filter(None, (found if name == AUTO else name for name in layers)))

    @property
    def array_names(self) -> tuple[str, ...]:
        """The names of the arrays that the layers become, in their order."""
        return (FEATURES, *self.layers[1:]) if self.layers else ()

    def changed(self, **settings: Any) -> Self:
        """Return a runner of the same model with some parameters changed."""
        names = ("output", "from_probs", "label_names", "device", "preprocessing")
        kept = {name: getattr(self, name) for name in (*names, "tokenizer", "crops")}
        kept["features"] = None if self.layers_are_default else self.layers or None
        return type(self)(self.source, **{**kept, **settings})

    # --- what each kind of model writes ---

    @abstractmethod
    def _run(self, inputs: Any) -> dict[str, Any]:
        """Return "logits" and the arrays of the chosen layers for one batch."""

    @abstractmethod
    def takes(self, inputs: Any) -> bool:
        """Return whether these are the inputs of samples, not batches to iterate over."""

    def has_layer(self, name: str) -> bool:
        """Return whether the model has such a layer, as `features` may name it."""
        return False

    def _last_layers(self, shape: tuple[int, int]) -> Iterator[tuple[Array, Array]]:
        """Give weight, of this shape, and bias of layers that may be the last, likeliest first."""
        yield from ()

    def _tokenizer_of(self, given: Any) -> TextTokenizer:
        """Return a tokenizer for the inputs of the model; raise if it takes no tokens."""
        raise ParameterError(f"a {self.kind} model takes no tokenizer.")

    def content_hash(self) -> str | None:
        """Return a hash of what decides the outputs; None if it cannot be known."""
        return None

    def describe(self) -> dict[str, Any]:
        """Return what a manifest says about the model."""
        kind = type(self.model)
        return {
            "kind": self.kind,
            "model": f"{kind.__module__}.{kind.__qualname__}",
            "features": self.features,
            "layers": list(self.layers),
            "output": self.output,
            "from_probs": self.from_probs,
            **({"crops": True} if self.crops else {}),  # older results have no such entry
            **({} if self.tokenizer is None else self.tokenizer.describe()),
            "nescio_version": __version__,
        }

    def by(self, runtime: str, images: Array, shared: dict[str, Any]) -> Self:
        """Return a runner that runs the model as it is now by another runtime.

        `images` are a batch as `run` takes them. `shared` keeps what several runtimes of the same
        model need. Raises if the runtime cannot be used.
        """
        raise ParameterError(f"a {self.kind} model has no choice of a runtime, got {runtime!r}.")

    def cached(self, split: Split, folder: Any) -> tuple[Array, Runner] | None:
        """Return features of a split from a cache, if any, and a runner of the layers after."""
        return None

    # --- running ---

    def _given(self, inputs: Any) -> dict[str, Any]:
        """Run one batch by the runner's runtime."""
        return self._run(inputs)

    def run(self, inputs: Any) -> dict[str, Array]:
        """Run one batch; return "logits" and the chosen layers, with one row per sample.

        The first layer is "features", each further one has its own name. Those of crops follow, if
        they are chosen.
        """
        arrays = self.arrays(inputs)
        if self.crops:
            fixed = self.fixed_batch is not None
            arrays |= run_crops(self.arrays, inputs, fixed_batch=fixed)
        return arrays

    def arrays(self, inputs: Any) -> dict[str, Array]:
        """Run one batch as `run` does, but without crops."""
        arrays = {name: to_numpy(values) for name, values in self._given(inputs).items()}
        for name, array in arrays.items():
            check_matrix(array, name)
        logits = arrays["logits"]
        if self.label_names is not None and len(self.label_names) != logits.shape[1]:
            raise ShapeError(
                f"the model returns {logits.shape[1]} outputs per sample, but there are "
                f"{len(self.label_names)} label names. Name each label, in the model's order."
            )
        if self.from_probs:
            arrays["logits"] = np.asarray(logits_from_probs(logits))
        return arrays

    def batches(self, inputs: Any, batch_size: int) -> Iterator[InputBatch]:
        """Cut inputs into batches, or take the batches that iterating over them gives.

        With a tokenizer, texts become what the model takes.
        """
        rows = self.fixed_batch or batch_size
        if self.tokenizer is None:
            return batches_of(inputs, rows, self.takes)
        texts, inputs = texts_or_batches(inputs)
        given = inputs if texts is None else texts
        found = batches_of(given, rows, lambda x: is_texts(x) or self.takes(x), has_tokenizer=True)
        return self._tokenized(found)

    def _tokenized(self, batches: Iterator[InputBatch]) -> Iterator[InputBatch]:
        assert self.tokenizer is not None
        first_row = 0
        for batch in batches:
            if is_texts(texts := batch.inputs):
                tokens = self.tokenizer(texts, first_row)
                self.check_padding(texts, tokens)
                batch = InputBatch(tokens.arrays, batch.labels, texts, len(tokens.truncated))
            first_row += n_rows(batch.inputs)
            yield batch

    def check_padding(self, texts: Sequence[str], tokens: Tokens) -> None:
        """Raise if padding changes the logits: a text would be scored by the others in its batch.

        A model that takes an attention mask may ignore it, or count positions from the padding. One
        batch of texts of unequal lengths shows it; the later ones are not checked.
        """
        if self._ignores_padding or self.tokenizer is None or len(set(tokens.lengths)) == 1:
            return
        row = int(np.argmin(tokens.lengths))
        n_rows = self.fixed_batch or 1
        padded = {name: array[[row] * n_rows] for name, array in tokens.arrays.items()}
        alone = self.tokenizer([texts[row]] * n_rows).arrays
        found, expected = (self.arrays(inputs)["logits"] for inputs in (padded, alone))
        tolerance = self._rounding
        if not np.allclose(found, expected, atol=tolerance, rtol=tolerance, equal_nan=True):
            reason = (
                "it does not use its attention_mask, or it counts positions from the padding (then "
                'set tokenizer.padding_side = "right")'
                if "attention_mask" in self.tokenizer.names
                else "it takes no attention_mask, and it does not ignore the padding token itself"
            )
            raise InputError(
                f"padding changes the logits of the model: {reason}. Run the texts one by one: "
                "with batch_size=1, or in requests of one text."
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


def _checked_names(names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise ParameterError(f"label_names must be a sequence of names, got the text {names!r}.")
    return check_label_names(names, len(names))
