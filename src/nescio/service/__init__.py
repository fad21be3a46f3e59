"""A detector, and a model if there is one, behind HTTP: one process, one detector, one page.

A request is decoded into `Outputs`, waits in a bounded queue, is scored together with the others
that wait, and is answered. Nothing of a request is kept but its scores.

This part of nescio needs FastAPI and uvicorn: pip install 'nescio[serve]'.
"""

from __future__ import annotations

from nescio.service.app import make_app
from nescio.service.server import serve
from nescio.service.settings import Settings

__all__ = ["Settings", "make_app", "serve"]
