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
import time
from collections.abc import Iterator
from logging.handlers import QueueHandler, QueueListener
from typing import Any, cast

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


class LogQueue(QueueHandler):
    """Hands records to the thread that writes them, and counts those that are dropped."""

    def __init__(self) -> None:
        super().__init__(queue.Queue(_MAX_WAITING))
        self.n_dropped = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Return the record as it is; the thread formats it."""
        return record

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Count a record that cannot be written."""
        self.n_dropped += 1


class LineWriter(logging.Handler):
    """Writes lines to standard error.

    It has no lock and no buffer: at exit, Python would wait for them while nobody reads the log.
    """

    def __init__(self, waiting: LogQueue) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self._waiting = waiting
        self._n_reported = 0
        self._descriptor = -1  # if standard error was closed before the start
        with contextlib.suppress(AttributeError, OSError, ValueError):
            self._descriptor = sys.stderr.fileno()

    def createLock(self) -> None:  # noqa: N802
        """Use none: only one thread writes."""
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line, and how many were dropped if it has become more."""
        try:
            self._write(record)
            n_dropped = self._waiting.n_dropped
            if n_dropped > self._n_reported:
                facts = {"name": logger.name, "levelname": "WARNING", "dropped": n_dropped}
                message = {"msg": "lines of the log were dropped", "levelno": logging.WARNING}
                self._write(logging.makeLogRecord(facts | message))
                self._n_reported = n_dropped
        except Exception:  # closed, a full disk, or a message that cannot be formatted
            self._waiting.handleError(record)

    def _write(self, record: logging.LogRecord) -> None:
        data = f"{self.format(record)}\n".encode("utf-8", "replace")
        while data:
            data = data[os.write(self._descriptor, data) :]


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
    handler = LogQueue()
    QueueListener(handler.queue, LineWriter(handler)).start()  # a daemon thread
    logging.captureWarnings(True)
    number = logging.getLevelNamesMapping()[level.upper()]
    for name in (logger.name, "uvicorn", "asyncio", "python_multipart", "py.warnings"):
        log = logging.getLogger(name)
        log.handlers = [handler]
        log.propagate = False
        log.setLevel(number if name == logger.name else max(logging.WARNING, number))
    try:
        yield
    finally:
        end = time.monotonic() + 2.0
        while cast("queue.Queue[Any]", handler.queue).unfinished_tasks and time.monotonic() < end:
            time.sleep(0.01)
