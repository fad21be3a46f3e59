"""Images of more than 8 bits, and of too many pixels."""

import io
import struct
import zlib

import numpy as np
import pytest

from nescio.errors import DatasetError
from nescio.models.images import read_image

image = pytest.importorskip("PIL.Image")


@pytest.fixture
def grey():
    """A picture of greys in 8 bits."""
    return np.arange(0, 256, 5, dtype=np.uint8)[None].repeat(4, axis=0)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("deep.png", "<u2"), ("deep.tif", "<u2"), ("other_end.tif", ">u2"), ("whole.tif", "<i4")],
)
def test_greys_of_16_bits_look_as_in_8(tmp_path, grey, name, dtype):
    deep = image.fromarray((grey.astype(np.int64) * 257).astype(dtype))
    assert deep.mode in ("I;16", "I;16B", "I")
    deep.save(tmp_path / name)
    image.fromarray(grey).save(tmp_path / "plain.png")
    deep_pixels, expected = (
        np.asarray(read_image(tmp_path / file), int) for file in (name, "plain.png")
    )
    assert deep_pixels.shape == (*grey.shape, 3)
    assert np.abs(deep_pixels - expected).max() <= 1
    sent = read_image((tmp_path / name).read_bytes())
    assert np.asarray(sent).tolist() == deep_pixels.tolist()


def test_values_whose_range_is_not_known_are_refused(tmp_path, grey):
    for name, values in (
        ("float.tif", grey.astype(np.float32)),
        ("large.tif", grey.astype(np.int32) * 1000),
        ("negative.tif", grey.astype(np.int32) - 1),
    ):
        image.fromarray(values).save(tmp_path / name)
        with pytest.raises(DatasetError, match=f"{name}: its values .*within 0 to 65,535"):
            read_image(tmp_path / name)


def _empty_png(width, height):
    """A PNG that says how large it is, and holds no pixels."""

    def chunk(name, data):
        check = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + check

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def test_too_many_pixels_name_the_limit_and_where_to_set_it(tmp_path, grey):
    content = io.BytesIO()
    image.fromarray(grey).save(content, "PNG")  # 52 by 4
    with pytest.raises(DatasetError, match=r"more than 0.0002 megapixels, the limit\."):
        read_image(content.getvalue(), max_pixels=200)
    assert read_image(content.getvalue(), max_pixels=208).size == (52, 4)


@pytest.mark.parametrize("width", [10_000, 100_000])  # Pillow warns of the one, refuses the other
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_what_pillow_takes_for_a_bomb_is_refused_in_our_words(tmp_path, width):
    bomb = _empty_png(width, 10_000)
    with pytest.raises(DatasetError, match="more than 50 megapixels"):
        read_image(bomb, max_pixels=50_000_000)
    (tmp_path / "bomb.png").write_bytes(bomb)
    with pytest.raises(DatasetError, match=r"MAX_IMAGE_PIXELS") as refused:
        read_image(tmp_path / "bomb.png")
    assert "attack" not in str(refused.value)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "TIFF"])
def test_a_truncated_file_is_refused(kind, rng):
    pixels = rng.integers(0, 256, (45, 61, 3), np.uint8)
    content = io.BytesIO()
    image.fromarray(pixels).save(content, kind)
    assert read_image(content.getvalue()).size == (61, 45)
    for share in (0.5, 0.9):
        with pytest.raises(DatasetError, match="cannot read the image"):
            read_image(content.getvalue()[: int(share * len(content.getvalue()))])
