"""Requests that wait at the same time are scored together.

A batch is whatever has arrived while the previous batch was scored: no request waits for others.
Batches run one after another in a worker thread, so that the event loop can read requests and
write answers meanwhile. If nothing else waits, work that took less time than two switches of
threads when it was last done runs in the event loop itself.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

Work = TypeVar("Work")
Result = TypeVar("Result")
Run = Callable[[Sequence[Work]], list[Result]]

_QUICK_SECONDS = 0.001


class _Waiting(NamedTuple):
    run: Run[Any, Any]
    work: Any
    size: int
    kind: Hashable
    answer: asyncio.Future[Any]


class Batcher:
    """Runs pieces of work together, up to a total size. A single piece may be larger."""

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
        self, run: Run[Work, Result], work: Work, *, size: int, kind: Hashable
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
        self._waiting.append(_Waiting(run, work, size, kind, answer))
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
