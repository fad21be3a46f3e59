"""Requests that are too large, too slow or too many are rejected."""

import asyncio
import json
import zlib

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from nescio._io.tensors import encode_tensors
from nescio.service.bodies import JSON, SAFETENSORS
from nescio.service.limits import Room, read_body


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


@pytest.mark.parametrize("kind", [JSON, SAFETENSORS])
def test_too_many_rows_are_refused(kind, client, some_logits):
    logits = some_logits(11)
    body = {
        JSON: json.dumps({"logits": logits.tolist()}).encode(),
        SAFETENSORS: encode_tensors({"logits": logits}, {}),
    }[kind]
    refused(post(client(max_rows=10), body, kind), 413, "10 are allowed")
    assert post(client(max_rows=11), body, kind).status_code == 200


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_compressed_bodies_are_refused_unread(coding, client):
    refused(post(client(), zlib.compress(bytes(10**6)), **{"content-encoding": coding}), 415, "as")


def test_a_body_that_takes_too_long_is_refused(app):
    """The client announces 100 bytes, sends 10 and waits."""
    application = app(body_seconds=0.05)

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
        await application.state.service.start()
        await application(scope, receive, send)
        await application.state.service.stop()
        return sent

    start, body = asyncio.run(call())
    assert start["status"] == 408
    assert (b"connection", b"close") in start["headers"]
    assert b"0.05 seconds" in body["body"]
    assert application.state.service.room.n_requests == application.state.service.room.n_bytes == 0


def test_a_client_that_goes_away_leaves_no_trace(app):
    application = app()

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
        await application.state.service.start()
        await application(scope, receive, send)
        await application.state.service.stop()
        return sent

    assert asyncio.run(call())[0]["status"] == 400
    assert application.state.service.room.n_requests == application.state.service.room.n_bytes == 0


def test_a_long_body_that_is_only_announced_takes_no_room(app):
    application = app(max_body_bytes=1000, max_waiting_bytes=1000)
    service = application.state.service

    async def idle():
        await asyncio.sleep(60)

    async def try_it():
        with service.room.enter() as place:
            scope = {"type": "http", "headers": [(b"content-length", b"1000")]}
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await read_body(Request(scope, idle), place, max_bytes=1000, seconds=60)
            assert service.room.n_bytes == 0

    asyncio.run(try_it())


# --- how much at once -----------------------------------------------------------------------------


def test_bodies_that_wait_have_a_bound_in_bytes():
    room = Room(10, 100)
    with room.enter() as first:
        first.hold(60)
        with room.enter() as second:
            second.hold(40)
            second.hold(30)  # it holds as much already
            with pytest.raises(HTTPException) as caught:
                second.hold(41)
            assert caught.value.status_code == 503
            assert caught.value.headers["Retry-After"] == "1"
        assert room.n_bytes == 60
    assert (room.n_requests, room.n_bytes) == (0, 0)
