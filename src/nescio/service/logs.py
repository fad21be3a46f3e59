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

import msgspec

logger = logging.getLogger("nescio.service")

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}
_MAX_WAITING = 10_000  # lines


class JsonLines(logging.Handler):
    """Writes records to standard error: the message, and everything that was passed as `extra`."""

    def __init__(self) -> None:
        super().__init__()
        self.n_dropped = 0
        self.waiting: queue.Queue[bytes] = queue.Queue(_MAX_WAITING)
        self._descriptor = -1  # if standard error was closed before the start
        with contextlib.suppress(AttributeError, OSError, ValueError):
            self._descriptor = sys.stderr.fileno()
        threading.Thread(target=self._write_lines, daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a line to the thread that writes."""
        try:
            self.waiting.put_nowait(self.format(record).encode("utf-8", "replace") + b"\n")
        except Exception:  # too many wait, or the record cannot be formatted
            self.n_dropped += 1

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
            line["traceback"] = logging.Formatter().formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()

    def _write_lines(self) -> None:
        while True:
            line = self.waiting.get()
            try:
                while line:
                    line = line[os.write(self._descriptor, line) :]
            except OSError:  # closed, or a full disk
                self.n_dropped += 1
            self.waiting.task_done()


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
    handler = JsonLines()
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
        while handler.waiting.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.01)
