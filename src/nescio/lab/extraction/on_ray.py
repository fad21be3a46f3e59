"""Extraction on a Ray cluster: its processes run the model, and this one writes the parts.

The nodes need nescio. The images and the model's file have to be on disks that all nodes can read,
under the same paths. The results travel through Ray's object store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from nescio.errors import ParameterError
from nescio.integrations.ray import Resources, Work, connected, map_on_cluster, resources
from nescio.lab.extraction.extract import Arrays, Computation, ComputeParts, OnImages
from nescio.lab.extraction.runtimes import Runtimes
from nescio.models.base import Runner

OpenModel = Callable[[str, str], Runner]
"""Opens the model of this path or name on this device: "cpu" or "cuda"."""


@contextmanager
def ray_engine(model: str, open_model: OpenModel, *, device: str = "auto") -> Iterator[OnCluster]:
    """Give an `engine` for `nescio.lab.extraction.extract` that runs a model on a Ray cluster.

    The cluster is the one at the address in the environment variable RAY_ADDRESS, or a temporary
    one on this machine. Each process loads the model once. It has one GPU if the cluster has any,
    otherwise one processor.

    Parameters
    ----------
    model : str
        The path of a model's file, or a name that `open_model` knows.
    open_model : callable
        From the model and "cpu" or "cuda" to a `Runner`: a function that the nodes can import.
    device : {"auto", "cpu", "cuda"}
        "cpu" uses no GPUs, and "cuda" needs them.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ParameterError(
            f"device must be auto, cpu or cuda on a cluster, got {device!r}: Ray chooses the GPUs."
        )
    with connected() as ray:
        size = resources(ray, gpus=device != "cpu")
        if device == "cuda" and not size.num_gpus:
            raise ParameterError("device is cuda, but the Ray cluster has no GPUs.")
        yield OnCluster(ray, size, model, open_model)


@dataclass(frozen=True)
class OnCluster:
    """An `engine` of `nescio.lab.extraction.extract`; see `ray_engine`."""

    ray: Any
    size: Resources
    model: str
    open_model: OpenModel

    @property
    def device(self) -> str:
        """Where the model runs: "cuda" or "cpu"."""
        return "cuda" if self.size.num_gpus else "cpu"

    def __call__(self, computation: Computation, runner: Runner, runtime: str) -> ComputeParts:
        """Return how parts are computed with the model that a runner runs, by a runtime."""
        identity = _identity(runner)
        job = _Job(self.model, self.open_model, self.device, identity, computation, runtime)
        return partial(self._compute, job)

    def _compute(
        self, job: _Job, parts: Mapping[int, range], on_images: OnImages
    ) -> Iterator[tuple[int, Arrays]]:
        items = list(parts.items())
        for number, arrays in map_on_cluster(self.ray, _open_job, job, items, self.size):
            yield number, arrays
            on_images(len(parts[number]))


@dataclass(frozen=True)
class _Job:
    """What a process is told."""

    model: str
    open_model: OpenModel
    device: str
    identity: dict[str, Any]
    computation: Computation
    runtime: str


def _identity(runner: Runner) -> dict[str, Any]:
    """Return what must be the same in every process for the same outputs."""
    described = {
        name: value
        for name, value in runner.describe().items()
        if name != "device" and not name.endswith("_version")
    }
    preprocessing = runner.preprocessing and runner.preprocessing.as_dict()
    return {**described, "hash": runner.content_hash(), "preprocessing": preprocessing}


def _open_job(job: _Job) -> Work:
    """Open the model; return the function that computes one part."""
    compute, _ = job.computation.by(_opened(job), Runtimes(job.runtime))

    def work(item: tuple[int, range]) -> tuple[int, Arrays]:
        [part] = compute(dict([item]), lambda _: None)
        return part

    return work


def _opened(job: _Job) -> Runner:
    """Open the model in a process; raise if it is not the one of the process that asked for it."""
    runner = job.open_model(job.model, job.device)
    ours = _identity(runner)
    name = next((name for name in job.identity if ours.get(name) != job.identity[name]), None)
    if name is not None:
        raise ParameterError(
            f"{job.model} is not the same model on a node of the cluster as here: its {name} is "
            f"{ours.get(name)!r}, not {job.identity[name]!r}. A function that makes a model must "
            "make the same one with the same weights wherever it is called."
        )
    return runner
