"""Training a multi-label network, to the same result whether or not it was interrupted.

Everything random is drawn from the seed and the epoch, so a run that goes on after a crash repeats
what it would have done: the order of the images, their crops, dropout. After each epoch the run's
folder holds

    best.safetensors     the network of the best epoch so far
    last.safetensors     the network of the last one and the state of the optimiser
    metrics.jsonl        a line an epoch
    tensorboard/         the same for TensorBoard, if that is installed
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from nescio.data.split import Split
from nescio.errors import FileError, NonFiniteError, ParameterError
from nescio.files import replacing
from nescio.metrics import mean_average_precision
from nescio.models.checkpoint import Checkpoint, load_with_state
from nescio.models.distributed import World
from nescio.models.examples import Examples, FeatureExamples, ImageExamples, cached_features
from nescio.models.images import Reader, in_batches, readable
from nescio.models.network import prepared
from nescio.models.settings import TrainSettings
from nescio.tables import to_json
from nescio.version import __version__

BEST, LAST, METRICS = "best.safetensors", "last.safetensors", "metrics.jsonl"
_LOWER_IS_BETTER = {"val_loss": True, "val_map": False}


@dataclass(frozen=True)
class Epoch:
    """A line of metrics.jsonl."""

    epoch: int
    train_loss: float
    val_loss: float
    val_map: float


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
    on_images, on_epoch : callable
        Called with the number of images just trained on, and with each epoch's metrics.
    """
    world = World.from_environment()
    device = world.device(torch.device(device))
    folder = Path(folder)
    label_names = train_split.label_names or ()
    train_split.require_labels()
    val_split.require_labels(label_names)
    world.share_of(settings.training.batch_size)
    with world.joined(device), _own_random_state(device):
        if world.leads:
            _prepare_folder(folder, resume=resume, force=force)
        world.wait()
        if skip_bad:
            train_split, val_split = (
                readable(Reader(split, settings.preprocessing, skip_bad=True))
                for split in (train_split, val_split)
            )
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
        data = _examples(checkpoint, settings, train_split, val_split, cache, device, world)
        trainer = Trainer(checkpoint, settings, data, folder, device, world)
        if resume and (folder / LAST).exists():
            trainer.restore()
        world.wait()
        return trainer.run(on_images, on_epoch)


