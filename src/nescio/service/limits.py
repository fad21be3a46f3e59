"""Limits on requests: how many are in progress, how large they are and how long they take."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from nescio.service.errors import busy


class Room:
    """Counts the requests in progress and the bytes of their bodies.

    Parameters
    ----------
    max_requests, max_bytes : int
        A request that would exceed one of these is rejected with 503.
    """

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self.n_requests = 0
        self.n_bytes = 0

    @contextmanager
    def enter(self) -> Iterator[Place]:
        """Reserve a place for one request; raise the 503 error if there is none."""
        if self.n_requests >= self._max_requests:
            raise busy(f"{self.n_requests:,} requests are already in progress.")
        self.n_requests += 1
        place = Place(self)
        try:
            yield place
        finally:
            self.n_requests -= 1
            self.n_bytes -= place.n_bytes

    def _take(self, n_bytes: int) -> None:
        if self.n_bytes + n_bytes > self._max_bytes:
            raise busy(f"Bodies of {self.n_bytes:,} bytes are already waiting.")
        self.n_bytes += n_bytes


class Place:
    """The share of a `Room` that one request occupies."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self.n_bytes = 0

    def hold(self, n_bytes: int) -> None:
        """Reserve this many bytes in total."""
        if n_bytes > self.n_bytes:
            self._room._take(n_bytes - self.n_bytes)
            self.n_bytes = n_bytes


async def read_body(request: Request, place: Place, *, max_bytes: int, seconds: float) -> bytes:
    """Return the whole body of a request, or raise the error of the limit that it exceeds."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal():
        _check_size(int(announced), max_bytes)
    if request.headers.get("content-encoding", "").lower() not in ("", "identity"):
        raise HTTPException(415, "compressed bodies are not accepted: send the body as it is.")
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                size += len(chunk)
                _check_size(size, max_bytes)
                place.hold(size)
                chunks.append(chunk)
    except TimeoutError as error:
        raise HTTPException(
            408, f"the body did not arrive within {seconds:g} seconds.", {"Connection": "close"}
        ) from error
    except ClientDisconnect as error:
        raise HTTPException(400, "the connection was closed before the body ended.") from error
    return b"".join(chunks)


def _check_size(n_bytes: int, max_bytes: int) -> None:
    if n_bytes > max_bytes:
        raise HTTPException(
            413,
            f"the body has more than {max_bytes:,} bytes. Send it in several requests; a "
            "safetensors body may be four times as large as a JSON body.",
        )


def check_rows(n_rows: int, max_rows: int) -> None:
    """Raise an error if a request has too many rows."""
    if n_rows > max_rows:
        raise HTTPException(
            413,
            f"the request has {n_rows:,} rows; {max_rows:,} are allowed. Send them in several "
            "requests.",
        )
