"""A runner runs a trained model: batches of inputs in, named NumPy arrays out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from nescio._io.columns import is_frame
from nescio._validation import Array, check_matrix, to_numpy
from nescio._version import __version__
from nescio.errors import InputError, ParameterError, ShapeError
from nescio.models.images import Preprocessing
from nescio.models.layers import (
    AUTO,
    FEATURES,
    PENULTIMATE,
    POOLED,
    Layers,
    is_head,
    layer_names,
)
from nescio.models.texts import TextTokenizer, Tokens, is_texts, texts_or_batches
from nescio.outputs import Head, check_label_names
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
        if isinstance(label_names, str):
            raise ParameterError(f"label_names must be a sequence, got the text {label_names!r}.")
        self.label_names = (
            None if label_names is None else check_label_names(label_names, len(label_names))
        )
        self.device = device
        self.preprocessing = preprocessing
        self.tokenizer = None if tokenizer is None else self._tokenizer_of(tokenizer)
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
            "from_probs": bool(self.from_probs),
            **({} if self.tokenizer is None else self.tokenizer.describe()),
            "nescio_version": __version__,
        }

    # --- running ---

    def run(self, inputs: Any) -> dict[str, Array]:
        """Run one batch; return "logits" and the chosen layers, with one row per sample.

        The first layer is "features", each further one has its own name.
        """
        arrays = {name: to_numpy(values) for name, values in self._run(inputs).items()}
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
        if texts is not None:
            inputs = texts
        return self._tokenized(batches_of(inputs, rows, lambda x: is_texts(x) or self.takes(x)))

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

        One batch of texts of unequal lengths shows it; the later ones are not checked.
        """
        if self._ignores_padding or self.tokenizer is None or len(set(tokens.lengths)) == 1:
            return
        row = int(np.argmin(tokens.lengths))
        n_rows = self.fixed_batch or 1
        padded = {name: array[[row] * n_rows] for name, array in tokens.arrays.items()}
        alone = self.tokenizer([texts[row]] * n_rows).arrays
        found, expected = (self.run(inputs)["logits"] for inputs in (padded, alone))
        tolerance = self._rounding
        if not np.allclose(found, expected, atol=tolerance, rtol=tolerance, equal_nan=True):
            raise InputError(
                "padding changes the logits of the model: it does not use an attention_mask, or it "
                'counts positions from the padding (then set tokenizer.padding_side = "right"). '
                "Run the texts one by one: with batch_size=1, or in requests of one text."
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


class InputBatch(NamedTuple):
    """What a model takes at once, and the truth labels if they came with it.

    If the inputs were made of texts, these texts, and how many of them were cut off.
    """

    inputs: Any
    labels: Any = None
    texts: list[str] | None = None
    n_truncated: int = 0


def batches_of(inputs: Any, rows: int, is_data: Callable[[Any], bool]) -> Iterator[InputBatch]:
    """Give slices of `rows` rows if `inputs` are data, or else the batches they iterate over."""
    if isinstance(inputs, tuple) and _is_text(inputs):  # not inputs by position
        raise InputError(_not_data(inputs))
    if is_data(inputs):
        whole = _split(inputs, None)
        n_samples = n_rows(whole.inputs)
        for start in range(0, n_samples, rows):
            part = slice(start, start + rows)
            some = (_rows_of(values, part, n_samples) for values in (whole.inputs, whole.labels))
            yield InputBatch(*some)
    elif is_frame(inputs) or isinstance(inputs, Mapping):  # it iterates over its names
        raise InputError(
            f"this model takes one array or list of texts, but got a {type(inputs).__name__}. Pass "
            'its values: frame[names].to_numpy(), or for texts their column, frame["text"].'
        )
    elif isinstance(inputs, Iterable) and not isinstance(inputs, str | bytes):
        for item in inputs:
            yield _batch(item, is_data)
    else:
        raise InputError(_not_data(inputs))


def _batch(item: Any, is_data: Callable[[Any], bool]) -> InputBatch:
    """Return one item of an iterable: inputs, or inputs with their labels."""
    labels = None
    if isinstance(item, tuple | list) and not _is_text(item):
        if not 1 <= len(item) <= 2:
            raise InputError(
                f"a batch must be inputs or a pair (inputs, labels), got {len(item)} parts. Put "
                "several inputs together: ((first, second), labels), or a mapping by name."
            )
        item, labels = (*item, None)[:2]
    item = list(item) if isinstance(item, tuple) and _is_text(item) else item
    if not is_data(item):
        raise InputError(f"a batch is not what the model takes: {_not_data(item)}")
    return _split(item, labels)


def _split(inputs: Any, labels: Any) -> InputBatch:
    """Separate inputs and labels: transformers' data sets have labels among the inputs, by name."""
    if isinstance(inputs, Mapping) and "labels" in inputs:
        if labels is not None:
            raise InputError("a batch has labels twice: among its inputs and next to them.")
        labels = inputs["labels"]
        inputs = {name: value for name, value in inputs.items() if name != "labels"}
    if labels is not None and _length(labels) != (n_samples := n_rows(inputs)):
        raise ShapeError(f"labels have {_length(labels)} rows, but there are {n_samples} samples.")
    return InputBatch(inputs, labels)


def n_rows(inputs: Any) -> int:
    """Return the number of samples; all parts that have rows must have equally many."""
    if isinstance(inputs, Mapping | tuple):
        parts = dict(inputs) if isinstance(inputs, Mapping) else dict(enumerate(inputs))
        lengths = {name: n for name, part in parts.items() if (n := _length(part)) is not None}
        if not lengths:
            raise InputError("none of the inputs has rows; expected arrays or tensors.")
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            raise ShapeError(
                f"the inputs must have equally many rows, one per sample; got {found}."
            )
        return next(iter(lengths.values()))
    length = _length(inputs)
    if length is None:
        raise ShapeError("the input must have one row per sample. For one sample, pass x[None].")
    return length


def _length(part: Any) -> int | None:
    """Return the number of rows; None for what has none, such as a flag."""
    shape = getattr(part, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    return len(part) if isinstance(part, list | tuple) else None


def _rows_of(inputs: Any, rows: slice, n_samples: int) -> Any:
    if isinstance(inputs, Mapping):
        return {name: _rows_of(part, rows, n_samples) for name, part in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(_rows_of(part, rows, n_samples) for part in inputs)
    if _length(inputs) is None or (rows.start == 0 and rows.stop >= n_samples):
        return inputs  # a flag, or all rows: the same object
    if hasattr(inputs, "tocsr"):
        inputs = inputs.tocsr()  # not every sparse matrix can be sliced
    return inputs.iloc[rows] if hasattr(inputs, "iloc") else inputs[rows]


def _is_text(inputs: Any) -> bool:
    """Return whether this is a text or a list of texts."""
    first = inputs[0] if isinstance(inputs, list | tuple) and inputs else inputs
    return isinstance(first, str | bytes)


def _not_data(inputs: Any) -> str:
    if _is_text(inputs):
        return (
            "got text. Pass the model's tokenizer, wrap(model, tokenizer=...), or what the "
            "tokenizer returns for these texts."
        )
    return (
        "expected an array or a tensor with one row per sample, a mapping or a tuple of them, or "
        f"batches of these; got a {type(inputs).__name__}."
    )
