"""What is behind the routes: the engine in use, the queues, the traffic; start, reload and stop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from nescio._io.files import check_target
from nescio._threads import available_cpus
from nescio._validation import Array
from nescio.errors import NescioError
from nescio.monitor.references import fingerprint
from nescio.outputs import Outputs
from nescio.service import logs
from nescio.service.batching import Batcher
from nescio.service.bodies import JSON, check_rows
from nescio.service.calls import Call
from nescio.service.engine import Engine, Scored, kind_of
from nescio.service.errors import RefusedError
from nescio.service.logs import logger
from nescio.service.metrics import Metrics, ScoreMetrics
from nescio.service.model import kind_of_inputs
from nescio.service.room import Place, Room
from nescio.service.settings import Settings
from nescio.service.traffic import Traffic, stored_monitor

_WATCH_EVERY_SECONDS = 0.25
_SAVE_EVERY = 240  # times that the traffic was watched
# Logits that are scored together. Joining requests saves what each would cost alone whatever its
# size; of larger ones, copying takes longer than that.
_BATCH_VALUES = 1 << 15
_BATCH_INPUTS = 1 << 24  # numbers that go through the model together: a hundred images

Value = TypeVar("Value")


class Current(NamedTuple):
    """What requests are served with; replaced as a whole."""

    engine: Engine
    traffic: Traffic
    counted: ScoreMetrics
    fingerprint: str

    def record(self, scored: Scored) -> None:
        """Take note of what was scored together."""
        self.counted.count(scored.assessment)
        self.traffic.record(scored)


class Service:
    """One process's state.

    Parameters
    ----------
    settings : Settings
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        if settings.monitor_state is not None:
            check_target(settings.monitor_state, force=True)
        self.metrics = Metrics()
        self.room = Room(settings.max_requests, settings.max_waiting_bytes)
        self.current = self._loaded()
        self.metrics.add(self.current.counted)
        self._watch()

    # --- life ---

    async def start(self) -> None:
        """Begin to work, within the event loop."""
        self._decoders = ThreadPoolExecutor(available_cpus(), thread_name_prefix="decoding")
        self._scoring = Batcher(self._score, _BATCH_VALUES)
        self._predicting = Batcher(self._predict, _BATCH_INPUTS)
        self._reloading = asyncio.Lock()
        self._watching = asyncio.create_task(self._watch_traffic())

    async def stop(self) -> None:
        """Finish what was accepted, and keep the monitor's state."""
        await self._predicting.stop()
        await self._scoring.stop()
        self._watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._watching
        self._save()
        self._decoders.shutdown()

    async def reload(self) -> Engine:
        """Take the detector, and the model, that the files hold now; the old ones if that fails."""
        async with self._reloading:
            try:
                fresh = await self.aside(lambda: self._loaded(again=True))
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

    def _loaded(self, *, again: bool = False) -> Current:
        settings = self.settings
        engine = Engine.load(settings)
        monitor = stored_monitor(engine.detector, settings.alpha, settings.monitor_state, again)
        counted = ScoreMetrics(engine)
        traffic = Traffic(monitor, engine.n_labels, settings.monitor_state, counted.watched)
        return Current(engine, traffic, counted, fingerprint(engine.detector))

    def _watch(self) -> None:
        watch = self.metrics.watch
        watch("nescio_under_way", "Requests under way.", lambda: self.room.n_requests)
        watch("nescio_waiting_bytes", "Bytes of their bodies.", lambda: self.room.n_bytes)
        watch(
            "nescio_monitor_log10_evidence",
            "Evidence that the stream has changed, as a power of ten.",
            lambda: self.current.traffic.evidence[0],
        )
        watch(
            "nescio_monitor_alarm",
            "1 once the monitor has given the alarm.",
            lambda: self.current.traffic.evidence[1],
        )

    def _save(self) -> None:
        try:
            self.current.traffic.save()
        except (NescioError, OSError) as error:
            logger.error("the monitor's state was not saved", extra={"reason": str(error)})

    def watch(self) -> None:
        """Let the monitor look at what went through since it last did."""
        try:
            self.current.traffic.watch()
        except Exception:  # a flaw of the monitor must not end the watch, nor go unseen
            logger.exception("the monitor failed")

    async def _watch_traffic(self) -> None:
        for turn in itertools.count(1):
            await asyncio.sleep(_WATCH_EVERY_SECONDS)
            await self.aside(self.watch)
            logs.flush()
            if turn % _SAVE_EVERY == 0:
                await self.aside(self._save)

    # --- work ---

    async def score(self, current: Current, outputs: Outputs) -> Scored:
        """The verdicts on a request's outputs."""
        if not len(outputs):
            raise RefusedError(422, "there are no rows to score.")
        check_rows(len(outputs), self.settings.max_rows)
        kind = (id(current), kind_of(outputs))
        return await self._scoring.submit((current, outputs), size=outputs.logits.size, kind=kind)

    async def predict(self, current: Current, inputs: Mapping[str, Array]) -> Scored:
        """The model's outputs for a request's inputs, and the verdicts."""
        kind = (id(current), kind_of_inputs(inputs))
        size = sum(array.size for array in inputs.values())
        return await self._predicting.submit((current, inputs), size=size, kind=kind)

    async def aside(self, work: Callable[[], Value]) -> Value:
        """What a work gives that would hold up the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._decoders, work)

    @staticmethod
    def _score(works: Sequence[tuple[Current, Outputs]]) -> list[Scored | Exception]:
        current = works[0][0]  # works of one kind have one
        return current.engine.score([outputs for _, outputs in works], current.record)

    @staticmethod
    def _predict(
        works: Sequence[tuple[Current, Mapping[str, Array]]],
    ) -> list[Scored | Exception]:
        current = works[0][0]
        return current.engine.predict([inputs for _, inputs in works], current.record)

    async def body(self, call: Call, kind: str, place: Place) -> bytes:
        """The whole body, within the limits."""
        settings = self.settings
        limit = settings.max_json_bytes if kind == JSON else settings.max_body_bytes
        announced = call.header("content-length")
        if announced.isdecimal():
            _check_size(int(announced), limit, kind)
        if call.header("content-encoding").lower() not in ("", "identity"):
            raise RefusedError(415, "compressed bodies are not taken: send it as it is.")
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(settings.body_seconds):
                more = True
                while more:
                    message = await call.receive()
                    if message["type"] == "http.disconnect":
                        raise RefusedError(400, "the connection ended within the body.")
                    chunk = message.get("body", b"")
                    size += len(chunk)
                    _check_size(size, limit, kind)
                    place.hold(size)
                    chunks.append(chunk)
                    more = message.get("more_body", False)
        except TimeoutError as error:
            raise RefusedError(
                408,
                f"the body did not arrive within {settings.body_seconds:g} seconds.",
                {"Connection": "close"},
            ) from error
        return b"".join(chunks)


def _check_size(n_bytes: int, limit: int, kind: str) -> None:
    if n_bytes > limit:
        other = ", or as safetensors, which may be larger" if kind == JSON else ""
        raise RefusedError(413, f"the body has more than {limit:,} bytes. Send it in parts{other}.")
