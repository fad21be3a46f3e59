"""Error answers: a status with its standard reason phrase, and a sentence for the caller.

The code raises Starlette's `HTTPException`; `problem` turns it into an answer in the format of
RFC 9457 (problem details).
"""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

PROBLEM = "application/problem+json"

# As in RFC 9110. Python's own table has older phrases for 413 and 422 before version 3.13.
PHRASES = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    422: "Unprocessable Content",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
# What Starlette's router does not say by itself.
_ADVICE = {
    404: "This path does not exist. See /docs for the available routes.",
    405: "This path does not support the method. See /docs for the available routes.",
}


def problem(error: HTTPException) -> Response:
    """Return the answer for an error."""
    status = error.status_code
    detail = error.detail
    if detail == HTTPStatus(status).phrase:
        detail = _ADVICE.get(status, detail)
    if detail.partition(" ")[0].isalpha():  # not the name of a parameter or a file
        detail = detail[:1].upper() + detail[1:]
    body = {
        "title": PHRASES.get(status, HTTPStatus(status).phrase),
        "status": status,
        "detail": detail,
    }
    return Response(msgspec.json.encode(body), status, error.headers, PROBLEM)


def busy(reason: str) -> HTTPException:
    """Return the error for a request that should be repeated a second later."""
    return HTTPException(503, f"{reason} Try again in one second.", {"Retry-After": "1"})
