"""The model of /v1/predict: an ONNX graph, and what requests send as its inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nescio._validation import Array
from nescio.detectors import Detector
from nescio.errors import InputError, NescioError, ParameterError, ShapeError
from nescio.models import wrap
from nescio.models.images import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from nescio.models.inputs import n_rows
from nescio.models.onnx_models import DTYPES, EXAMPLE_KEY, THRESHOLD_KEY, OnnxRunner, words_of
from nescio.outputs import Outputs
from nescio.service.images import Decoders
from nescio.service.openapi import ModelDescription, ModelInput, TextLimits
from nescio.service.requests import check_count, place_of
from nescio.service.settings import MAX_CHARACTERS, MAX_TEXTS, MAX_TOKENS, Settings
from nescio.service.traffic import logger

# The most values that go through the model together: 14 images of 224 x 224 pixels, or 2,048 token
# ids, each of which takes as much work and memory as about a thousand values of an image.
WORK_AT_ONCE = 1 << 21
_WORK_PER_TOKEN = 1 << 10


class Model:
    """A wrapped ONNX graph, which has to fit the detector, and its preprocessing of images."""

    def __init__(self, settings: Settings, detector: Detector) -> None:
        path = settings.model
        if path is None or path.suffix.lower() != ".onnx":
            raise ParameterError(
                f"the model must be an .onnx file, got {str(path)!r}. Write one in Python: "
                "nescio.export_onnx(wrapped, 'model.onnx')."
            )
        self.wrapped = wrap(
            path,
            detector=detector,
            output=settings.logits,
            features=settings.features,
            from_probs=settings.from_probs,
            tokenizer=settings.tokenizer,
        )
        runner = self.wrapped.runner
        assert isinstance(runner, OnnxRunner)
        stored = runner.metadata(THRESHOLD_KEY, dict)
        self.warnings: list[str] = []  # that users of the service should know
        if stored not in (None, detector.calibration_.threshold_values):
            self.warnings.append("The model file holds another detector, which is not used.")
            logger.warning(self.warnings[0], extra={"model": str(path)})
        shapes = {node.name: node.shape for node in runner.session.get_outputs()}
        width = (shapes[runner.output] or [None])[-1]
        expected = detector.n_columns_.get("logits")
        if isinstance(width, int) and expected not in (None, width):
            raise ShapeError(
                f"the model returns {width} logits, and the detector expects {expected}. Calibrate "
                "a detector on outputs of this model."
            )
        self.tokenizer, self.columns = runner.tokenizer, runner.columns
        self.texts: TextLimits | None = None
        if self.tokenizer is not None:
            self.texts = TextLimits(self.tokenizer.limit(), MAX_TEXTS, MAX_CHARACTERS)
        nodes, names = runner.session.get_inputs(), runner.columns_of
        rows = runner.metadata(EXAMPLE_KEY, dict) or {}
        self.inputs = {node.name: _described(node, names, rows) for node in nodes}
        numbers = (entry for entry in self.inputs.values() if entry.dtype != "str")
        self.numbers = {name for entry in numbers for name in (entry.name, *entry.columns)}
        # A matrix of whole numbers may be token ids.
        self._tokens = [
            name
            for name, entry in self.inputs.items()
            if len(entry.shape) == 2 and np.dtype(entry.dtype).kind in "iu"
        ]
        self.preprocessing: Preprocessing | None = None  # None if it does not take images
        first, *further = self.inputs.values()
        is_float, shape = np.dtype(first.dtype).kind == "f", first.shape
        # One input, which may be a batch of RGB images.
        if not further and is_float and len(shape) == 4 and shape[1] in (3, None):
            self.preprocessing = _preprocessing(shape, runner.preprocessing, settings)
        self._warm()

    def _warm(self) -> None:
        """Run the model on one input of zeros, if its shape is known: the first run is slow."""
        n, image = self.wrapped.runner.fixed_batch or 1, self.preprocessing
        zeros = {}
        for name, node in self.inputs.items():
            shape = [3, image.size, image.size] if image else node.shape[1:]
            # A size that is not known raises a TypeError; zeros may be impossible inputs, too.
            with contextlib.suppress(TypeError):
                zeros[name] = np.zeros((n, *shape), node.dtype)
        with contextlib.suppress(NescioError):
            self.wrapped.outputs(zeros, batch_size=n)

    def describe(self) -> ModelDescription:
        """Return what a client must send."""
        return ModelDescription([*self.inputs.values()], self.preprocessing, self.texts)

    def image_input(self, content: bytes, decoders: Decoders) -> dict[str, Array]:
        """Return an image file as the input of the model."""
        assert self.preprocessing is not None  # or images are not accepted
        pixels = decoders.decode(content, self.preprocessing.size)
        (name,) = self.inputs
        return self.checked({name: self.preprocessing.normalise(pixels[None])})

    def text_inputs(self, texts: list[str]) -> tuple[dict[str, Array], list[bool]]:
        """Return texts as inputs of the model, and whether each of them was cut off."""
        if self.tokenizer is None:
            raise InputError("the model does not take texts. Send its inputs by name.")
        tokens = self.tokenizer(texts)
        self.wrapped.runner.check_padding(texts, tokens)
        truncated = set(tokens.truncated)
        return self.checked(tokens.arrays), [row in truncated for row in range(len(texts))]

    def checked(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the inputs in the types of the graph, or raise an error if they do not fit."""
        columns = self.columns
        unknown = [repr(name[:40]) for name in sorted({*inputs} - {*columns, *self.inputs})]
        if columns:  # the model drops, or has not seen, the other columns of a table
            inputs = {n: a for n, a in inputs.items() if n in columns or n in self.inputs}
        for name, array in inputs.items():
            node = self.inputs.get(name)  # None for a column of a table
            if array.dtype.kind == "b" and (node is None or np.dtype(node.dtype).kind == "f"):
                raise InputError(
                    f"input {name[:40]!r} must be numbers, got true or false: send 1 or 0."
                )
        if columns and inputs.keys() == set(columns):  # of a table, by name
            n_rows(inputs)  # raises unless all have equally many
            of = self.inputs.items()
            inputs = {name: np.column_stack([inputs[c] for c in e.columns]) for name, e in of}
        if inputs.keys() != self.inputs.keys():
            missing = [repr(name) for name in columns or self.inputs if name not in inputs]
            parts = (("Missing", missing), ("Not known", unknown))
            named = "".join(f" {what}: {', '.join(names[:10])}." for what, names in parts if names)
            named = named or " The table was sent twice: by its columns and as a matrix."
            names = [", ".join([*names][:50]) for names in (columns, self.inputs) if names]
            raise InputError(f"the inputs do not fit.{named} Send {', or '.join(names)}.")
        for name in self._tokens:
            check_count(f"input {name!r}", inputs[name].size, "token ids", MAX_TOKENS)
        typed = {name: _typed(inputs[name], node) for name, node in self.inputs.items()}
        n_rows(typed)  # raises unless all have equally many
        return typed

    def pieces(self, inputs: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
        """Return the inputs in pieces of some rows, each of which takes a bounded time."""
        n = n_rows(inputs)
        size = max(1, n * WORK_AT_ONCE // max(1, self.work(inputs)))
        if self.wrapped.runner.fixed_batch is not None:
            size = n
        for start in range(0, n, size):
            yield {name: array[start : start + size] for name, array in inputs.items()}

    def work(self, inputs: Mapping[str, Array]) -> int:
        """Return how much work inputs are, in values of an image."""
        return max(
            array.size * (_WORK_PER_TOKEN if name in self._tokens else 1)
            for name, array in inputs.items()
        )

    def outputs(self, inputs: Mapping[str, Array]) -> Outputs:
        """Run the model on all inputs at once."""
        return self.wrapped.outputs(inputs, batch_size=n_rows(inputs))

    def kind_of(self, inputs: Mapping[str, Array]) -> Hashable:
        """Return a key; inputs with the same key can run together."""
        if self.wrapped.runner.fixed_batch is not None:
            return object()
        return tuple((name, array.shape[1:]) for name, array in inputs.items())


def _described(node: Any, names: dict[str, Any], rows: dict[str, Any]) -> ModelInput:
    """Return the description of an input of an ONNX session, with its columns and a row."""
    if node.type not in DTYPES or not node.shape:
        raise InputError(
            f"the input {node.name!r} of the model has type {node.type} and shape {node.shape}. "
            "Every input must be an array of numbers or words with one row per sample."
        )
    shape = [size if isinstance(size, int) else None for size in node.shape]
    dtype = np.dtype(DTYPES[node.type]).name
    return ModelInput(node.name, shape, dtype, names.get(node.name, []), rows.get(node.name, []))


def _typed(array: Array, expected: ModelInput) -> Array:
    """Return an array in the type of an input, or raise an error if it does not fit."""
    fits = array.ndim == len(expected.shape) and all(
        size in (None, got) for size, got in zip(expected.shape, array.shape, strict=True)
    )
    if not fits:
        shape = ", ".join("any number" if n is None else str(n) for n in expected.shape)
        wanted, got = f"shape [{shape}]", str(list(array.shape))
        if array.ndim == len(expected.shape) == 2 and expected.shape[0] is None:
            names = f" ({', '.join(expected.columns[:50])})" if expected.columns else ""
            kind = "words" if expected.dtype == "str" else "numbers"
            wanted, got = f"rows of {expected.shape[1]} {kind}{names}", str(array.shape[1])
        is_one = array.size and array.ndim == len(expected.shape) - 1
        advice = " Put one sample into a list, too: [SAMPLE]." if is_one else ""
        raise InputError(f"input {expected.name!r} must have {wanted}, got {got}.{advice}")
    if expected.dtype == "str":
        return words_of(array)
    dtype = np.dtype(expected.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        typed = array.astype(dtype, copy=False)
    if dtype.kind != "f" and not np.array_equal(typed, array):
        place = tuple(np.argwhere(typed != array)[0])
        value = "null (NaN)" if array[place] != array[place] else f"{array[place]:.17g}"
        raise InputError(f"input {expected.name!r} must be {dtype}; {place_of(place)} is {value}.")
    return typed


def _preprocessing(
    shape: Sequence[int | None], stored: Preprocessing | None, settings: Settings
) -> Preprocessing:
    """Return the preprocessing of images: the settings come first, then the model file."""
    size = settings.image_size or (stored.size if stored else shape[2])
    if size is None:
        raise ParameterError(
            "the model takes images of any size.",
            "Pass the size that it was trained with, such as --image-size 224.",
        )
    if not {*shape[2:]} <= {None, size}:
        raise ParameterError(
            f"the model takes images of {shape[2]} x {shape[3]} pixels, not {size}."
        )
    if stored is None and settings.mean is None and settings.std is None:
        logger.warning(
            "images are normalised as for ImageNet: neither the model file nor --mean and --std "
            "say otherwise",
            extra={"mean": IMAGENET_MEAN, "std": IMAGENET_STD},
        )
    default = stored or Preprocessing(size)
    return Preprocessing(size, settings.mean or default.mean, settings.std or default.std)
