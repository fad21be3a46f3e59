"""What requests are scored with: one detector and, optionally, one model, loaded together."""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from starlette.exceptions import HTTPException

from nescio._charts.histogram import Histogram
from nescio._validation import Array
from nescio.calibration import CUSTOM, Calibration
from nescio.detectors import Detector, load
from nescio.detectors.assessment import Assessment
from nescio.detectors.fitting import require_calibration
from nescio.detectors.saving import plain_params
from nescio.errors import InputError, ParameterError, ProbabilitiesError, ShapeError
from nescio.explain import Explanation, PartsExplanation
from nescio.models import Wrapped, wrap
from nescio.models.images import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from nescio.models.inputs import n_rows
from nescio.models.onnx_models import DTYPES, OnnxRunner
from nescio.models.texts import TOKENIZER_KEY
from nescio.outputs import Outputs
from nescio.outputs.outputs import match_labels
from nescio.service.images import Decoding
from nescio.service.logs import logger
from nescio.service.requests import without_advice
from nescio.service.settings import MAX_CHARACTERS, MAX_TEXTS, Settings

THRESHOLD_KEY = "nescio.threshold"

_IMAGES_AT_ONCE, _TEXTS_AT_ONCE = 256, 32
_PAIRS_AT_ONCE = _TEXTS_AT_ONCE * 512**2  # of tokens, in texts of the usual maximum length


class BatchResult(NamedTuple):
    """The outputs of the model for one or several requests, and the verdicts."""

    outputs: Outputs
    assessment: Assessment


@dataclass(frozen=True)
class Engine:
    """Scores requests. It never changes: a reload makes another one."""

    detector: Detector
    model: Model | None

    @classmethod
    def load(cls, settings: Settings) -> Engine:
        """Read the files; a `NescioError` says what is wrong with them."""
        detector = load(settings.detector)
        require_calibration(detector)
        if detector.calibration_.by == CUSTOM:
            raise InputError(
                f"{settings.detector} was calibrated with groups of your own, which the service "
                "does not know. Calibrate it without groups or by label count."
            )
        return cls(detector, None if settings.model is None else Model.load(settings, detector))

    @property
    def calibration(self) -> Calibration:
        """The calibration of the detector."""
        calibration: Calibration = self.detector.calibration_
        return calibration

    @functools.cached_property
    def label_names(self) -> tuple[str, ...] | None:
        """The label names, if the detector or the model knows them."""
        names = self.detector.label_names_
        return names if names or self.model is None else self.model.wrapped.label_names

    @functools.cached_property
    def n_labels(self) -> int | None:
        """The number of labels, or None if it is unknown because only features were seen."""
        if "logits" in self.detector.n_columns_:
            return self.detector.n_columns_["logits"]
        if self.detector.profile_.firing is not None:
            return self.detector.profile_.firing.n_labels
        return None if self.label_names is None else len(self.label_names)

    def score(self, outputs: Outputs) -> BatchResult:
        """Return the verdicts on outputs; labels with names are matched by name."""
        names = self.detector.label_names_
        if names is not None and outputs.label_names is not None:
            outputs = match_labels(outputs, names, self.detector.scores_from)
        if self.n_labels not in (None, outputs.n_labels):
            raise ShapeError(
                f"the detector expects logits of {self.n_labels} labels, got {outputs.n_labels}."
            )
        return BatchResult(outputs, self.detector.assess(outputs, from_probs=False))

    def explain(self, outputs: Outputs) -> Explanation | PartsExplanation:
        """Return each label's share of the scores, or that of each part of a combination."""
        return self.detector.explain(outputs, from_probs=False)

    @functools.cached_property
    def description(self) -> dict[str, Any]:
        """What clients may want to know: a `DetectorDescription`."""
        calibration = self.calibration
        first = next(iter(calibration.thresholds.values()))
        return {
            "detector": self.detector.name,
            "params": {k: v for k, v in plain_params(self.detector).items() if k != "tpr"},
            "scores_from": list(self.detector.scores_from),
            "n_columns": self.detector.n_columns_,
            "label_names": None if self.label_names is None else list(self.label_names),
            "threshold": calibration.threshold_values,
            "tpr": first.tpr,
            "confidence": first.confidence,
            "by": calibration.by,
            "n_calibration": calibration.n_samples,
            "n_by_group": {name: len(of.scores) for name, of in calibration.thresholds.items()},
            "statement": calibration.statement(),
            "explains": _explains_labels(self.detector),
            "histogram": self.histograms[None].as_dict(),
            "example": self._example(),
            "model": None if self.model is None else self.model.describe(),
        }

    @functools.cached_property
    def histograms(self) -> dict[str | None, Histogram]:
        """The histograms of the calibration scores: by group, and of all groups under None."""
        thresholds = self.calibration.thresholds
        whole = Histogram.of(self.calibration.scores, [of.value for of in thresholds.values()])
        histograms: dict[str | None, Histogram] = {None: whole}
        for name, of in thresholds.items():
            histograms[name] = Histogram.of(of.scores, [of.value])
        return histograms

    def _example(self) -> list[float] | None:
        """Return logits to try, made of medians of the calibration data, if they are "in"."""
        terms, medians = self.detector.label_terms(), self.detector.profile_.medians
        if terms is None or medians is None:
            return None
        group = len(medians.groups) // 2
        ladder = np.linspace(-40.0, 40.0, 8_001)
        steps = np.asarray(terms.of(ladder[None, :]))[0]  # increasing
        commonest_first = np.argsort(-medians.labels[group], kind="stable")
        row = np.empty(len(commonest_first))
        row[commonest_first] = np.interp(medians.ranks[group], steps, ladder).round(2)
        ordinary = self.score(Outputs(row[None, :])).assessment.in_distribution[0]
        return row.tolist() if ordinary else None


