"""Who may call the service: the token, the origin of web pages, and the Host header."""

from __future__ import annotations

import hmac
import ipaddress

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from nescio.service.errors import problem
from nescio.service.pages import page_files
from nescio.service.service import Service


class AccessCheck:
    """Middleware that rejects requests that the caller may not make."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        self._public_paths = {*page_files(), "/openapi.json", "/healthz", "/readyz"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or reject it."""
        try:
            if scope["type"] == "http":
                self._check(scope, Headers(scope=scope))
        except HTTPException as error:
            await problem(error)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _check(self, scope: Scope, headers: Headers) -> None:
        settings = self._service.settings
        _check_origin(headers, settings.cors_origins)
        if settings.token is None:
            if self._service.only_local:
                _check_host(headers)
        elif scope["path"] not in self._public_paths and scope["method"] != "OPTIONS":
            _check_token(headers, settings.token)


def _check_token(headers: Headers, token: str) -> None:
    scheme, _, given = headers.get("authorization", "").partition(" ")
    same = hmac.compare_digest(given.strip().encode("latin-1"), token.encode())
    if not same or scheme.lower() != "bearer":
        what = "invalid token" if given else "this path needs a token"
        raise HTTPException(
            401,
            f"{what}. Send the header Authorization: Bearer TOKEN.",
            {"WWW-Authenticate": "Bearer"},
        )


def _check_origin(headers: Headers, allowed: tuple[str, ...]) -> None:
    """Reject web pages of other origins, which a browser would allow to send requests."""
    origin = headers.get("origin", "")
    if not origin or origin in allowed:
        return
    if origin.lower().partition("://")[2] != headers.get("host", "").lower():
        raise HTTPException(
            403,
            f"web pages of {origin[:100]} may not call this service. To allow them, start the "
            "service with --cors-origin.",
        )


def _check_host(headers: Headers) -> None:
    """Reject other host names: with DNS rebinding, a foreign page would have our origin."""
    host = headers.get("host", "").lower()
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    if name not in ("", "localhost") and not is_loopback(name.strip("[]")):
        raise HTTPException(
            403,
            f"the host name {host[:100]!r} is not accepted. Without a token, call the service as "
            "localhost or 127.0.0.1.",
        )


def check_reload(request: Request, token: str | None) -> None:
    """Without a token, reject a reload that does not come from this machine itself."""
    forwarded = {"forwarded", "x-forwarded-for"} & set(request.headers)
    local = request.client is not None and request.client.host in ("127.0.0.1", "::1")
    if token is None and (forwarded or not local):
        raise HTTPException(
            403, "without a token, the service can only be reloaded from its own machine."
        )


def is_loopback(address: str) -> bool:
    """Whether only this machine itself can reach the address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
