"""Extraction on a Ray cluster: its processes run the model, and this one writes the parts.

The nodes need the images and nescio. The model's file travels through Ray's object store, and so do
the results: only the images have to be on disks that all nodes can read.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nescio.errors import ParameterError
from nescio.integrations.ray import Resources, Work, connected, map_on_cluster, resources
from nescio.lab.extraction.extract import Computation, ComputeParts, OnImages, Part, Wanted
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
        The path of a model's file, or a name that `open_model` knows. The file need not exist on
        the other nodes.
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
        path = Path(self.model)
        content = path.read_bytes() if path.is_file() else None
        open_model, identity = self.open_model, _identity(runner)
        return partial(
            self._parts,
            _Job(self.model, content, open_model, self.device, identity, computation, runtime),
        )

    def _parts(self, job: _Job, wanted: Wanted, on_images: OnImages) -> Iterator[Part]:
        for part in map_on_cluster(self.ray, _open_job, job, list(wanted.items()), self.size):
            yield part
            on_images(sum(map(len, wanted[part.number])))


@dataclass(frozen=True)
class _Job:
    """What a process is told."""

    model: str
    content: bytes | None  # of the model's file
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
    runner = _opened(job)
    runtimes = Runtimes(job.runtime)
    compute: ComputeParts | None = None

    def work(item: tuple[int, Any]) -> Part:
        nonlocal compute
        number, batches = item
        if compute is None:
            compute, _ = job.computation.by(runner, runtimes, batches)
        [part] = compute({number: batches}, lambda _: None)
        return part

    return work


def _opened(job: _Job) -> Runner:
    """Open the model in a process; raise if it is not the one of the process that asked for it."""
    with tempfile.TemporaryDirectory(prefix="nescio-") as folder:
        model = job.model
        if job.content is not None and not Path(model).is_file():
            copy = Path(folder) / Path(model).name
            copy.write_bytes(job.content)
            model = str(copy)
        runner = job.open_model(model, job.device)
        ours = _identity(runner)
    other = next((name for name in job.identity if ours.get(name) != job.identity[name]), None)
    if other is not None:
        raise ParameterError(
            f"{job.model} is not the same model on a node of the cluster as here: its {other} is "
            f"{ours.get(other)!r}, not {job.identity[other]!r}. A function that makes a model must "
            "make the same one with the same weights wherever it is called."
        )
    return runner
