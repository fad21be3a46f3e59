"""Error answers: a status with its standard reason phrase, and a sentence for the caller.

An endpoint raises Starlette's `HTTPException` or an error of nescio. Both are answered in the
format of RFC 9457 (problem details).
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException
from starlette.responses import Response

from nescio.errors import InputError

PROBLEM = "application/problem+json"


class TooLargeError(InputError):
    """A request that is larger than the service allows: status 413."""


class Problem(msgspec.Struct):
    """The body of an error answer."""

    title: Annotated[str, Meta(description="The reason phrase of the status.")]
    status: int
    detail: Annotated[str, Meta(description="What is wrong and what to do.")]


def phrase(status: int) -> str:
    """Return the reason phrase of RFC 9110. Before version 3.13, Python has two older ones."""
    newer = {413: "Content Too Large", 422: "Unprocessable Content"}
    return newer.get(status, HTTPStatus(status).phrase)


def problem(error: HTTPException) -> Response:
    """Return the answer for an error."""
    status, detail = error.status_code, error.detail
    if detail == HTTPStatus(status).phrase:  # raised by Starlette's router: 404 or 405
        detail = f"{detail}. See /docs for the available paths and methods."
    if detail.partition(" ")[0].isalpha():  # not the name of a parameter or a file
        detail = detail[:1].upper() + detail[1:]
    body = msgspec.json.encode(Problem(phrase(status), status, detail))
    return Response(body, status, error.headers, PROBLEM)


def busy(reason: str) -> HTTPException:
    """Return the error for a request that should be repeated a second later."""
    return HTTPException(503, f"{reason} Try again in one second.", {"Retry-After": "1"})
