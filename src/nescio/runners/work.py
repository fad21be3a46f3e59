"""Run a model on the images of a work: by the chosen runtime, in the memory that there is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from nescio._validation import Array
from nescio.runners.base import Runner
from nescio.runners.images import in_batches
from nescio.runners.memory import InHalves
from nescio.runners.parts import PartialWork, ReadBatches
from nescio.runners.runtimes import ONNXRUNTIME, OPENVINO, RuntimeChoice, Runtimes, checked_run

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
    on_images: Callable[[int], object] = lambda count: None,
) -> Done:
    """Compute the parts of a work that are missing."""
    n_missing = sum(len(work.parts[number]) for number in work.missing())
    earlier = work.earlier_runtime()
    fast, choice = task.own, RuntimeChoice(earlier or task.own.runtime, "only the last layers run")
    if task.n_passes and n_missing:
        fast, choice = runtimes.choose(
            task.own, lambda: _examples(work, task), task.n_passes * n_missing, earlier
        )
    work.runtime = choice.runtime
    compute = task.computed(fast)
    halves = InHalves(compute)
    n_computed = work.run(
        task.read, compute if task.own.fixed_batch is not None else halves, on_images
    )
    return Done(n_computed, choice, halves.most)


def _examples(work: PartialWork, task: Task) -> list[Any]:
    """Return the first batch of a work, and the last one, which may be smaller."""
    batches = in_batches(work.n_images, work.batch_size)
    ends = batches if len(batches) == 1 else [batches[0], batches[-1]]
    return [task.prepared(batch.pixels) for batch in task.read(ends) if len(batch.indices)]
