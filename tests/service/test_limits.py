"""What is too large, too slow, compressed or damaged is refused, and takes no memory."""

import asyncio
import gc
import io
import json
import struct
import zlib

import numpy as np
import pytest

import nescio as ns
from nescio._io.tensors import encode_tensors
from nescio.service.arrow import write_arrow
from nescio.service.bodies import ARROW, JSON, SAFETENSORS, decode_outputs
from nescio.service.calls import Call
from nescio.service.errors import RefusedError

pyarrow = pytest.importorskip("pyarrow")
ipc = pytest.importorskip("pyarrow.ipc")


def post(client, body, kind=JSON, path="/v1/score", **headers):
    return client.post(path, content=body, headers={"content-type": kind, **headers})


def refused(answer, status, reason):
    assert answer.status_code == status, answer.text
    assert reason in answer.json()["detail"]


@pytest.fixture
def good(some_logits):
    return json.dumps({"logits": some_logits(2).tolist()}).encode()


# --- sizes --------------------------------------------------------------------------------------


def test_a_body_that_announces_too_much_is_refused(client):
    refused(post(client(max_body_bytes=1000), bytes(1001), SAFETENSORS), 413, "1,000 bytes")


def test_a_stream_that_grows_too_large_is_refused(client):
    sent = []

    def chunks():
        for _ in range(100):
            sent.append(1)
            yield bytes(300)

    answer = post(client(max_body_bytes=1000), chunks(), SAFETENSORS)
    refused(answer, 413, "1,000 bytes")


def test_json_has_a_quarter(client, good):
    body = good + b" " * 300
    service = client(max_body_bytes=1000)
    refused(post(service, body), 413, "250 bytes")
    assert post(client(), body).status_code == 200


@pytest.mark.parametrize("kind", [JSON, SAFETENSORS, ARROW])
def test_too_many_rows_are_refused(kind, client, some_logits):
    logits = some_logits(11)
    body = {
        JSON: json.dumps({"logits": logits.tolist()}).encode(),
        SAFETENSORS: encode_tensors({"logits": logits}, {}),
        ARROW: write_arrow({"logits": list(logits)}),
    }[kind]
    refused(post(client(max_rows=10), body, kind), 413, "10 are allowed")
    assert post(client(max_rows=11), body, kind).status_code == 200


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_compressed_bodies_are_refused_unread(coding, client):
    refused(post(client(), zlib.compress(bytes(10**6)), **{"content-encoding": coding}), 415, "as")


def test_a_body_that_takes_too_long_is_refused(app):
    """The client announces 100 bytes, sends 10 and waits."""
    guard = app(body_seconds=0.05)

    async def call():
        sent = []
        messages = [{"type": "http.request", "body": b'{"logits":', "more_body": True}]

        async def receive():
            if messages:
                return messages.pop()
            return await asyncio.get_running_loop().create_future()

        async def send(message):
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/score",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json"), (b"content-length", b"100")],
        }
        await guard.service.start()
        await guard(scope, receive, send)
        await guard.service.stop()
        return sent

    start, body = asyncio.run(call())
    assert start["status"] == 408
    assert (b"connection", b"close") in start["headers"]
    assert b"0.05 seconds" in body["body"]
    assert guard.service.room.n_requests == guard.service.room.n_bytes == 0


def test_a_client_that_goes_away_leaves_no_trace(app):
    guard = app()

    async def call():
        sent = []

        async def receive():
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/score",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json"), (b"content-length", b"100")],
        }
        await guard.service.start()
        await guard(scope, receive, send)
        await guard.service.stop()
        return sent

    assert asyncio.run(call())[0]["status"] == 400
    assert guard.service.room.n_requests == guard.service.room.n_bytes == 0


# --- what is in a body ----------------------------------------------------------------------------

