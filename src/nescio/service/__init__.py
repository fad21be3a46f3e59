"""An HTTP service around one detector and, optionally, one model.

A request is decoded into `Outputs`, waits in a bounded queue, is scored together with the other
requests in the queue, and is answered. The service keeps the scores of recent requests, and
nothing else of them.

This package needs Starlette and uvicorn: pip install '.[serve]'.
"""

from __future__ import annotations

from nescio.service.app import make_app
from nescio.service.server import serve
from nescio.service.settings import Settings

__all__ = ["Settings", "make_app", "serve"]
