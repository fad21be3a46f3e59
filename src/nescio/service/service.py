"""The state behind the endpoints: the detector in use, the traffic, and the queues of work."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from nescio._io.files import check_target, exclusive
from nescio._threads import available_cpus
from nescio._validation import Array
from nescio.errors import NescioError
from nescio.models.inputs import n_rows
from nescio.monitor.monitor import fingerprint
from nescio.outputs import Outputs
from nescio.service.engine import BatchResult, Engine, Model, kind_of
from nescio.service.images import Decoders
from nescio.service.logs import logger
from nescio.service.requests import RequestLimits
from nescio.service.settings import Settings
from nescio.service.traffic import Metrics, ScoreMetrics, Traffic, stored_monitor

_WATCH_EVERY_SECONDS = 0.25
_SAVE_EVERY = 240  # the state is saved after this many looks at the traffic
# The most logits that are scored together. Joining small requests saves the fixed cost of each.
# For larger requests, copying them into one array takes longer than that.
_BATCH_VALUES = 1 << 15
_BATCH_INPUTS = 1 << 24  # the most numbers that go through the model together: about 100 images
_QUICK_SECONDS = 0.003

Value = TypeVar("Value")
Work = TypeVar("Work")
Result = TypeVar("Result")
Run = Callable[[Sequence[Work]], list[Result]]


class Current(NamedTuple):
    """What requests are served with. A reload replaces it as a whole."""

    engine: Engine
    traffic: Traffic
    counted: ScoreMetrics
    fingerprint: str

    def score(self, works: Sequence[Outputs]) -> list[BatchResult]:
        """Return the verdicts on outputs of one kind."""
        return self._verdicts(works[0] if len(works) == 1 else Outputs.concat(works), works)

    def predict(self, works: Sequence[Mapping[str, Array]]) -> list[BatchResult]:
        """Return the outputs of the model for inputs of one kind, and the verdicts."""
        inputs = {name: np.concatenate([work[name] for work in works]) for name in works[0]}
        outputs = cast(Model, self.engine.model).outputs(inputs)
        ends = itertools.accumulate(map(n_rows, works))
        parts = [outputs[end - n_rows(work) : end] for work, end in zip(works, ends, strict=True)]
        return self._verdicts(outputs, parts)

    def _verdicts(self, outputs: Outputs, parts: Sequence[Outputs]) -> list[BatchResult]:
        whole = self.engine.score(outputs)
        self.counted.count(whole)
        self.traffic.record(whole)
        if len(parts) == 1:
            return [BatchResult(parts[0], whole.assessment)]
        ends = itertools.accumulate(map(len, parts))
        return [
            BatchResult(part, whole.assessment[end - len(part) : end])
            for part, end in zip(parts, ends, strict=True)
        ]


class Service:
    """The state of one process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.only_local = False  # whether only this machine can call the service
        self.stopping = False  # every answer then closes its connection
        self.n_accepted = 0  # requests whose headers were read
        self.n_answered = 0  # requests whose answers were sent completely
        self._files = contextlib.ExitStack()
        if settings.monitor_state is not None:
            check_target(settings.monitor_state, force=True)
            self._files.enter_context(exclusive(settings.monitor_state, "state file"))
        self.limits = RequestLimits(settings)
        self.metrics = Metrics(self.limits)
        self.current = self._load()
        self.metrics.registry.register(self.current.counted)

    # --- life ---

    async def start(self) -> None:
        """Start the threads and tasks; call this within the event loop."""
        # As many threads as processors: decoding a body takes several times its size in memory.
        self._workers = ThreadPoolExecutor(available_cpus(), thread_name_prefix="worker")
        # Images have threads of their own, so that slow ones do not delay anything else.
        self._decoding = ThreadPoolExecutor(available_cpus(), thread_name_prefix="decoding")
        self.decoders = Decoders()
        self._scoring = Batcher(_BATCH_VALUES)
        self._predicting = Batcher(_BATCH_INPUTS)
        self._reloading = asyncio.Lock()
        self._watching = asyncio.create_task(self._watch_traffic())

    async def stop(self) -> None:
        """Finish all accepted requests, and save the state of the monitor."""
        await self._predicting.stop()
        await self._scoring.stop()
        self._watching.cancel()
        # Whatever ended the task, the state is saved.
        await asyncio.gather(self._watching, return_exceptions=True)
        self._watch(save=True)
        self._files.close()
        self._workers.shutdown()
        self._decoding.shutdown()
        self.decoders.stop()

    async def reload(self) -> Engine:
        """Read the files again. If that fails, the previous detector and model stay in use."""
        async with self._reloading:
            try:
                fresh = await self.in_thread(self._load, True)
            except (NescioError, OSError) as error:
                self.metrics.reloads.labels("failed").inc()
                logger.error("reload failed", extra={"reason": str(error)})
                raise
            old = self.current
            if fresh.fingerprint == old.fingerprint:
                fresh = fresh._replace(traffic=old.traffic, counted=old.counted)
            else:
                self.metrics.registry.unregister(old.counted)
                self.metrics.registry.register(fresh.counted)
            self.current = fresh
            self.metrics.reloads.labels("done").inc()
            logger.info("reloaded", extra={"changed": fresh.fingerprint != old.fingerprint})
            return fresh.engine

    def _load(self, again: bool = False) -> Current:
        settings = self.settings
        engine = Engine.load(settings)
        monitor = stored_monitor(engine.detector, settings.alpha, settings.monitor_state, again)
        traffic = Traffic(monitor, settings.monitor_state)
        return Current(engine, traffic, ScoreMetrics(engine, traffic), fingerprint(engine.detector))

    def _watch(self, save: bool) -> None:
        """Show the monitor the requests since the previous call, and save its state if asked."""
        try:
            self.current.traffic.watch()
            if save:
                self.current.traffic.save()
        except Exception:  # it must be logged, and must not end the task
            logger.exception("the monitor failed, or its state was not saved")

    async def _watch_traffic(self) -> None:
        for turn in itertools.count(1):
            await asyncio.sleep(_WATCH_EVERY_SECONDS)
            await self.in_thread(self._watch, turn % _SAVE_EVERY == 0)

    # --- work ---

    async def score(self, current: Current, outputs: Outputs) -> BatchResult:
        """Return the verdicts on the outputs of a request."""
        return await self._scoring.submit(
            current.score, outputs, size=outputs.logits.size, kind=kind_of
        )

    async def predict(
        self, current: Current, model: Model, inputs: Mapping[str, Array]
    ) -> BatchResult:
        """Return the outputs of the model for the inputs of a request, and the verdicts."""
        size = sum(array.size for array in inputs.values())
        return await self._predicting.submit(current.predict, inputs, size=size, kind=model.kind_of)

    async def in_thread(self, work: Callable[..., Value], *arguments: object) -> Value:
        """Return the result of work that would block the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, work, *arguments)

    async def decoding(self, work: Callable[..., Value], *arguments: object) -> Value:
        """Return the result of work that decodes images."""
        return await asyncio.get_running_loop().run_in_executor(self._decoding, work, *arguments)


# --- requests that wait at the same time are scored together --------------------------------------


class _Waiting(NamedTuple):
    run: Run[Any, Any]
    work: Any
    size: int
    kind: Hashable
    answer: asyncio.Future[Any]


class Batcher:
    """Runs pieces of work together, up to a total size. A single piece may be larger.

    A batch is whatever has arrived while the previous batch ran: no request waits for others.
    Batches run one after another in a thread, so that the event loop can read requests and write
    answers meanwhile. If nothing else waits, work that was quick when it was last done runs in the
    event loop itself: switching threads takes longer.
    """

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._waiting: deque[_Waiting] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scoring")
        self._running: asyncio.Task[None] | None = None
        self._seconds: dict[int, float] = {}  # of the last batch, by the power of two of its size

    async def stop(self) -> None:
        """Finish all waiting work, then end the thread."""
        if self._running is not None:
            await self._running
        self._thread.shutdown()

    async def submit(
        self, run: Run[Work, Result], work: Work, *, size: int, kind: Callable[[Work], Hashable]
    ) -> Result:
        """Return the result of a piece of work, which may run with others of the same kind."""
        idle = self._running is None or self._running.done()
        if idle and self._seconds.get(size.bit_length(), _QUICK_SECONDS) < _QUICK_SECONDS:
            (result,) = self._timed(run, [work], size)
            try:
                if isinstance(result, Exception):
                    raise result
                return result
            finally:
                del result  # as below
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(run, work, size, kind(work), answer))
        if idle:
            self._running = asyncio.create_task(self._run_batches())
        try:
            return await answer
        finally:
            # An exception refers to this frame, and the frame to the future with the exception.
            # Without this line, the cycle keeps the request until the next garbage collection.
            del answer

    async def _run_batches(self) -> None:
        while self._waiting:
            await self._run_batch(self._next_batch())

    async def _run_batch(self, batch: list[_Waiting]) -> None:
        loop = asyncio.get_running_loop()
        works, size = [waiting.work for waiting in batch], sum(waiting.size for waiting in batch)
        results = await loop.run_in_executor(self._thread, self._timed, batch[0].run, works, size)
        for waiting, result in zip(batch, results, strict=True):
            if waiting.answer.done():  # the client has closed the connection
                continue
            if isinstance(result, Exception):
                waiting.answer.set_exception(result)
            else:
                waiting.answer.set_result(result)
        results.clear()  # as in submit: the traceback of an exception refers to this list

    def _timed(
        self, run: Run[Work, Result], works: Sequence[Work], size: int
    ) -> list[Result | Exception]:
        """Run a batch, and note how long it took."""
        started = time.perf_counter()
        try:
            return _results(run, works)  # no name for them: the traceback of one may refer to it
        finally:
            self._seconds[size.bit_length()] = time.perf_counter() - started

    def _next_batch(self) -> list[_Waiting]:
        """Take the first piece of work and those directly behind it that fit into its batch."""
        first = self._waiting.popleft()
        batch, size = [first], first.size
        while self._waiting:
            following = self._waiting[0]
            size += following.size
            if (following.run, following.kind) != (first.run, first.kind) or size > self._max_size:
                break
            batch.append(self._waiting.popleft())
        return batch


def _results(run: Run[Work, Result], works: Sequence[Work]) -> list[Result | Exception]:
    """Run all at once. If that fails, run each alone, so that one cannot fail the others."""
    try:
        return [*run(works)]
    except Exception as error:
        if len(works) == 1:
            return [error]
    return [result for work in works for result in _results(run, [work])]
