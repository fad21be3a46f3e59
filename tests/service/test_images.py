"""Images that would keep a decoder busy, or fill the memory, are rejected; others still work."""

import io
import re
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from fixtures.service import post, refused
from nescio.errors import DatasetError, MissingDependencyError
from nescio.models import Wrapped
from nescio.service import images
from nescio.service.images import Decoders

SIZE = 8


@pytest.fixture
def pool():
    made = Decoders(10**8)
    yield made
    made.stop()


@pytest.fixture
def good(encoded_image):
    return encoded_image(np.zeros((9, 9, 3)))


def test_images_are_decoded_as_by_pillow(pool, encoded_image):
    pixels = np.random.default_rng(0).integers(0, 255, (SIZE, SIZE, 3))
    decoded = pool.decode(encoded_image(pixels), SIZE)
    np.testing.assert_array_equal(decoded, pixels.transpose(2, 0, 1))


@pytest.mark.skipif("sys.platform == 'win32'")
def test_processor_time_is_limited(pool, good, many_scans, monkeypatch):
    monkeypatch.setattr(images, "DECODING_SECONDS", 1)
    assert pool.decode(good, SIZE).shape == (3, SIZE, SIZE)
    (first,) = pool._idle
    with pytest.raises(DatasetError, match="more than 1 seconds of processor time"):
        pool.decode(many_scans(3_000, 900), SIZE)
    assert first.poll() is not None
    assert pool.decode(good, SIZE).shape == (3, SIZE, SIZE)


def test_a_decoder_that_gets_no_processor_time_is_ended(pool, many_scans, monkeypatch):
    monkeypatch.setattr(images, "LONGEST_SECONDS", 0.01)
    with pytest.raises(DatasetError, match=r"0\.01 seconds in all"):
        pool.decode(many_scans(2_000, 900), SIZE)
    assert pool._idle == []


def test_a_decoder_that_was_killed_is_replaced(pool, good):
    pool.decode(good, SIZE)
    (first,) = pool._idle
    first.kill()
    first.wait()
    pool.decode(good, SIZE)
    assert pool._idle != [first]


@pytest.mark.parametrize("max_pixels", [100, 300_000])
def test_few_pixels_leave_room_for_the_modules_and_formats(max_pixels, encoded_image):
    pool = Decoders(max_pixels)
    try:
        for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"):
            assert pool.decode(encoded_image(np.zeros((9, 9, 3)), kind), SIZE).shape == (3, 8, 8)
    finally:
        pool.stop()


@pytest.mark.skipif("sys.platform != 'linux'")
def test_memory_is_limited_beside_that_of_the_modules(pool, good, monkeypatch):
    monkeypatch.setattr(pool, "_max_pixels", 10**6)
    pool.decode(good, SIZE)
    (process,) = pool._idle
    status = Path(f"/proc/{process.pid}/status").read_text("utf-8")
    reserved = int(re.search(r"VmSize:\s+(\d+) kB", status)[1]) * 1024
    (limit,) = re.findall(r"address space +(\d+)", Path(f"/proc/{process.pid}/limits").read_text())
    assert 200e6 < int(limit) - reserved < 400e6


def test_without_pillow_the_service_is_at_fault(picture_service, good, monkeypatch):
    service = picture_service()
    service.app.service.decoders.stop()
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    refused(post(service, good, "image/png", "/v1/predict"), 500, "The service failed")
    with pytest.raises(MissingDependencyError, match="this needs PIL"):
        Decoders(10**6).warm()


@pytest.mark.parametrize("shape", [(1, 65_536, 3), (65_536, 1, 3)])
def test_a_side_may_not_be_too_long(shape, pool, encoded_image):
    with pytest.raises(DatasetError, match="65,535"):
        pool.decode(encoded_image(np.zeros(shape)), SIZE)


# --- over HTTP ----------------------------------------------------------------------------------


def chunk(kind, data):
    check = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)


def claimed_png(width, height, data=b""):
    """A PNG whose head says how large it is."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(data))
        + chunk(b"IEND", b"")
    )


@pytest.fixture
def picture_service(client, detector_file, image_model):
    def make(**settings):
        return client(detector_file(), model=image_model(), **settings)

    return make


def test_a_decoder_and_the_model_have_started_before_the_service_is_ready(
    picture_service, monkeypatch
):
    shapes = []
    outputs = Wrapped.outputs
    monkeypatch.setattr(
        Wrapped,
        "outputs",
        lambda self, inputs, **how: (
            shapes.append(inputs["image"].shape) or outputs(self, inputs, **how)
        ),
    )
    service = picture_service()
    assert shapes == [(1, 3, SIZE, SIZE)]
    assert len(service.app.service.decoders._idle) == 1


def test_an_image_of_too_many_pixels_is_refused(picture_service):
    # 4 million pixels in 12 kB.
    body = claimed_png(2000, 2000, (b"\0" + bytes(6000)) * 2000)
    assert len(body) < 20_000
    service = picture_service(max_pixels=3_999_999)
    refused(post(service, body, "image/png", "/v1/predict"), 422, "4 megapixels")
    for size in ((50_000, 50_000), (10_000, 10_000), (2**31 - 1, 1)):
        refused(post(service, claimed_png(*size), "image/png", "/v1/predict"), 422, "pixels")
    allowed = post(picture_service(max_pixels=4_000_000), body, "image/png", "/v1/predict")
    assert allowed.status_code == 200


def test_damaged_images_are_refused(picture_service, encoded_image):
    service = picture_service()
    pixels = np.random.default_rng(0).integers(0, 255, (40, 40, 3))
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"):
        body = encoded_image(pixels, kind)
        for part in (b"", body[:4], body[: len(body) // 2]):
            answer = post(service, part, f"image/{kind.lower()}", "/v1/predict")
            assert answer.status_code == 422, (kind, len(part), answer.text)
            assert part or "the image: it is empty." in answer.json()["detail"]
            assert "0x" not in answer.json()["detail"], "an address of memory"


def test_only_the_usual_formats_are_opened(picture_service):
    # Pillow would hand PostScript to Ghostscript, whatever the content type says.
    image, service = pytest.importorskip("PIL.Image"), picture_service()
    for kind in ("EPS", "PCX", "ICO", "TGA", "PPM"):
        stream = io.BytesIO()
        image.new("RGB", (8, 8)).save(stream, kind)
        answer = post(service, stream.getvalue(), "image/png", "/v1/predict")
        refused(answer, 422, "none of JPEG")
