"""Images that would keep a decoder busy, or fill the memory, are rejected; others still work."""

import numpy as np
import pytest

from nescio.errors import DatasetError
from nescio.service import images as decoders
from nescio.service.images import Decoders

SIZE = 8


@pytest.fixture
def pool():
    made = Decoders(10**8)
    yield made
    made.stop()


@pytest.fixture
def good(encoded_image):
    return "good.png", encoded_image(np.zeros((9, 9, 3)))


def test_images_are_decoded_as_by_pillow(pool, encoded_image):
    pixels = np.random.default_rng(0).integers(0, 255, (2, SIZE, SIZE, 3))
    decoded = pool.decode([("", encoded_image(image)) for image in pixels], SIZE)
    np.testing.assert_array_equal(decoded, pixels.transpose(0, 3, 1, 2))


@pytest.mark.skipif("sys.platform == 'win32'")
def test_processor_time_is_limited(pool, good, many_scans, monkeypatch):
    monkeypatch.setattr(decoders, "DECODING_SECONDS", 1)
    assert pool.decode([good], SIZE).shape == (1, 3, SIZE, SIZE)
    (first,) = pool._idle
    with pytest.raises(DatasetError, match=r"slow\.jpg: .*more than 1 seconds of processor time"):
        pool.decode([good, ("slow.jpg", many_scans(3_000, 900))], SIZE)
    assert first.poll() is not None
    assert pool.decode([good], SIZE).shape == (1, 3, SIZE, SIZE)


def test_a_decoder_that_gets_no_processor_time_is_ended(pool, many_scans, monkeypatch):
    monkeypatch.setattr(decoders, "LONGEST_SECONDS", 0.01)
    with pytest.raises(DatasetError, match=r"0\.01 seconds in all"):
        pool.decode([("", many_scans(2_000, 900))], SIZE)
    assert pool._idle == []


def test_the_images_of_a_request_share_the_time(pool, good, monkeypatch):
    monkeypatch.setattr(decoders, "DECODING_SECONDS", 1e-9)
    with pytest.raises(DatasetError, match="processor time"):
        pool.decode([good, good], SIZE)  # the first one takes time: Pillow is imported


def test_a_decoder_that_was_killed_is_replaced(pool, good):
    pool.decode([good], SIZE)
    (first,) = pool._idle
    first.kill()
    first.wait()
    pool.decode([good], SIZE)
    assert pool._idle != [first]


@pytest.mark.parametrize("shape", [(1, 65_536, 3), (65_536, 1, 3)])
def test_a_side_may_not_be_too_long(shape, pool, encoded_image):
    with pytest.raises(DatasetError, match="65,535"):
        pool.decode([("", encoded_image(np.zeros(shape)))], SIZE)
