"""What happens around every request: its id, its metrics and its line in the log."""

from __future__ import annotations

import itertools
import logging
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nescio.service.errors import problem
from nescio.service.logs import logger
from nescio.service.service import Service

_ROUTINE = frozenset({"/healthz", "/readyz", "/metrics", "/v1/traffic"})  # polled regularly
_MAX_ID_LENGTH = 64
_PROCESS = uuid.uuid4().hex[:12]
_NUMBERS = itertools.count(1)
_CLIENT_CLOSED = 499  # the client closed the connection before the answer was complete


class RequestRecorder:
    """Middleware that counts, times and logs each request, and answers 500 if one fails.

    Metrics and logs name the given paths; all others are counted as "other".
    """

    def __init__(self, app: ASGIApp, service: Service, paths: frozenset[str]) -> None:
        self._app = app
        self._service = service
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        self._service.n_accepted += 1
        scope["facts"] = {}  # endpoints add what the log should say about the request
        answer = _Answer(send, request_id(Headers(scope=scope)), self._service)
        try:
            await self._app(scope, receive, answer.send)
        except Exception:
            logger.exception("failed", extra={"id": answer.request_id, "path": scope["path"]})
            if not answer.status:
                failed = HTTPException(500, "the service failed. Its log has the details.")
                await problem(failed)(scope, receive, answer.send)
        finally:
            self._service.room.release(scope)
            self._record(scope, answer, time.perf_counter() - started)

    def _record(self, scope: Scope, answer: _Answer, seconds: float) -> None:
        path = scope["path"] if scope["path"] in self._paths else "other"
        status = answer.status if answer.complete else _CLIENT_CLOSED
        self._service.n_answered += answer.complete
        self._service.metrics.answered(path, status, seconds)
        facts = {
            "id": answer.request_id,
            "method": scope["method"],
            "path": path,
            "status": status,
            "ms": round(seconds * 1e3, 2),
            **scope["facts"],
        }
        routine = path in _ROUTINE and status == 200
        logger.log(logging.DEBUG if routine else logging.INFO, "request", extra=facts)


class _Answer:
    """Sends an answer with the headers that every answer has."""

    def __init__(self, send: Send, request_id: str, service: Service) -> None:
        self._send = send
        self._service = service
        self.request_id = request_id
        self.status = 0
        self.complete = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self.request_id
            headers["x-content-type-options"] = "nosniff"
            if self._service.stopping:
                headers["connection"] = "close"
        await self._send(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self.complete = True


def request_id(headers: Headers) -> str:
    """Return the id that the caller sent, if it is a plain one, or else a new id."""
    given = headers.get("x-request-id", "")
    plain = given.replace("-", "").replace("_", "").isalnum() and given.isascii()
    if plain and len(given) <= _MAX_ID_LENGTH:
        return given
    return f"{_PROCESS}-{next(_NUMBERS):x}"
