"""The processors that this process may use, and work that is done ahead on them."""

from __future__ import annotations

import functools
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

# What Docker, Kubernetes and others write the processor limit of a container to (cgroup v2).
_QUOTA_FILE = Path("/sys/fs/cgroup/cpu.max")

_most_cpus: int | None = None


def available_cpus() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        n_cpus = len(os.sched_getaffinity(0))
    else:
        n_cpus = os.cpu_count() or 1
    return min(n_cpus, cpu_limit() or n_cpus)


def limit_cpus(most: int | None) -> None:
    """Use at most this number of processors in this process; None for all of them."""
    global _most_cpus
    _most_cpus = most


def cpu_limit() -> int | None:
    """Return what `limit_cpus` or the container allows, for libraries that count processors."""
    limits = (_most_cpus, _container_cpus())
    return min((limit for limit in limits if limit is not None), default=None)


@functools.cache
def _container_cpus() -> int | None:
    """Return the processor limit of the container, rounded up; None if there is none.

    A container sees all processors of its machine. With a thread for each of them, it would use
    up its share of time at once and then be stopped until the next period.
    """
    try:
        quota, period = _QUOTA_FILE.read_text("utf-8").split()
        return None if quota == "max" else max(1, -(-int(quota) // int(period)))
    except (OSError, ValueError, ZeroDivisionError):  # not Linux, or no limit
        return None


def map_ahead(
    function: Callable[[ItemT], ResultT], items: Iterable[ItemT], workers: int | None = None
) -> Iterator[ResultT]:
    """Give `function(item)` of each item in order, computed ahead on all available processors.

    Items are read one after the other in a thread of their own. Only a few items and results are in
    memory, however slow the caller is: two more than there are workers.
    """
    workers = workers or available_cpus()
    room = threading.Semaphore(workers + 1)
    results: queue.SimpleQueue[Future[ResultT] | None] = queue.SimpleQueue()
    stopped = threading.Event()

    def read() -> None:
        failed: Future[ResultT] = Future()
        try:
            for item in items:
                results.put(pool.submit(function, item))
                del item  # it would stay in memory while this waits
                room.acquire()
                if stopped.is_set():
                    return
            results.put(None)
        except BaseException as error:
            failed.set_exception(error)
            results.put(failed)

    with ThreadPoolExecutor(workers) as pool:
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            while (future := results.get()) is not None:
                yield future.result()
                del future
                room.release()
        finally:
            stopped.set()
            room.release()
            reader.join()
