"""Images that would keep a decoder busy, or fill the memory, are rejected; others still work."""

import numpy as np
import pytest

from nescio.errors import DatasetError
from nescio.service import images as decoders
from nescio.service.images import Decoders, Decoding

SIZE = 8


@pytest.fixture
def pool():
    found = Decoders()
    yield found
    found.stop()


def test_an_image_is_decoded_as_by_pillow(pool, encoded_image):
    pixels = np.random.default_rng(0).integers(0, 255, (SIZE, SIZE, 3))
    found = Decoding(pool, 10**6).pixels(encoded_image(pixels), SIZE)
    np.testing.assert_array_equal(found, pixels.transpose(2, 0, 1))


def test_a_jpeg_of_too_many_scans_is_rejected_unread(pool, many_scans):
    body = many_scans(16, 1_001)
    with pytest.raises(DatasetError, match="1,000 scans"):
        Decoding(pool, 10**6).pixels(body, SIZE)
    assert pool._idle == []


@pytest.mark.skipif("sys.platform == 'win32'")
def test_processor_time_is_limited(pool, encoded_image, many_scans, monkeypatch):
    monkeypatch.setattr(decoders, "DECODING_SECONDS", 1)
    slow, good = many_scans(3_000, 900), encoded_image(np.zeros((9, 9, 3)))
    decoding = Decoding(pool, 10**8)
    assert decoding.pixels(good, SIZE).shape == (3, SIZE, SIZE)
    (first,) = pool._idle
    with pytest.raises(DatasetError, match="more than 1 seconds of processor time"):
        decoding.pixels(slow, SIZE)
    assert first.poll() is not None
    assert decoding.pixels(good, SIZE).shape == (3, SIZE, SIZE)


def test_a_decoder_that_gets_no_processor_time_is_ended(pool, many_scans, monkeypatch):
    monkeypatch.setattr(decoders, "LONGEST_SECONDS", 0.01)
    with pytest.raises(DatasetError, match=r"0\.01 seconds in all"):
        Decoding(pool, 10**8).pixels(many_scans(2_000, 900), SIZE)
    assert pool._idle == []


def test_the_images_of_a_request_share_the_time(pool, encoded_image, monkeypatch):
    monkeypatch.setattr(decoders, "DECODING_SECONDS", 1e-9)
    decoding, good = Decoding(pool, 10**6), encoded_image(np.zeros((9, 9, 3)))
    decoding.pixels(good, SIZE)
    with pytest.raises(DatasetError, match="processor time"):
        decoding.pixels(good, SIZE)


def test_a_decoder_that_was_killed_is_replaced(pool, encoded_image):
    good = encoded_image(np.zeros((9, 9, 3)))
    Decoding(pool, 10**6).pixels(good, SIZE)
    (first,) = pool._idle
    first.kill()
    first.wait()
    Decoding(pool, 10**6).pixels(good, SIZE)
    assert pool._idle != [first]


@pytest.mark.parametrize("shape", [(1, 65_536, 3), (65_536, 1, 3)])
def test_a_side_may_not_be_too_long(shape, pool, encoded_image):
    with pytest.raises(DatasetError, match="65,535"):
        Decoding(pool, 10**6).pixels(encoded_image(np.zeros(shape)), SIZE)