def _explains_labels(detector: Detector) -> bool:
    """Return whether the score, or that of a part, can be explained label by label."""
    if detector.label_terms() is not None:
        return detector.profile_.medians is not None
    return any(
        map(_explains_labels, getattr(detector, "detectors_", ()) if detector.explains else ())
    )


def kind_of(outputs: Outputs) -> Hashable:
    """Return a key; outputs with the same key can be scored together."""
    columns = tuple(
        (name, outputs.get(name).shape[1], outputs.get(name).dtype.str)
        for name in outputs.names
        if name != "head"
    )
    return columns, outputs.label_names, outputs.ids is None, id(outputs.head)


class ModelInput(NamedTuple):
    """One input of the graph; a dimension is None if it may have any size."""

    name: str
    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, entry: Any) -> ModelInput:
        """Return an input of an ONNX session."""
        if entry.type not in DTYPES or not entry.shape:
            raise InputError(
                f"the input {entry.name!r} of the model has type {entry.type} and shape "
                f"{entry.shape}. Every input must be an array of numbers with one row per sample."
            )
        shape = tuple(size if isinstance(size, int) else None for size in entry.shape)
        return cls(entry.name, shape, np.dtype(DTYPES[entry.type]))

    @property
    def takes_images(self) -> bool:
        """Whether it may be a batch of RGB images."""
        return len(self.shape) == 4 and self.shape[1] in (3, None) and self.dtype.kind == "f"

    def checked(self, array: Array) -> Array:
        """Return an array in the type of this input, or raise an error if it does not fit."""
        fits = array.ndim == len(self.shape) and all(
            size in (None, got) for size, got in zip(self.shape, array.shape, strict=True)
        )
        if not fits:
            expected = ["any" if size is None else size for size in self.shape]
            raise InputError(
                f"input {self.name!r} must have shape {expected}, got {list(array.shape)}."
            )
        with np.errstate(over="ignore", invalid="ignore"):
            typed = array.astype(self.dtype, copy=False)
        if self.dtype.kind != "f" and not np.array_equal(typed, array):
            raise InputError(
                f"input {self.name!r} must be {self.dtype}; it has fractions or numbers out of "
                "range."
            )
        return typed


