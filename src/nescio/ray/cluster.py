"""A connection to a Ray cluster, quiet and without traces."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from nescio._io.tables import require
from nescio.errors import ParameterError

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
            ray.init(address, **quiet)
        else:
            # Ray's sockets are in this folder, and their paths are limited to about 100 bytes.
            where = "/tmp" if os.path.isdir("/tmp") else None
            folder = tempfile.mkdtemp(prefix="nescio-ray-", dir=where)
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


def map_in_actors(
    ray: Any, actor: type, arguments: dict[str, Any], items: list[dict[str, Any]], size: Resources
) -> Iterator[dict[str, Any]]:
    """Give the rows that a pool of actors makes from each of the items, in any order.

    Ray starts lost actors again, on another node if need be, and repeats what they had not done.
    """
    if not items:
        return
    # Blocks in the object store, not a data source: reading would wait for the processors that the
    # actors hold. Beyond some thousand blocks, Ray's own work per block is felt.
    dataset = ray.data.from_items(items, override_num_blocks=min(len(items), 10_000))
    made = dataset.map_batches(
        actor,
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=min(len(items), size.n_actors)),
        num_cpus=size.num_cpus,
        num_gpus=size.num_gpus or None,
        fn_constructor_kwargs=arguments,
    )
    yield from made.iter_rows()
