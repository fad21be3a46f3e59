"""Requests that are too large, too slow or too many are rejected."""

import asyncio
import json
import zlib

import pytest
from starlette.exceptions import HTTPException

from fixtures.service import SAFETENSORS, post, refused
from nescio._io.tensors import encode_tensors
from nescio.service import Settings, requests
from nescio.service.requests import Request, RequestLimits


@pytest.fixture
def good(some_logits):
    return json.dumps({"logits": some_logits(2).tolist()}).encode()


# --- sizes --------------------------------------------------------------------------------------


def test_a_body_that_announces_too_much_is_refused(client):
    answer = post(client(max_body_bytes=1000), bytes(1001), SAFETENSORS)
    refused(answer, 413, "1,001 bytes; 1,000 are allowed")


def test_a_stream_that_grows_too_large_is_refused(client):
    sent = []

    def chunks():
        for _ in range(100):
            sent.append(1)
            yield bytes(300)

    answer = post(client(max_body_bytes=1000), chunks(), SAFETENSORS)
    refused(answer, 413, "1,000 are allowed")


def test_json_has_a_quarter(client, good):
    body = good + b" " * 300
    service = client(max_body_bytes=1000)
    refused(post(service, body), 413, "250 are allowed")
    assert post(client(), body).status_code == 200


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_compressed_bodies_are_refused_unread(coding, client):
    refused(post(client(), zlib.compress(bytes(10**6)), **{"content-encoding": coding}), 415, "as")


async def call(application, receive):
    """Call the application; return the messages of its answer."""
    sent = []

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/score",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"content-length", b"100")],
    }
    await application.service.start()
    await application(scope, receive, send)
    await application.service.stop()
    return sent


def test_a_body_that_takes_too_long_is_refused(app, monkeypatch):
    """The client announces 100 bytes, sends 10 and waits."""
    monkeypatch.setattr(requests, "BODY_SECONDS", 0.05)
    application = app()
    messages = [{"type": "http.request", "body": b'{"logits":', "more_body": True}]

    async def receive():
        if messages:
            return messages.pop()
        return await asyncio.get_running_loop().create_future()

    start, body, _ = asyncio.run(call(application, receive))
    assert start["status"] == 408
    assert (b"connection", b"close") in start["headers"]
    assert b"0.05 seconds" in body["body"]
    assert application.service.limits.n_requests == application.service.limits.n_bytes == 0


def test_of_a_refused_body_eight_times_the_limit_is_read(app):
    """After the answer, whose end may close the connection."""
    n_read = 0

    async def receive():
        nonlocal n_read
        n_read += 1
        return {"type": "http.request", "body": bytes(100), "more_body": True}

    start, body, end = asyncio.run(call(app(max_body_bytes=1000), receive))
    assert (start["status"], body["more_body"]) == (413, True)
    assert end == {"type": "http.response.body"}
    assert n_read == 3 + 81  # 250 bytes are allowed


def test_a_client_that_goes_away_leaves_no_trace(app):
    application = app()

    async def receive():
        return {"type": "http.disconnect"}

    assert asyncio.run(call(application, receive)) == []
    assert application.service.limits.n_requests == application.service.limits.n_bytes == 0


def test_a_large_answer_is_sent_in_pieces_and_counts_as_memory(client, some_logits):
    service = client()
    body = encode_tensors({"logits": some_logits(20_000)}, {})
    answer = post(service, body, SAFETENSORS)
    assert answer.status_code == 200
    assert len(answer.content) == int(answer.headers["content-length"]) > 300_000
    room = service.app.service.limits
    assert room.n_held == 0
    room.n_held = 8 * 32_000_000  # others
    refused(post(service, body, SAFETENSORS), 503, "Try again")


# --- how much at once -----------------------------------------------------------------------------


def sending(n_bytes):
    """A request that announces 10 bytes and has sent some of them."""
    messages = [{"type": "http.request", "body": bytes(n_bytes), "more_body": n_bytes < 10}]

    async def receive():
        return messages.pop() if messages else await asyncio.sleep(60)

    return Request({"method": "POST", "headers": [], "query_string": b""}, receive)


def test_bodies_that_wait_have_a_bound_in_bytes(detector_file):
    limits = RequestLimits(Settings(detector_file(), max_body_bytes=10))
    requests = [sending(10) for _ in range(9)]

    async def run():
        for request in requests[:8]:
            await limits.read(request)
        with pytest.raises(HTTPException) as caught:
            await limits.read(requests[8])
        assert caught.value.status_code == 503
        assert caught.value.headers["Retry-After"] == "1"

    asyncio.run(run())
    assert (limits.n_requests, limits.n_bytes) == (9, 80)
    for request in requests:
        limits.release(request)
    assert (limits.n_requests, limits.n_bytes) == (0, 0)