@contextmanager
def _own_random_state(device: torch.device) -> Iterator[None]:
    """Leave the caller's random numbers alone."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield


def _prepare_folder(folder: Path, *, resume: bool, force: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{folder} is not a folder.")
    names = (BEST, LAST, METRICS, "tensorboard")
    there = [folder / name for name in names if (folder / name).exists()]
    if there and not resume:
        if not force:
            raise FileError(
                f"{folder} holds a run already. Pass resume=True (--resume) to go on with it, or "
                "force=True (--force) to start over."
            )
        for path in there:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    folder.mkdir(parents=True, exist_ok=True)


def _initial_network(settings: TrainSettings, n_labels: int) -> nn.Module:
    weights = None if settings.model.weights == "none" else settings.model.weights
    network = settings.model.architecture.build(n_labels, weights)
    if settings.model.freeze and not hasattr(network, "head"):
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
    train_split: Split,
    val_split: Split,
    cache: Path,
    device: torch.device,
    world: World,
) -> tuple[Examples, Examples]:
    """What to train on and what to validate on."""
    names = checkpoint.label_names
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
    for split in (train_split, val_split):
        if world.leads:
            cached_features(backbone, checkpoint, split, cache, device)
        world.wait()
        features = cached_features(backbone, checkpoint, split, cache, device)
        found.append(FeatureExamples(features, split.require_labels(names), device))
    return found[0], found[1]


class Trainer:
    """One run: the network, its optimiser and what they have come to."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        settings: TrainSettings,
        data: tuple[Examples, Examples],
        folder: Path,
        device: torch.device,
        world: World,
    ) -> None:
        self.checkpoint = checkpoint
        self.settings = settings.training
        self.train_data, self.val_data = data
        self.folder = folder
        self.device = device
        self.world = world
        self.history: list[Epoch] = []
        network = checkpoint.network.to(device)
        self.trained: nn.Module = network.head if settings.model.freeze else network  # type: ignore[assignment]
        self.trained.requires_grad_(True)
        self.optimiser = torch.optim.Adam(
            _parameter_groups(self.trained, self.settings),
            betas=self.settings.betas,
            weight_decay=self.settings.weight_decay,
        )
        mixed = device.type == "cuda" and self.settings.precision == "auto"
        self.half = torch.bfloat16 if mixed and torch.cuda.is_bf16_supported() else torch.float16
        self.mixed = mixed
        self.scaler = torch.amp.GradScaler(enabled=mixed and self.half == torch.float16)

    # --- the run ---

    def run(self, on_images: Callable[[int], object], on_epoch: Callable[[Epoch], object]) -> Run:
        """Every epoch that is left."""
        parallel = self.world.parallel(self.trained, self.device)
        with ExitStack() as stack:
            board = stack.enter_context(_tensorboard(self.folder, len(self.history), self.world))
            for number in range(len(self.history) + 1, self.settings.epochs + 1):
                # Dropout and the like: each process its own, the same when the epoch is repeated.
                torch.manual_seed(_mixed_seed(self.settings.seed, number, self.world.rank))
                train_loss = self._train_epoch(parallel, number, on_images)
                val_loss, val_map = self.validate()
                epoch = Epoch(number, train_loss, val_loss, val_map)
                self.history.append(epoch)
                if self.world.leads:
                    self.save()
                    board(epoch)
                    on_epoch(epoch)
            self.world.wait()
        return Run(self.folder, tuple(self.history), self.best())

    def best(self) -> Epoch:
        """The best epoch so far; of equals, the first."""
        sign = 1 if _LOWER_IS_BETTER[self.settings.select] else -1
        return min(self.history, key=lambda epoch: sign * getattr(epoch, self.settings.select))

    def _train_epoch(
        self, parallel: nn.Module, number: int, on_images: Callable[[int], object]
    ) -> float:
        parallel.train()
        total = 0.0
        batches = self._batches_of(number)
        for inputs, labels in self.train_data.batches(
            [batch[self.world.rank :: self.world.size] for batch in batches],
            seed=(self.settings.seed, number),
        ):
            self.optimiser.zero_grad(set_to_none=True)
            with torch.autocast(self.device.type, self.half, enabled=self.mixed):
                logits = parallel(inputs)[0]
            loss = binary_cross_entropy_with_logits(logits.float(), labels)
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            self.scaler.step(self.optimiser)
            self.scaler.update()
            total += float(loss.detach())
            on_images(len(inputs) * self.world.size)
        mean = math.fsum(self.world.gather(total)) / (self.world.size * len(batches))
        if not math.isfinite(mean):
            raise NonFiniteError(
                f"the loss of epoch {number} is {mean}. Lower the learning rates; "
                f"{self.folder / LAST} holds the epoch before."
            )
        return mean

    def _batches_of(self, number: int) -> list[NDArray[np.int64]]:
        """An epoch's batches over all processes, in random order; the rest of the last is left."""
        n_images = len(self.train_data)
        order = np.random.default_rng((self.settings.seed, number)).permutation(n_images)
        size = min(self.settings.batch_size, n_images - n_images % self.world.size)
        return [order[start : start + size] for start in range(0, n_images - size + 1, size)]

    def validate(self) -> tuple[float, float]:
        """Loss and mAP on the validation data; the network is back in train mode afterwards."""
        self.trained.eval()
        batches = in_batches(len(self.val_data), self.settings.batch_size)
        mine = batches[self.world.rank :: self.world.size]
        logits, labels = [], []
        with torch.inference_mode():
            for inputs, truth in self.val_data.batches(mine):
                logits.append(self.trained(inputs)[0].float().cpu())
                labels.append(truth.cpu())
        self.trained.train()
        gathered = self.world.gather((logits, labels))
        # Everyone's batches back in their order, so that the sum does not depend on the processes.
        all_logits, all_labels = (
            torch.cat(_interleaved([part[at] for part in gathered])) for at in (0, 1)
        )
        loss = float(binary_cross_entropy_with_logits(all_logits.double(), all_labels.double()))
        return loss, mean_average_precision(all_labels.numpy(), all_logits.numpy())

    # --- on disk ---

    def save(self) -> None:
        """Write the best network first: if the rest is lost, this epoch is only repeated."""
        facts = {
            **self.checkpoint.training,
            "epoch": self.history[-1].epoch,
            "history": [asdict(epoch) for epoch in self.history],
        }
        checkpoint = replace(self.checkpoint, training=facts)
        if self.best() is self.history[-1]:
            checkpoint.save(self.folder / BEST, force=True)
        checkpoint.save(self.folder / LAST, state=self._state(), force=True)
        with replacing(self.folder / METRICS, force=True) as temporary:
            lines = [to_json(asdict(epoch)) + "\n" for epoch in self.history]
            temporary.write_text("".join(lines), "utf-8")

    def restore(self) -> None:
        """Go back to where the last epoch ended."""
        path = self.folder / LAST
        module = self.checkpoint.architecture.name.removeprefix("module:")
        own = module != self.checkpoint.architecture.name
        saved, state = load_with_state(path, module=module if own else None)
        _check_same_run(path, saved.training, self.checkpoint.training)
        self.checkpoint.network.load_state_dict(saved.network.state_dict())
        self.history = [Epoch(**epoch) for epoch in saved.training["history"]]
        self._restore_state(state)

    def _state(self) -> dict[str, Tensor]:
        state = {
            f"adam.{index}.{name}": value
            for index, values in self.optimiser.state_dict()["state"].items()
            for name, value in values.items()
        }
        if self.scaler.is_enabled():
            found = self.scaler.state_dict()
            state["scaler"] = torch.tensor([found["scale"], found["_growth_tracker"]])
        return state

    def _restore_state(self, state: Mapping[str, Tensor]) -> None:
        adam: dict[int, dict[str, Tensor]] = {}
        for key, value in state.items():
            if key.startswith("adam."):
                _, index, name = key.split(".")
                adam.setdefault(int(index), {})[name] = value
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": adam, "param_groups": groups})
        if self.scaler.is_enabled() and "scaler" in state:
            scale, tracker = state["scaler"].tolist()
            found = {**self.scaler.state_dict(), "scale": scale, "_growth_tracker": int(tracker)}
            self.scaler.load_state_dict(found)


