"""Run the service: uvicorn, with a stop that loses nothing and a reload by signal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator
from types import FrameType
from typing import Any

import uvicorn

from nescio._io.tables import require
from nescio.errors import FileError, NescioError
from nescio.service import logs
from nescio.service.app import make_app
from nescio.service.guard import Guard, is_loopback
from nescio.service.logs import logger
from nescio.service.service import Service
from nescio.service.settings import Settings

_SETTLE_SECONDS = 0.25
_LONGEST_REQUEST_SECONDS = 60


class Server(uvicorn.Server):
    """uvicorn's server, which stops in steps.

    After the signal, requests are still taken for `drain_seconds`: /readyz says 503, and every
    answer asks its client to close the connection. Then nobody new is let in, what is connected
    already is answered, and the process ends. A second signal ends it at once.
    """

    def __init__(self, config: uvicorn.Config, guard: Guard, settings: Settings) -> None:
        super().__init__(config)
        self._guard = guard
        self._settings = settings
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.servers: list[asyncio.base_events.Server] = []  # a signal may come before they are

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGINT and SIGTERM, reload on SIGHUP; the exit code is 0."""
        self._loop = asyncio.get_running_loop()
        handlers: dict[int, Any] = {signal.SIGINT: self._stop, signal.SIGTERM: self._stop}
        if hasattr(signal, "SIGHUP"):
            handlers[signal.SIGHUP] = self._reload
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self._guard.draining:
            self.should_exit = self.force_exit = True
            return
        self._guard.draining = True
        self._loop.call_soon_threadsafe(lambda: self._keep(self._drained(), "drain"))

    def _reload(self, number: int, frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(lambda: self._keep(self._reloaded(), "reload"))

    async def _drained(self) -> None:
        logger.info("stopping", extra={"drain_seconds": self._settings.drain_seconds})
        await asyncio.sleep(self._settings.drain_seconds)
        for server in self.servers:
            server.close()
        logger.info("closed to new connections")
        # What a client has sent before the door closed is still in the socket's buffer.
        await asyncio.sleep(_SETTLE_SECONDS)
        self.should_exit = True

    async def _reloaded(self) -> None:
        service: Service = self._guard.service
        with contextlib.suppress(NescioError, OSError):  # it is in the log
            await service.reload()

    def _keep(self, work: Any, name: str) -> None:
        self._tasks[name] = asyncio.ensure_future(work)


def serve(
    settings: Settings, *, host: str = "127.0.0.1", port: int = 8000, log_level: str = "info"
) -> None:
    """Serve until a signal comes.

    Parameters
    ----------
    settings : Settings
    host, port
        Where to listen; port 0 takes a free one, which the log names.
    log_level : {"debug", "info", "warning", "error"}
        At "warning", requests are not logged.
    """
    logs.set_up(log_level)
    if settings.model is not None:
        # What goes wrong is raised; its own log would stand between lines of JSON.
        require("onnxruntime", "onnx").set_default_logger_severity(4)
    guard = make_app(settings)
    listening = _bound(host, port)
    config = uvicorn.Config(
        guard,
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        date_header=False,
        lifespan="on",
        timeout_graceful_shutdown=_LONGEST_REQUEST_SECONDS,
    )
    name, number = listening.getsockname()[:2]
    guard.for_this_machine = is_loopback(name)
    engine = guard.service.current.engine
    logs.announce(
        "serving",
        url=f"http://{f'[{name}]' if ':' in name else name}:{number}",
        detector=engine.detector.name,
        tau=engine.calibration.threshold_values,
        model=None if settings.model is None else settings.model.name,
        token=settings.token is not None,
    )
    if settings.token is None and not is_loopback(name):
        logger.warning("anyone who reaches this address may call", extra={"host": name})
    Server(config, guard, settings).run(sockets=[listening])
    logs.announce("stopped", accepted=guard.accepted, answered=guard.answered)


def _bound(host: str, port: int) -> socket.socket:
    """A listening socket; what is wrong with the address is said here."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileError(f"cannot listen on {host} port {port}: {reason}.") from error
