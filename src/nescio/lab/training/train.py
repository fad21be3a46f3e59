"""Train a multi-label network; a run that was interrupted and resumed gives the same result.

On a CPU the result is the same to the last byte. On a GPU, its libraries may round differently from
run to run.

All random numbers (the order of the images, their crops, dropout) are drawn from the seed and the
number of the epoch, so a resumed run repeats what it would have done. After each epoch the run's
folder contains

    best.safetensors     the network of the best epoch so far
    last.safetensors     the network of the last epoch and the state of the optimiser
    metrics.jsonl        one line per epoch
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nescio._version import __version__
from nescio.errors import DatasetError, FileError, ParameterError
from nescio.lab.data.batches import Augmentation, Reader
from nescio.lab.data.split import Split
from nescio.lab.extraction.extract import cached_features
from nescio.lab.extraction.runtimes import AUTO, Runtimes
from nescio.lab.networks.checkpoint import Checkpoint
from nescio.lab.networks.network import Network
from nescio.lab.training.settings import TrainSettings
from nescio.lab.training.trainer import (
    BEST,
    LAST,
    METRICS,
    Epoch,
    Examples,
    FeatureExamples,
    ImageExamples,
    Trainer,
    World,
)

TRAINING_VERSION = 1
"""Raise it if the same settings and data give another network than before."""


@dataclass(frozen=True)
class Run:
    """The result of a training run."""

    folder: Path
    history: tuple[Epoch, ...]
    best: Epoch

    @property
    def checkpoint(self) -> Path:
        """The file of the best epoch's network."""
        return self.folder / BEST


def train(
    settings: TrainSettings,
    train_split: Split,
    val_split: Split,
    folder: str | Path,
    *,
    device: torch.device | str = "cpu",
    resume: bool = False,
    force: bool = False,
    cache: str | Path | None = None,
    runtime: str = AUTO,
    on_images: Callable[[int], object] = lambda count: None,
    on_epoch: Callable[[Epoch], object] = lambda epoch: None,
) -> Run:
    """Train a network and keep the one of the best epoch.

    Parameters
    ----------
    settings : TrainSettings
    train_split, val_split : Split
        Both must have the same labels.
    folder : path
        The folder of the run.
    device : device
        Under torchrun with several GPUs, each process uses its own.
    resume : bool
        Continue the run in the folder. Its settings must be the same, except for more epochs.
    force : bool
        Start again, and replace the run in the folder.
    cache : path, optional
        The folder for the features of a frozen backbone; by default the run's folder.
    runtime : str
        What runs a frozen backbone, as for `extract`. Training itself is always done by torch.
    on_images, on_epoch : callable
        Called with the number of images just trained on (or left out, at the end of an epoch,
        because the last batch is incomplete), before that with those just run by a frozen backbone;
        and with each epoch's metrics.
    """
    world = World.from_environment()
    device = world.device(torch.device(device))
    folder = Path(folder)
    label_names = train_split.label_names or ()
    world.check_batch_size(settings.training.batch_size)
    _check_trainable(train_split, val_split, world)
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{folder} is not a folder.")
    existing = [folder / name for name in (BEST, LAST, METRICS) if (folder / name).exists()]
    if existing and not (resume or force):
        raise FileError(
            f"{folder} already contains a run. Pass resume=True to continue it, or "
            "force=True to start again."
        )
    gpus = [device] if device.type == "cuda" else []
    # The state of the caller's random number generators is kept.
    with world.joined(device), torch.random.fork_rng(devices=gpus):
        torch.manual_seed(settings.training.seed)
        network = initial_network(settings, len(label_names))
        checkpoint = Checkpoint(
            network,
            settings.model.architecture,
            tuple(label_names),
            settings.preprocessing,
            _training_facts(settings, train_split, val_split),
        )
        cache = folder if cache is None else Path(cache)
        examples = partial(
            _examples, checkpoint, settings, cache, device, Runtimes(runtime), on_images
        )
        data = examples(train_split, settings.augmentation), examples(val_split, None)
        # Another run in the folder is removed only after everything else has been checked.
        if world.leads:
            folder.mkdir(parents=True, exist_ok=True)
            for path in [] if resume else existing:
                path.unlink()
        world.wait()
        trainer = Trainer(checkpoint, settings, data, folder, device, world)
        if resume and (folder / LAST).exists():
            trainer.restore()
            on_images(len(trainer.history) * len(train_split))
        world.wait()
        trainer.run(on_images, on_epoch)
        return Run(folder, tuple(trainer.history), trainer.best())


def _check_trainable(train_split: Split, val_split: Split, world: World) -> None:
    train_split.require_labels()
    truth = val_split.require_labels(train_split.label_names)
    if not truth.any():
        raise DatasetError(f"{val_split.title} has no image with a label, so there is no mAP.")
    least = 2 * world.size
    if len(train_split) < least:
        raise DatasetError(
            f"{train_split.title} has {len(train_split)} images, but training needs at least "
            f"{least} (two per process)."
        )


def initial_network(settings: TrainSettings, n_labels: int) -> nn.Module:
    """Build the network as it is before the first epoch; raise if that is impossible."""
    weights = None if settings.model.weights == "none" else settings.model.weights
    network = settings.model.architecture.build(n_labels, weights)
    if settings.model.freeze and not isinstance(network, Network):
        raise ParameterError(
            f"{settings.model.name} has no separate head to train on frozen features. Leave out "
            "freeze."
        )
    return network


def _training_facts(settings: TrainSettings, train: Split, val: Split) -> dict[str, Any]:
    return {
        "settings": settings.as_dict(),
        **{
            name: split.manifest() | {"skipped": [asdict(bad) for bad in split.skipped]}
            for name, split in (("train", train), ("val", val))
        },
        "torch_version": torch.__version__,
        "nescio_version": __version__,
    }


def _examples(
    checkpoint: Checkpoint,
    settings: TrainSettings,
    cache: Path,
    device: torch.device,
    runtimes: Runtimes,
    on_images: Callable[[int], object],
    split: Split,
    augmentation: Augmentation | None,
) -> Examples:
    """Return the examples of a split: its images, or what a frozen backbone gives for them."""
    truth = split.require_labels(checkpoint.label_names)
    if not settings.model.freeze:
        return ImageExamples(Reader(split, settings.preprocessing, augmentation), truth, device)
    # Of several processes, one computes the features and the others wait for its file.
    features = cached_features(
        checkpoint, split, cache, device=device, runtime=runtimes, on_images=on_images
    )
    return FeatureExamples(features, truth, device)
