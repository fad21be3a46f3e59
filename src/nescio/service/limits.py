"""Limits on requests: how many are in progress, how large they are and how long they take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

from nescio.service.bodies import JSON
from nescio.service.errors import busy
from nescio.service.settings import Settings


class Room:
    """Counts the requests in progress, the bytes of their bodies, and other memory they need."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.n_requests = 0
        self.n_bytes = 0
        self.n_held = 0

    @property
    def limit(self) -> int:
        """The largest number of requests in progress."""
        return self._settings.max_requests

    @asynccontextmanager
    async def body(self, request: Request, kind: str) -> AsyncIterator[bytes]:
        """Give the body of a request, which counts as in progress until the end of the block."""
        if self.n_requests >= self._settings.max_requests:
            raise busy(f"{self.n_requests:,} requests are already in progress.")
        chunks: list[bytes] = []
        self.n_requests += 1
        try:
            await self._read(request, kind, chunks)
            yield b"".join(chunks)
        finally:
            self.n_requests -= 1
            self.n_bytes -= sum(map(len, chunks))

    def hold(self, scope: Scope, n_bytes: int) -> None:
        """Count memory that a request needs beside its body, until `release`.

        A request that is alone gets what it needs.
        """
        if self.n_held and self.n_held + n_bytes > self._settings.max_waiting_bytes:
            raise busy(f"Requests of {self.n_held:,} bytes are already in progress.")
        self.n_held += n_bytes
        scope["held"] = n_bytes

    def release(self, scope: Scope) -> None:
        """Stop counting the memory of a request; its answer was sent."""
        self.n_held -= scope.pop("held", 0)

    async def _read(self, request: Request, kind: str, chunks: list[bytes]) -> None:
        settings = self._settings
        max_bytes = settings.max_json_bytes if kind == JSON else settings.max_body_bytes
        announced = request.headers.get("content-length", "")
        if announced.isdecimal():
            _check_size(int(announced), max_bytes)
        if request.headers.get("content-encoding", "").lower() not in ("", "identity"):
            raise HTTPException(415, "compressed bodies are not accepted: send the body as it is.")
        size = 0
        try:
            async with asyncio.timeout(settings.body_seconds):
                async for chunk in request.stream():
                    size += len(chunk)
                    _check_size(size, max_bytes)
                    if self.n_bytes + len(chunk) > settings.max_waiting_bytes:
                        raise busy(f"Bodies of {self.n_bytes:,} bytes are already waiting.")
                    self.n_bytes += len(chunk)
                    chunks.append(chunk)
        except TimeoutError as error:
            raise HTTPException(
                408,
                f"the body did not arrive within {settings.body_seconds:g} seconds.",
                {"Connection": "close"},
            ) from error
        except ClientDisconnect as error:
            raise HTTPException(400, "the connection was closed before the body ended.") from error


def _check_size(n_bytes: int, max_bytes: int) -> None:
    if n_bytes > max_bytes:
        raise HTTPException(
            413,
            f"the body has more than {max_bytes:,} bytes. Send it in several requests; a "
            "safetensors body may be four times as large as a JSON body.",
        )
