"""Run the service with uvicorn: limits on connections, stopping without losing requests, the log.

uvicorn has no limits on connections, except for the time between two requests of one. Ours hold
before a request is read, and so without a token.

The log has one line of JSON per event, and never bodies, tokens or queries, but why a request was
refused. A thread writes it, so that no request waits for whoever reads the log. Lines that cannot
be written, or that would have to wait behind too many others, are dropped and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import functools
import gc
import itertools
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from nescio._threads import available_cpus
from nescio.errors import FileError, NescioError, ParameterError, require
from nescio.service.app import App, is_loopback, make_app
from nescio.service.settings import Settings
from nescio.service.traffic import logger

_SETTLE_SECONDS = 0.25
_LONGEST_REQUEST_SECONDS = 60

_MAX_CONNECTIONS = 1_000
_MAX_HEAD_BYTES = 16_384  # address and headers of a request, or its trailer
_MAX_PIPELINED = 8  # requests that a client sends before it has the answer to the first
# How long a client may take for the head of a request, or to read a part of an answer.
_SILENT_SECONDS = 20.0

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}
_MAX_WAITING = 10_000  # lines of the log


class Connection(HttpToolsProtocol):
    """A connection that is closed if its client sends no end of a head, or nothing for too long.

    The parser h11 has a limit on heads and trailers of its own, but it takes longer to read a body
    than it takes to read and score it here. So this is a subclass for httptools.
    """

    _since = 0.0  # when the client was last served
    _n_unread = 0  # bytes since the last part of a body or the end of a request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection; if there are too many, close the one that has waited longest."""
        super().connection_made(transport)
        self._since = self.loop.time()
        if len(self.connections) > max_connections():
            served = (other for other in self.connections if isinstance(other, Connection))
            waiting = (other for other in served if other.waits and other is not self)
            min(waiting, key=lambda other: other._since, default=self).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Read a part of a request. The parser keeps a head or a trailer until it ends."""
        self._n_unread += len(data)
        super().data_received(data)
        if self._n_unread > _MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The head of a request may have {_MAX_HEAD_BYTES:,} bytes.")

    def on_headers_complete(self) -> None:
        """Begin with a request, unless its head is too long or too many wait before it."""
        n_head = len(self.url) + sum(map(len, itertools.chain(*self.headers)))
        if n_head > _MAX_HEAD_BYTES or len(self.pipeline) >= _MAX_PIPELINED:
            raise ValueError("too much")  # uvicorn answers 400
        self._since = self.loop.time()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._n_unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Begin to count the bytes of the next request."""
        self._n_unread = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self._since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Begin to wait for the client to read."""
        self._since = self.loop.time()
        super().pause_writing()

    @property
    def waits(self) -> bool:
        """Whether no request is in progress: it has not arrived, or all of its answer is sent."""
        cycle = self.cycle
        answered = cycle is None or (cycle.response_started and not cycle.expected_content_length)
        return answered and not self.transport.is_closing()

    def check_time(self) -> None:
        """Close the connection if the service has waited too long for the client."""
        stalled = self.waits or self.flow.write_paused or self.transport.is_closing()
        if stalled and self.loop.time() - self._since > _SILENT_SECONDS:
            self.transport.abort()


@functools.cache
def max_connections() -> int:
    """Return how many connections there may be: some file descriptors are kept for the rest."""
    if sys.platform == "win32":
        return _MAX_CONNECTIONS
    import resource

    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed == resource.RLIM_INFINITY:
        return _MAX_CONNECTIONS
    return max(8, min(_MAX_CONNECTIONS, allowed - 64 - 4 * available_cpus()))


class Server(uvicorn.Server):
    """A uvicorn server that stops in steps.

    After the signal, requests are still accepted for `drain_seconds`: /readyz answers 503, and
    every answer closes its connection. Then no new connections are accepted, requests on existing
    connections are answered, and the process ends with code 0. A second signal kills it.
    """

    def __init__(self, app: App) -> None:
        config = uvicorn.Config(
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
        super().__init__(config)
        self._service = app.service
        self._tasks: list[asyncio.Future[None]] = []  # referenced, so that they are not collected
        # uvicorn sets this when it starts, but a signal may come earlier.
        self.servers: list[asyncio.base_events.Server] = []

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGINT and SIGTERM with exit code 0, and reload on SIGHUP."""
        self._loop = asyncio.get_running_loop()
        handlers: dict[int, Any] = {signal.SIGINT: self._on_stop, signal.SIGTERM: self._on_stop}
        if hasattr(signal, "SIGHUP"):
            handlers[signal.SIGHUP] = lambda *_: self._start(self._reload)
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_stop(self, *_: object) -> None:
        # The operating system handles a second signal, whatever this process is busy with then.
        for again in (signal.SIGINT, signal.SIGTERM):
            signal.signal(again, signal.SIG_DFL)
        self._service.stopping = True
        self._start(self._drain)

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
    settings: Settings,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    no_token: bool = False,
    log_level: str = "info",
) -> None:
    """Run the service until it gets a signal to stop; `nescio serve --help` has the options."""
    with logging_to_stderr(log_level):
        if settings.model is not None:
            # Errors are raised as exceptions; its own log lines would not be JSON.
            require("onnxruntime", "onnx").set_default_logger_severity(4)
        app = make_app(settings)
        service = app.service
        gc.freeze()  # modules and the detector stay: the garbage collector need not visit them
        listening = _bound(host, port)
        name, number = listening.getsockname()[:2]
        service.only_local = is_loopback(name)
        if settings.token is None and not (service.only_local or no_token):
            listening.close()
            raise ParameterError(
                f"other machines can reach {name}, and there is no token. Pass --token-file, or "
                "--no-token if everyone who reaches the address may call the service."
            )
        engine = service.engine
        announce(
            "serving",
            url=f"http://{f'[{name}]' if ':' in name else name}:{number}",
            detector=engine.detector.name,
            threshold=engine.calibration.threshold_values,
            model=None if settings.model is None else settings.model.name,
            token=settings.token is not None,
        )
        Server(app).run(sockets=[listening])
        announce("stopped", accepted=service.n_accepted, answered=service.n_answered)


