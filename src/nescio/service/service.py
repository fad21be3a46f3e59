"""The state behind the endpoints: the detector and the model in use, and the queues of work."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import time
import warnings
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from starlette.requests import ClientDisconnect

from nescio._io.files import check_target, exclusive
from nescio._io.tables import GROUP
from nescio._threads import available_cpus
from nescio._validation import Array
from nescio.calibration import CUSTOM, Calibration
from nescio.calibration.calibration import checked_groups
from nescio.detectors import Assessment, load
from nescio.detectors.saving import plain_params
from nescio.errors import GroupWarning, InputError, NescioError, ShapeError, listed
from nescio.explain import Reason
from nescio.models.inputs import n_rows
from nescio.outputs import Outputs
from nescio.outputs.outputs import match_labels
from nescio.service import openapi as api
from nescio.service.images import Decoders
from nescio.service.model import WORK_AT_ONCE, Model
from nescio.service.openapi import DetectorDescription, PartShare
from nescio.service.requests import LogitsCheck, Request, RequestLimits, check_count
from nescio.service.settings import MAX_EXPLAINED, Settings
from nescio.service.traffic import Metrics, Traffic, logger, stored_monitor

_WATCH_EVERY_SECONDS = 0.25
_SAVE_EVERY = 240  # the state is saved after this many looks at the traffic
# The most logits that are scored together. Joining small requests saves the fixed cost of each.
# For larger requests, copying them into one array takes longer than that.
_BATCH_VALUES = 1 << 15
_QUICK_BYTES = 65_536  # of JSON; they are encoded and decoded in less time than a thread takes
_QUICK_SECONDS = 0.003
_EXPLAINED_LABELS = _EXPLAINED_COLUMNS = 20

Value = TypeVar("Value")
Work = TypeVar("Work")
Result = TypeVar("Result")
Run = Callable[[Sequence[Work]], list[Result]]


class Engine:
    """What requests are served with, until a reload: a detector, perhaps a model, their traffic."""

    def __init__(self, settings: Settings, metrics: Metrics, reloading: bool = False) -> None:
        self.detector = load(settings.detector)
        self.calibration: Calibration = self.detector.calibration_
        warnings.filterwarnings("ignore", category=GroupWarning)  # the answer has it
        self.model = None if settings.model is None else Model(settings, self.detector)
        self.check_logits = LogitsCheck()
        self.label_names = self.detector.label_names_
        if self.model is not None:
            self.label_names = self.model.wrapped.label_names
        # None if only features were seen.
        n_names = None if self.label_names is None else len(self.label_names)
        self.n_labels = self.detector.n_columns_.get("logits", n_names)
        names = self.label_names or tuple(map(str, range(self.n_labels or 0)))
        state = None if reloading else settings.monitor_state
        monitor = stored_monitor(self.detector, settings.alpha, state)
        self.traffic = Traffic(self.detector, names, monitor, settings.monitor_state, metrics)
        description = self._describe(settings)
        self.description = msgspec.json.encode(description)
        self.examples = api.examples_of(description)

    @functools.cached_property
    def document(self) -> bytes:
        """The OpenAPI document, with examples that this detector and model accept."""
        return api.make_document(self.examples)

    def run_model(self, works: Sequence[Mapping[str, Array]]) -> list[Outputs]:
        """Return the outputs of the model for inputs of one kind."""
        assert self.model is not None
        if len(works) == 1:
            return [self.model.outputs(works[0])]
        inputs = {name: np.concatenate([work[name] for work in works]) for name in works[0]}
        outputs = self.model.outputs(inputs)
        ends = itertools.accumulate(map(n_rows, works))
        return [outputs[end - n_rows(work) : end] for work, end in zip(works, ends, strict=True)]

    def score(self, parts: Sequence[Outputs]) -> list[Assessment]:
        """Return the verdicts on outputs of one kind, which are traffic."""
        return self.score_unwatched(parts, self.traffic.record)

    def score_unwatched(
        self, parts: Sequence[Outputs], record: Callable[..., object] = lambda *_: None
    ) -> list[Assessment]:
        """Return the verdicts on outputs of one kind, which are not counted."""
        outputs = parts[0] if len(parts) == 1 else Outputs.concat(parts)
        groups = outputs.kept.get(GROUP)
        assessment = self.detector.assess(outputs, groups=groups, from_probs=False)
        try:
            # On the event loop, the answer is sent first.
            asyncio.get_running_loop().call_soon(record, outputs, assessment)
        except RuntimeError:  # in a worker thread
            record(outputs, assessment)
        if len(parts) == 1:
            return [assessment]
        ends = itertools.accumulate(map(len, parts))
        return [assessment[end - len(part) : end] for part, end in zip(parts, ends, strict=True)]

    def prepared(self, outputs: Outputs, group: str | None) -> Outputs:
        """Return outputs with the labels of the detector and the groups of their rows.

        Labels with names are matched by name. `group` is that of all rows, if the body has none.
        """
        names = self.detector.label_names_
        if names is not None and outputs.label_names is not None:
            outputs = match_labels(outputs, names, self.detector.scores_from)
        if self.n_labels not in (None, outputs.n_labels):
            raise ShapeError(
                f"the detector expects logits of {self.n_labels} labels, got {outputs.n_labels}."
            )
        by_row = GROUP in outputs.kept
        if self.calibration.by != CUSTOM:
            if group is not None or by_row:
                raise InputError("the detector was not calibrated by groups of yours: send none.")
            return outputs
        if by_row == (group is not None):
            groups = listed(list(self.calibration.thresholds)[:-1])
            raise InputError(
                f"the detector was calibrated by group ({groups}). Send the group of all rows as "
                "?group=NAME or, in a JSON body, one per row as groups, not both."
            )
        return outputs if by_row else replace(outputs, kept={GROUP: np.full(len(outputs), group)})

    def warned(self, outputs: Outputs, *texts: str) -> dict[str, Any]:
        """Return what the answer has to warn of, as one of its columns; nothing in most cases."""
        if self.calibration.by == CUSTOM:
            groups = checked_groups(outputs.kept[GROUP], len(outputs))
            texts = *texts, self.calibration.without_threshold(groups)
        warnings = [text[:1].upper() + text[1:] for text in texts if text]
        return {"warnings": warnings} if warnings else {}

    def explain(self, outputs: Outputs) -> dict[str, Any]:
        """Return the reason for each verdict as a column, with the labels that matter most."""
        check_count("a request to explain", len(outputs), "rows", MAX_EXPLAINED)
        groups = outputs.kept.get(GROUP)
        reasons = self.detector.explain(outputs, groups=groups, from_probs=False)
        if self.model is not None:
            reasons = self.model.wrapped.runner.explained(reasons, None)
        return {"explanation": list(map(_explanation, reasons))}

    def _describe(self, settings: Settings) -> DetectorDescription:
        """Return what clients may want to know."""
        detector, calibration = self.detector, self.calibration
        first = calibration.first
        stems = [Path(path).stem for path in (settings.model, settings.detector) if path]
        return DetectorDescription(
            name=next((stem for stem in stems if stem != "model"), stems[-1]),
            detector=detector.name,
            params={name: v for name, v in plain_params(detector).items() if name != "tpr"},
            scores_from=list(detector.scores_from),
            n_columns=detector.n_columns_,
            label_names=None if self.label_names is None else list(self.label_names),
            threshold=calibration.threshold_values,
            tpr=first.tpr,
            confidence=first.confidence,
            by=calibration.by,
            n_calibration=calibration.n_samples,
            n_by_group={name: len(group.scores) for name, group in calibration.thresholds.items()},
            statement=calibration.statement(),
            explains=detector.explains,
            warnings=[] if self.model is None else self.model.warnings,
            model=None if self.model is None else self.model.describe(),
        )


def _explanation(reason: Reason) -> dict[str, Any]:
    by_label = reason.by_label()
    labels = () if by_label is None else by_label.most_telling(_EXPLAINED_LABELS)
    explanation: dict[str, Any] = {
        "term": "" if by_label is None else by_label.term,
        "summary": reason.summary(),
        "labels": [label.as_dict() for label in labels],
    }
    by_column = reason.by_column()
    if by_column is not None:
        unusual = [column for column in by_column.ranges if column.excess]
        explanation["ranges"] = [column.as_dict() for column in unusual[:_EXPLAINED_COLUMNS]]
    if reason.parts:
        parts = [
            part.as_dict() | {"summary": part.reason.summary() if part.reason else ""}
            for part in reason.parts
        ]
        explanation["parts"] = msgspec.convert(parts, list[PartShare])
    return explanation


def kind_of(outputs: Outputs) -> Hashable:
    """Return a key; outputs with the same key can be scored together."""
    columns = tuple(
        (name, outputs.get(name).shape[1], outputs.get(name).dtype.str)
        for name in outputs.names
        if name != "head"
    )
    return columns, outputs.label_names, outputs.ids is None, id(outputs.head)


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
        self.engine = Engine(settings, self.metrics)
        self.metrics.registry.register(self.engine.traffic)

    async def start(self) -> None:
        """Start the threads and tasks; call this within the event loop."""
        # As many threads as processors: decoding a body takes several times its size in memory.
        self._workers = ThreadPoolExecutor(available_cpus(), thread_name_prefix="worker")
        # Images have threads of their own, so that slow ones do not delay anything else.
        self._decoding = ThreadPoolExecutor(available_cpus(), thread_name_prefix="decoding")
        self.decoders = Decoders(self.settings.max_pixels)
        if self.engine.model is not None and self.engine.model.preprocessing is not None:
            await self.decoding(self.decoders.warm)  # or the first image waits for it
        self.scoring = Batcher(_BATCH_VALUES)
        self.predicting = Batcher(WORK_AT_ONCE)
        self._reloading = asyncio.Lock()
        self._watching = asyncio.create_task(self._watch_traffic())

    async def stop(self) -> None:
        """Finish all accepted requests, and save the state of the monitor."""
        await self.predicting.stop()
        await self.scoring.stop()
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
                engine = await self.in_thread(Engine, self.settings, self.metrics, True)
            except (NescioError, OSError) as error:
                self.metrics.reloads.labels("failed").inc()
                logger.error("reload failed", extra={"reason": str(error)})
                raise
            old = self.engine
            changed = engine.traffic.monitor.fingerprint != old.traffic.monitor.fingerprint
            if changed:
                self.metrics.registry.unregister(old.traffic)
                self.metrics.registry.register(engine.traffic)
            else:
                engine.traffic = old.traffic
            self.engine = engine
            if changed:
                await self.in_thread(self._logged, engine.traffic.follow, old.traffic)
            self.metrics.reloads.labels("done").inc()
            logger.info("reloaded", extra={"changed": changed})
            return engine

    def acknowledge(self, note: str) -> dict[str, Any]:
        """Record the change of the inputs as dealt with, and save its state."""
        record = self.engine.traffic.acknowledge(note)
        logger.info("alarm acknowledged", extra=record)
        self._watch(save=True)
        return record

    def _watch(self, save: bool) -> None:
        """Show the monitor the requests since the previous call; save an alarm, or if asked."""
        traffic = self.engine.traffic
        self._logged(traffic.watch)
        if save or traffic.has_new_alarm:
            self._logged(traffic.save)

    def _logged(self, work: Callable[..., object], *arguments: object) -> None:
        try:
            work(*arguments)
        except Exception:  # it must not end the task, or fail a reload
            logger.exception("the monitor failed, or its state was not saved")

    async def _watch_traffic(self) -> None:
        for turn in itertools.count(1):
            await asyncio.sleep(_WATCH_EVERY_SECONDS)
            await self.in_thread(self._watch, turn % _SAVE_EVERY == 0)

    async def outputs(
        self, engine: Engine, inputs: Mapping[str, Array], request: Request
    ) -> Outputs:
        """Run the model on inputs in pieces, between which other requests get their turn."""
        assert engine.model is not None
        parts: list[Outputs] = []
        leaving = asyncio.ensure_future(request.receive())  # the next message is the last
        try:
            for piece in engine.model.pieces(inputs):
                if leaving.done():
                    raise ClientDisconnect
                size, kind = engine.model.work(piece), engine.model.kind_of
                run = self.predicting.submit(engine.run_model, piece, size=size, kind=kind)
                parts.append(await run)
                await asyncio.sleep(0)  # pieces that are quick run in the event loop
        finally:
            leaving.cancel()
        if len(parts) == 1:
            return parts[0]
        # Whether the head explains the logits is checked on each part; the first one counts.
        return Outputs.concat([replace(part, head=parts[0].head) for part in parts])

    async def verdicts(self, engine: Engine, outputs: Outputs, watch: bool) -> Assessment:
        """Return the verdicts on outputs, which may be scored with those of other requests."""
        run = engine.score if watch else engine.score_unwatched
        return await self.scoring.submit(run, outputs, size=outputs.logits.size, kind=kind_of)

    async def in_thread(self, work: Callable[..., Value], *arguments: object) -> Value:
        """Return the result of work that would block the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, work, *arguments)

    async def decoding(self, work: Callable[..., Value], *arguments: object) -> Value:
        """Return the result of work that decodes images."""
        return await asyncio.get_running_loop().run_in_executor(self._decoding, work, *arguments)

    async def coding(self, n_bytes: int, work: Callable[..., Value], *arguments: object) -> Value:
        """Return the result of encoding or decoding about so many bytes of JSON."""
        if n_bytes <= _QUICK_BYTES:
            return work(*arguments)
        return await self.in_thread(work, *arguments)


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
    answers meanwhile. Work of a size that was quick when it was last done runs in the event loop
    itself if nothing else waits, or if it is too large to be joined: switching threads takes
    longer.
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
        quick = self._seconds.get(size.bit_length(), _QUICK_SECONDS) < _QUICK_SECONDS
        if quick and (idle or 2 * size > self._max_size):
            (result,) = self._timed(run, [work], size)
            try:
                if isinstance(result, BaseException):
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
            if isinstance(result, BaseException):
                waiting.answer.set_exception(result)
            else:
                waiting.answer.set_result(result)
        results.clear()  # as in submit: the traceback of an exception refers to this list

    def _timed(
        self, run: Run[Work, Result], works: Sequence[Work], size: int
    ) -> list[Result | BaseException]:
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


def _results(run: Run[Work, Result], works: Sequence[Work]) -> list[Result | BaseException]:
    """Run all at once. If that fails, run each alone, so that one cannot fail the others."""
    try:
        return [*run(works)]
    except BaseException as error:  # also a panic in Rust: nobody may wait for ever
        if len(works) == 1:
            return [error]
    return [result for work in works for result in _results(run, [work])]
