"""Training a multi-label network, to the same result whether or not it was interrupted.

(To the last byte on a CPU; a GPU's own libraries may round differently from run to run.)

Everything random is drawn from the seed and the epoch, so a run that goes on after a crash repeats
what it would have done: the order of the images, their crops, dropout. After each epoch the run's
folder holds

    best.safetensors     the network of the best epoch so far
    last.safetensors     the network of the last one and the state of the optimiser
    metrics.jsonl        a line an epoch
    tensorboard/         the same for TensorBoard, if that is installed
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from nescio._version import __version__
from nescio.data.split import Split
from nescio.errors import DatasetError, FileError, ParameterError
from nescio.networks.checkpoint import Checkpoint
from nescio.networks.network import Network, prepared
from nescio.runners.feature_cache import cached_features
from nescio.runners.images import Reader, readable
from nescio.training.distributed import World
from nescio.training.examples import Examples, FeatureExamples, ImageExamples
from nescio.training.settings import TrainSettings
from nescio.training.trainer import BEST, LAST, METRICS, TENSORBOARD, Epoch, Trainer


@dataclass(frozen=True)
class Run:
    """What a training run gave."""

    folder: Path
    history: tuple[Epoch, ...]
    best: Epoch

    @property
    def checkpoint(self) -> Path:
        """The network of the best epoch."""
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
    skip_bad: bool = False,
    cache: str | Path | None = None,
    on_reading: Callable[[int], object] = lambda count: None,
    on_images: Callable[[int], object] = lambda count: None,
    on_epoch: Callable[[Epoch], object] = lambda epoch: None,
) -> Run:
    """Train a network and keep the best epoch's.

    Parameters
    ----------
    settings : TrainSettings
    train_split, val_split : Split
        With the same labels.
    folder : path
        Of the run.
    device : device
        Under torchrun with several GPUs, each process takes its own.
    resume : bool
        Go on with the run in the folder; its settings must be the same, but for more epochs.
    force : bool
        Start over, and replace the run in the folder.
    skip_bad : bool
        Leave out images that cannot be read.
    cache : path, optional
        Where a frozen backbone's features are kept; in the run's folder, if not given.
    on_reading, on_images, on_epoch : callable
        Called with the number of images just read before training begins (for `skip_bad` and a
        frozen backbone), with the number just trained on, and with each epoch's metrics.
    """
    world = World.from_environment()
    device = world.device(torch.device(device))
    folder = Path(folder)
    label_names = train_split.label_names or ()
    world.check_batch_size(settings.training.batch_size)
    _check_trainable(train_split, val_split, world)
    with world.joined(device), _own_random_state(device):
        world.first_in_line(lambda: _check_folder(folder, replaceable=resume or force))
        if skip_bad:
            train_split, val_split = (
                readable(Reader(split, settings.preprocessing, skip_bad=True), on_reading)
                for split in (train_split, val_split)
            )
            _check_trainable(train_split, val_split, world)
        torch.manual_seed(settings.training.seed)
        network = _initial_network(settings, len(label_names))
        checkpoint = Checkpoint(
            network,
            settings.model.architecture,
            tuple(label_names),
            settings.preprocessing,
            _training_facts(settings, train_split, val_split),
        )
        cache = folder if cache is None else Path(cache)
        splits = train_split, val_split
        data = _examples(checkpoint, settings, splits, cache, device, world, on_reading)
        # Only now that all else is in order is another run lost.
        world.first_in_line(lambda: _prepare_folder(folder, keep=resume))
        trainer = Trainer(checkpoint, settings, data, folder, device, world)
        if resume and (folder / LAST).exists():
            trainer.restore()
        world.wait()
        trainer.run(on_images, on_epoch)
        return Run(folder, tuple(trainer.history), trainer.best())


@contextmanager
def _own_random_state(device: torch.device) -> Iterator[None]:
    """Leave the caller's random numbers alone."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield


def _check_trainable(train_split: Split, val_split: Split, world: World) -> None:
    train_split.require_labels()
    truth = val_split.require_labels(train_split.label_names)
    if not truth.any():
        raise DatasetError(f"{val_split.title} has no image with a label: there is no mAP to take.")
    least = 2 * world.size
    if len(train_split) < least:
        raise DatasetError(
            f"{train_split.title} has {len(train_split)} images; training on {world.size} "
            f"processes takes {least} at least."
        )


def _run_files(folder: Path) -> list[Path]:
    names = (BEST, LAST, METRICS, TENSORBOARD)
    return [folder / name for name in names if (folder / name).exists()]


def _check_folder(folder: Path, *, replaceable: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{folder} is not a folder.")
    if _run_files(folder) and not replaceable:
        raise FileError(
            f"{folder} holds a run already. Pass resume=True (--resume) to go on with it, or "
            "force=True (--force) to start over."
        )


def _prepare_folder(folder: Path, *, keep: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in [] if keep else _run_files(folder):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _initial_network(settings: TrainSettings, n_labels: int) -> nn.Module:
    weights = None if settings.model.weights == "none" else settings.model.weights
    network = settings.model.architecture.build(n_labels, weights)
    if settings.model.freeze and not isinstance(network, Network):
        raise ParameterError(
            f"{settings.model.name} has no head of its own to train on frozen features; "
            "leave freeze out."
        )
    return network


def _training_facts(settings: TrainSettings, train: Split, val: Split) -> dict[str, Any]:
    return {
        "settings": settings.as_dict(),
        "train": train.manifest() | {"skipped": [asdict(bad) for bad in train.skipped]},
        "val": val.manifest() | {"skipped": [asdict(bad) for bad in val.skipped]},
        "torch_version": torch.__version__,
        "nescio_version": __version__,
    }


def _examples(
    checkpoint: Checkpoint,
    settings: TrainSettings,
    splits: tuple[Split, Split],
    cache: Path,
    device: torch.device,
    world: World,
    on_reading: Callable[[int], object],
) -> tuple[Examples, Examples]:
    """What to train on and what to validate on."""
    names = checkpoint.label_names
    train_split, val_split = splits
    if not settings.model.freeze:
        augmented = Reader(train_split, settings.preprocessing, settings.augmentation)
        return (
            ImageExamples(augmented, train_split.require_labels(names), device),
            ImageExamples(
                Reader(val_split, settings.preprocessing), val_split.require_labels(names), device
            ),
        )
    backbone = prepared(checkpoint.network.backbone, device)  # type: ignore[arg-type]
    found = []
    for split in splits:

        def cached(split: Split = split) -> NDArray[np.float32]:
            return cached_features(backbone, checkpoint, split, cache, device, on_reading)

        features = world.first_in_line(cached)
        if features is None:  # computed by the first process, and to be read by the others
            features = cached()
        found.append(FeatureExamples(features, split.require_labels(names), device))
    return found[0], found[1]
