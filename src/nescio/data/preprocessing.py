"""The preprocessing of an image before the network, for NumPy and torch."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nescio._validation import checked_whole, is_torch
from nescio.errors import ParameterError

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor, device

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

PREPROCESSING_KEY = "nescio.preprocessing"
"""The key of the preprocessing in the metadata of an ONNX file."""


@dataclass(frozen=True)
class Preprocessing:
    """Resize an image to a square, without keeping its aspect ratio, and normalise it.

    Parameters
    ----------
    size : int
        Height and width in pixels.
    mean, std : tuple of three floats
        Mean and standard deviation of each colour, on the scale from 0 to 1.
    """

    size: int = 256
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD

    def __post_init__(self) -> None:
        checked_whole("image size", self.size, minimum=8)
        for name in ("mean", "std"):
            values = tuple(float(value) for value in getattr(self, name))
            if len(values) != 3 or not all(map(math.isfinite, values)):
                raise ParameterError(f"{name} must be three numbers, one per colour, got {values}.")
            object.__setattr__(self, name, values)
        if min(self.std) <= 0:
            raise ParameterError(f"std must be greater than 0, got {self.std}.")

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Preprocessing:
        """Return the preprocessing that `as_dict` wrote."""
        try:
            return cls(**stored)
        except TypeError as error:
            raise ParameterError(f"invalid image preprocessing: {stored!r}.") from error

    def as_dict(self) -> dict[str, Any]:
        """Return the parameters as plain data, for JSON."""
        return asdict(self)

    def pixels(
        self, image: Image, box: tuple[float, float, float, float] | None = None
    ) -> NDArray[np.uint8]:
        """Return an RGB image, or the part of it in a box, as bytes of shape (3, size, size)."""
        from PIL.Image import Resampling

        square = image.resize((self.size, self.size), Resampling.BILINEAR, box=box)
        return np.asarray(square, dtype=np.uint8).transpose(2, 0, 1)

    def normalise(self, pixels: Any) -> Any:
        """Return pixels, given as bytes or on the scale from 0 to 1, as the network's input.

        Takes an array or a tensor whose last dimensions are (3, height, width). Bytes become
        float32.

        Examples
        --------
        >>> white = np.full((3, 8, 8), 255, np.uint8)
        >>> Preprocessing(8, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.25)).normalise(white)[:, 0, 0]
        array([1., 1., 2.], dtype=float32)
        """
        if is_torch(pixels):
            pixels = pixels.float() / 255 if not pixels.is_floating_point() else pixels
        elif pixels.dtype.kind != "f":
            pixels = pixels.astype(np.float32) / np.float32(255)
        return (pixels - self.per_colour(self.mean, pixels)) / self.per_colour(self.std, pixels)

    def inputs(self, pixels: Tensor | NDArray[Any], device: device) -> Tensor:
        """Return pixels as the network's input on its device, in channels-last memory format."""
        torch = sys.modules["torch"]
        normalised: Tensor = self.normalise(torch.as_tensor(pixels).to(device))
        return normalised.contiguous(memory_format=torch.channels_last)

    @staticmethod
    def per_colour(values: Sequence[float], like: Any) -> Any:
        """Return three numbers in a shape that broadcasts with images: (3, 1, 1)."""
        if is_torch(like):
            return like.new_tensor(values).view(3, 1, 1)
        return np.asarray(values, dtype=like.dtype).reshape(3, 1, 1)
