"""Connections that send too much, too slowly or nothing are closed; others are served."""

import asyncio
import contextlib
import json
import socket
import urllib.error
import urllib.request

import pytest

from nescio.service import requests, server as server_module
from nescio.service.server import Server

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@contextlib.asynccontextmanager
async def serving(application):
    """Run uvicorn in this event loop; give the server and a function that connects to it."""
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    server = Server(application)
    running = asyncio.create_task(server.serve(sockets=[listening]))
    while not server.started:
        await asyncio.sleep(0.01)
    opened = []

    async def connect():
        opened.append(await asyncio.open_connection("127.0.0.1", port))
        return opened[-1]

    try:
        yield server, connect
    finally:
        for _, writer in opened:
            writer.close()
        server.should_exit = True
        await running


def run(application, client):
    """Run a client, a coroutine that gets the server and `connect`."""

    async def all_of_it():
        async with serving(application) as (server, connect), asyncio.timeout(120):
            return await client(server, connect)

    return asyncio.run(all_of_it())


async def ask(connect, request=GET):
    """Return all that the server sends until it closes the connection, or the first answer."""
    reader, writer = await connect()
    writer.write(request)
    return await reader.read(100_000)


async def everything(reader):
    """Return all that comes until the connection is closed, however it is closed."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := await reader.read(65_536):
            parts.append(part)
    return b"".join(parts)


ENDLESS = {
    "a header": b"GET / HTTP/1.1\r\nX: ",
    "headers": b"GET / HTTP/1.1\r\n",
    "an address": b"GET /",
    "a trailer": b"GET /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ",
    "headers of a trailer": b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
    "a chunk's extension": b"GET /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5;x=",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_does_not_end_closes_the_connection(name, app):
    """The parser keeps it in memory until it ends."""

    async def client(server, connect):
        _, writer = await connect()
        while not server.server_state.connections:
            await asyncio.sleep(0)
        writer.write(ENDLESS[name])
        more = b"X: 1\r\n" * 200 if "headers" in name else b"a" * 1_200
        n_sent = 0
        while server.server_state.connections and n_sent < 2_000_000:
            writer.write(more)
            n_sent += len(more)
            await asyncio.sleep(0)
        assert n_sent < 400_000  # the buffers of the sockets, and what the server reads at once
        assert (await ask(connect)).startswith(b"HTTP/1.1 200")

    run(app(), client)


LONG = {
    "a header": b"GET / HTTP/1.1\r\nX: " + b"a" * 16_500 + b"\r\n\r\n",
    "an address": b"GET /" + b"a" * 16_500 + b" HTTP/1.1\r\n\r\n",
    "headers": b"GET / HTTP/1.1\r\n" + b"Name: value\r\n" * 2_000 + b"\r\n",
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_head_is_rejected(name, app):
    async def client(server, connect):
        assert (await ask(connect, LONG[name])).startswith(b"HTTP/1.1 400")
        assert (await ask(connect)).startswith(b"HTTP/1.1 200")

    run(app(), client)


def test_a_head_within_the_limits_is_read(app):
    async def client(server, connect):
        headers = b"".join(b"X-%d: %s\r\n" % (index, b"a" * 100) for index in range(90))
        result = await ask(connect, GET[:-2] + headers + b"\r\n")
        assert result.startswith(b"HTTP/1.1 200")

    run(app(), client)


def test_many_requests_before_the_first_answer_are_rejected(app):
    async def client(server, connect):
        reader, writer = await connect()
        writer.write(GET * 10)
        assert b"HTTP/1.1 400" in await everything(reader)
        reader, writer = await connect()
        writer.write(GET * 8)
        answers = b""
        while answers.count(b"HTTP/1.1 200") < 8:
            answers += await reader.read(65_536)

    run(app(), client)


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost", GET], ids=str)
def test_a_silent_client_is_closed(sent, app, monkeypatch):
    monkeypatch.setattr(server_module, "_SILENT_SECONDS", 0.0)

    async def client(server, connect):
        reader, writer = await connect()
        writer.write(sent)
        await everything(reader)  # ends, since the server closes
        assert not server.server_state.connections

    run(app(), client)


def test_a_client_that_does_not_read_is_closed(app, monkeypatch):
    """Its answers wait in memory meanwhile."""
    application = app()

    async def client(server, connect):
        _, writer = await connect()
        writer.transport.pause_reading()
        while not server.server_state.connections:
            await asyncio.sleep(0)
        # Far more than the buffers of the sockets hold.
        openapi = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
        (connection,) = server.server_state.connections
        service = application.service
        while not connection.flow.write_paused:
            sent = service.n_answered
            writer.write(openapi)
            while service.n_answered == sent and not connection.flow.write_paused:
                await asyncio.sleep(0)
        monkeypatch.setattr(server_module, "_SILENT_SECONDS", 0.0)
        while server.server_state.connections:
            await asyncio.sleep(0.01)

    run(application, client)


def test_a_request_in_progress_is_not_silent(app, monkeypatch):
    monkeypatch.setattr(server_module, "_SILENT_SECONDS", 0.0)
    body = b'{"logits": [[1, 2, 3, 4]]}'
    head = b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"

    async def client(server, connect):
        reader, writer = await connect()
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body[:9])
        while server.config.app.service.limits.n_bytes < 9:
            await asyncio.sleep(0.01)
        for connection in server.server_state.connections:
            connection.check_time()
        writer.write(body[9:])
        assert (await reader.read(100)).startswith(b"HTTP/1.1 200")

    run(app(), client)


def simple_answer(url, path, n_bytes, **headers):
    """Return the status and the text that urllib gets: it sends a body, and then reads."""
    headers = {"Content-Type": "application/json", **headers}
    request = urllib.request.Request(f"{url}{path}", bytes(n_bytes), headers)
    with pytest.raises(urllib.error.HTTPError) as refused, urllib.request.urlopen(request):
        pass
    return refused.value.code, json.load(refused.value)["detail"]


def test_a_simple_client_sees_why_its_body_is_refused(served):
    """More bytes than the buffers of the sockets hold are on their way when it is refused."""
    url = served("--max-body-mb", "8", environment={"NESCIO_TOKEN": "secret"}).url
    status, detail = simple_answer(url, "/v1/score", 20_000_000, Authorization="Bearer secret")
    assert (status, "20,000,000 bytes; 2,000,000 are allowed" in detail) == (413, True)
    for path, expected in (("/v1/score", 401), ("/healthz", 405)):
        assert simple_answer(url, path, 20_000_000)[0] == expected


REFUSED = b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\n"


def test_the_answer_comes_before_the_rest_of_a_refused_body(app):
    async def client(server, connect):
        for more in (b"", b"Expect: 100-continue\r\n", b"Connection: close\r\n"):
            reader, writer = await connect()
            writer.write(REFUSED + more + b"\r\n")
            assert b" 405 " in await reader.readuntil(b"}")
            writer.write(bytes(9000) + (b"" if b"close" in more else GET))
            answer = await reader.read(100)
            assert answer == b"" if b"close" in more else answer.startswith(b"HTTP/1.1 200")

    run(app(), client)


def test_a_refused_body_is_read_for_a_limited_time(app, monkeypatch):
    monkeypatch.setattr(requests, "BODY_SECONDS", 0.0)

    async def client(server, connect):
        reader, writer = await connect()
        writer.write(REFUSED + b"Connection: close\r\n\r\n" + bytes(100))
        assert b" 405 " in await everything(reader)

    run(app(), client)


def test_a_refused_body_keeps_no_place_among_the_connections(app, monkeypatch):
    """Its client may have no token."""
    monkeypatch.setattr(server_module, "max_connections", lambda: 1)

    async def client(server, connect):
        reader, writer = await connect()
        writer.write(REFUSED + b"\r\n")
        await reader.readuntil(b"}")
        assert (await ask(connect)).startswith(b"HTTP/1.1 200")
        assert await everything(reader) == b""

    run(app(), client)


def test_of_too_many_connections_the_one_that_waits_longest_is_closed(app, monkeypatch):
    monkeypatch.setattr(server_module, "max_connections", lambda: 4)

    async def client(server, connect):
        idle = [await connect() for _ in range(4)]
        while len(server.server_state.connections) < 4:
            await asyncio.sleep(0.01)
        assert (await ask(connect)).startswith(b"HTTP/1.1 200")
        assert await everything(idle[0][0]) == b""
        assert len(server.server_state.connections) == 4

    run(app(), client)


def test_connections_leave_file_descriptors_for_the_rest():
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        server_module.max_connections.cache_clear()
        assert 8 <= server_module.max_connections() <= 192
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        server_module.max_connections.cache_clear()
