"""Images that Pillow fills up are refused, and whole ones are not."""

import io
import struct
import zlib

import numpy as np
import pytest

from nescio.data import read_image
from nescio.errors import DatasetError

image = pytest.importorskip("PIL.Image")


def encoded(pixels, kind, mode="RGB", **options):
    stream = io.BytesIO()
    image.fromarray(pixels).convert(mode).save(stream, kind, **options)
    return stream.getvalue()


@pytest.fixture
def pixels(rng):
    return rng.integers(0, 256, (45, 61, 3), np.uint8)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(rows, *, size=(61, 45), interlaced=0, end=True):
    header = struct.pack(">IIBBBBB", *size, 8, 2, 0, 0, interlaced)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + parts + (chunk(b"IEND", b"") if end else b"")


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_cut_jpeg_with_an_end_is_refused(pixels, mode, progressive):
    whole = encoded(pixels, "JPEG", mode, progressive=progressive)
    assert read_image(whole).size == (61, 45)
    for share in (0.5, 0.9):
        with pytest.raises(DatasetError, match="truncated"):
            read_image(whole[: int(share * len(whole))] + b"\xff\xd9")


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("grey", [126, 128, 130])
def test_a_whole_jpeg_that_ends_in_grey_is_read(grey, progressive):
    """Grey is also what the decoder makes of data that is missing."""
    for mode in ("RGB", "L"):
        flat = encoded(np.full((45, 61, 3), grey, np.uint8), "JPEG", mode, progressive=progressive)
        assert np.ptp(np.asarray(read_image(flat))) <= 1
        assert read_image(flat + b"\0" * 20).size == (61, 45), "bytes after the end do no harm"


def test_a_png_without_its_end_or_some_rows_is_refused(pixels):
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    assert np.array_equal(np.asarray(read_image(png(rows))), pixels)
    whole = encoded(pixels, "PNG")
    for cut in (png(rows[: len(rows) // 2]), png(rows[:-1]), png(rows, end=False), whole[:-20]):
        with pytest.raises(DatasetError, match=r"cannot read the image: .*truncated"):
            read_image(cut)
    assert read_image(whole + b"\0" * 20).size == (61, 45)


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (5, 9), (61, 45)])
def test_the_rows_of_an_interlaced_png(size):
    """Black pixels: all bytes of all seven passes are 0."""
    steps = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2),
             (0, 1, 1, 2))  # fmt: skip
    n_bytes = 0
    for left, top, across, down in steps:
        columns, rows = len(range(left, size[0], across)), len(range(top, size[1], down))
        n_bytes += rows * (1 + 3 * columns) if columns else 0
    assert read_image(png(bytes(n_bytes), size=size, interlaced=1)).size == size
    with pytest.raises(DatasetError, match="truncated"):
        read_image(png(bytes(n_bytes - 1), size=size, interlaced=1))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_whole_pngs_of_every_mode(pixels, mode):
    deep = pixels[:, :, 0].astype(np.uint16) * 255
    content = encoded(deep, "PNG", mode) if mode == "I;16" else encoded(pixels, "PNG", mode)
    assert read_image(content).size == (61, 45)