DEEP = b"[" * 100_000 + b"]" * 100_000
BAD_JSON = {
    "nothing": (b"", 400),
    "no object": (b"[[1, 2, 3, 4]]", 400),
    "truncated": (b'{"logits": [[1, 2, 3, 4]', 400),
    "NaN": (b'{"logits": [[NaN, 2, 3, 4]]}', 400),
    "Infinity": (b'{"logits": [[-Infinity, 2, 3, 4]]}', 400),
    "a huge number": (b'{"logits": [[1e999, 2, 3, 4]]}', 400),
    "a number of 5,000 digits": (b'{"logits": [[' + b"9" * 5000 + b", 2, 3, 4]]}", 400),
    "deep": (b'{"logits": ' + DEEP + b"}", 400),
    "deep elsewhere": (b'{"logits": [[1, 2, 3, 4]], "more": ' + DEEP + b"}", 400),
    "an unknown field": (b'{"logits": [[1, 2, 3, 4]], "more": 1}', 400),
    "text": (b'{"logits": [["1", "2", "3", "4"]]}', 400),
    "null": (b'{"logits": [[null, 2, 3, 4]]}', 400),
    "bools": (b'{"logits": [[true, 2, 3, 4]]}', 400),
    "not UTF-8": (b'{"logits": [[1, 2, 3, 4]], "ids": ["\xff"]}', 400),
    "half a character": (b'{"logits": [[1, 2, 3, 4]], "ids": ["\\ud800"]}', 400),
    "UTF-16": ('{"logits": [[1, 2, 3, 4]]}'.encode("utf-16"), 400),
    "no rows": (b'{"logits": []}', 422),
    "no columns": (b'{"logits": [[]]}', 422),
    "ragged": (b'{"logits": [[1, 2, 3, 4], [1]]}', 422),
    "too many ids": (b'{"logits": [[1, 2, 3, 4]], "ids": ["a", "b"]}', 422),
    "a long id": (b'{"logits": [[1, 2, 3, 4]], "ids": ["' + b"a" * 2000 + b'"]}', 422),
    "names twice": (b'{"logits": [[1, 2, 3, 4]], "label_names": ["a", "a", "b", "c"]}', 422),
    "two logits": (b'{"logits": [[1, 2]]}', 422),
}


@pytest.mark.parametrize("name", BAD_JSON)
def test_bad_json_is_refused_with_a_reason(name, client):
    body, status = BAD_JSON[name]
    answer = post(client(), body)
    assert answer.status_code == status, answer.text
    assert len(answer.json()["detail"]) > 10


def header(entries, data=b""):
    encoded = json.dumps(entries).encode()
    return len(encoded).to_bytes(8, "little") + encoded + data


def entry(dtype="F32", shape=(1, 4), offsets=(0, 16)):
    return {"logits": {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}}


BAD_SAFETENSORS = {
    "nothing": (b"", 400),
    "a few bytes": (b"\x01\x02", 400),
    "a header of 2^63 bytes": (b"\xff" * 7 + b"\x7f{}", 400),
    "a header that is no JSON": (header({})[:8] + b"ab", 400),
    "a header of lists": (header([1, 2]), 400),
    "a deep header": ((200_000).to_bytes(8, "little") + b"[" * 200_000, 400),
    "a header of 2 MB": (header({"a" * 2_000_000: 1}), 400),
    "no logits": (header({"x": entry()["logits"]}, bytes(16)), 400),
    "too short": (header(entry(), bytes(15)), 400),
    "too long": (header(entry(), bytes(17)), 400),
    "a shape of 2^60": (header(entry(shape=(1 << 60, 4)), bytes(16)), 400),
    "a shape that is none": (header(entry(shape=(-1, 4)), bytes(16)), 400),
    "an unknown type": (header(entry("F8_E4M3"), bytes(16)), 400),
    "another kind": (
        header({**entry(), "__metadata__": {"nescio": '{"kind": "nescio.detector"}'}}, bytes(16)),
        400,
    ),
    "metadata that is no JSON": (
        header({**entry(), "__metadata__": {"nescio": "{"}}, bytes(16)),
        400,
    ),
    "one dimension": (header(entry(shape=(4,)), bytes(16)), 422),
    "three dimensions": (header(entry(shape=(1, 2, 2)), bytes(16)), 422),
    "no rows": (header(entry(shape=(0, 4), offsets=(0, 0))), 422),
    "a billion rows of nothing": (header(entry(shape=(10**9, 0), offsets=(0, 0))), 422),
    "NaN": (header(entry(), np.array([1, np.nan, 0, 0], "f4").tobytes()), 422),
    "infinity": (header(entry(), np.array([1, np.inf, 0, 0], "f4").tobytes()), 422),
}


@pytest.mark.parametrize("name", BAD_SAFETENSORS)
def test_bad_safetensors_are_refused_with_a_reason(name, client):
    body, status = BAD_SAFETENSORS[name]
    answer = post(client(), body, SAFETENSORS)
    assert answer.status_code == status, answer.text
    assert len(answer.json()["detail"]) > 10


