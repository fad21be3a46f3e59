"""How much may be under way at once: the bound on the queue, and on memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nescio.service.errors import busy


class Room:
    """Counts the requests under way and the bytes of their bodies.

    Parameters
    ----------
    max_requests, max_bytes : int
        Beyond these, a request is told to come back.
    """

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self.n_requests = 0
        self.n_bytes = 0

    @contextmanager
    def enter(self) -> Iterator[Place]:
        """A place for one request; a `RefusedError` with 503 if there is none."""
        if self.n_requests >= self._max_requests:
            raise busy(f"{self.n_requests:,} requests are under way already.")
        self.n_requests += 1
        place = Place(self)
        try:
            yield place
        finally:
            self.n_requests -= 1
            self.n_bytes -= place.n_bytes

    def _take(self, n_bytes: int) -> None:
        if self.n_bytes + n_bytes > self._max_bytes:
            raise busy(f"{self.n_bytes:,} bytes are waiting already.")
        self.n_bytes += n_bytes


class Place:
    """What one request occupies."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self.n_bytes = 0

    def hold(self, n_bytes: int) -> None:
        """Have room for so many bytes in all."""
        if n_bytes > self.n_bytes:
            self._room._take(n_bytes - self.n_bytes)
            self.n_bytes = n_bytes
