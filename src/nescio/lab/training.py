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

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from nescio._io.files import to_json, write_text
from nescio._version import __version__
from nescio.errors import DatasetError, FileError, NonFiniteError, ParameterError
from nescio.lab.data.split import Augmentation, Indices, Reader, Split, in_batches
from nescio.lab.extraction import AUTO_RUNTIME, Runtimes, cached_features, memory_advice
from nescio.lab.networks.network import (
    Architecture,
    Checkpoint,
    Network,
    checked_logits,
    load_training,
)
from nescio.lab.networks.weights import SpectralNorm
from nescio.lab.settings import TrainSettings
from nescio.metrics import mean_average_precision

__all__ = ["Epoch", "Run", "train"]

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
    runtime: str = AUTO_RUNTIME,
    on_images: Callable[[int], object] = lambda count: None,
    on_epoch: Callable[[Epoch], object] = lambda epoch: None,
) -> Run:
    """Train a network and keep the one of the best epoch.

    Parameters
    ----------
    train_split, val_split : Split
        Both must have the same labels.
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
    device = torch.device(device)
    folder = Path(folder)
    label_names = train_split.label_names or ()
    train_split.require_labels()
    if not val_split.require_labels(label_names).any():
        raise DatasetError(f"{val_split.title} has no image with a label, so there is no mAP.")
    if len(train_split) < 2:
        raise DatasetError(f"{train_split.title} has one image, but training needs at least two.")
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{folder} is not a folder.")
    existing = [folder / name for name in (BEST, LAST, METRICS) if (folder / name).exists()]
    if existing and not (resume or force):
        raise FileError(f"{folder} already contains a run: pass resume=True or force=True.")
    gpus = [device] if device.type == "cuda" else []
    # The state of the caller's random number generators is kept.
    with torch.random.fork_rng(devices=gpus):
        torch.manual_seed(settings.training.seed)
        untrained = initial_checkpoint(settings, label_names)  # before the files are hashed
        facts = {
            "settings": settings.as_dict(),
            "train": train_split.facts(),
            "val": val_split.facts(),
            "torch_version": torch.__version__,
            "nescio_version": __version__,
        }
        checkpoint = replace(untrained, training=facts)
        runtimes = Runtimes(runtime)  # one copy of the backbone for both splits

        def examples(split: Split, augmentation: Augmentation | None) -> Examples:
            labels = torch.from_numpy(split.require_labels(label_names).astype(np.float32))
            features = None
            if settings.model.freeze:
                arrays = cached_features(
                    checkpoint,
                    split,
                    Path(cache or folder),
                    device=device,
                    runtime=runtimes,
                    on_images=on_images,
                )
                features = torch.from_numpy(np.array(arrays)).to(device)
            reader = Reader(split, settings.preprocessing, augmentation)
            return Examples(labels, reader, device, features)

        data = examples(train_split, settings.augmentation), examples(val_split, None)
        # Another run in the folder is removed only after everything else has been checked.
        folder.mkdir(parents=True, exist_ok=True)
        for path in [] if resume else existing:
            path.unlink()
        trainer = Trainer(checkpoint, settings, data, folder, device)
        if resume and (folder / LAST).exists():
            trainer.restore()
            on_images(len(trainer.history) * len(train_split))
        trainer.run(on_images, on_epoch)
        return Run(folder, tuple(trainer.history), trainer.best())


def initial_checkpoint(settings: TrainSettings, label_names: Sequence[str]) -> Checkpoint:
    """Build the network as it is before the first epoch; raise if that is impossible."""
    model = settings.model
    architecture = Architecture(model.name, model.n_hidden, model.features)
    weights = None if model.weights == "none" else model.weights
    network = architecture.build(len(label_names), weights)
    if model.freeze and not isinstance(network, Network):
        raise ParameterError(f"{model.name} has no separate head: leave out freeze.")
    return Checkpoint(network, architecture, tuple(label_names), settings.preprocessing)


@dataclass(frozen=True)
class Examples:
    """What the trained part of a network takes, images or features, and the labels."""

    labels: Tensor
    reader: Reader
    device: torch.device
    features: Tensor | None  # of a frozen backbone, in place of the images

    def batches(
        self, batches: Sequence[Indices], seed: tuple[int, ...] = ()
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Give inputs and labels of each batch of indices; a seed decides the random crops."""
        if self.features is None:
            read = replace(self.reader, seed=seed).batches(batches)
            inputs = (self.reader.preprocessing.inputs(pixels, self.device) for pixels in read)
        else:
            inputs = (self.features[torch.as_tensor(indices)] for indices in batches)
        for indices, part in zip(batches, inputs, strict=True):
            yield part, self.labels[torch.as_tensor(indices)].to(self.device)