def stream(columns, schema=None, **options):
    """An Arrow stream."""
    table = pyarrow.table(columns, schema=schema)
    sink = pyarrow.BufferOutputStream()
    with ipc.new_stream(sink, table.schema, options=ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def floats(*shape):
    return list(np.zeros(shape, np.float32))


def empty_lists(n):
    """Lists of no numbers: their count is only claimed."""
    kind = pyarrow.list_(pyarrow.float32(), 0)
    return pyarrow.FixedSizeListArray.from_buffers(
        kind, n, [None], children=[pyarrow.array([], pyarrow.float32())]
    )


BAD_ARROW = {
    "nothing": lambda: b"",
    "noise": lambda: bytes(range(256)) * 4,
    "a file, not a stream": lambda: b"ARROW1\0\0" + stream({"logits": floats(2, 4)}),
    "lz4": lambda: stream({"logits": floats(1000, 4)}, compression="lz4"),
    "zstd": lambda: stream({"logits": floats(1000, 4)}, compression="zstd"),
    "a dictionary": lambda: stream({"a": pyarrow.array(["x", "y"]).dictionary_encode()}),
    "lists of nothing": lambda: stream({"logits": empty_lists(1 << 40)}, allow_64bit=True),
    "a column of nulls": lambda: stream({"logits": pyarrow.nulls(1 << 30)}),
    "empty cells": lambda: stream({"a": [1.0, None]}),
    "lists of lists": lambda: stream({"logits": [[[1.0]]]}),
    "a struct": lambda: stream({"logits": [{"a": 1.0}]}),
    "bytes": lambda: stream({"logits": [b"abcd"]}),
    "dates": lambda: stream({"a": pyarrow.array([1], pyarrow.timestamp("s"))}),
    "runs": lambda: stream({"a": pyarrow.RunEndEncodedArray.from_arrays([1 << 30], [1.0])}),
    "lists that differ": lambda: stream({"logits": [[1.0, 2.0, 3.0, 4.0], [1.0]]}),
    "names twice": lambda: stream(
        [pyarrow.array([1.0])] * 2, schema=pyarrow.schema([("a", "f8"), ("a", "f8")])
    ),
    "text": lambda: stream({"cat": ["1.0"]}),
    "no columns": lambda: stream({}),
    "only ids": lambda: stream({"id": ["a"]}),
    "too many columns": lambda: stream({str(at): [1.0] for at in range(20_001)}),
    "truncated": lambda: stream({"logits": floats(50, 4)})[:-200],
    "truncated in its schema": lambda: stream({"logits": floats(50, 4)})[:40],
}


@pytest.mark.parametrize("name", BAD_ARROW)
def test_bad_arrow_is_refused_with_a_reason(name, client):
    answer = post(client(), BAD_ARROW[name](), ARROW)
    assert answer.status_code == 400, answer.text
    assert len(answer.json()["detail"]) > 10


def test_buffers_that_are_smaller_than_the_arrow_says_are_refused():
    body = bytearray(stream({"cat": np.zeros(64, np.float32)}))
    at = body.rindex(struct.pack("<q", 64), 0, len(body) - 256)  # the rows of the record batch
    body[at : at + 8] = struct.pack("<q", 1 << 40)
    with pytest.raises(RefusedError) as caught:
        decode_outputs(ARROW, bytes(body), 100)
    assert caught.value.status == 400


@pytest.mark.parametrize("kind", [JSON, SAFETENSORS, ARROW])
def test_a_body_cut_anywhere_is_refused(kind, client, some_logits):
    logits = some_logits(3)
    body = {
        JSON: lambda: json.dumps({"logits": logits.tolist()}).encode(),
        SAFETENSORS: lambda: encode_tensors({"logits": logits}, {"label_names": None}),
        ARROW: lambda: write_arrow({"logits": list(logits)}),
    }[kind]()
    # Arrow's mark of the end, 8 bytes, may be left out.
    service, end = client(), len(body) - (9 if kind == ARROW else 0)
    for cut in range(0, end, 7):
        assert 400 <= post(service, body[:cut], kind).status_code < 500, cut
    assert post(service, body, kind).status_code == 200


def test_many_equal_label_names_are_refused_at_once(client):
    # Looking for each name among all took seconds for a body of this size.
    names = ["n" * (at % 7) + str(at) for at in range(60_000)] + ["twice", "twice"]
    body = {"logits": [[0.0] * len(names)], "label_names": names}
    answer = client().post("/v1/score", json=body)
    assert answer.status_code == 422
    assert "'twice' stands there twice" in answer.json()["detail"]


@pytest.mark.parametrize("names", [["\ud800", "b", "c", "d"], [1, 2, 3, 4], [["a"], {}, None, 2]])
def test_label_names_that_are_no_text_are_refused(names, client, some_logits):
    body = encode_tensors({"logits": some_logits(3)}, {"label_names": names})
    answer = client().post(
        "/v1/score?explain=true", content=body, headers={"Content-Type": SAFETENSORS}
    )
    assert answer.status_code == 400


def test_whole_numbers_which_would_grow_are_refused(client):
    body = encode_tensors({"logits": np.ones((3, 4), np.uint8)}, {})
    answer = client().post("/v1/score", content=body, headers={"Content-Type": SAFETENSORS})
    assert answer.status_code == 422
    assert "floating point numbers, got uint8" in answer.json()["detail"]


def test_what_was_refused_is_freed_at_once(client):
    gc.collect()
    gc.disable()
    try:
        service = client()
        held_before = sum(type(found) is ns.Outputs for found in gc.get_objects())
        body = encode_tensors({"logits": np.zeros((20_000, 5), np.float32)}, {})
        for _ in range(5):
            answer = service.post("/v1/score", content=body, headers={"Content-Type": SAFETENSORS})
            assert answer.status_code == 422
        held = sum(type(found) is ns.Outputs for found in gc.get_objects())
        assert held <= held_before + 1
    finally:
        gc.enable()


def test_a_long_body_that_is_only_announced_takes_no_room(app):
    guard = app(max_body_bytes=1000, max_waiting_bytes=1000)
    service = guard.service

    async def idle():
        await asyncio.sleep(60)

    async def try_it():
        with service.room.enter() as place:
            call = Call({"content-length": b"1000"}, idle)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await service.body(call, SAFETENSORS, place)
            assert service.room.n_bytes == 0

    asyncio.run(try_it())


def test_ids_of_which_one_is_long_take_no_room(some_logits):
    # NumPy would give each the room of the longest: 400 MB of a body of 1 MB.
    n = 100_000
    body = json.dumps({"logits": [[0]] * n, "ids": ["a"] * (n - 1) + ["b" * 1024]}).encode()
    outputs = decode_outputs(JSON, body, n)
    assert outputs.ids.nbytes < 10**6
    assert outputs.ids[-1] == "b" * 1024
    assert outputs[-2:].ids.tolist() == ["a", "b" * 1024]


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/octet-stream", "image/png", "x" * 5000]
)
def test_other_content_types_are_refused(kind, client, good):
    refused(post(client(), good, kind), 415, "application/json")


