"""Row-wise computation in blocks that fit the cache, on all available processors."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import numpy as np

from nescio._validation import Array, FloatArray

# (rows of the input, work space of the same shape, one result per row)
RowKernel = Callable[[Array, FloatArray, FloatArray], None]

# 1 MiB of float32: small enough for a second-level cache, and large enough that Python's overhead
# per block is below one per cent.
_BLOCK_ELEMENTS = 1 << 18

_most_cpus: int | None = None

T = TypeVar("T")
_single = threading.Lock()
_single_users = 0
_single_limit: Any = None


def accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype to compute in: float32 for 16-bit and 32-bit input, otherwise float64."""
    return np.dtype(np.float64) if dtype.itemsize > 4 else np.dtype(np.float32)


def available_cpus() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        found = len(os.sched_getaffinity(0))
    else:
        found = os.cpu_count() or 1
    return found if _most_cpus is None else min(found, _most_cpus)


def limit_cpus(most: int | None) -> None:
    """Use at most this number of processors in this process; None for all of them."""
    global _most_cpus
    _most_cpus = most


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


def in_threads(
    run: Callable[[T], None], parts: Sequence[T], most: int, *, small: bool = False
) -> None:
    """Call `run` with each part, in at most this many threads.

    If there are several, or if `run` multiplies many small matrices, BLAS uses one thread in each:
    threads of its own would wait for each other while the rest of the work leaves processors idle.
    """
    workers = min(available_cpus(), len(parts), most)
    with _single_blas() if workers > 1 or small else nullcontext():
        if workers < 2:
            for part in parts:
                run(part)
        else:
            with ThreadPoolExecutor(workers) as pool:
                list(pool.map(run, parts))


@contextmanager
def _single_blas() -> Iterator[None]:
    """Limit BLAS to one thread; the last of several users at the same time ends this."""
    global _single_users, _single_limit
    with _single:
        if _single_users == 0:
            from threadpoolctl import threadpool_limits

            _single_limit = threadpool_limits(limits=1, user_api="blas")
        _single_users += 1
    try:
        yield
    finally:
        with _single:
            _single_users -= 1
            if _single_users == 0:
                _single_limit.restore_original_limits()
