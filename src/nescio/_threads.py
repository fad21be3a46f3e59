"""Row-wise computation in blocks that fit the cache, on all available processors."""

from __future__ import annotations

import functools
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from nescio._validation import Array, FloatArray

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

# (rows of the input, work space of the same shape, one result per row)
RowKernel = Callable[[Array, FloatArray, FloatArray], None]

# 1 MiB of float32: small enough for a second-level cache, and large enough that Python's overhead
# per block is below one per cent.
_BLOCK_ELEMENTS = 1 << 18

# What Docker, Kubernetes and others write the processor limit of a container to (cgroup v2).
_QUOTA_FILE = Path("/sys/fs/cgroup/cpu.max")

_most_cpus: int | None = None


def accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype to compute in: float32 for 16-bit and 32-bit input, otherwise float64."""
    return np.dtype(np.float64) if dtype.itemsize > 4 else np.dtype(np.float32)


def available_cpus() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        n_cpus = len(os.sched_getaffinity(0))
    else:
        n_cpus = os.cpu_count() or 1
    most = cpu_limit()
    return n_cpus if most is None else min(n_cpus, most)


def limit_cpus(most: int | None) -> None:
    """Use at most this number of processors in this process; None for all of them."""
    global _most_cpus
    _most_cpus = most


def cpu_limit() -> int | None:
    """Return what `limit_cpus` or the container allows, for libraries that count processors."""
    quota = _container_cpus()
    if _most_cpus is None or quota is None:
        return quota if _most_cpus is None else _most_cpus
    return min(_most_cpus, quota)


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


def map_rows(kernel: RowKernel, matrix: FloatArray) -> FloatArray:
    """Run `kernel` on blocks of rows, on all available processors; return one result per row.

    The kernel must compute each row independently, so that the result does not depend on how the
    rows are divided into blocks.
    """
    n_rows, n_columns = matrix.shape
    result = np.empty(n_rows, accumulator(matrix.dtype))
    block = max(1, _BLOCK_ELEMENTS // n_columns)
    if n_rows <= block:  # the usual case of a service, where every microsecond counts
        if n_rows:
            with np.errstate(all="ignore"):
                kernel(matrix, np.empty(matrix.shape, result.dtype), result)
        return result
    starts = range(0, n_rows, block)
    workers = min(available_cpus(), len(starts))

    def run(worker: int) -> None:
        work = np.empty((block, n_columns), result.dtype)
        with np.errstate(all="ignore"):
            for start in starts[worker::workers]:
                rows = slice(start, min(start + block, n_rows))
                kernel(matrix[rows], work[: rows.stop - start], result[rows])

    if workers == 1:
        run(0)
    else:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(run, range(workers)))
    return result


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