def _parameter_groups(trained: nn.Module, settings: Any) -> list[dict[str, Any]]:
    """The head at its rate, the backbone at its own; a module of one's own is all head."""
    if not hasattr(trained, "backbone"):
        return [{"params": list(trained.parameters()), "lr": settings.lr_head}]
    return [
        {
            "params": list(trained.get_submodule("backbone").parameters()),
            "lr": settings.lr_backbone,
        },
        {"params": list(trained.get_submodule("head").parameters()), "lr": settings.lr_head},
    ]


def _mixed_seed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


def _interleaved(parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """First of each, then second of each, and so on."""
    longest = max(map(len, parts))
    return [part[at] for at in range(longest) for part in parts if at < len(part)]


def _check_same_run(path: Path, saved: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Raise unless a run may go on with these settings; only epochs may differ."""

    def flat(facts: Mapping[str, Any]) -> dict[str, Any]:
        settings = facts["settings"]
        named = {
            f"[{section}] {name}": list(value) if isinstance(value, tuple) else value
            for section, values in settings.items()
            for name, value in values.items()
        }
        del named["[training] epochs"]
        for part in ("train", "val"):
            named[f"{part} data"] = facts[part]["data_fingerprint"]
        return named

    theirs, mine = flat(saved), flat(ours)
    for name, value in mine.items():
        if theirs.get(name) != value:
            raise ParameterError(
                f"{path} comes from a run with another {name}: {theirs.get(name)!r}, not "
                f"{value!r}. Use the same settings and data, or start over (--force)."
            )


@contextmanager
def _tensorboard(folder: Path, n_done: int, world: World) -> Iterator[Callable[[Epoch], object]]:
    """Gives a function that shows an epoch in TensorBoard; does nothing where it is missing."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        yield lambda epoch: None
        return
    if not world.leads:
        yield lambda epoch: None
        return
    purge = n_done + 1 if n_done else None
    with SummaryWriter(str(folder / "tensorboard"), purge_step=purge) as writer:

        def show(epoch: Epoch) -> None:
            for name, value in asdict(epoch).items():
                if name != "epoch":
                    writer.add_scalar(name.replace("_", "/"), value, epoch.epoch)
            writer.flush()

        yield show
