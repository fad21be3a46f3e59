"""The log never delays or ends the service: what cannot be written is dropped and counted."""

import json
import logging
import os

import pytest

from nescio.service import server
from nescio.service.server import logger, logging_to_stderr


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


NAMES = ("nescio.service", "uvicorn", "asyncio", "python_multipart", "py.warnings")


def ended(context):
    context.__exit__(None, None, None)


@pytest.fixture
def pipe():
    read, write = os.pipe()
    reading, writing = os.fdopen(read), os.fdopen(write, "w")
    yield reading, writing
    for end in (reading, writing):
        end.close()


def test_lines_are_written_in_order(pipe, log_to):
    reading, writing = pipe
    context, handler = log_to(writing)
    for number in range(50):
        logger.info("request", extra={"number": number})
    ended(context)
    lines = [json.loads(reading.readline()) for _ in range(50)]
    assert [line["number"] for line in lines] == list(range(50))
    assert handler.n_dropped == 0


def test_a_log_that_nobody_reads_does_not_block(pipe, log_to, monkeypatch):
    monkeypatch.setattr(server, "_MAX_WAITING", 100)
    reading, writing = pipe
    _, handler = log_to(writing)
    for number in range(5_000):  # far more than a pipe holds
        logger.info("request", extra={"number": number, "filler": "-" * 200})
    assert 0 < handler.n_dropped < 5_000
    # What was not dropped is written once somebody reads.
    assert json.loads(reading.readline())["number"] == 0


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
