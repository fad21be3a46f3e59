"""Whether an image file holds all of its pixels; Pillow fills up some that do not.

Pillow accepts a PNG whose data ends early or which has no end, and a JPEG that was cut and closed
with an end marker, as some programs do with incomplete downloads. Missing pixels are black or grey.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

_PNG_START = 8  # bytes of the signature
_AT_ONCE = 1 << 16
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by the colour type of a PNG
# First column and row, and the distance to the next ones, of the seven passes of Adam7.
_ADAM7 = (
    (0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)
)  # fmt: skip
_JPEG_END = b"\xff\xd9"
_GREY = range(126, 131)  # what libjpeg makes of data that is missing
_MORE = bytes(range(1, 255)) * 8  # data without a marker


def load_whole(image: Image) -> None:
    """Decode an opened image; raise a `ValueError` if its file lacks data for some pixels."""
    stream, path = getattr(image, "fp", None), getattr(image, "filename", "")
    image.load()

    def content() -> bytes:
        return stream.getvalue() if isinstance(stream, io.BytesIO) else Path(path).read_bytes()

    if image.format == "PNG":
        whole = _png_is_whole(content())
    elif image.format == "JPEG" and _may_be_cut(image):
        whole = _jpeg_is_whole(image, content())
    else:
        return
    if not whole:
        raise ValueError("it is truncated: a part of its pixels is missing")


def _png_is_whole(content: bytes) -> bool:
    """Return whether a PNG has all rows, and an end."""
    expected, found, ended = 0, 0, False
    inflate = zlib.decompressobj()
    for kind, data in _chunks(content):
        if kind == b"IHDR":
            expected = _png_bytes(data)
        elif kind == b"IDAT":
            while data and not inflate.eof:  # in pieces: the pixels are not kept
                found += len(inflate.decompress(data, _AT_ONCE))
                data = inflate.unconsumed_tail
        ended = ended or kind == b"IEND"
    while not inflate.eof and (more := inflate.decompress(b"", _AT_ONCE)):
        found += len(more)
    return ended and found >= expected


def _chunks(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = _PNG_START
    while at + 8 <= len(content):
        (length,) = struct.unpack_from(">I", content, at)
        yield content[at + 4 : at + 8], content[at + 8 : at + 8 + length]
        at += 12 + length


def _png_bytes(header: bytes) -> int:
    """Return how many bytes the rows of a PNG have before compression."""
    width, height, depth, colours, _, _, interlaced = struct.unpack(">IIBBBBB", header[:13])
    bits = depth * _CHANNELS.get(colours, 1)
    passes = _ADAM7 if interlaced else ((0, 0, 1, 1),)
    total = 0
    for left, top, across, down in passes:
        columns, rows = -(-(width - left) // across), -(-(height - top) // down)
        if columns > 0 and rows > 0:
            total += rows * (1 + (columns * bits + 7) // 8)
    return total


def _may_be_cut(image: Image) -> bool:
    """Return whether a JPEG ends in grey, or has several scans, which may be incomplete."""
    last = image.getpixel((image.width - 1, image.height - 1))
    values = last if isinstance(last, tuple) else (last,)
    return bool(image.info.get("progressive")) or all(value in _GREY for value in values)


def _jpeg_is_whole(image: Image, content: bytes) -> bool:
    """Return whether a JPEG has no less data than pixels.

    More data before the end marker does not change an image that is whole, because the decoder
    needs none of it. It changes one whose data ends early.
    """
    from PIL.Image import open as open_image

    end = content.rfind(_JPEG_END)
    if end < 0:
        return True
    longer = io.BytesIO(content[:end] + _MORE + content[end:])
    with open_image(longer, formats=["JPEG"]) as again:
        return again.tobytes() == image.tobytes()
