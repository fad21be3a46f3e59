"""The model of the service: an ONNX file, and how an image becomes its input."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

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
from nescio.service.bodies import check_rows
from nescio.service.errors import RefusedError
from nescio.service.logs import logger
from nescio.service.settings import Settings

TAU_KEY = "nescio.threshold"


@dataclass(frozen=True)
class ModelInput:
    """One input of the graph; a dimension is None where any size goes."""

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
        What happens to an image; None if the model does not take one.
    label_names : tuple of str or None
    """

    wrapped: Wrapped
    inputs: tuple[ModelInput, ...]
    preprocessing: Preprocessing | None
    label_names: tuple[str, ...] | None

    @classmethod
    def load(cls, settings: Settings, detector: Detector) -> Model:
        """Read the graph, and check that it goes with the detector."""
        path = settings.model
        if path is None:
            raise ParameterError("there is no model to load.")
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
        _compare_taus(metadata, detector)
        return cls(wrapped, inputs, _preprocessing(inputs, metadata, settings), wrapped.label_names)

    @property
    def batches(self) -> bool:
        """Whether inputs of several requests may run together."""
        return all(entry.shape[:1] == (None,) for entry in self.inputs)

    def outputs(self, inputs: Mapping[str, Array]) -> Outputs:
        """One pass of the model."""
        return self.wrapped.outputs(dict(inputs))

    def image_input(self, image: bytes, max_pixels: int) -> dict[str, Array]:
        """An image file as the model's input, of one row."""
        if self.preprocessing is None:
            raise RefusedError(415, "the model does not take an image; send its inputs by name.")
        try:
            decoded = read_image(image, max_pixels=max_pixels)
        except DatasetError as error:
            raise RefusedError(422, str(error)) from error
        pixels = self.preprocessing.normalise(self.preprocessing.pixels(decoded))
        entry = self.inputs[0]
        return {entry.name: pixels[None].astype(entry.dtype, copy=False)}

    def checked(self, inputs: Mapping[str, Array], max_rows: int) -> dict[str, Array]:
        """Inputs by name in the types the graph takes; a `RefusedError` where they do not fit."""
        expected = [entry.name for entry in self.inputs]
        if sorted(inputs) != sorted(expected):
            names = ", ".join(name[:40] for name in sorted(inputs)[:10])
            raise RefusedError(
                422, f"the model takes {', '.join(expected)}; got {names or 'none'}."
            )
        found = {}
        for entry in self.inputs:
            found[entry.name] = _fitting(entry, inputs[entry.name])
        sizes = {len(array) for array in found.values()}
        if len(sizes) != 1 or 0 in sizes:
            raise RefusedError(422, f"the inputs must have equally many rows, got {sorted(sizes)}.")
        check_rows(max(sizes), max_rows)
        return found

    def describe(self) -> dict[str, Any]:
        """What a client needs to know to feed it."""
        return {
            "inputs": [
                {"name": entry.name, "shape": list(entry.shape), "dtype": entry.dtype.name}
                for entry in self.inputs
            ],
            "preprocessing": None if self.preprocessing is None else self.preprocessing.as_dict(),
        }


def kind_of_inputs(inputs: Mapping[str, Array]) -> Hashable:
    """Inputs of one kind can run as one batch."""
    return tuple((name, array.shape[1:], array.dtype.str) for name, array in inputs.items())


def _fitting(entry: ModelInput, array: Array) -> Array:
    fits = array.ndim == len(entry.shape) and all(
        size in (None, found) for size, found in zip(entry.shape, array.shape, strict=True)
    )
    if not fits:
        expected = ["any" if size is None else size for size in entry.shape]
        raise RefusedError(
            422, f"input {entry.name!r} must have shape {expected}, got {list(array.shape)}."
        )
    if entry.dtype.kind in "iub" and array.dtype.kind == "f":
        raise RefusedError(422, f"input {entry.name!r} must hold {entry.dtype}, got {array.dtype}.")
    if entry.dtype.kind in "iu" and array.size:
        low, high = np.iinfo(entry.dtype).min, np.iinfo(entry.dtype).max
        if not low <= array.min() <= array.max() <= high:
            raise RefusedError(422, f"input {entry.name!r} has numbers beyond {entry.dtype}.")
    with np.errstate(over="ignore"):
        return array.astype(entry.dtype, copy=False)


def _described(entry: Any) -> ModelInput:
    if entry.type not in DTYPES:
        raise InputError(
            f"the model's input {entry.name!r} is a {entry.type}, which is not served."
        )
    if not entry.shape:
        raise InputError(f"the model's input {entry.name!r} has no rows, which is not served.")
    shape = tuple(size if isinstance(size, int) else None for size in entry.shape)
    return ModelInput(entry.name, shape, np.dtype(DTYPES[entry.type]))


def _check_width(wrapped: Wrapped, detector: Detector) -> None:
    """Raise if the graph says that it gives another number of logits than the detector takes."""
    session = wrapped.runner.session  # type: ignore[attr-defined]
    shapes = {node.name: node.shape for node in session.get_outputs()}
    width = (shapes.get(wrapped.runner.output) or [None])[-1]
    known = isinstance(width, int) and detector.scores_from == ("logits",)
    if known and width != detector.n_features_in_:
        raise ShapeError(
            f"the model gives {width} logits, and the detector was made for "
            f"{detector.n_features_in_} labels. Calibrate one on outputs of this very model."
        )


def _compare_taus(metadata: Mapping[str, str], detector: Detector) -> None:
    """Say so if the graph has a detector in it that is not the one in use."""
    stored = _json(metadata, TAU_KEY)
    if stored is not None and stored != detector.calibration_.taus:
        logger.warning(
            "the model's file holds the verdicts of another detector; they are not used",
            extra={"its_tau": stored, "tau": detector.calibration_.taus},
        )


def _preprocessing(
    inputs: tuple[ModelInput, ...], metadata: Mapping[str, str], settings: Settings
) -> Preprocessing | None:
    """As asked for; otherwise as the file says; otherwise the graph's size and ImageNet's scale."""
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
            "the model takes images of any size. Say which it was made for: --image-size 224."
        )
    for fixed in inputs[0].shape[2:]:
        if fixed not in (None, size):
            raise ParameterError(f"the model takes images of {fixed} pixels a side, not {size}.")
    if found is None and settings.mean is None and settings.std is None:
        logger.warning(
            "images are scaled as for ImageNet: neither the model's file nor --mean and --std say",
            extra={"mean": IMAGENET_MEAN, "std": IMAGENET_STD},
        )
    usual = found or Preprocessing(size)
    return Preprocessing(size, settings.mean or usual.mean, settings.std or usual.std)


def _json(metadata: Mapping[str, str], key: str) -> Any:
    try:
        return json.loads(metadata.get(key, "null"))
    except ValueError as error:
        raise FileFormatError(f"the model's metadata {key!r} is not JSON.") from error
