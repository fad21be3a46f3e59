"""The state behind the routes: the detector in use, the queues and the traffic."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from starlette.exceptions import HTTPException

from nescio._io.files import check_target
from nescio._threads import available_cpus
from nescio._validation import Array
from nescio.errors import NescioError
from nescio.monitor.references import fingerprint
from nescio.outputs import Outputs
from nescio.service.batching import Batcher
from nescio.service.engine import BatchResult, Engine, kind_of
from nescio.service.limits import Room, check_rows
from nescio.service.logs import logger
from nescio.service.metrics import Metrics, ScoreMetrics
from nescio.service.model import kind_of_inputs
from nescio.service.settings import Settings
from nescio.service.traffic import Traffic, stored_monitor

_WATCH_EVERY_SECONDS = 0.25
_SAVE_EVERY = 240  # the state is saved after this many looks at the traffic
# The most logits that are scored together. Joining small requests saves the fixed cost of each.
# For larger requests, copying them into one array takes longer than that.
_BATCH_VALUES = 1 << 15
_BATCH_INPUTS = 1 << 24  # the most numbers that go through the model together: about 100 images

Value = TypeVar("Value")


class Current(NamedTuple):
    """What requests are served with. A reload replaces it as a whole."""

    engine: Engine
    traffic: Traffic
    counted: ScoreMetrics
    fingerprint: str

    def record(self, result: BatchResult) -> None:
        """Take note of requests that were scored together."""
        self.counted.count(result.assessment)
        self.traffic.record(result)


class Service:
    """The state of one process.

    Parameters
    ----------
    settings : Settings

    Attributes
    ----------
    only_local : bool
        Whether the service listens on a loopback address, so that only this machine can call it.
    stopping : bool
        Whether the service is about to stop. Every answer then closes its connection.
    n_accepted, n_answered : int
        Number of requests whose headers were read, and whose answers were sent completely.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.only_local = False
        self.stopping = False
        self.n_accepted = 0
        self.n_answered = 0
        if settings.monitor_state is not None:
            check_target(settings.monitor_state, force=True)
        self.metrics = Metrics()
        self.room = Room(settings.max_requests, settings.max_waiting_bytes)
        self.current = self._load()
        self.metrics.add(self.current.counted)
        self._add_gauges()

    # --- life ---

    async def start(self) -> None:
        """Start the threads and tasks; call this within the event loop."""
        # As many threads as processors: decoding a body takes several times its size in memory.
        self._workers = ThreadPoolExecutor(available_cpus(), thread_name_prefix="worker")
        self._scoring = Batcher(self._score, _BATCH_VALUES)
        self._predicting = Batcher(self._predict, _BATCH_INPUTS)
        self._reloading = asyncio.Lock()
        self._watching = asyncio.create_task(self._watch_traffic())

    async def stop(self) -> None:
        """Finish all accepted requests, and save the state of the monitor."""
        await self._predicting.stop()
        await self._scoring.stop()
        self._watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._watching
        self._save()
        self._workers.shutdown()

    async def reload(self) -> Engine:
        """Read the files again. If that fails, the previous detector and model stay in use."""
        async with self._reloading:
            try:
                fresh = await self.in_thread(lambda: self._load(again=True))
            except (NescioError, OSError) as error:
                self.metrics.reloads.labels("failed").inc()
                logger.error("reload failed", extra={"reason": str(error)})
                raise
            old = self.current
            if fresh.fingerprint == old.fingerprint:
                fresh = fresh._replace(traffic=old.traffic, counted=old.counted)
            else:
                self.metrics.remove(old.counted)
                self.metrics.add(fresh.counted)
            self.current = fresh
            self.metrics.reloads.labels("done").inc()
            logger.info("reloaded", extra={"changed": fresh.fingerprint != old.fingerprint})
            return fresh.engine

    def _load(self, *, again: bool = False) -> Current:
        settings = self.settings
        engine = Engine.load(settings)
        monitor = stored_monitor(engine.detector, settings.alpha, settings.monitor_state, again)
        counted = ScoreMetrics(engine)
        traffic = Traffic(monitor, engine.n_labels, settings.monitor_state, counted.watched)
        return Current(engine, traffic, counted, fingerprint(engine.detector))

    def _add_gauges(self) -> None:
        gauge = self.metrics.gauge
        gauge("nescio_requests_in_progress", "Requests in progress.", lambda: self.room.n_requests)
        gauge("nescio_waiting_bytes", "Bytes of their bodies.", lambda: self.room.n_bytes)
        gauge(
            "nescio_monitor_log10_evidence",
            "Evidence that the stream has changed, as a power of ten.",
            lambda: self.current.traffic.evidence[0],
        )
        gauge(
            "nescio_monitor_alarm",
            "1 once the monitor has raised the alarm.",
            lambda: self.current.traffic.evidence[1],
        )

    def _save(self) -> None:
        try:
            self.current.traffic.save()
        except (NescioError, OSError) as error:
            logger.error("the state of the monitor was not saved", extra={"reason": str(error)})

    def watch(self) -> None:
        """Show the monitor the requests since the previous call."""
        try:
            self.current.traffic.watch()
        except Exception:  # an error in the monitor must be logged, and must not end the task
            logger.exception("the monitor failed")

    async def _watch_traffic(self) -> None:
        for turn in itertools.count(1):
            await asyncio.sleep(_WATCH_EVERY_SECONDS)
            await self.in_thread(self.watch)
            if turn % _SAVE_EVERY == 0:
                await self.in_thread(self._save)

    # --- work ---

    async def score(self, current: Current, outputs: Outputs) -> BatchResult:
        """Return the verdicts on the outputs of a request."""
        if not len(outputs):
            raise HTTPException(422, "the request has no rows to score.")
        check_rows(len(outputs), self.settings.max_rows)
        kind = (id(current), kind_of(outputs))
        return await self._scoring.submit((current, outputs), size=outputs.logits.size, kind=kind)

    async def predict(self, current: Current, inputs: Mapping[str, Array]) -> BatchResult:
        """Return the outputs of the model for the inputs of a request, and the verdicts."""
        kind = (id(current), kind_of_inputs(inputs))
        size = sum(array.size for array in inputs.values())
        return await self._predicting.submit((current, inputs), size=size, kind=kind)

    async def in_thread(self, work: Callable[[], Value]) -> Value:
        """Return the result of work that would block the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, work)

    @staticmethod
    def _score(works: Sequence[tuple[Current, Outputs]]) -> list[BatchResult | Exception]:
        current = works[0][0]  # the same for all work of one kind
        return current.engine.score([outputs for _, outputs in works], current.record)

    @staticmethod
    def _predict(
        works: Sequence[tuple[Current, Mapping[str, Array]]],
    ) -> list[BatchResult | Exception]:
        current = works[0][0]
        return current.engine.predict([inputs for _, inputs in works], current.record)
