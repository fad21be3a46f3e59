"""Why a request is refused: a status, and a sentence for the caller."""

from __future__ import annotations

from collections.abc import Mapping

FAILED = "the service failed; its log says how."


class RefusedError(Exception):
    """A request that is not served.

    Attributes
    ----------
    status : int
        Of HTTP: 4xx is the caller's to mend, 503 asks to come back.
    detail : str
        What is wrong, what came and what to do.
    """

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = dict(headers or {})


def busy(reason: str) -> RefusedError:
    """No room now: come back in a second."""
    return RefusedError(503, f"{reason} Come back in a second.", {"Retry-After": "1"})
