"""Limits on connections. They hold before a request is read, and so without a token.

uvicorn has no such limits, except for the time between two requests of a connection.
"""

from __future__ import annotations

import asyncio
import functools
import sys

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from nescio._threads import available_cpus

_MAX_CONNECTIONS = 1_000
_MAX_HEAD_BYTES = 16_384  # address and headers of a request
_MAX_HEADERS = 100
_MAX_PIPELINED = 8  # requests that a client sends before it has the answer to the first
# How long a client may take for the head of a request, or to read a part of an answer.
_SILENT_SECONDS = 20.0


class Connection(HttpToolsProtocol):
    """A connection that is closed if its client sends too much or does nothing for too long."""

    _since = 0.0  # when the client was last served
    _in_head = False
    _head_bytes = 0  # of the head of a request, as far as it was read
    _received_bytes = 0  # the same, with a header that has not ended
    _reason = ""

    # --- how many, and how long ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection; if there are too many, close the one that has waited longest."""
        super().connection_made(transport)
        self._since = self.loop.time()
        if len(self.connections) > max_connections():
            waiting = [found for found in self.connections if isinstance(found, Connection)]
            waiting = [found for found in waiting if found._waits() and found is not self]
            min(waiting, key=lambda found: found._since, default=self).transport.abort()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self._since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Begin to wait for the client to read."""
        self._since = self.loop.time()
        super().pause_writing()

    def check_time(self) -> None:
        """Close the connection if the service has waited too long for the client."""
        stalled = self._waits() or self.flow.write_paused or self.transport.is_closing()
        if stalled and self.loop.time() - self._since > _SILENT_SECONDS:
            self.transport.abort()

    def _waits(self) -> bool:
        """Return whether no request is in progress: it has not arrived, or it is answered."""
        answered = self.cycle is None or self.cycle.response_complete
        return answered and not self.transport.is_closing()

    # --- how much ---

    def data_received(self, data: bytes) -> None:
        """Read a part of a request. The parser keeps a header until it has ended."""
        within = self._in_head
        super().data_received(data)
        if within and self._in_head and not self.transport.is_closing():
            self._received_bytes += len(data)
            if self._received_bytes > _MAX_HEAD_BYTES:
                self.send_400_response(_too_long())

    def on_message_begin(self) -> None:
        """Begin to count the bytes of a head."""
        self._in_head, self._head_bytes, self._received_bytes = True, 0, 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Count a part of the address."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header."""
        self._count(len(name) + len(value))
        if len(self.headers) >= _MAX_HEADERS:
            raise self._refused(_too_long())
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin with a request, unless too many are waiting behind one another."""
        self._in_head = False
        if len(self.pipeline) >= _MAX_PIPELINED:
            raise self._refused(
                f"More than {_MAX_PIPELINED} requests were sent before the first was answered."
            )
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Close the connection with an answer that says why."""
        super().send_400_response(self._reason or msg)

    def _count(self, n_bytes: int) -> None:
        self._head_bytes += n_bytes
        if self._head_bytes > _MAX_HEAD_BYTES:
            raise self._refused(_too_long())

    def _refused(self, reason: str) -> ValueError:
        """Return an error; raised in a callback of the parser, it calls `send_400_response`."""
        self._reason = reason
        return ValueError(reason)


def _too_long() -> str:
    return f"The head of a request may have {_MAX_HEAD_BYTES:,} bytes and {_MAX_HEADERS} headers."


@functools.cache
def max_connections() -> int:
    """Return how many connections there may be: some file descriptors are kept for the rest."""
    if sys.platform == "win32":
        return _MAX_CONNECTIONS
    import resource

    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed == resource.RLIM_INFINITY:
        return _MAX_CONNECTIONS
    return max(8, min(_MAX_CONNECTIONS, allowed - 64 - 4 * available_cpus()))