def test_the_content_type_may_have_parameters(client, good):
    assert post(client(), good, "Application/JSON; charset=utf-8").status_code == 200


# --- images ---------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("size", [(50_000, 50_000), (10_000, 10_000), (2**31 - 1, 1)])
def test_an_image_that_claims_too_many_pixels_is_refused(size, picture_service):
    answer = post(picture_service(), claimed_png(*size), "image/png", "/v1/predict")
    assert answer.status_code == 422
    assert "pixels" in answer.json()["detail"]


def test_a_real_image_of_too_many_pixels_is_refused(picture_service):
    # 4 million pixels in 12 kB.
    body = claimed_png(2000, 2000, (b"\0" + bytes(6000)) * 2000)
    assert len(body) < 20_000
    refused(
        post(picture_service(max_pixels=3_999_999), body, "image/png", "/v1/predict"), 422, "2,000"
    )
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
            assert "0x" not in answer.json()["detail"], "an address of memory"


def test_only_the_usual_formats_are_opened(picture_service):
    # Pillow would hand PostScript to Ghostscript, whatever the content type says.
    image = pytest.importorskip("PIL.Image")
    for kind in ("EPS", "PCX", "ICO", "TGA", "PPM"):
        stream = io.BytesIO()
        image.new("RGB", (8, 8)).save(stream, kind)
        answer = post(picture_service(), stream.getvalue(), "image/png", "/v1/predict")
        refused(answer, 422, "none of JPEG")


# --- how much at once -----------------------------------------------------------------------------


def test_bodies_that_wait_have_a_bound_in_bytes():
    from nescio.service.room import Room

    room = Room(10, 100)
    with room.enter() as first:
        first.hold(60)
        with room.enter() as second:
            second.hold(40)
            second.hold(30)  # it holds as much already
            with pytest.raises(RefusedError) as caught:
                second.hold(41)
            assert caught.value.status == 503
            assert caught.value.headers["Retry-After"] == "1"
        assert room.n_bytes == 60
    assert (room.n_requests, room.n_bytes) == (0, 0)


def test_settings_that_cannot_be_are_refused(detector_file):
    from nescio.errors import ParameterError
    from nescio.service import Settings

    wrong = (
        {"max_rows": 0},
        {"max_body_bytes": 10, "max_waiting_bytes": 9},
        {"logits": "scores"},
        {"image_size": 64},
        {"token": ""},
        {"token": "é"},
        {"cors_origins": ("*",)},
        {"cors_origins": ("https://example.org/page",)},
        {"cors_origins": ("example.org",)},
    )
    for settings in wrong:
        with pytest.raises(ParameterError):
            Settings(detector=detector_file(), **settings)
