"""Run the networks of a benchmark in several processes, one per network.

Every process is started anew (spawn), because CUDA and the threads of torch do not survive a fork.
A process reports its progress and its end through a pipe. If the parent process ends, for whatever
reason, the pipe breaks and the others end at their next step.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from nescio._threads import available_cpus, limit_cpus
from nescio.benchmark.pipeline import Pipeline
from nescio.benchmark.progress import Report, Watch
from nescio.errors import NescioError

Task = Callable[[Pipeline, Path], object]

_BEGIN, _STEPS, _END, _DONE, _FAILED = "begin", "steps", "end", "done", "failed"
_SECONDS_TO_END = 10


def run_in_processes(
    task: Task, pipelines: Sequence[Pipeline], folder: Path, jobs: int, watch: Watch
) -> dict[int, str]:
    """Call `task(pipeline, folder)` for each pipeline, in at most `jobs` processes at once.

    Returns the reason for each pipeline that failed, by its index. Pipelines on "cuda" are
    distributed over all GPUs. The processors are divided among the processes.
    """
    jobs = min(jobs, len(pipelines))
    n_cpus = max(1, available_cpus() // jobs)
    waiting = deque(enumerate(pipelines))
    free = deque(range(jobs))
    running: dict[Connection, tuple[int, int, _Worker]] = {}  # index, slot
    failed: dict[int, str] = {}
    try:
        while waiting or running:
            while waiting and free:
                (index, pipeline), slot = waiting.popleft(), free.popleft()
                placed = replace(pipeline, device=device_of(pipeline.device, slot))
                worker = _Worker(task, placed, folder, n_cpus, watch)
                running[worker.connection] = index, slot, worker
            for connection in wait(list(running)):
                index, slot, worker = running[connection]  # type: ignore[index]
                if worker.listen():
                    continue
                del running[worker.connection]
                free.append(slot)
                if worker.failure:
                    failed[index] = worker.failure
    finally:
        for _, _, worker in running.values():
            worker.process.terminate()
        for _, _, worker in running.values():
            worker.close()
    return failed


def device_of(device: torch.device, slot: int) -> torch.device:
    """Return the GPU of a slot; a device that is named completely is used by all."""
    if str(device) == "cuda":
        return torch.device("cuda", slot % torch.cuda.device_count())
    return device


class _Worker:
    """A process as its parent sees it."""

    def __init__(
        self, task: Task, pipeline: Pipeline, folder: Path, n_cpus: int, watch: Watch
    ) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.connection, theirs = spawn.Pipe()
        # Functions that report to a terminal cannot be sent; the process gets its own.
        sent = replace(pipeline, watch=_nobody)
        self.process = spawn.Process(
            target=_work, args=(task, sent, folder, n_cpus, theirs), daemon=True
        )
        self.process.start()
        theirs.close()  # so that the end of the process is seen here
        self.failure = ""
        self._watch = watch
        self._shown: list[tuple[ExitStack, Report]] = []  # the innermost stage is the last

    def listen(self) -> bool:
        """Handle one message; return False if it was the last one."""
        try:
            kind, content = self.connection.recv()
        except (EOFError, OSError):
            kind, content = _FAILED, None
        if kind == _BEGIN:
            stack = ExitStack()
            self._shown.append((stack, stack.enter_context(self._watch(*content))))
        elif kind == _STEPS:
            self._shown[-1][1](content)
        elif kind == _END:
            self._shown.pop()[0].close()
        else:
            self.close()
            if kind == _FAILED:
                self.failure = content or _ended(self.process.exitcode)
        return kind not in (_DONE, _FAILED)

    def close(self) -> None:
        """Wait for the process to end, and remove its progress."""
        self.process.join(_SECONDS_TO_END)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        while self._shown:
            self._shown.pop()[0].close()
        self.connection.close()


def _ended(exit_code: int | None) -> str:
    if exit_code == -getattr(signal, "SIGKILL", 9):
        return "its process was killed, perhaps because memory ran out. Run fewer --jobs."
    return f"its process ended with exit code {exit_code}."


# --- in the other process -----------------------------------------------------------------------


def _nobody(_stage: str, _total: int) -> Any:
    raise AssertionError("replaced in the process")


def _work(
    task: Task, pipeline: Pipeline, folder: Path, n_cpus: int, connection: Connection
) -> None:
    # Ctrl-C reaches all processes of a terminal; the parent ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that temporary files are removed
    warnings.filterwarnings("ignore", module="PIL")  # as the command line does
    _use_cpus(n_cpus)
    try:
        try:
            task(replace(pipeline, watch=_remote(connection)), folder)
            connection.send((_DONE, None))
        except BrokenPipeError:
            raise
        except NescioError as error:
            connection.send((_FAILED, str(error)))
        except Exception:
            connection.send((_FAILED, traceback.format_exc()))
    except BrokenPipeError:  # the parent has ended
        os._exit(1)


def _use_cpus(n_cpus: int) -> None:
    from threadpoolctl import threadpool_limits

    limit_cpus(n_cpus)
    torch.set_num_threads(min(n_cpus, torch.get_num_threads()))
    threadpool_limits(n_cpus)


def _remote(connection: Connection) -> Watch:
    """Return a function that reports progress through the pipe."""

    @contextmanager
    def watch(stage: str, total: int) -> Iterator[Report]:
        connection.send((_BEGIN, (stage, total)))
        try:
            yield lambda steps: connection.send((_STEPS, steps))
        finally:
            connection.send((_END, None))

    return watch
