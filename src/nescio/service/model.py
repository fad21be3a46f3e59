"""The model of the service: an ONNX file, and the preprocessing of images for it."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.exceptions import HTTPException

from nescio._validation import Array
from nescio.data.images import read_image
from nescio.data.preprocessing import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    PREPROCESSING_KEY,
    Preprocessing,
)
from nescio.detectors import Detector
from nescio.errors import DatasetError, FileFormatError, InputError, ParameterError, ShapeError
from nescio.outputs import Outputs
from nescio.runners import Wrapped, wrap
from nescio.runners.onnx_models import DTYPES
from nescio.service.limits import check_rows
from nescio.service.logs import logger
from nescio.service.settings import Settings

THRESHOLD_KEY = "nescio.threshold"


@dataclass(frozen=True)
class ModelInput:
    """One input of the graph; a dimension is None if it may have any size."""

    name: str
    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Model:
    """A wrapped ONNX graph.

    Attributes
    ----------
    wrapped : Wrapped
    inputs : tuple of ModelInput
    preprocessing : Preprocessing or None
        How images are prepared; None if the model does not take images.
    label_names : tuple of str or None
    """

    wrapped: Wrapped
    inputs: tuple[ModelInput, ...]
    preprocessing: Preprocessing | None
    label_names: tuple[str, ...] | None

    @classmethod
    def load(cls, settings: Settings, detector: Detector) -> Model:
        """Read the graph, and check that it fits the detector."""
        path = settings.model
        if path is None:
            raise ParameterError("there is no model to load: settings.model is None.")
        plain = wrap(
            path,
            output=settings.logits,
            features=settings.features
            or ("features" if "features" in detector.scores_from else None),
            from_probs=settings.from_probs,
        )
        session = plain.runner.session  # type: ignore[attr-defined]
        metadata = session.get_modelmeta().custom_metadata_map
        wrapped = wrap(plain, detector=detector)
        inputs = tuple(_described(entry) for entry in session.get_inputs())
        _check_width(plain, detector)
        _compare_thresholds(metadata, detector)
        return cls(wrapped, inputs, _preprocessing(inputs, metadata, settings), wrapped.label_names)

    @property
    def batches(self) -> bool:
        """Whether inputs of several requests can run together."""
        return all(entry.shape[:1] == (None,) for entry in self.inputs)

    def outputs(self, inputs: Mapping[str, Array]) -> Outputs:
        """Run the model."""
        return self.wrapped.outputs(dict(inputs))

    def image_input(self, image: bytes, max_pixels: int) -> dict[str, Array]:
        """Return the content of an image file as the input of the model, with one row."""
        if self.preprocessing is None:
            raise HTTPException(415, "the model does not take images. Send its inputs by name.")
        try:
            decoded = read_image(image, max_pixels=max_pixels)
        except DatasetError as error:
            raise HTTPException(422, str(error)) from error
        pixels = self.preprocessing.normalise(self.preprocessing.pixels(decoded))
        entry = self.inputs[0]
        return {entry.name: pixels[None].astype(entry.dtype, copy=False)}

    def checked(self, inputs: Mapping[str, Array], max_rows: int) -> dict[str, Array]:
        """Return the inputs in the types of the graph, or raise an error if they do not fit."""
        expected = [entry.name for entry in self.inputs]
        if sorted(inputs) != sorted(expected):
            names = ", ".join(name[:40] for name in sorted(inputs)[:10])
            raise HTTPException(
                422, f"the inputs must be {', '.join(expected)}; got {names or 'none'}."
            )
        found = {entry.name: _fitting(entry, inputs[entry.name]) for entry in self.inputs}
        sizes = {len(array) for array in found.values()}
        if len(sizes) != 1 or 0 in sizes:
            raise HTTPException(
                422, f"all inputs must have the same number of rows, got {sorted(sizes)}."
            )
        check_rows(max(sizes), max_rows)
        return found

    def describe(self) -> dict[str, Any]:
        """Return what a client must send."""
        return {
            "inputs": [
                {"name": entry.name, "shape": list(entry.shape), "dtype": entry.dtype.name}
                for entry in self.inputs
            ],
            "preprocessing": None if self.preprocessing is None else self.preprocessing.as_dict(),
        }


def kind_of_inputs(inputs: Mapping[str, Array]) -> Hashable:
    """Return a key; inputs with the same key can run together."""
    return tuple((name, array.shape[1:], array.dtype.str) for name, array in inputs.items())


def _fitting(entry: ModelInput, array: Array) -> Array:
    fits = array.ndim == len(entry.shape) and all(
        size in (None, found) for size, found in zip(entry.shape, array.shape, strict=True)
    )
    if not fits:
        expected = ["any" if size is None else size for size in entry.shape]
        raise HTTPException(
            422, f"input {entry.name!r} must have shape {expected}, got {list(array.shape)}."
        )
    if entry.dtype.kind in "iub" and array.dtype.kind == "f":
        raise HTTPException(422, f"input {entry.name!r} must be {entry.dtype}, got {array.dtype}.")
    if entry.dtype.kind in "iu" and array.size:
        low, high = np.iinfo(entry.dtype).min, np.iinfo(entry.dtype).max
        if not low <= array.min() <= array.max() <= high:
            raise HTTPException(
                422, f"input {entry.name!r} has numbers out of range for {entry.dtype}."
            )
    with np.errstate(over="ignore"):
        return array.astype(entry.dtype, copy=False)


def _described(entry: Any) -> ModelInput:
    if entry.type not in DTYPES:
        raise InputError(
            f"the input {entry.name!r} of the model has type {entry.type}, which is not supported."
        )
    if not entry.shape:
        raise InputError(
            f"the input {entry.name!r} of the model is a single number. Every input must have one "
            "row per sample."
        )
    shape = tuple(size if isinstance(size, int) else None for size in entry.shape)
    return ModelInput(entry.name, shape, np.dtype(DTYPES[entry.type]))


def _check_width(wrapped: Wrapped, detector: Detector) -> None:
    """Raise an error if the model does not return as many logits as the detector expects."""
    session = wrapped.runner.session  # type: ignore[attr-defined]
    shapes = {node.name: node.shape for node in session.get_outputs()}
    width = (shapes.get(wrapped.runner.output) or [None])[-1]
    expected = detector.n_columns_.get("logits")
    if isinstance(width, int) and expected not in (None, width):
        raise ShapeError(
            f"the model returns {width} logits, and the detector expects {expected}. Calibrate a "
            "detector on outputs of this model."
        )


def _compare_thresholds(metadata: Mapping[str, str], detector: Detector) -> None:
    """Log a warning if the graph contains another detector than the one in use."""
    stored = _json(metadata, THRESHOLD_KEY)
    if stored is not None and stored != detector.calibration_.threshold_values:
        logger.warning(
            "the model file contains another detector, which is not used",
            extra={"its_threshold": stored, "threshold": detector.calibration_.threshold_values},
        )


def _preprocessing(
    inputs: tuple[ModelInput, ...], metadata: Mapping[str, str], settings: Settings
) -> Preprocessing | None:
    """Return the preprocessing of images, if the model takes images.

    The settings come first, then the metadata of the file, then the size of the graph's input and
    the mean and standard deviation of ImageNet.
    """
    image = (
        len(inputs) == 1
        and len(inputs[0].shape) == 4
        and inputs[0].shape[1] in (3, None)
        and inputs[0].dtype.kind == "f"
    )
    if not image:
        return None
    stored = _json(metadata, PREPROCESSING_KEY)
    found = None if stored is None else Preprocessing.from_dict(stored)
    size = settings.image_size or (found.size if found else inputs[0].shape[2])
    if size is None:
        raise ParameterError(
            "the model takes images of any size. Pass the size that it was trained with, such as "
            "--image-size 224."
        )
    for fixed in inputs[0].shape[2:]:
        if fixed not in (None, size):
            raise ParameterError(f"the model takes images of {fixed} x {fixed} pixels, not {size}.")
    if found is None and settings.mean is None and settings.std is None:
        logger.warning(
            "images are normalised as for ImageNet: neither the model file nor --mean and --std "
            "say otherwise",
            extra={"mean": IMAGENET_MEAN, "std": IMAGENET_STD},
        )
    usual = found or Preprocessing(size)
    return Preprocessing(size, settings.mean or usual.mean, settings.std or usual.std)


def _json(metadata: Mapping[str, str], key: str) -> Any:
    try:
        return json.loads(metadata.get(key, "null"))
    except ValueError as error:
        raise FileFormatError(
            f"the metadata {key!r} of the model file is not valid JSON."
        ) from error
