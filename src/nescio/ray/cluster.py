"""A connection to a Ray cluster, quiet and without traces, and work in its actors."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from nescio import errors
from nescio._io.tables import require
from nescio._threads import limit_cpus
from nescio._version import __version__
from nescio.errors import NescioError, ParameterError

# What a user has set stays. Usage statistics would be sent to Ray's makers.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # errors are raised in Python too
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # without it, Ray warns of a change to come
}
_LOGGERS = ("ray", "ray.data")


class Resources(NamedTuple):
    """What the actors of a pool take."""

    n_actors: int
    num_cpus: int  # per actor
    num_gpus: int  # per actor


@contextmanager
def connected() -> Iterator[Any]:
    """Give Ray, connected to the cluster at RAY_ADDRESS, or to a new one on this machine.

    A connection that exists already is used and stays open.
    """
    ray = require("ray", "ray")
    require("ray.data", "ray")
    with _quiet(ray):
        if ray.is_initialized():
            yield ray
            return
        with _started(ray):
            yield ray


@contextmanager
def _started(ray: Any) -> Iterator[None]:
    """Connect, and disconnect at the end; what was started here is stopped and removed."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    address = os.environ.get("RAY_ADDRESS")
    folder = None
    try:
        if address:
            with _silent():
                ray.init(address, **quiet)
        else:
            # Ray's sockets are in this folder, and their paths are limited to about 100 bytes.
            where = "/tmp" if os.path.isdir("/tmp") else None
            folder = tempfile.mkdtemp(prefix=f"nescio-ray-{os.getpid()}-", dir=where)
            with _silent():
                ray.init("local", include_dashboard=False, _temp_dir=folder, **quiet)
        yield
    except ConnectionError as error:
        raise ParameterError(
            f"there is no Ray cluster at RAY_ADDRESS={address!r}. Correct it, or unset it to use "
            "the processors of this machine."
        ) from error
    finally:
        ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _silent() -> Iterator[None]:
    """Keep what Ray's own library writes to standard error away from the user: it says its level.

    Failures are exceptions.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(nowhere)
        os.close(kept)


@contextmanager
def _quiet(ray: Any) -> Iterator[None]:
    """Keep Ray Data's progress bars and notes off the terminal."""
    context = ray.data.DataContext.get_current()
    shown = context.enable_progress_bars
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    try:
        context.enable_progress_bars = False
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        context.enable_progress_bars = shown
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def resources(ray: Any, *, gpus: bool) -> Resources:
    """Return one actor per GPU if they are wanted and there are any, else one per processor."""
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    with_gpus = [node for node in alive if node.get("GPU", 0) >= 1] if gpus else []
    if with_gpus:
        n_gpus = sum(int(node["GPU"]) for node in with_gpus)
        # The processors of each node are divided among its GPUs: they read the images.
        num_cpus = min(int(node.get("CPU", 0) // node["GPU"]) for node in with_gpus)
        return Resources(n_gpus, num_cpus, 1)
    n_cpus = sum(int(node.get("CPU", 0)) for node in alive)
    if not n_cpus:
        raise ParameterError("the Ray cluster has no processors to work with (CPU).")
    return Resources(n_cpus, 1, 0)


class Worker(ABC):
    """What an actor does: it opens a job once, and then makes bytes from each item.

    An error of nescio is a row of the result: Ray would log an exception, and repeat its traceback.
    """

    def __init__(self, job: Any, version: str, n_cpus: int) -> None:
        limit_cpus(n_cpus)
        self._problem: NescioError | None = None
        try:
            _check_version(version)
            self.open(_received(job))
        except NescioError as error:
            self._problem = error

    @abstractmethod
    def open(self, job: Any) -> None:
        """Prepare the work that `job` describes."""

    @abstractmethod
    def run(self, item: dict[str, int]) -> bytes:
        """Return the result of one item."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Do the work of one item, which is the only row of the batch."""
        data, error = b"", None
        try:
            if self._problem is not None:
                raise self._problem
            data = self.run({name: int(column[0]) for name, column in batch.items()})
        except NescioError as raised:
            error = raised
        return {
            # A tensor and not a column of bytes, which may not be larger than 2 GB.
            "data": np.frombuffer(data or b"\0", np.uint8)[None],
            "error": [type(error).__name__ if error else ""],
            "message": [str(error) if error else ""],
        }


def _check_version(version: str) -> None:
    if version != __version__:
        raise ParameterError(
            f"a node of the cluster has nescio {__version__}, but this command is of nescio "
            f"{version}. Install the same version on all nodes."
        )


def _received(job: Any) -> Any:
    """Return what an actor is told; raise if this node lacks a module that it refers to."""
    ray = require("ray", "ray")
    try:
        return ray.get(job)
    except ray.exceptions.RayError as error:
        raise ParameterError(
            f"a node of the cluster cannot begin: {_last_line(error)}. Install your own modules on "
            "all nodes, or put their folder on PYTHONPATH before Ray is started."
        ) from error


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]


def map_in_actors(
    ray: Any,
    worker: type[Worker],
    job: Any,
    items: Sequence[Mapping[str, int]],
    size: Resources,
    *,
    in_order: bool = False,
) -> Iterator[bytes]:
    """Give what a pool of actors makes from each item.

    The job travels through Ray's object store, once to each node. Ray starts lost actors again, on
    another node if need be, and repeats what they had not done.
    """
    if not items:
        return
    arguments = {"job": ray.put(job), "version": __version__, "n_cpus": max(1, size.num_cpus)}
    # Blocks in the object store, not a data source: reading would wait for the processors that the
    # actors hold. Beyond some thousand blocks, Ray's own work per block is felt.
    dataset = ray.data.from_items(list(items), override_num_blocks=min(len(items), 10_000))
    dataset.context.execution_options.preserve_order = in_order
    made = dataset.map_batches(
        worker,
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=min(len(items), size.n_actors)),
        num_cpus=size.num_cpus,
        num_gpus=size.num_gpus or None,
        fn_constructor_kwargs=arguments,
    )
    try:
        for row in made.iter_rows():
            if row["error"]:
                raise getattr(errors, row["error"], NescioError)(row["message"])
            yield np.asarray(row["data"], np.uint8).tobytes()
    except ray.exceptions.RayError as error:
        raise NescioError(f"Ray gave up, because an actor failed: {_last_line(error)}") from error
