"""Requests that wait at the same time are scored together.

A batch is whatever has arrived while the previous batch was scored: no request waits for others.
Batches run one after another in a worker thread, so that the event loop can read requests and
write answers meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

Work = TypeVar("Work")
Result = TypeVar("Result")


@dataclass(frozen=True)
class _Waiting(Generic[Work, Result]):
    work: Work
    size: int
    kind: Hashable
    answer: asyncio.Future[Result]


class Batcher(Generic[Work, Result]):
    """Collects pieces of work of the same kind and runs them together.

    Parameters
    ----------
    run : callable
        Takes a list of pieces of work of the same kind and returns a list with a result or an
        exception for each.
    max_size : int
        The largest size of a batch, in the unit of `submit`. A single piece may be larger.
    """

    def __init__(
        self, run: Callable[[Sequence[Work]], list[Result | Exception]], max_size: int
    ) -> None:
        self._run = run
        self._max_size = max_size
        self._waiting: deque[_Waiting[Work, Result]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scoring")
        self._running: asyncio.Task[None] | None = None

    async def stop(self) -> None:
        """Finish all waiting work, then end the thread."""
        if self._running is not None:
            await self._running
        self._thread.shutdown()

    async def submit(self, work: Work, *, size: int, kind: Hashable) -> Result:
        """Return the result of a piece of work, which may run with others of the same kind."""
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(work, size, kind, answer))
        if self._running is None or self._running.done():
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

    async def _run_batch(self, batch: list[_Waiting[Work, Result]]) -> None:
        loop = asyncio.get_running_loop()
        works = [waiting.work for waiting in batch]
        results = await loop.run_in_executor(self._thread, self._results, works)
        for waiting, result in zip(batch, results, strict=True):
            _settle(waiting.answer, result)
        results.clear()  # as in submit: the traceback of an exception refers to this list

    def _next_batch(self) -> list[_Waiting[Work, Result]]:
        """Take the first piece of work and those directly behind it that fit into its batch."""
        batch = [self._waiting.popleft()]
        size = batch[0].size
        while self._waiting and self._waiting[0].kind == batch[0].kind:
            size += self._waiting[0].size
            if size > self._max_size:
                break
            batch.append(self._waiting.popleft())
        return batch

    def _results(self, works: Sequence[Work]) -> list[Result | Exception]:
        try:
            return self._run(works)
        except Exception as error:
            return [error] * len(works)


def _settle(answer: asyncio.Future[Result], result: Result | Exception) -> None:
    if answer.done():  # the client has closed the connection
        return
    if isinstance(result, Exception):
        answer.set_exception(result)
    else:
        answer.set_result(result)
