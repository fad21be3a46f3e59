"""The state behind the routes: the detector in use, the queues and the traffic."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar, cast

import numpy as np

from nescio._io.files import check_target
from nescio._io.locks import exclusive
from nescio._threads import available_cpus
from nescio._validation import Array
from nescio.errors import NescioError
from nescio.monitor.references import fingerprint
from nescio.outputs import Outputs
from nescio.runners.batches import n_rows
from nescio.service.batching import Batcher
from nescio.service.bodies import check_rows
from nescio.service.decoders import Decoders
from nescio.service.engine import BatchResult, Engine, kind_of
from nescio.service.limits import Room
from nescio.service.logs import logger
from nescio.service.metrics import Metrics, ScoreMetrics
from nescio.service.model import Model
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

    def score(self, works: Sequence[Outputs]) -> list[BatchResult]:
        """Return the verdicts on outputs of one kind."""
        return self._verdicts(works[0] if len(works) == 1 else Outputs.concat(works), works)

    def predict(self, works: Sequence[Mapping[str, Array]]) -> list[BatchResult]:
        """Return the outputs of the model for inputs of one kind, and the verdicts."""
        inputs = {name: np.concatenate([work[name] for work in works]) for name in works[0]}
        model = cast(Model, self.engine.model)
        outputs = model.wrapped.outputs(inputs, batch_size=model.batch_size(inputs))
        sizes = [n_rows(work) for work in works]
        ends = itertools.accumulate(sizes)
        parts = [outputs[end - size : end] for size, end in zip(sizes, ends, strict=True)]
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
        self.room = Room(settings)
        self.metrics = Metrics(self.room)
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
        check_rows(len(outputs), self.settings.max_rows)
        return await self._scoring.submit(
            current.score, outputs, size=outputs.logits.size, kind=kind_of(outputs)
        )

    async def predict(
        self, current: Current, model: Model, inputs: Mapping[str, Array]
    ) -> BatchResult:
        """Return the outputs of the model for the inputs of a request, and the verdicts."""
        size = sum(array.size for array in inputs.values())
        return await self._predicting.submit(
            current.predict, inputs, size=size, kind=model.kind_of(inputs)
        )

    async def in_thread(self, work: Callable[..., Value], *arguments: object) -> Value:
        """Return the result of work that would block the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, work, *arguments)

    async def decoding(self, work: Callable[..., Value], *arguments: object) -> Value:
        """Return the result of work that decodes images."""
        return await asyncio.get_running_loop().run_in_executor(self._decoding, work, *arguments)
