"""Logs as a line of JSON for each event. Bodies, tokens and queries are never in them."""

from __future__ import annotations

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
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _PLAIN}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def event(level: int, what: str, **facts: object) -> None:
    """One line, with less ado than logging makes: requests come by the thousand."""
    if logger.isEnabledFor(level):
        plain = {"name": logger.name, "msg": what, "levelno": level}
        name = {"levelname": logging.getLevelName(level)}
        logger.handle(logging.makeLogRecord(plain | name | facts))


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes warnings at once and other lines together, a fifth of a second later at most."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._flushed = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, and out with it if it is time."""
        try:
            self.stream.write(self.format(record) + "\n")
            if record.levelno >= logging.WARNING or record.created - self._flushed > _AFTER_SECONDS:
                self._flushed = record.created
                self.flush()
        except Exception:
            self.handleError(record)


def flush() -> None:
    """Out with the lines that wait."""
    for handler in logger.handlers:
        handler.flush()


def set_up(level: str) -> None:
    """Send the service's events, and uvicorn's own, to standard error."""
    stream = open(sys.stderr.fileno(), "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    handler = LineHandler(stream)
    handler.setFormatter(JsonFormatter())
    for name in ("nescio.service", "uvicorn", "uvicorn.error"):
        log = logging.getLogger(name)
        log.handlers = [handler] if name != "uvicorn.error" else []
        log.setLevel(level.upper())
        log.propagate = name == "uvicorn.error"
