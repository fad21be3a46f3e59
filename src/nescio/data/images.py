"""Opening an image: RGB, whole, and an error that names the file."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import TYPE_CHECKING

from nescio.errors import DatasetError
from nescio.tables import require

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif"})


def read_image(path: str | Path) -> Image:
    """A whole image in RGB; a `DatasetError` if it is missing or damaged, never half of one."""
    pil = require("PIL.Image", "vision")
    try:
        with pil.open(path) as image:
            if pil.MAX_IMAGE_PIXELS and math.prod(image.size) > pil.MAX_IMAGE_PIXELS:
                raise ValueError(f"it has {image.size[0]:,} by {image.size[1]:,} pixels")
            converted: Image = image.convert("RGB")
            return converted
    except FileNotFoundError as error:
        raise DatasetError(f"there is no image {path}.") from error
    # Pillow's decoders raise whatever they like on damaged files.
    except Exception as error:
        reason = str(error).rstrip(".") or type(error).__name__
        raise DatasetError(f"cannot read the image {path}: {reason}.") from error


def content_hash(path: str | Path) -> str:
    """SHA-256 of a file's bytes."""
    try:
        with open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror}.") from error
