"""Requests that wait at the same time are scored together.

There is no waiting for company: a batch is whatever has arrived while the one before was scored.
A batch that takes a moment is run by the event loop itself, since to hand it to a thread and back
takes as long; one that takes longer is run by a thread, so that others are read meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Work = TypeVar("Work")
Result = TypeVar("Result")

_A_MOMENT = 0.005  # seconds
_MEMORY = 0.8  # of what was measured before, when the seconds of a unit are measured again


@dataclass(frozen=True)
class _Waiting(Generic[Work, Result]):
    work: Work
    size: int
    kind: Hashable
    answer: asyncio.Future[Result]


class Batcher(Generic[Work, Result]):
    """Collects work of one kind and runs it together.

    Parameters
    ----------
    run : callable
        Takes a list of works of one kind, gives a list with a result, or an exception, for each.
    max_size : int
        Of a batch, in whatever works are measured in; a single work may be larger.
    """

    def __init__(
        self, run: Callable[[Sequence[Work]], Sequence[Result | Exception]], max_size: int
    ) -> None:
        self._run = run
        self._max_size = max_size
        self._waiting: deque[_Waiting[Work, Result]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scoring")
        self._seconds_a_unit = 1.0  # unknown: the first batch is not for the event loop
        self._busy = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.n_batches = 0

    async def stop(self) -> None:
        """End when everything that waits has been answered."""
        await self._idle.wait()
        self._thread.shutdown()

    async def submit(self, work: Work, *, size: int, kind: Hashable) -> Result:
        """The result of a work, which is run with others of the same kind."""
        if not self._busy and size > self._max_size and self._is_quick(size):
            return self._alone(work, size)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Result] = loop.create_future()
        self._waiting.append(_Waiting(work, size, kind, answer))
        if not self._busy:
            self._busy = True
            self._idle.clear()
            # After the other requests that this turn of the loop has brought.
            loop.call_soon(self._next)
        try:
            return await answer
        finally:
            # An error holds this frame, and the frame the answer with the error: without this,
            # the two would keep the whole request until the next garbage collection.
            del answer

    def _alone(self, work: Work, size: int) -> Result:
        """The result of a work that would not be joined to others, here and now."""
        (result,) = self._results([work], size)
        try:
            if isinstance(result, Exception):
                raise result
            return result
        finally:
            del result  # as above

    def _is_quick(self, size: int) -> bool:
        return size * self._seconds_a_unit <= _A_MOMENT

    def _next(self) -> None:
        """Run the next batch here and now, or give it to the thread."""
        if not self._waiting:
            self._busy = False
            self._idle.set()
            return
        batch = self._next_batch()
        size = sum(waiting.size for waiting in batch)
        works = [waiting.work for waiting in batch]
        loop = asyncio.get_running_loop()
        if self._is_quick(size):
            self._answer(batch, self._results(works, size))
            loop.call_soon(self._next)
            return
        task = loop.run_in_executor(self._thread, self._results, works, size)
        task.add_done_callback(lambda done: self._finish(batch, done.result()))

    def _finish(
        self, batch: list[_Waiting[Work, Result]], results: Sequence[Result | Exception]
    ) -> None:
        self._answer(batch, results)
        self._next()

    def _results(self, works: Sequence[Work], size: int) -> Sequence[Result | Exception]:
        started = time.perf_counter()
        try:
            return self._run(works)
        except Exception as error:
            return [error] * len(works)
        finally:
            measured = (time.perf_counter() - started) / max(size, 1)
            before = measured if self.n_batches == 0 else self._seconds_a_unit
            self._seconds_a_unit = _MEMORY * before + (1 - _MEMORY) * measured
            self.n_batches += 1

    def _next_batch(self) -> list[_Waiting[Work, Result]]:
        """The first that waits, and those right behind it that go with it."""
        batch = [self._waiting.popleft()]
        size = batch[0].size
        while self._waiting and self._waiting[0].kind == batch[0].kind:
            size += self._waiting[0].size
            if size > self._max_size:
                break
            batch.append(self._waiting.popleft())
        return batch

    def _answer(
        self, batch: list[_Waiting[Work, Result]], results: Sequence[Result | Exception]
    ) -> None:
        for waiting, result in zip(batch, results, strict=True):
            _settle(waiting.answer, result)


def _settle(answer: asyncio.Future[Any], result: Any) -> None:
    if answer.done():  # the client has gone
        return
    if isinstance(result, Exception):
        answer.set_exception(result)
    else:
        answer.set_result(result)
