"""The log never delays or ends the service: what cannot be written is dropped and counted."""

import json
import logging
import os

import pytest

from nescio.service import logs
from nescio.service.logs import ThreadHandler


@pytest.fixture
def pipe():
    """A log that is written to a pipe: (handler, the end to read from)."""
    read, write = os.pipe()
    reading, writing = os.fdopen(read), os.fdopen(write, "w")
    handler = ThreadHandler(writing)
    yield handler, reading
    reading.close()
    handler.wait(60)  # or the thread would write to whatever gets the number of the descriptor next
    writing.close()


def write(handler, event, **facts):
    handler.handle(logging.makeLogRecord({"msg": event, **facts}))


def test_lines_are_written_in_order(pipe):
    handler, reading = pipe
    for number in range(50):
        write(handler, "request", number=number)
    handler.wait(60)
    lines = [json.loads(reading.readline()) for _ in range(50)]
    assert [line["number"] for line in lines] == list(range(50))
    assert handler.n_dropped == 0


def test_a_log_that_nobody_reads_does_not_block(pipe, monkeypatch):
    monkeypatch.setattr(logs, "_MAX_WAITING", 100)
    handler, reading = pipe
    for number in range(5_000):  # far more than a pipe holds
        write(handler, "request", number=number, filler="-" * 200)
    handler.wait(0.01)
    dropped = handler.n_dropped
    assert 0 < dropped < 5_000
    # Once it is read again, it says how many lines are missing.
    for line in map(json.loads, reading):
        if line.get("dropped") == dropped:
            break
    assert (line["level"], line["event"]) == ("warning", "lines of the log were dropped")


def test_a_log_that_is_closed_raises_no_error(pipe):
    handler, reading = pipe
    reading.close()
    for broken in (handler, ThreadHandler(None)):
        write(broken, "request")
        broken.wait(60)
        assert broken.n_dropped >= 1


@pytest.mark.skipif("not os.path.exists('/dev/full')")
def test_a_full_disk_raises_no_error():
    with open("/dev/full", "w") as full:
        handler = ThreadHandler(full)
        write(handler, "request")
        handler.wait(60)
        assert handler.n_dropped >= 1


def test_a_line_that_cannot_be_formatted_is_dropped(pipe):
    handler, _ = pipe
    handler.handle(logging.makeLogRecord({"msg": "%d", "args": ("no number",)}))
    assert handler.n_dropped == 1
