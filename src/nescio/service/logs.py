"""Logs in JSON, one line per event. They never contain bodies, tokens or queries.

A thread writes them, so that no request waits for whoever reads the log. Lines that cannot be
written, or that would have to wait behind too many others, are dropped and counted.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from typing import IO

import msgspec

logger = logging.getLogger("nescio.service")

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}
_MAX_WAITING = 10_000  # lines


class JsonFormatter(logging.Formatter):
    """Writes the message of a record and everything that was passed as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line of JSON."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


class ThreadHandler(logging.Handler):
    """Hands lines to a thread that writes them. It never waits and never raises an error."""

    def __init__(self, stream: IO[str] | None) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.n_dropped = 0
        self._told = 0  # how many of them the log says
        self._descriptor = _descriptor(stream)
        self._waiting: queue.SimpleQueue[str | threading.Event] = queue.SimpleQueue()
        # At exit, Python does not wait for it: it may be blocked because nobody reads the log.
        threading.Thread(target=self._write_all, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Add a line, unless too many are waiting."""
        if self._waiting.qsize() >= _MAX_WAITING:
            self.n_dropped += 1
            return
        try:
            line = self.format(record)
        except Exception:  # a message that cannot be formatted must not end what it is about
            self.n_dropped += 1
            return
        self._waiting.put(line)

    def wait(self, seconds: float = 2.0) -> None:
        """Wait until all lines so far are written, but not for long."""
        written = threading.Event()
        self._waiting.put(written)
        written.wait(seconds)

    def _write_all(self) -> None:
        while True:
            line = self._waiting.get()
            if isinstance(line, threading.Event):
                line.set()
                continue
            self._write(line)
            if self.n_dropped > self._told and self._write(self._about_dropped()):
                self._told = self.n_dropped

    def _write(self, line: str) -> bool:
        data = f"{line}\n".encode("utf-8", "replace")
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:  # closed, or the disk is full
            self.n_dropped += 1
            return False
        return True

    def _about_dropped(self) -> str:
        facts = {"name": logger.name, "levelname": "WARNING", "levelno": logging.WARNING}
        record = logging.makeLogRecord(
            {**facts, "msg": "lines of the log were dropped", "dropped": self.n_dropped}
        )
        return self.format(record)


def _descriptor(stream: IO[str] | None) -> int:
    """Return the file descriptor of a stream, or -1 if it was closed before the start."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return stream.fileno()  # type: ignore[union-attr]
    return -1


def n_dropped() -> int:
    """Return how many lines were dropped."""
    return sum(getattr(handler, "n_dropped", 0) for handler in logger.handlers)


def announce(event: str, **facts: object) -> None:
    """Log an event at level info even if the log level is higher."""
    record = logger.makeRecord(logger.name, logging.INFO, "", 0, event, (), None, extra=facts)
    logger.handle(record)


@contextlib.contextmanager
def set_up(level: str) -> Iterator[None]:
    """Send the events of the service, and those of uvicorn, to standard error."""
    handler = ThreadHandler(sys.stderr)
    logging.captureWarnings(True)
    number = logging.getLevelNamesMapping()[level.upper()]
    for name in ("nescio.service", "uvicorn", "py.warnings"):
        log = logging.getLogger(name)
        log.handlers = [handler]
        log.propagate = False
        log.setLevel(number if name == logger.name else max(logging.WARNING, number))
    try:
        yield
    finally:
        handler.wait()