@dataclass(frozen=True)
class Model:
    """A wrapped ONNX graph, and the preprocessing of images for it."""

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
        _check_thresholds(runner, detector)
        inputs = [ModelInput.of(entry) for entry in runner.session.get_inputs()]
        preprocessing = None
        if len(inputs) == 1 and inputs[0].takes_images:
            preprocessing = _preprocessing(inputs[0], runner.preprocessing, settings)
        return cls(wrapped, {entry.name: entry for entry in inputs}, preprocessing)

    def image_input(self, image: bytes, decoding: Decoding) -> dict[str, Array]:
        """Return the content of an image file as the input of the model, with one row."""
        if self.preprocessing is None:
            raise HTTPException(415, "the model does not take images. Send its inputs by name.")
        pixels = decoding.pixels(image, self.preprocessing.size)
        (entry,) = self.inputs.values()
        return {entry.name: self.preprocessing.normalise(pixels)[None].astype(entry.dtype)}

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
        cut = [row in set(tokens.truncated) for row in range(len(texts))]
        return self.checked(tokens.arrays), {"truncated": cut}

    def checked(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the inputs in the types of the graph, or raise an error if they do not fit."""
        if inputs.keys() != self.inputs.keys():
            names = ", ".join(name[:40] for name in sorted(inputs)[:10])
            raise InputError(f"the inputs must be {', '.join(self.inputs)}; got {names or 'none'}.")
        typed = {name: entry.checked(inputs[name]) for name, entry in self.inputs.items()}
        n_rows(typed)
        return typed

    def outputs(self, inputs: Mapping[str, Array]) -> Outputs:
        """Run the model."""
        size = _IMAGES_AT_ONCE
        if self.wrapped.runner.tokenizer is not None:
            # Attention takes memory for each pair of tokens.
            n_tokens = max(1, int(inputs["input_ids"].shape[1]))
            size = min(_TEXTS_AT_ONCE, max(1, _PAIRS_AT_ONCE // n_tokens**2))
        try:
            return self.wrapped.outputs(inputs, batch_size=size)
        except ProbabilitiesError as error:
            raise ProbabilitiesError(
                f"the outputs of the model: {without_advice(error)} If it returns probabilities, "
                "start the service with --from-probs."
            ) from error

    def kind_of(self, inputs: Mapping[str, Array]) -> Hashable:
        """Return a key; inputs with the same key can run together."""
        if any(entry.shape[0] is not None for entry in self.inputs.values()):
            return object()
        return tuple((name, array.shape[1:]) for name, array in inputs.items())

    def describe(self) -> dict[str, Any]:
        """Return what a client must send: a `ModelDescription`."""
        tokenizer = self.wrapped.runner.tokenizer
        texts = tokenizer and {
            "max_tokens": tokenizer.max_tokens,
            "max_texts": MAX_TEXTS,
            "max_characters": MAX_CHARACTERS,
        }
        return {
            "inputs": [
                {"name": entry.name, "shape": list(entry.shape), "dtype": entry.dtype.name}
                for entry in self.inputs.values()
            ],
            "preprocessing": None if self.preprocessing is None else self.preprocessing.as_dict(),
            "texts": texts,
        }


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


def _check_thresholds(runner: OnnxRunner, detector: Detector) -> None:
    """Warn if the file of the model holds another detector, which is not used."""
    stored = runner.metadata(THRESHOLD_KEY)
    ours = detector.calibration_.threshold_values
    same = isinstance(stored, dict) and stored.keys() == ours.keys()
    if same:
        pairs = [(stored[name], value) for name, value in ours.items()]
        same = all(isinstance(a, float) and math.isclose(a, b, rel_tol=1e-4) for a, b in pairs)
    if stored is not None and not same:
        logger.warning(
            "the model file contains another detector, which is not used",
            extra={"its_threshold": stored, "threshold": ours},
        )


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
