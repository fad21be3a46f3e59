"""The files of the page at / and of the API's description at /docs."""

from __future__ import annotations

import functools
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response

_TYPES = {"css": "text/css", "js": "text/javascript"}
_PATHS = {"index.html": "/", "docs.html": "/docs"}
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


@functools.cache
def page_files() -> dict[str, bytes]:
    """Return all files by their path in the service; two style sheets are those of all charts."""
    files = list((resources.files("nescio.service") / "page").iterdir())
    files += [resources.files("nescio._charts") / name for name in ("palette.css", "charts.css")]
    return {_PATHS.get(file.name, f"/{file.name}"): file.read_bytes() for file in files}


async def page(request: Request) -> Response:
    """Answer with a file."""
    path = request.scope["path"]
    media_type = _TYPES.get(path.rpartition(".")[2], "text/html")
    return Response(page_files()[path], headers=_HEADERS, media_type=media_type)
