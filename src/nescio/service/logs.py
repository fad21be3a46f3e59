"""Logs in JSON, one line per event. They never contain bodies, tokens or queries."""

from __future__ import annotations

import logging
import sys
import time

import msgspec

logger = logging.getLogger("nescio.service")

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


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


def announce(event: str, **facts: object) -> None:
    """Log an event at level info even if the log level is higher."""
    record = logger.makeRecord(logger.name, logging.INFO, "", 0, event, (), None, extra=facts)
    logger.handle(record)


def set_up(level: str) -> None:
    """Send the events of the service, and those of uvicorn, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.captureWarnings(True)
    number = logging.getLevelNamesMapping()[level.upper()]
    for name in ("nescio.service", "uvicorn", "py.warnings"):
        log = logging.getLogger(name)
        log.handlers = [handler]
        log.propagate = False
        log.setLevel(number if name == logger.name else max(logging.WARNING, number))
