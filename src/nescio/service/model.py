"""The model of the service: an ONNX file, and the preprocessing of images for it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from starlette.exceptions import HTTPException

from nescio._validation import Array
from nescio.calibration import Calibration
from nescio.data.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from nescio.detectors import Detector
from nescio.errors import InputError, ParameterError, ShapeError
from nescio.runners import Wrapped, wrap
from nescio.runners.batches import n_rows
from nescio.runners.onnx_models import DTYPES, OnnxRunner
from nescio.runners.runtimes import AUTO, Runtimes
from nescio.runners.tokenizing import TOKENIZER_KEY
from nescio.service.bodies import MAX_CHARACTERS, MAX_TEXTS
from nescio.service.decoders import Decoding
from nescio.service.logs import logger
from nescio.service.settings import Settings

THRESHOLD_KEY = "nescio.threshold"

_USUAL_WORK = 10_000  # batches; with fewer than a few milliseconds each, any runtime will do
_IMAGES_AT_ONCE, _TEXTS_AT_ONCE = 256, 32
_PAIRS_AT_ONCE = _TEXTS_AT_ONCE * 512**2  # of tokens, in texts of the usual maximum length
_EXAMPLE_ROWS = (8, 3)  # in the batches that runtimes are compared on


class ModelInput(NamedTuple):
    """One input of the graph; a dimension is None if it may have any size."""

    name: str
    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Model:
    """A wrapped ONNX graph."""

    wrapped: Wrapped
    inputs: dict[str, ModelInput]
    preprocessing: Preprocessing | None  # None if the model does not take images

    @classmethod
    def load(cls, settings: Settings, detector: Detector) -> Model:
        """Read the graph, and check that it fits the detector."""
        wrapped = wrap(
            settings.model,
            detector=detector,
            output=settings.logits,
            features=settings.features,
            from_probs=settings.from_probs,
            tokenizer=settings.tokenizer,
        )
        runner = wrapped.runner
        if not isinstance(runner, OnnxRunner):
            raise ParameterError(f"{settings.model} is not an ONNX file.")
        _check_width(runner, detector)
        _check_tokenizer(runner)
        stored = runner.metadata(THRESHOLD_KEY)
        calibration: Calibration = detector.calibration_
        if stored is not None and not _same_thresholds(stored, calibration):
            logger.warning(
                "the model file contains another detector, which is not used",
                extra={"its_threshold": stored, "threshold": calibration.threshold_values},
            )
        inputs = [_described(entry) for entry in runner.session.get_inputs()]
        fast, choice = Runtimes(settings.runtime).choose(
            runner, lambda: _examples(inputs), _USUAL_WORK
        )
        if settings.runtime not in (AUTO, choice.runtime):
            raise ParameterError(
                f"the runtime {settings.runtime} cannot be compared with {choice.runtime}: for "
                "that, the model must take a single input of floating point, of known size except "
                f"for the number of samples. Choose {choice.runtime} or {AUTO} (--runtime)."
            )
        logger.info("the model is loaded", extra={"runtime": choice.runtime, "why": choice.why})
        return cls(
            Wrapped(fast, detector),
            {entry.name: entry for entry in inputs},
            _preprocessing(inputs[0], runner.preprocessing, settings)
            if len(inputs) == 1 and _takes_images(inputs[0])
            else None,
        )

    def image_input(self, image: bytes, decoding: Decoding) -> dict[str, Array]:
        """Return the content of an image file as the input of the model, with one row."""
        if self.preprocessing is None:
            raise HTTPException(415, "the model does not take images. Send its inputs by name.")
        pixels = decoding.pixels(image, self.preprocessing.size)
        (entry,) = self.inputs.values()
        return {entry.name: self.preprocessing.normalise(pixels)[None].astype(entry.dtype)}

    def batch_size(self, inputs: Mapping[str, Array]) -> int:
        """How many samples run at once: attention takes memory for each pair of tokens."""
        if self.wrapped.runner.tokenizer is None:
            return _IMAGES_AT_ONCE
        n_tokens = max(1, int(inputs["input_ids"].shape[1]))
        return min(_TEXTS_AT_ONCE, max(1, _PAIRS_AT_ONCE // n_tokens**2))

    def text_inputs(self, texts: list[str]) -> tuple[dict[str, Array], dict[str, list[bool]]]:
        """Return texts as inputs of the model, and which of them were cut off."""
        tokenizer = self.wrapped.runner.tokenizer
        if tokenizer is None:
            raise InputError(
                "the model does not take texts. Send its inputs by name, or start the service with "
                "--tokenizer."
            )
        tokens = tokenizer(texts)
        self.wrapped.runner.check_padding(texts, tokens)
        truncated = set(tokens.truncated)
        return self.checked(tokens.arrays), {
            "truncated": [at in truncated for at in range(len(texts))]
        }

    def checked(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the inputs in the types of the graph, or raise an error if they do not fit."""
        if inputs.keys() != self.inputs.keys():
            names = ", ".join(name[:40] for name in sorted(inputs)[:10])
            raise InputError(f"the inputs must be {', '.join(self.inputs)}; got {names or 'none'}.")
        found = {name: _fitting(entry, inputs[name]) for name, entry in self.inputs.items()}
        n_rows(found)
        return found

    def kind_of(self, inputs: Mapping[str, Array]) -> Hashable:
        """Return a key; inputs with the same key can run together."""
        if any(entry.shape[0] is not None for entry in self.inputs.values()):
            return object()
        return tuple((name, array.shape[1:]) for name, array in inputs.items())

    def describe(self) -> dict[str, Any]:
        """Return what a client must send."""
        return {
            "inputs": [
                {"name": entry.name, "shape": list(entry.shape), "dtype": entry.dtype.name}
                for entry in self.inputs.values()
            ],
            "preprocessing": None if self.preprocessing is None else self.preprocessing.as_dict(),
            "texts": None
            if (tokenizer := self.wrapped.runner.tokenizer) is None
            else {
                "max_tokens": tokenizer.max_tokens,
                "max_texts": MAX_TEXTS,
                "max_characters": MAX_CHARACTERS,
            },
        }


