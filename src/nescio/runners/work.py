"""Run a model on the images of a work: by the chosen runtime, in the memory that there is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

from nescio._validation import Array
from nescio.errors import ExportError
from nescio.runners.base import Runner
from nescio.runners.images import Indices, in_batches
from nescio.runners.memory import InHalves
from nescio.runners.parts import ComputeParts, OnImages, PartialWork, ReadBatches, compute_parts
from nescio.runners.runtimes import (
    AUTO,
    ONNXRUNTIME,
    OPENVINO,
    RuntimeChoice,
    Runtimes,
    checked_run,
)

Compute = Callable[[Any], Mapping[str, Array]]


@dataclass(frozen=True)
class Task:
    """What is computed from the images of a work.

    Attributes
    ----------
    own : Runner
        Runs the model itself.
    read : callable
        Gives the images of batches of indices.
    prepared : callable
        From images as they are read to what the runner takes.
    computed : callable
        Takes a runner by the chosen runtime, and returns what to compute from images as read.
    n_passes : int
        How often the chosen runtime runs per batch; 0 if the model runs by no other than its own.
    """

    own: Runner
    read: ReadBatches
    prepared: Callable[[Array], Any]
    computed: Callable[[Runner], Compute]
    n_passes: int = 1

    @classmethod
    def plain(
        cls,
        own: Runner,
        read: ReadBatches,
        prepared: Callable[[Array], Any] = lambda pixels: pixels,
    ) -> Task:
        """Return the task to run a model on images, and nothing else."""

        def computed(fast: Runner) -> Compute:
            run = checked_run(fast, own)
            return lambda pixels: run(prepared(pixels))

        return cls(own, read, prepared, computed, n_passes=10 if own.crops else 1)


@dataclass(frozen=True)
class Done:
    """How a work was done."""

    n_computed: int
    choice: RuntimeChoice
    at_once: int | None  # images that were run together, if fewer than in a batch

    def facts(self) -> dict[str, Any]:
        """Return what a manifest says about it."""
        runtime = self.choice.runtime
        facts: dict[str, Any] = {"runtime": runtime}
        if runtime in (ONNXRUNTIME, OPENVINO):
            facts["runtime_version"] = version(runtime)
        return facts if self.at_once is None else {**facts, "images_at_once": self.at_once}


def run_task(
    work: PartialWork,
    task: Task,
    runtimes: Runtimes,
    on_images: OnImages = lambda count: None,
    elsewhere: Callable[[str], ComputeParts] | None = None,
) -> Done:
    """Compute the parts of a work that are missing.

    `elsewhere` returns how a cluster computes parts by the runtime that is chosen here.
    """
    n_missing = sum(len(work.parts[number]) for number in work.missing())
    # The parts of a result are by one runtime; older versions had only the model's own.
    earlier = work.earlier_runtime(task.own.runtime if runtimes.name == AUTO else runtimes.name)
    why = "all parts were there" if task.n_passes else "only the last layers run"
    fast, choice = task.own, RuntimeChoice(earlier or task.own.runtime, why)
    if task.n_passes and n_missing:
        batches = in_batches(work.n_images, work.batch_size)
        fast, choice = runtimes.choose(
            task.own, lambda: _examples(task, batches), task.n_passes * n_missing, earlier
        )
    work.runtime = choice.runtime
    halves = InHalves(task.computed(fast))
    compute = _by(task, halves) if elsewhere is None else elsewhere(choice.runtime)
    try:
        n_computed = work.run(compute, on_images)
    except ExportError:  # the runtime is wrong: its parts must not be continued
        work.remove()
        raise
    return Done(n_computed, choice, halves.most)


def computing(task: Task, runtime: str, batches: Sequence[Indices]) -> ComputeParts:
    """Return how parts are computed by a runtime that was chosen elsewhere.

    It is compared with the model itself on the first and the last of these batches.
    """
    fast = task.own
    if task.n_passes and runtime != task.own.runtime:
        fast, _ = Runtimes(runtime).choose(task.own, lambda: _examples(task, batches), 1)
    return _by(task, InHalves(task.computed(fast)))


def _by(task: Task, halves: InHalves) -> ComputeParts:
    whole = task.own.fixed_batch is not None
    return partial(compute_parts, task.read, halves.compute if whole else halves)


def _examples(task: Task, batches: Sequence[Indices]) -> list[Any]:
    """Return the first of some batches, and the last one, which may be smaller."""
    ends = batches if len(batches) == 1 else [batches[0], batches[-1]]
    return [task.prepared(batch.pixels) for batch in task.read(ends) if len(batch.indices)]
