"""The files of the page at / and of the API's description at /docs."""

from __future__ import annotations

import functools
from importlib import resources
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_PATHS = {"index.html": "/", "docs.html": "/docs"}
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class PageFile(NamedTuple):
    """The content of a file, and its type."""

    content: bytes
    media_type: str


@functools.cache
def page_files() -> dict[str, PageFile]:
    """Return all files by their path in the service; two style sheets are those of the report."""
    files = list((resources.files("nescio.service") / "page").iterdir())
    files += [resources.files("nescio.report") / name for name in ("palette.css", "charts.css")]
    return {
        _PATHS.get(file.name, f"/{file.name}"): PageFile(
            file.read_bytes(), f"{_TYPES[file.name.rpartition('.')[2]]}; charset=utf-8"
        )
        for file in files
    }


async def page(request: Request) -> Response:
    """Answer with a file."""
    file = page_files()[request.scope["path"]]
    return Response(file.content, headers=_HEADERS, media_type=file.media_type)
