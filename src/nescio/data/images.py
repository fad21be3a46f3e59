"""Opening an image: RGB, whole, and an error that names the file."""

from __future__ import annotations

import hashlib
import io
import math
from pathlib import Path
from typing import TYPE_CHECKING

from nescio.errors import DatasetError
from nescio.tables import require

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif"})

_USUAL = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")


def read_image(source: str | Path | bytes, *, max_pixels: int | None = None) -> Image:
    """A whole image in RGB; a `DatasetError` if it is missing or damaged, never half of one.

    `source` is a path, or what such a file holds. An image of more pixels than Pillow's own limit,
    or than `max_pixels`, is refused before it is decoded.
    """
    pil = require("PIL.Image", "vision")
    path = "that was sent" if isinstance(source, bytes) else source
    content = io.BytesIO(source) if isinstance(source, bytes) else source
    # Pillow knows many formats, and runs Ghostscript for one: a stranger gets the usual ones.
    formats = _USUAL if isinstance(source, bytes) else None
    limit = max_pixels or pil.MAX_IMAGE_PIXELS
    try:
        with pil.open(content, formats=formats) as image:
            if limit and math.prod(image.size) > limit:
                raise ValueError(f"it has {image.size[0]:,} by {image.size[1]:,} pixels")
            converted: Image = image.convert("RGB")
            return converted
    except FileNotFoundError as error:
        raise DatasetError(f"there is no image {path}.") from error
    # Pillow's decoders raise whatever they like on damaged files.
    except Exception as error:
        unknown = isinstance(error, pil.UnidentifiedImageError)
        reason = str(error).rstrip(".") or type(error).__name__
        reason = "it is no image that Pillow knows" if unknown else reason
        if formats and isinstance(error, pil.UnidentifiedImageError):
            reason = f"it is none of {', '.join(formats)}"
        raise DatasetError(f"cannot read the image {path}: {reason}.") from error


def content_hash(path: str | Path) -> str:
    """SHA-256 of a file's bytes."""
    try:
        with open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror}.") from error
