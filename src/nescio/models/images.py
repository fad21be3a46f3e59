"""Images: read one as RGB within limits, and make it the input of a network."""

from __future__ import annotations

import hashlib
import io
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nescio._validation import checked_whole, from_table, is_torch
from nescio.errors import DatasetError, ParameterError, require

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor, device

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif"})

_MAX_SIDE = 65_535  # that of a JPEG
_MAX_SIZE = 8_192  # of the input of a network: 0.8 GB in float32
_USUAL = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
_DEEP = frozenset({"I", "I;16", "I;16B", "I;16L", "I;16N"})  # greyscale of 16 bits, or of 32


def read_image(source: str | Path | bytes, *, max_pixels: int | None = None) -> Image:
    """Return a whole image in RGB; raise a `DatasetError` if it is missing, damaged or truncated.

    `source` is a path, or the content of an image file. An image with more pixels than Pillow's
    own limit, or than `max_pixels`, is rejected before it is decoded; with `max_pixels`, also one
    with a side of more than 65,535 pixels. Greyscale images of 16 bits, such as X-rays, are scaled
    to 8 bits.
    """
    pil = require("PIL.Image", "torch")
    what = "the image" if isinstance(source, bytes) else f"the image {source!s}"
    content = io.BytesIO(source) if isinstance(source, bytes) else source
    # Pillow reads many formats, and runs Ghostscript for one: bytes from others get the usual ones.
    formats = _USUAL if isinstance(source, bytes) else None
    limit = max_pixels or pil.MAX_IMAGE_PIXELS or math.inf
    too_large = f"it has more than {limit / 1e6:.4g} megapixels, the limit"
    if max_pixels is None:
        too_large += " (PIL.Image.MAX_IMAGE_PIXELS)"
    try:
        with pil.open(content, formats=formats) as image:
            if math.prod(image.size) > limit:
                raise ValueError(too_large)
            if max_pixels and max(image.size) > _MAX_SIDE:
                raise ValueError(f"a side has more than {_MAX_SIDE:,} pixels")
            return _rgb(image)
    except FileNotFoundError as error:
        raise DatasetError(f"{what} does not exist.") from error
    # Pillow's decoders raise many kinds of exceptions on damaged files.
    except Exception as error:
        reason = str(error).rstrip(".") or type(error).__name__
        if isinstance(error, pil.UnidentifiedImageError):
            reason = f"it is none of {', '.join(formats)}" if formats else "it is not an image"
        # Pillow itself rejects an image of twice its limit when it is opened.
        elif isinstance(error, pil.DecompressionBombError | pil.DecompressionBombWarning):
            reason = too_large
        reason = reason if source else "it is empty"
        raise DatasetError(f"cannot read {what}: {reason}.") from error


def _rgb(image: Image) -> Image:
    """Return the image in RGB with 8 bits. Pillow would clip 16 bits, and most would be white."""
    if image.mode in _DEEP:
        from PIL.Image import fromarray

        values: Any = np.asarray(image)
        if values.min(initial=0) >= 0 and values.max(initial=0) <= 65_535:
            return fromarray(np.rint(values / 257).astype(np.uint8)).convert("RGB")
    if image.mode in (*_DEEP, "F"):  # the value of white is unknown
        raise ValueError("its values are not within 0 to 65,535; convert it to 8 or 16 bits")
    return image.convert("RGB")


def content_hash(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    try:
        with open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror}.") from error


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
        name = "image size (of a square; normalise other images yourself)"
        if checked_whole(name, self.size, minimum=8) > _MAX_SIZE:
            raise ParameterError(f"image size must be at most {_MAX_SIZE:,}, got {self.size}.")
        for name in ("mean", "std"):
            values = tuple(float(value) for value in getattr(self, name))
            if len(values) != 3 or not all(map(math.isfinite, values)):
                raise ParameterError(f"{name} must be three numbers, one per colour, got {values}.")
            object.__setattr__(self, name, values)
        if min(self.std) <= 0:
            raise ParameterError(f"std must be greater than 0, got {self.std}.")

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Preprocessing:
        """Return the preprocessing of its parameters as a dict."""
        return from_table(cls, stored, where="preprocessing")

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
