"""Extraction on a Ray cluster: actors run the model, and this process writes the parts.

The nodes need the images and nescio. The model's file travels through Ray's object store, and so do
the results: only the images have to be on disks that all nodes can read.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nescio._io.tensors import decode_tensors, encode_tensors
from nescio.data.images import content_hash
from nescio.data.split import BadFile
from nescio.errors import ParameterError
from nescio.ray.cluster import Resources, Worker, connected, map_in_actors, resources
from nescio.runners.base import Runner
from nescio.runners.dispatch import make_runner
from nescio.runners.extract import Computation
from nescio.runners.parts import ComputeParts, OnImages, Part, Wanted
from nescio.runners.work import Task, computing

OpenModel = Callable[[str, str], Runner]
"""Opens the model of this path or name on this device: "cpu" or "cuda"."""


@contextmanager
def ray_engine(model: str, open_model: OpenModel, *, device: str = "auto") -> Iterator[Actors]:
    """Give an `engine` for `nescio.runners.extract` that runs a model on a Ray cluster.

    The cluster is the one at the address in the environment variable RAY_ADDRESS, or a temporary
    one on this machine. Each actor loads the model once. It has one GPU if the cluster has any,
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
        yield Actors(ray, size, model, open_model)


@dataclass(frozen=True)
class Actors:
    """An `engine` of `nescio.runners.extract`; see `ray_engine`."""

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
        job = _Job(
            self.model,
            _content(self.model),
            self.open_model,
            self.device,
            _identity(runner),
            computation,
            runtime,
        )
        return partial(self._parts, job)

    def _parts(self, job: _Job, wanted: Wanted, on_images: OnImages) -> Iterator[Part]:
        items = [
            {"number": at, "start": of[0][0], "stop": of[-1][-1] + 1, "size": len(of[0])}
            for at, of in wanted.items()
        ]
        for data in map_in_actors(self.ray, _PartWorker, job, items, self.size):
            part = _decoded(data)
            yield part
            on_images(sum(map(len, wanted[part.number])))


@dataclass(frozen=True)
class _Job:
    """What an actor is told."""

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


def _content(model: str) -> bytes | None:
    path = Path(model)
    return path.read_bytes() if path.is_file() else None


class _PartWorker(Worker):
    """Computes one part per call, in an actor that has loaded the model."""

    def open(self, job: _Job) -> None:
        self._task = _opened(job)
        self._runtime = job.runtime
        self._compute: ComputeParts | None = None

    def run(self, item: dict[str, int]) -> bytes:
        start, stop, size = item["start"], item["stop"], item["size"]
        batches = [range(at, min(at + size, stop)) for at in range(start, stop, size)]
        if self._compute is None:
            self._compute = computing(self._task, self._runtime, batches)
        [part] = self._compute({item["number"]: batches}, lambda _: None)
        bad = [asdict(file) for file in part.bad]
        return encode_tensors(part.tensors, {"number": part.number, "bad": bad})


def _decoded(data: bytes) -> Part:
    tensors, metadata = decode_tensors(data, "a part")
    return Part(metadata["number"], tensors, tuple(BadFile(**file) for file in metadata["bad"]))


def _opened(job: _Job) -> Task:
    """Open the model in an actor; raise if it is not the one of the process that asked for it."""
    with tempfile.TemporaryDirectory(prefix="nescio-") as folder:
        opened = job.open_model(_local_path(job, Path(folder)), job.device)
        runner = make_runner(opened, crops=bool(job.identity.get("crops")))
        ours = _identity(runner)
    other = next((name for name in job.identity if ours.get(name) != job.identity[name]), None)
    if other is not None:
        raise ParameterError(
            f"{job.model} is not the same model on a node of the cluster as here: its {other} is "
            f"{ours.get(other)!r}, not {job.identity[other]!r}. A function that makes a model must "
            "make the same one with the same weights wherever it is called."
        )
    return job.computation.task(runner)


def _local_path(job: _Job, folder: Path) -> str:
    """Return where the model is on this node: a copy, unless the same file is here."""
    path = Path(job.model)
    if job.content is None:
        return job.model
    copy = folder / path.name
    copy.write_bytes(job.content)
    same = path.is_file() and content_hash(path) == content_hash(copy)
    return str(path if same else copy)  # a file next to it may hold the weights
