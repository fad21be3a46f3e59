"""Before and after every request: who may call, how it ended, and a line in the log."""

from __future__ import annotations

import hmac
import ipaddress
import itertools
import logging
import time
import uuid
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nescio.service import logs
from nescio.service.bodies import JSON, encode_json
from nescio.service.calls import Call, Endpoint, Reply
from nescio.service.errors import FAILED, RefusedError
from nescio.service.logs import logger
from nescio.service.service import Service

SCRIPTS = (
    "page.js", "try.js", "verdict.js", "traffic.js", "charts.js", "elements.js", "api.js",
    "docs.js",
)  # fmt: skip
OPEN_PATHS = frozenset(
    {"/", "/docs", "/page.css", "/openapi.json", "/healthz", "/readyz"}
    | {f"/{name}" for name in SCRIPTS}
)
_ROUTINE = frozenset({"/healthz", "/readyz", "/metrics", "/v1/traffic"})  # asked again and again
_MAX_ID_LENGTH = 64
_PROCESS = uuid.uuid4().hex[:12]
_NUMBERS = itertools.count(1)


class Guard:
    """Wraps the application: token, origin, drain, request ids, metrics and logs.

    Parameters
    ----------
    app : ASGI application
    service : Service
    paths : set of str
        Those that metrics and logs name.
    direct : mapping of str to endpoint
        Paths whose POST, without a query, goes right to its endpoint: what FastAPI does around one
        takes about as long as half of scoring a thousand rows.

    Attributes
    ----------
    service : Service
    for_this_machine : bool
        Whether only this machine's own addresses may be called, so that no other name may be.
    draining : bool
        Whether the service is about to stop: every answer then closes its connection.
    accepted, answered : int
        Requests whose head was read, and those whose answer was sent whole.
    """

    def __init__(
        self,
        app: ASGIApp,
        service: Service,
        paths: frozenset[str],
        direct: Mapping[str, Endpoint],
    ) -> None:
        self._app = app
        self._direct = direct
        self._settings = service.settings
        self._metrics = service.metrics
        self.service = service
        self._paths = paths
        self.for_this_machine = False
        self.draining = False
        self.accepted = 0
        self.answered = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        self.accepted += 1
        headers = {name.decode("latin-1"): value for name, value in scope["headers"]}
        answer = _Answer(send, request_id(headers), self)
        call = scope.setdefault("state", {})["call"] = Call(headers, receive)
        try:
            self._check(scope, headers)
            await self._serve(scope, call, answer)
        except RefusedError as refused:
            await answer.refuse(refused)
        except Exception:
            logger.exception("failed", extra={"id": answer.request_id, "path": scope["path"]})
            await answer.refuse(RefusedError(500, FAILED))
        finally:
            self._told(scope, call, answer, time.perf_counter() - started)

    async def _serve(self, scope: Scope, call: Call, answer: _Answer) -> None:
        endpoint = self._direct.get(scope["path"])
        if endpoint is None or scope["method"] != "POST" or scope["query_string"]:
            await self._app(scope, call.receive, answer.send)
        else:
            await answer.give(200, await endpoint(call))

    def _check(self, scope: Scope, headers: Mapping[str, bytes]) -> None:
        """Raise unless the caller may do this."""
        _check_origin(headers, self._settings.cors_origins)
        token = self._settings.token
        if token is None and self.for_this_machine:
            _check_host(headers)
        if token is None or scope["path"] in OPEN_PATHS or scope["method"] == "OPTIONS":
            return
        scheme, _, given = headers.get("authorization", b"").partition(b" ")
        same = hmac.compare_digest(given.strip(), token.encode())
        if not same or scheme.lower() != b"bearer":
            what = "the token is another one" if given else "this needs a token"
            raise RefusedError(
                401,
                f"{what}: send the header Authorization: Bearer ...",
                {"WWW-Authenticate": "Bearer", **self._readable(headers)},
            )

    def _readable(self, headers: Mapping[str, bytes]) -> dict[str, str]:
        """What lets a page of an allowed origin read why it was refused."""
        origin = headers.get("origin", b"").decode("latin-1")
        known = origin in self._settings.cors_origins
        return {"Access-Control-Allow-Origin": origin, "Vary": "Origin"} if known else {}

    def _told(self, scope: Scope, call: Call, answer: _Answer, seconds: float) -> None:
        path = scope["path"] if scope["path"] in self._paths else "other"
        if answer.complete:
            self.answered += 1
        status = answer.status if answer.complete else 499  # the client has gone
        self._metrics.answered(path, status, seconds)
        logs.event(
            logging.DEBUG if path in _ROUTINE and status == 200 else logging.INFO,
            "request",
            id=answer.request_id,
            method=scope["method"],
            path=path,
            status=status,
            ms=round(seconds * 1e3, 2),
            **call.facts,
        )


class _Answer:
    """An answer on its way out."""

    def __init__(self, send: Send, request_id: str, guard: Guard) -> None:
        self._send = send
        self._guard = guard
        self.request_id = request_id
        self.status = 0
        self.complete = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = message.setdefault("headers", [])
            headers += [
                (b"x-request-id", self.request_id.encode()),
                (b"x-content-type-options", b"nosniff"),
            ]
            if self._guard.draining:
                headers.append((b"connection", b"close"))
        await self._send(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self.complete = True

    async def refuse(self, refused: RefusedError) -> None:
        if self.status:  # half an answer is out already
            return
        reply = Reply(encode_json({"detail": refused.detail}), JSON, refused.headers)
        await self.give(refused.status, reply)

    async def give(self, status: int, reply: Reply) -> None:
        headers = [
            (b"content-type", reply.media_type.encode()),
            (b"content-length", str(len(reply.body)).encode()),
        ]
        headers += [(k.lower().encode(), v.encode("latin-1")) for k, v in reply.headers.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": reply.body})


def request_id(headers: Mapping[str, bytes]) -> str:
    """The caller's own id, if it is a plain one; otherwise a new one."""
    given = headers.get("x-request-id", b"").decode("latin-1")
    if not given:
        return f"{_PROCESS}-{next(_NUMBERS):x}"
    plain = given.replace("-", "").replace("_", "").isalnum() and given.isascii()
    return given if plain and len(given) <= _MAX_ID_LENGTH else request_id({})


def _check_host(headers: Mapping[str, bytes]) -> None:
    """A name that was made to lead here (DNS rebinding) would make a foreign page one of ours."""
    host = headers.get("host", b"").decode("latin-1").lower()
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    if name not in ("", "localhost") and not is_loopback(name.strip("[]")):
        raise RefusedError(
            403, f"called as {host[:100]!r}; without a token, call it as localhost or 127.0.0.1."
        )


def is_loopback(address: str) -> bool:
    """Whether this is an address of the machine that only itself can call."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _check_origin(headers: Mapping[str, bytes], allowed: tuple[str, ...]) -> None:
    """A web page of another origin may not call, though its reader's browser would let it."""
    origin = headers.get("origin", b"").decode("latin-1")
    if not origin or origin in allowed:
        return
    host = headers.get("host", b"").decode("latin-1")
    if origin.lower().partition("://")[2] != host.lower():
        raise RefusedError(
            403, f"pages of {origin[:100]} may not call this service; see --cors-origin."
        )
