"""What a benchmark needs, measured on one batch before it starts: time, memory, disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nescio.lab.data.split import Reader
from nescio.lab.networks.network import CheckpointRunner
from nescio.lab.perturbation import grid_steps
from nescio.lab.training import Examples, Trainer, initial_checkpoint

if TYPE_CHECKING:
    from nescio.lab.benchmark.run import Pipeline

_COPIES = 4  # of the weights in training: also the gradients, and two moments of Adam


class Cost(NamedTuple):
    """What one image costs a network."""

    gradient: float  # seconds of a pass with gradients
    forward: float  # and of one without
    activations: float  # bytes that a pass with gradients keeps
    outputs: float  # bytes of what is extracted
    weights: int  # bytes of the network


def measured(pipeline: Pipeline, n_images: int = 4) -> Cost:
    """Return the cost of an image, on one batch of the training images."""
    settings, device = pipeline.settings.updated({"model": {"freeze": False}}), pipeline.device
    few = pipeline.data.train.subset(range(min(n_images, len(pipeline.data.train))))
    labels = torch.from_numpy(few.require_labels().astype(np.float32))
    if pipeline.data.source.network:
        checkpoint, _ = pipeline.network()
    else:
        with torch.random.fork_rng(devices=[]):
            checkpoint = initial_checkpoint(settings, few.label_names or ())
    reader = Reader(few, settings.preprocessing, settings.augmentation)
    examples = Examples(labels, reader, device, None)
    trainer = Trainer(checkpoint, settings, (examples, examples), Path(), device)
    weights = {part.data_ptr(): part.nbytes for part in trainer.trained.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        trainer.train_epoch(1)
    gradient = _seconds(lambda: trainer.train_epoch(1), device)
    runner = CheckpointRunner(checkpoint, features=pipeline.spec.features, device=device)
    read = Reader(few, settings.preprocessing)
    arrays = runner.run(next(read.batches([range(len(few))])))
    forward = _seconds(lambda: runner.run(next(read.batches([range(len(few))]))), device)
    activations = sum(size for place, size in kept.items() if place not in weights)
    outputs = sum(array.nbytes for array in arrays.values())
    n = len(few)
    return Cost(gradient / n, forward / n, activations / n, outputs / n, sum(weights.values()))


def estimate(pipelines: Sequence[Pipeline]) -> str:
    """Return a sentence on what these networks need, if nothing of their work is done yet."""
    cost = measured(pipelines[0])
    if cost.gradient < 0.1:  # of a small network, mostly what does not depend on the images
        cost = measured(pipelines[0], 64)
    seconds = disk = 0.0
    for pipeline in pipelines:
        spec, data, settings = pipeline.spec, pipeline.data, pipeline.settings
        n_train, n_val = len(data.train), len(data.val)
        n_tested = len(data.test) + sum(map(len, data.ood.values()))
        # How many images pass with gradients and without, and how many rows are written.
        gradients, forward, written = 0, n_train + n_val, n_train + n_val + n_tested
        if not (settings.model.freeze or data.source.network):
            gradients = settings.training.epochs * n_train
            forward = settings.training.epochs * n_val
        if aggregates := spec.aggregates():
            steps = grid_steps(spec.tune, aggregates)
            n_tuned = spec.tune.n_steps(n_val)
            gradients += len({direction for direction, _ in steps}) * (n_tuned + n_tested)
            forward += len(steps) * n_tuned
            written += 2 * len(aggregates) * n_tested
        seconds += gradients * cost.gradient + (forward + written) * cost.forward
        disk += written * cost.outputs + 2 * _COPIES * cost.weights
    batch = pipeline.batch_size
    if not (settings.model.freeze or data.source.network):
        batch = max(batch, settings.training.micro_batch or settings.training.batch_size)
    memory = _COPIES * cost.weights + batch * cost.activations
    return (
        f"Estimated from a batch: {timedelta(seconds=round(seconds))} of computing (h:mm:ss), "
        f"{memory / 1e9:.1f} GB of memory for a batch of {batch}, and {disk / 1e9:.1f} GB of disk."
    )


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started
