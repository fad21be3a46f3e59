"""Logs as a line of JSON for each event. Bodies, tokens and queries are never in them."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import time
from typing import TextIO

import msgspec

logger = logging.getLogger("nescio.service")

_AFTER_SECONDS = 0.2
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


class JsonFormatter(logging.Formatter):
    """The message, and whatever was passed as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        facts = {name: value for name, value in vars(record).items() if name not in _PLAIN}
        if record.exc_info:
            facts["traceback"] = self.formatException(record.exc_info)
        return _line(record.created, record.levelno, record.getMessage(), facts)


def event(level: int, what: str, **facts: object) -> None:
    """One line, with less ado than logging makes: requests come by the thousand."""
    if not logger.isEnabledFor(level):
        return
    for handler in logger.handlers:
        if isinstance(handler, LineHandler):
            now = time.time()
            handler.write(_line(now, level, what, facts), now, level)
            return
    logger.log(level, what, extra=facts)


def announce(what: str, **facts: object) -> None:
    """A line of level info that is written whatever the level: where it serves, and the end."""
    now = time.time()
    for handler in logger.handlers:
        if isinstance(handler, LineHandler):
            handler.write(_line(now, logging.INFO, what, facts), now, logging.WARNING)


def _line(created: float, level: int, what: str, facts: dict[str, object]) -> str:
    name = logging.getLevelName(level).lower()
    when = f"{_second(int(created))}.{int(created % 1 * 1000):03d}Z"
    line = {"time": when, "level": name, "event": what, **facts}
    return msgspec.json.encode(line, enc_hook=str).decode()


@functools.lru_cache(maxsize=2)
def _second(created: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created))


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes warnings at once and other lines together, a fifth of a second later at most."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._flushed = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """What logging calls."""
        try:
            self.write(self.format(record), record.created, record.levelno)
        except Exception:
            self.handleError(record)

    def write(self, line: str, created: float, level: int) -> None:
        """Write a line, and out with it if it is time."""
        with self.lock or contextlib.nullcontext():
            self.stream.write(line + "\n")
            if level >= logging.WARNING or created - self._flushed > _AFTER_SECONDS:
                self._flushed = created
                self.flush()


def flush() -> None:
    """Out with the lines that wait."""
    for handler in logger.handlers:
        handler.flush()


def _buffered(stream: TextIO) -> TextIO:
    """The same file with a buffer; the stream itself if it is no file."""
    try:
        return open(stream.fileno(), "w", encoding="utf-8", closefd=False)
    except (OSError, ValueError):
        return stream


def _number(level: str) -> int:
    return logging.getLevelNamesMapping()[level.upper()]


def set_up(level: str) -> None:
    """Send the service's events, and uvicorn's own, to standard error."""
    handler = LineHandler(_buffered(sys.stderr))
    handler.setFormatter(JsonFormatter())
    logging.captureWarnings(True)
    for name in ("nescio.service", "uvicorn", "uvicorn.error", "py.warnings"):
        log = logging.getLogger(name)
        log.handlers = [handler] if name != "uvicorn.error" else []
        own = name.startswith("nescio")
        log.setLevel(level.upper() if own else max(logging.WARNING, _number(level)))
        log.propagate = name == "uvicorn.error"