def _bound(host: str, port: int) -> socket.socket:
    """Return a listening socket, or raise an error that says what is wrong with the address."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileError(f"cannot listen on {host} port {port}: {reason}.") from error


# --- the log ------------------------------------------------------------------------------------


class JsonLines(logging.Handler):
    """Writes records to standard error: the message, and everything that was passed as `extra`."""

    def __init__(self) -> None:
        super().__init__()
        self.n_dropped = 0
        self.waiting: queue.Queue[bytes] = queue.Queue(_MAX_WAITING)
        self._descriptor = -1  # if standard error was closed before the start
        with contextlib.suppress(AttributeError, OSError, ValueError):
            self._descriptor = os.dup(sys.stderr.fileno())
        threading.Thread(target=self._write_lines, daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a line to the thread that writes."""
        try:
            self.waiting.put_nowait(self.format(record).encode("utf-8", "replace") + b"\n")
        except Exception:  # too many wait, or the record cannot be formatted
            self.n_dropped += 1

    def format(self, record: logging.LogRecord) -> str:
        """Return one line of JSON."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line["traceback"] = logging.Formatter().formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()

    def _write_lines(self) -> None:
        while True:
            line = self.waiting.get()
            try:
                while line:
                    line = line[os.write(self._descriptor, line) :]
            except OSError:  # closed, or a full disk
                self.n_dropped += 1
            self.waiting.task_done()

    @contextlib.contextmanager
    def foreign_lines(self) -> Iterator[None]:
        """Log what libraries write to standard error by themselves, such as a panic in Rust."""
        if self._descriptor < 0:
            yield
            return
        number = sys.stderr.fileno()
        read, write = os.pipe()
        os.set_blocking(write, False)  # nobody waits: what does not fit is lost
        os.dup2(write, number)
        os.close(write)
        if not faulthandler.is_enabled():
            faulthandler.enable(self._descriptor)  # a crash could not be logged any more
        reader = threading.Thread(target=self._log_text, args=(read,), daemon=True)
        reader.start()
        try:
            yield
        finally:
            os.dup2(self._descriptor, number)  # the pipe ends
            reader.join(1.0)

    def _log_text(self, descriptor: int) -> None:
        with open(descriptor, errors="replace") as stream:
            for line in stream:
                logger.warning("a library wrote to standard error", extra={"text": line.rstrip()})


def announce(event: str, **facts: object) -> None:
    """Log an event at level info even if the log level is higher."""
    logger.handle(logger.makeRecord(logger.name, logging.INFO, "", 0, event, (), None, extra=facts))


@contextlib.contextmanager
def logging_to_stderr(level: str) -> Iterator[None]:
    """Send the events of the service, and those of uvicorn, to standard error."""
    handler = JsonLines()
    logging.captureWarnings(True)
    number = logging.getLevelNamesMapping()[level.upper()]
    for name in (logger.name, "uvicorn", "asyncio", "py.warnings"):
        log = logging.getLogger(name)
        log.handlers = [handler]
        log.propagate = False
        log.setLevel(number if name == logger.name else max(logging.WARNING, number))
    try:
        with handler.foreign_lines():
            yield
    finally:
        end = time.monotonic() + 2.0
        while handler.waiting.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.01)
