"""Read an image as RGB, check that it can be read, and hash a file."""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from nescio._io.tables import require
from nescio.data.whole import load_whole
from nescio.errors import DatasetError

if TYPE_CHECKING:
    from PIL.Image import Image

T = TypeVar("T")

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif"})

_MAX_SIDE = 65_535  # that of a JPEG
_USUAL = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
_ENDS = {  # the last bytes of a whole file
    "JPEG": b"\xff\xd9",
    "PNG": b"\0\0\0\0IEND\xaeB`\x82",
    "GIF": b";",
}
_DEEP = frozenset({"I", "I;16", "I;16B", "I;16L", "I;16N"})  # greyscale of 16 bits, or of 32


def read_image(source: str | Path | bytes, *, max_pixels: int | None = None) -> Image:
    """Return a whole image in RGB; raise a `DatasetError` if it is missing, damaged or truncated.

    `source` is a path, or the content of an image file. An image with more pixels than Pillow's
    own limit, or than `max_pixels`, is rejected before it is decoded; with `max_pixels`, also one
    with a side of more than 65,535 pixels. Greyscale images of 16 bits,
    such as X-rays, are scaled to 8 bits.

    Examples
    --------
    >>> import io
    >>> import PIL.Image
    >>> file = io.BytesIO()
    >>> PIL.Image.new("L", (4, 3)).save(file, "PNG")
    >>> image = read_image(file.getvalue())
    >>> image.size, image.mode
    ((4, 3), 'RGB')
    """
    return _opened(source, _rgb, max_pixels)


def check_image(path: str | Path) -> None:
    """Raise the error of `read_image` if it is cheap to find; most images are not decoded.

    A file whose header can be read and which ends as its format does is taken for whole. Any other
    file is decoded. Damage in the middle of a file is found only by `read_image`.

    Examples
    --------
    >>> check_image("no-such-image.png")
    Traceback (most recent call last):
    nescio.errors.DatasetError: the image no-such-image.png does not exist.
    """
    _opened(path, lambda image: None if _ends_properly(image) else _rgb(image))


def _opened(
    source: str | Path | bytes, use: Callable[[Image], T], max_pixels: int | None = None
) -> T:
    """Open an image, check its size and return what `use` makes of it."""
    pil = require("PIL.Image", "vision")
    what = "the image" if isinstance(source, bytes) else f"the image {source!s}"
    content = io.BytesIO(source) if isinstance(source, bytes) else source
    # Pillow reads many formats, and runs Ghostscript for one: bytes from others get the usual ones.
    formats = _USUAL if isinstance(source, bytes) else None
    limit = max_pixels or pil.MAX_IMAGE_PIXELS
    own = "" if not max_pixels else "--max-megapixels" if formats else "max_pixels"
    try:
        with pil.open(content, formats=formats) as image:
            if limit and math.prod(image.size) > limit:
                size = f"{image.size[0]:,} by {image.size[1]:,}"
                raise ValueError(f"it has {size} pixels, {_limit(limit, own)}")
            if max_pixels and max(image.size) > _MAX_SIDE:
                raise ValueError(f"a side has more than {_MAX_SIDE:,} pixels")
            return use(image)
    except FileNotFoundError as error:
        raise DatasetError(f"{what} does not exist.") from error
    # Pillow's decoders raise many kinds of exceptions on damaged files.
    except Exception as error:
        reason = str(error).rstrip(".") or type(error).__name__
        if isinstance(error, pil.UnidentifiedImageError):
            known = f"none of {', '.join(formats)}" if formats else "not an image for Pillow"
            reason = f"it is {known}"
        # Pillow itself rejects an image of twice its limit when it is opened.
        elif isinstance(error, pil.DecompressionBombError | pil.DecompressionBombWarning):
            most = min(limit, 2 * pil.MAX_IMAGE_PIXELS)
            reason = f"it has too many pixels, {_limit(most, own if most == max_pixels else '')}"
        raise DatasetError(f"cannot read {what}: {reason}.") from error


def _ends_properly(image: Image) -> bool:
    """Whether the file of an opened image ends as a whole file of its format does."""
    end, stream = _ENDS.get(image.format or ""), getattr(image, "fp", None)
    if end is None or stream is None or image.mode in {*_DEEP, "F"}:
        return False
    place = stream.tell()
    stream.seek(-len(end), io.SEEK_END)
    found = stream.read()
    stream.seek(place)
    return bool(found == end)


def _limit(limit: int, own: str) -> str:
    """Return the limit in words, with the option or variable that sets it."""
    where = own or "Pillow's own, PIL.Image.MAX_IMAGE_PIXELS"
    return f"more than the limit of {limit / 1e6:.4g} megapixels ({where})"


def _rgb(image: Image) -> Image:
    """Return the image in RGB with 8 bits. Pillow would clip 16 bits, and most would be white."""
    load_whole(image)
    if image.mode in _DEEP:
        from PIL.Image import fromarray

        values: Any = np.asarray(image)
        if values.min(initial=0) < 0 or values.max(initial=0) > 65_535:
            raise ValueError("its values are not within 0 to 65,535; convert it to 8 or 16 bits")
        return fromarray(np.rint(values / 257).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise ValueError(
            "its values are floating-point numbers, so the value of white is unknown; convert it "
            "to 8 or 16 bits"
        )
    return image.convert("RGB")


def content_hash(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "1.jpg"
    ...     _ = path.write_bytes(b"the bytes of an image")
    ...     content_hash(path)[:8]
    'c4cb58a7'
    """
    try:
        with open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror}.") from error
