"""A request and its answer, as the guard hands them to an endpoint and takes them back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from starlette.types import Receive


class Call:
    """A request whose body is still to be read.

    Attributes
    ----------
    headers : mapping of str to bytes
        By their names in lower case.
    receive : callable
        ASGI's: gives the next part of the body.
    facts : dict
        What the log is to say of it beside its path and status.
    """

    __slots__ = ("facts", "headers", "receive")

    def __init__(self, headers: Mapping[str, bytes], receive: Receive) -> None:
        self.headers = headers
        self.receive = receive
        self.facts: dict[str, Any] = {}

    def header(self, name: str) -> str:
        """A header as text; empty if it is not there."""
        return self.headers.get(name, b"").decode("latin-1")


class Reply(NamedTuple):
    """What is answered."""

    body: bytes
    media_type: str
    headers: Mapping[str, str]


Endpoint = Callable[[Call], Awaitable[Reply]]
