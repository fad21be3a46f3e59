"""Several networks at once, each in a process of its own; and the progress of a run."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

import torch
from threadpoolctl import threadpool_limits

from nescio._threads import available_cpus, limit_cpus
from nescio.errors import NescioError

if TYPE_CHECKING:
    from nescio.lab.benchmark.run import Pipeline

Advance = Callable[[int], object]
"""Called with the number of steps just done."""

Watch = Callable[[str, int], AbstractContextManager[Advance]]
"""Called with the name of a stage and its number of steps; yields a function to report steps to.

The number of steps is 0 if it is not known.
"""


def unwatched(_stage: str, _total: int) -> AbstractContextManager[Advance]:
    """Advance to nobody."""
    return nullcontext(lambda steps: None)


Task = Callable[["Pipeline", Path], object]


def run_in_processes(
    task: Task, pipelines: Sequence[Pipeline], folder: Path, jobs: int, watch: Watch
) -> dict[int, str]:
    """Call `task(pipeline, folder)` for each pipeline, each in a process of its own.

    At most `jobs` run at once, and the processors are divided among them. Pipelines on "cuda" are
    distributed over all GPUs. Every process is started anew (spawn), because CUDA and the threads
    of torch do not survive a fork. Returns the reason for each pipeline that failed, by its index.
    """
    jobs = min(jobs, len(pipelines))
    n_cpus = max(1, available_cpus() // jobs)
    spawn = multiprocessing.get_context("spawn")
    processes: list[multiprocessing.process.BaseProcess] = []
    slots: SimpleQueue[int] = SimpleQueue()
    for slot in range(jobs):
        slots.put(slot)

    def run(pipeline: Pipeline) -> str:
        """Run one process to its end; return why it failed, or an empty text."""
        slot = slots.get()
        # Functions that report to a terminal cannot be sent; the process gets its own.
        placed = replace(pipeline, device=device_of(pipeline.device, slot), watch=unwatched)
        ours, theirs = spawn.Pipe(duplex=False)
        process = spawn.Process(
            target=_work, args=(task, placed, folder, n_cpus, theirs), daemon=True
        )
        process.start()
        processes.append(process)
        theirs.close()  # so that the end of the process is seen here
        try:
            failure = _listen(ours, watch)
            process.join()
        finally:
            slots.put(slot)
        if not failure and process.exitcode == -getattr(signal, "SIGKILL", 9):
            return "its process was killed, perhaps because memory ran out. Run fewer --jobs."
        if not failure and process.exitcode:
            return f"its process ended with exit code {process.exitcode}."
        return failure

    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(run, pipeline) for pipeline in pipelines]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            failures = [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.terminate()
            for process in processes:
                process.join()
            raise
    return {index: failure for index, failure in enumerate(failures) if failure}


def device_of(device: torch.device, slot: int) -> torch.device:
    """Return the GPU of a slot; a device that is named completely is used by all."""
    if str(device) == "cuda":
        return torch.device("cuda", slot % torch.cuda.device_count())
    return device


def _listen(connection: Connection, watch: Watch) -> str:
    """Show the progress of a process until it ends; return the error that it sent, if any.

    It sends the name and the steps of each stage, then numbers of steps.
    """
    failure = ""
    with ExitStack() as shown:
        while True:
            try:
                message = connection.recv()
            except EOFError:
                return failure
            if isinstance(message, tuple):
                shown.close()
                report = shown.enter_context(watch(*message))
            elif isinstance(message, int):
                report(message)
            else:
                failure = message


def _work(
    task: Task, pipeline: Pipeline, folder: Path, n_cpus: int, connection: Connection
) -> None:
    """Run one network; this is the main function of the other process."""
    # Ctrl-C reaches all processes of a terminal; the parent ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that temporary files are removed
    warnings.filterwarnings("ignore", module="PIL")  # as the command line does
    limit_cpus(n_cpus)
    torch.set_num_threads(min(n_cpus, torch.get_num_threads()))

    @contextmanager
    def watch(stage: str, total: int) -> Iterator[Advance]:
        connection.send((stage, total))
        yield connection.send

    try:
        with threadpool_limits(n_cpus):
            task(replace(pipeline, watch=watch), folder)
    except NescioError as error:
        connection.send(str(error))
    except Exception:
        connection.send(traceback.format_exc())
