"""Run the service with uvicorn: stop without losing requests, and reload on a signal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from nescio._io.tables import require
from nescio.errors import FileError, NescioError
from nescio.service import logs
from nescio.service.access import is_loopback
from nescio.service.app import make_app
from nescio.service.connections import Connection
from nescio.service.logs import logger
from nescio.service.service import Service
from nescio.service.settings import Settings

_SETTLE_SECONDS = 0.25
_LONGEST_REQUEST_SECONDS = 60


class Server(uvicorn.Server):
    """A uvicorn server that stops in steps.

    After the signal, requests are still accepted for `drain_seconds`: /readyz answers 503, and
    every answer closes its connection. Then no new connections are accepted, requests on existing
    connections are answered, and the process ends with code 0. A second signal kills it.
    """

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._tasks: list[asyncio.Future[None]] = []  # referenced, so that they are not collected
        # uvicorn sets this when it starts, but a signal may come earlier.
        self.servers: list[asyncio.base_events.Server] = []

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGINT and SIGTERM with exit code 0, and reload on SIGHUP."""
        self._loop = asyncio.get_running_loop()
        handlers: dict[int, Any] = {signal.SIGINT: self._on_stop, signal.SIGTERM: self._on_stop}
        if hasattr(signal, "SIGHUP"):
            handlers[signal.SIGHUP] = self._on_reload
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        # The operating system handles a second signal, whatever this process is busy with then.
        for again in (signal.SIGINT, signal.SIGTERM):
            signal.signal(again, signal.SIG_DFL)
        self._service.stopping = True
        self._start(self._drain)

    def _on_reload(self, number: int, frame: FrameType | None) -> None:
        self._start(self._reload)

    def _start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._loop.call_soon_threadsafe(lambda: self._tasks.append(asyncio.ensure_future(work())))

    async def on_tick(self, counter: int) -> bool:
        """Close silent connections once per second; uvicorn calls this ten times per second."""
        if counter % 10 == 0:
            for connection in list(self.server_state.connections):
                if isinstance(connection, Connection):
                    connection.check_time()
        return await super().on_tick(counter)

    async def _drain(self) -> None:
        seconds = self._service.settings.drain_seconds
        logger.info("stopping", extra={"drain_seconds": seconds})
        await asyncio.sleep(seconds)
        for server in self.servers:
            server.close()
        logger.info("closed to new connections")
        # Requests that clients sent just before are still in the buffers of the sockets.
        await asyncio.sleep(_SETTLE_SECONDS)
        self.should_exit = True

    async def _reload(self) -> None:
        with contextlib.suppress(NescioError, OSError):  # logged by the service
            await self._service.reload()


def serve(
    settings: Settings, *, host: str = "127.0.0.1", port: int = 8000, log_level: str = "info"
) -> None:
    """Run the service until it gets a signal to stop.

    Parameters
    ----------
    settings : Settings
    host, port
        The address to listen on. Port 0 takes a free port, which the log names.
    log_level : {"debug", "info", "warning", "error"}
        At "warning", requests are not logged.
    """
    with logs.set_up(log_level):
        _serve(settings, host, port)


def _serve(settings: Settings, host: str, port: int) -> None:
    if settings.model is not None:
        # Errors are raised as exceptions; its own log lines would not be JSON.
        require("onnxruntime", "onnx").set_default_logger_severity(4)
    app = make_app(settings)
    service: Service = app.state.service
    listening = _bound(host, port)
    name, number = listening.getsockname()[:2]
    service.only_local = is_loopback(name)
    engine = service.current.engine
    logs.announce(
        "serving",
        url=f"http://{f'[{name}]' if ':' in name else name}:{number}",
        detector=engine.detector.name,
        threshold=engine.calibration.threshold_values,
        model=None if settings.model is None else settings.model.name,
        token=settings.token is not None,
    )
    if settings.token is None and not service.only_local:
        logger.warning(
            "without a token, anyone who can reach this address can call the service",
            extra={"host": name},
        )
    Server(config_of(app), service).run(sockets=[listening])
    logs.announce("stopped", accepted=service.n_accepted, answered=service.n_answered)


def config_of(app: ASGIApp) -> uvicorn.Config:
    """Return the settings of uvicorn."""
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        date_header=False,
        lifespan="on",
        timeout_graceful_shutdown=_LONGEST_REQUEST_SECONDS,
    )


def _bound(host: str, port: int) -> socket.socket:
    """Return a listening socket, or raise an error that says what is wrong with the address."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileError(f"cannot listen on {host} port {port}: {reason}.") from error