def _examples(inputs: Sequence[ModelInput]) -> list[Array]:
    """Return batches of random numbers for a model with a single input of known size, else none."""
    entry = inputs[0]
    sizes = [size for size in entry.shape[1:] if size is not None]
    if len(inputs) > 1 or entry.dtype.kind != "f" or len(sizes) < len(entry.shape) - 1:
        return []
    rng = np.random.default_rng(0)
    rows = _EXAMPLE_ROWS if entry.shape[0] is None else (entry.shape[0],)
    return [rng.normal(size=(n, *sizes)).astype(entry.dtype) for n in rows]


def _same_thresholds(stored: Any, calibration: Calibration) -> bool:
    """Return whether thresholds are the same: those of older files are a calibration score."""
    if not isinstance(stored, dict) or stored.keys() != calibration.thresholds.keys():
        return False
    return all(
        isinstance(value := stored[name], float)
        and any(
            math.isclose(value, ours, rel_tol=1e-4)
            for ours in (threshold.value, threshold.scores[threshold.rank - 1])
        )
        for name, threshold in calibration.thresholds.items()
    )


def _fitting(entry: ModelInput, array: Array) -> Array:
    fits = array.ndim == len(entry.shape) and all(
        size in (None, found) for size, found in zip(entry.shape, array.shape, strict=True)
    )
    if not fits:
        expected = ["any" if size is None else size for size in entry.shape]
        raise InputError(
            f"input {entry.name!r} must have shape {expected}, got {list(array.shape)}."
        )
    with np.errstate(over="ignore", invalid="ignore"):
        typed = array.astype(entry.dtype, copy=False)
    if entry.dtype.kind != "f" and not np.array_equal(typed, array):
        raise InputError(
            f"input {entry.name!r} must be {entry.dtype}; it has fractions or numbers out of range."
        )
    return typed


def _described(entry: Any) -> ModelInput:
    if entry.type not in DTYPES or not entry.shape:
        raise InputError(
            f"the input {entry.name!r} of the model has type {entry.type} and shape {entry.shape}. "
            "Every input must be an array of numbers with one row per sample."
        )
    shape = tuple(size if isinstance(size, int) else None for size in entry.shape)
    return ModelInput(entry.name, shape, np.dtype(DTYPES[entry.type]))


def _check_width(runner: OnnxRunner, detector: Detector) -> None:
    """Raise an error if the model does not return as many logits as the detector expects."""
    shapes = {node.name: node.shape for node in runner.session.get_outputs()}
    width = (shapes[runner.output] or [None])[-1]
    expected = detector.n_columns_.get("logits")
    if isinstance(width, int) and expected not in (None, width):
        raise ShapeError(
            f"the model returns {width} logits, and the detector expects {expected}. Calibrate a "
            "detector on outputs of this model."
        )


def _check_tokenizer(runner: OnnxRunner) -> None:
    """Raise if texts could be of any length; warn if the file's tokenizer cannot be used."""
    if runner.tokenizer is not None and runner.tokenizer.max_tokens is None:
        raise ParameterError(
            "the tokenizer has no maximum length, and a service needs one. Set it in Python: "
            "tokenizer = tokenizers.Tokenizer.from_file(path); tokenizer.enable_truncation(256); "
            "tokenizer.save(path)."
        )
    if runner.tokenizer is None and runner.metadata(TOKENIZER_KEY) is not None:
        logger.warning(
            "texts are not accepted: the model file has a tokenizer, but the package tokenizers "
            "is not installed (the extra text)"
        )


def _takes_images(entry: ModelInput) -> bool:
    return len(entry.shape) == 4 and entry.shape[1] in (3, None) and entry.dtype.kind == "f"


def _preprocessing(
    entry: ModelInput, stored: Preprocessing | None, settings: Settings
) -> Preprocessing:
    """Return the preprocessing of images: the settings come first, then the model file."""
    size = settings.image_size or (stored.size if stored else entry.shape[2])
    if size is None:
        raise ParameterError(
            "the model takes images of any size. Pass the size that it was trained with, such as "
            "--image-size 224."
        )
    if not {*entry.shape[2:]} <= {None, size}:
        raise ParameterError(
            f"the model takes images of {entry.shape[2]} x {entry.shape[3]} pixels, not {size}."
        )
    if stored is None and settings.mean is None and settings.std is None:
        logger.warning(
            "images are normalised as for ImageNet: neither the model file nor --mean and --std "
            "say otherwise",
            extra={"mean": IMAGENET_MEAN, "std": IMAGENET_STD},
        )
    usual = stored or Preprocessing(size)
    return Preprocessing(size, settings.mean or usual.mean, settings.std or usual.std)
