"""The process: how it starts, logs, reloads and stops, on a free port."""

import contextlib
import http.client
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import nescio as ns
from nescio._io.tensors import encode_tensors
from nescio.monitor import Monitor
from nescio.service.openapi import SAFETENSORS
from nescio.service.server import logger, logging_to_stderr

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")


def request(port, method="GET", path="/healthz", body=None, **headers):
    """Send one request on a new connection; return (status, content)."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def score(port, logits, **headers):
    body = json.dumps({"logits": np.asarray(logits).tolist()})
    return request(
        port, "POST", "/v1/score", body, **{"Content-Type": "application/json"}, **headers
    )


def eventually(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timeout"
        time.sleep(0.01)


class Load:
    """Clients that ask again and again until the server takes no more."""

    def __init__(self, port, body, n_clients):
        self.port, self.body = port, body
        self.statuses, self.broken = [], []
        self._threads = [threading.Thread(target=self._ask) for _ in range(n_clients)]
        for thread in self._threads:
            thread.start()

    def _ask(self):
        while True:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
                connection.connect()
            except OSError:
                return  # the door is closed
            try:
                again = True
                while again:
                    connection.request(
                        "POST", "/v1/score", self.body, {"Content-Type": SAFETENSORS}
                    )
                    answer = connection.getresponse()
                    answer.read()
                    self.statuses.append(answer.status)
                    again = not answer.will_close
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                return  # closed before it read the request: not accepted
            except (OSError, http.client.HTTPException) as error:
                self.broken.append(error)
                return
            finally:
                connection.close()

    def join(self):
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive()


def test_sigterm_under_load_loses_no_accepted_request(served, some_logits):
    server = served("--drain-seconds", "0.3", "--log-level", "warning")
    load = Load(server.port, encode_tensors({"logits": some_logits(200)}, {}), 12)
    eventually(lambda: len(load.statuses) >= 100)
    server.signal(signal.SIGTERM)
    load.join()
    assert server.end() == 0
    stopped = server.wait_for("stopped")
    assert set(load.statuses) == {200}
    assert load.broken == []
    assert stopped["accepted"] == stopped["answered"] == len(load.statuses)
    assert {line["event"] for line in server.lines} == {"serving", "stopped"}


def test_without_a_token_other_machines_reach_it_only_if_it_is_told_so(
    served, detector_file, monkeypatch
):
    monkeypatch.delenv("NESCIO_TOKEN", raising=False)
    command = [sys.executable, "-m", "nescio", "serve", detector_file(), "--host", "0.0.0.0"]
    ended = subprocess.run([*command, "--port", "0"], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "--no-token" in ended.stderr
    for arguments, token in ((["--no-token"], None), ([], "secret")):
        environment = {"NESCIO_TOKEN": token} if token else {}
        server = served("--host", "0.0.0.0", *arguments, environment=environment)
        assert server.wait_for("serving")["token"] is (token is not None)
        assert request(server.port, path="/v1/detector")[0] == (401 if token else 200)


def test_while_it_stops_it_is_not_ready_and_takes_requests(served, some_logits, tmp_path):
    state = tmp_path / "monitor.safetensors"
    server = served("--drain-seconds", "5", "--monitor-state", state)
    assert request(server.port, path="/readyz")[0] == 200
    assert score(server.port, some_logits(9))[0] == 200
    server.signal(signal.SIGTERM)
    server.wait_for("stopping")
    status, content = request(server.port, path="/readyz")
    assert status == 503
    assert b"about to stop" in content
    assert request(server.port, path="/healthz")[0] == 200
    assert score(server.port, some_logits(4))[0] == 200
    assert server.end() == 0
    stopped = server.wait_for("stopped")
    assert stopped["accepted"] == stopped["answered"] == 5
    detector = ns.load(state.with_name("tagger.nescio"))
    assert Monitor.load(state, detector).n_samples == 13


def test_a_body_that_is_under_way_is_waited_for(served, some_logits):
    server = served("--drain-seconds", "0")
    body = encode_tensors({"logits": some_logits(50)}, {})
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as connection:
        head = f"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Type: {SAFETENSORS}\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body[:100])
        eventually(lambda: b"in_progress 1.0" in request(server.port, path="/metrics")[1])
        server.signal(signal.SIGTERM)
        server.wait_for("closed to new connections")
        connection.sendall(body[100:])
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert answer.startswith(b"HTTP/1.1 200")
    assert server.end() == 0
    stopped = server.wait_for("stopped")
    assert stopped["accepted"] == stopped["answered"]


def test_busy_threads_do_not_hold_a_second_signal(served, image_model, many_scans):
    """At the exit of the interpreter, Python waits for threads."""
    server = served("--model", image_model(), "--drain-seconds", "0")
    body = many_scans(3_000, 900)

    def ask():
        with contextlib.suppress(OSError):  # closed without an answer
            request(server.port, "POST", "/v1/predict", body, **{"Content-Type": "image/jpeg"})

    asking = threading.Thread(target=ask)
    asking.start()
    eventually(lambda: b"in_progress 1.0" in request(server.port, path="/metrics")[1])
    server.signal(signal.SIGTERM)
    server.wait_for("closed to new connections")
    server.signal(signal.SIGTERM)
    assert server.end() == -signal.SIGTERM
    asking.join(120)
    assert not asking.is_alive()


def test_sighup_takes_a_new_detector_while_requests_run(served, detector_file, some_logits):
    server = served(detector=detector_file())
    load = Load(server.port, encode_tensors({"logits": some_logits(20)}, {}), 4)
    before = json.loads(request(server.port, path="/v1/detector")[1])["threshold"]
    detector_file(tpr=0.5)
    server.signal(signal.SIGHUP)
    assert server.wait_for("reloaded")["changed"] is True
    after = json.loads(request(server.port, path="/v1/detector")[1])["threshold"]
    assert after != before
    detector_file().write_bytes(b"damaged")
    server.signal(signal.SIGHUP)
    assert server.wait_for("reload failed")["level"] == "error"
    assert json.loads(request(server.port, path="/v1/detector")[1])["threshold"] == after
    server.signal(signal.SIGTERM)
    load.join()
    assert server.end() == 0
    assert set(load.statuses) == {200}
    assert load.broken == []


def test_every_line_of_the_log_is_json_and_says_no_secret(served, some_logits, tmp_path):
    token = tmp_path / "token"
    token.write_text("open-sesame\n")
    server = served("--token-file", token, "--log-level", "debug")
    secret = {"Authorization": "Bearer open-sesame"}
    assert score(server.port, [[1e308] * 4, [12.345, 1, 2, 3]], **secret)[0] == 200
    assert score(server.port, [[1, 2, 3, 4]])[0] == 401
    assert request(server.port, path="/v1/detector?colour=private", **secret)[0] == 422
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as connection:
        connection.sendall(b"this is not HTTP\r\n\r\n")
        assert b"400" in connection.recv(1000)
    server.signal(signal.SIGTERM)
    assert server.end() == 0
    lines = [line for line in server.lines if line["event"] == "request"]
    assert [line["status"] for line in lines] == [200, 401, 422]
    assert lines[0]["rows"] == 2
    assert lines[0]["ms"] > 0
    assert "reason" not in lines[0]
    assert lines[1]["reason"].startswith("This path needs a token.")
    assert "unknown field `colour`" in lines[2]["reason"]
    text = "".join(server.raw)
    for hidden in ("open-sesame", "12.345", "private", "1e308", "1e+308"):
        assert hidden not in text
    assert "error" not in {line["level"] for line in server.lines}


def test_a_log_that_nobody_reads_stops_nothing(detector_file, tmp_path):
    state = tmp_path / "monitor.safetensors"
    command = [sys.executable, "-m", "nescio", "serve", detector_file(), "--port", "0"]
    with subprocess.Popen(
        [*command, "--drain-seconds", "0", "--monitor-state", state], stderr=subprocess.PIPE
    ) as process:
        try:
            port = int(json.loads(process.stderr.readline())["url"].rpartition(":")[2])
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            body, kind = b'{"logits": [[1, 2, 3, 4]]}', {"Content-Type": "application/json"}
            for _ in range(600):  # a pipe holds about 350 lines
                connection.request("POST", "/v1/score", body, kind)
                assert connection.getresponse().read()
            connection.close()
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0
        finally:
            process.kill()
    assert Monitor.load(state, ns.load(detector_file())).n_samples == 600


# --- the log: what cannot be written is dropped and counted -------------------------------------


@pytest.fixture
def log_to(monkeypatch):
    """Send the log to a file object, until the end of the test."""
    opened = []

    def start(stream):
        monkeypatch.setattr("sys.stderr", stream)
        before = {name: logging.getLogger(name).handlers for name in NAMES}
        opened.append(before)
        context = logging_to_stderr("info")
        context.__enter__()
        return context, logger.handlers[0]

    yield start
    logging.captureWarnings(False)
    for before in opened:
        for name, handlers in before.items():
            logging.getLogger(name).handlers = handlers
            logging.getLogger(name).propagate = True
            logging.getLogger(name).setLevel(logging.NOTSET)


NAMES = ("nescio.service", "uvicorn", "asyncio", "py.warnings")


def ended(context):
    context.__exit__(None, None, None)


@pytest.fixture
def pipe():
    read, write = os.pipe()
    reading, writing = os.fdopen(read), os.fdopen(write, "w")
    yield reading, writing
    for end in (reading, writing):
        end.close()


def test_a_log_that_cannot_be_written_raises_no_error(pipe, log_to):
    reading, writing = pipe
    reading.close()
    streams = [writing, None]
    if os.path.exists("/dev/full"):
        streams.append(open("/dev/full", "w"))  # noqa: SIM115
    for stream in streams:
        context, handler = log_to(stream)
        logger.info("request")
        ended(context)
        assert handler.n_dropped == 1
    for stream in streams[2:]:
        stream.close()


def test_a_line_that_cannot_be_formatted_is_dropped(pipe, log_to):
    context, handler = log_to(pipe[1])
    handler.handle(logging.makeLogRecord({"msg": "%d", "args": ("no number",)}))
    ended(context)
    assert handler.n_dropped == 1