def check_same_run(path: Path, saved: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Raise unless settings and data are those of the saved run; only epochs may differ."""

    def flat(facts: Mapping[str, Any]) -> dict[str, Any]:
        named = {
            f"[{section}] {name}": value
            for section, values in facts["settings"].items()
            for name, value in values.items()
        }
        for part in ("train", "val"):
            hashes = (facts[part][name][:12] for name in ("data_fingerprint", "data_sample"))
            named[f"{part} data"] = "-".join(hashes)
        return named

    theirs = flat(saved)
    for name, value in flat(ours).items():
        if theirs.get(name) != value and name != "[training] epochs":
            raise ParameterError(
                f"{path} is from a run with a different {name}: {theirs.get(name)!r}, not "
                f"{value!r}. Use the same settings and data, or start again with force=True."
            )


BEST, LAST, METRICS = "best.safetensors", "last.safetensors", "metrics.jsonl"
_SPECTRAL = "spectral."


@dataclass(frozen=True)
class Epoch:
    """The metrics of one epoch: a line of metrics.jsonl."""

    epoch: int
    train_loss: float
    val_loss: float
    val_map: float


class Trainer:
    """A training run: the network, its optimiser and the epochs so far."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        settings: TrainSettings,
        data: tuple[Examples, Examples],
        folder: Path,
        device: torch.device,
    ) -> None:
        self.checkpoint = checkpoint
        self.settings = settings.training
        self.train_data, self.val_data = data
        self.folder = folder
        self.device = device
        self.n_at_once = self.settings.micro_batch or self.settings.batch_size  # images of a pass
        self.history: list[Epoch] = []
        network = checkpoint.network.to(device)
        self.trained: nn.Module = network.head if settings.model.freeze else network  # type: ignore[assignment]
        chosen = settings.model.spectral_norm
        self.spectral = SpectralNorm(network, self.trained, chosen) if chosen else None
        # The batch norms that have fixed weights: the backbone's, or all of a user's own module.
        parts = (network.backbone if isinstance(network, Network) else network).modules()
        norms = [part for part in parts if isinstance(part, nn.modules.batchnorm._BatchNorm)]
        self.fixed = norms if self.settings.batch_norm.startswith("fixed") else []
        for norm in self.fixed:
            norm.requires_grad_(False)
        rates = {self.trained: self.settings.lr_head}  # also of a user's own module
        if isinstance(self.trained, Network):
            rates[self.trained.backbone] = self.settings.lr_backbone
            rates[self.trained.head] = rates.pop(self.trained)
        self.optimiser = torch.optim.Adam(
            [{"params": list(part.parameters()), "lr": rate} for part, rate in rates.items()],
            betas=self.settings.betas,
            weight_decay=self.settings.weight_decay,
        )
        # Mixed precision needs no scaled loss with bfloat16, as it would with float16.
        self.mixed = (
            device.type == "cuda"
            and self.settings.precision == "auto"
            and torch.cuda.is_bf16_supported(including_emulation=False)
        )

    def run(self, on_images: Callable[[int], object], on_epoch: Callable[[Epoch], object]) -> None:
        """Train the epochs that remain."""
        advice = f"Set micro_batch in [training] ([train.training]) to less than {self.n_at_once}."
        for number in range(len(self.history) + 1, self.settings.epochs + 1):
            # For dropout and the like: the same if the epoch is repeated.
            mixed = np.random.SeedSequence((self.settings.seed, number))
            torch.manual_seed(int(mixed.generate_state(1, np.uint64)[0] >> 1))
            with memory_advice(advice):
                epoch = Epoch(number, self.train_epoch(number, on_images), *self.validate())
            self.history.append(epoch)
            self.save()
            on_epoch(epoch)

    def best(self) -> Epoch:
        """Return the best epoch so far; the first of several equal ones."""
        if self.settings.select == "last":
            return self.history[-1]
        if self.settings.select == "val_map":
            return max(self.history, key=lambda epoch: epoch.val_map)
        return min(self.history, key=lambda epoch: epoch.val_loss)

    def train_epoch(
        self, number: int, on_images: Callable[[int], object] = lambda count: None
    ) -> float:
        """Train on all images once; return the mean loss."""
        self.trained.train(number == 1 or self.settings.batch_norm in ("trained", "fixed_weights"))
        if self.settings.batch_norm == "fixed":
            for norm in self.fixed:
                norm.eval()
        if self.spectral:
            self.spectral.track()
        total, seed = 0.0, (self.settings.seed, number)
        n_images = len(self.train_data.labels)
        order = np.random.default_rng(seed).permutation(n_images)
        size = min(self.settings.batch_size, n_images)
        # An incomplete last batch is left out.
        batches = [order[start : start + size] for start in range(0, n_images - size + 1, size)]
        n_passes = math.ceil(size / self.n_at_once)
        passes = [part for batch in batches for part in np.array_split(batch, n_passes)]
        for place, (inputs, labels) in enumerate(self.train_data.batches(passes, seed), 1):
            # Spectral norms are computed before autocast, in float32.
            with (
                self.spectral.weights() if self.spectral else nullcontext(),
                torch.autocast(self.device.type, torch.bfloat16, enabled=self.mixed),
            ):
                logits = checked_logits(self.trained(inputs), labels.shape[1])
            loss = binary_cross_entropy_with_logits(logits.float(), labels) * (len(labels) / size)
            loss.backward()  # type: ignore[no-untyped-call]
            if place % n_passes == 0:
                self.optimiser.step()
                self.optimiser.zero_grad(set_to_none=True)
            total += float(loss.detach())
            on_images(len(labels))
        on_images(n_images - size * len(batches))
        return _finite(total / len(batches), "training")

    def validate(self) -> tuple[float, float]:
        """Return loss and mAP on the validation data; the network is in train mode afterwards."""
        if self.spectral:
            self.spectral.settle()
        self.trained.eval()
        truth = self.val_data.labels
        batches = in_batches(len(truth), self.n_at_once)
        with torch.inference_mode():
            logits = torch.cat(
                [self.trained(inputs).float().cpu() for inputs, _ in self.val_data.batches(batches)]
            )
        self.trained.train()
        loss = float(binary_cross_entropy_with_logits(logits.double(), truth.double()))
        _finite(loss, "validation")
        area = self.settings.map_area
        return loss, mean_average_precision(truth.numpy(), logits.numpy(), area=area)

    def save(self) -> None:
        """Write the best network first: after a crash, at most this epoch is repeated."""
        facts = {
            **self.checkpoint.training,
            "epoch": self.history[-1].epoch,
            "history": [asdict(epoch) for epoch in self.history],
        }
        checkpoint = replace(self.checkpoint, training=facts)
        weights = self.spectral.plain_weights() if self.spectral else None
        if self.best() is self.history[-1]:
            checkpoint.save(self.folder / BEST, weights=weights, force=True)
        checkpoint.save(self.folder / LAST, weights=weights, state=self._state(), force=True)
        self._write_metrics()

    def _write_metrics(self) -> None:
        lines = [to_json(asdict(epoch)) + "\n" for epoch in self.history]
        write_text(self.folder / METRICS, "".join(lines), force=True)

    def restore(self) -> None:
        """Restore the state at the end of the last epoch."""
        path = self.folder / LAST
        saved, weights, state = load_training(path)
        check_same_run(path, saved, self.checkpoint.training)
        if self.spectral:
            weights = {
                name.removeprefix(_SPECTRAL): value
                for name, value in state.items()
                if name.startswith(_SPECTRAL)
            }
        self.checkpoint.network.load_state_dict(weights)
        self.history = [Epoch(**epoch) for epoch in saved["history"]]
        if len(self.history) > self.settings.epochs:
            raise ParameterError(
                f"{path} already has {len(self.history)} epochs, more than {self.settings.epochs}."
            )
        optimiser = self.optimiser.state_dict()
        for key, value in state.items():
            if key.startswith("adam."):
                _, index, name = key.split(".")
                optimiser["state"].setdefault(int(index), {})[name] = value
        self.optimiser.load_state_dict(optimiser)
        self._write_metrics()  # a crash may have happened between the two files

    def _state(self) -> dict[str, Tensor]:
        state = {
            f"adam.{index}.{name}": value
            for index, values in self.optimiser.state_dict()["state"].items()
            for name, value in values.items()
        }
        if self.spectral:
            weights = self.checkpoint.network.state_dict()
            state |= {_SPECTRAL + name: value for name, value in weights.items()}
        return state


def _finite(loss: float, where: str) -> float:
    if not math.isfinite(loss):
        raise NonFiniteError(f"the {where} loss is {loss}. Lower the learning rates.")
    return loss
