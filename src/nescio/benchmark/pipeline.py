"""Train, tune and extract, each only once.

Networks, tunings and outputs are kept in a cache, by a hash of what they were made from. Another
benchmark on the same data and network finds them there, and so does the same one after a crash:

    CACHE/networks/KEY/     a training run; KEY is a hash of its settings and data
    CACHE/outputs/HASH/     outputs and tunings of the network with this content hash
    CACHE/features/         features of frozen backbones
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from nescio._io.files import replacing
from nescio._version import __version__
from nescio.benchmark.image_checks import damaged_images, refuse_damaged
from nescio.benchmark.progress import Watch, unwatched
from nescio.benchmark.spec import BenchmarkSet, BenchmarkSpec
from nescio.data import CORRUPTIONS, BadFile, Split, content_hash, load
from nescio.data.damage import Thoroughness, without
from nescio.errors import ParameterError
from nescio.networks.backbones import OWN
from nescio.outputs import Outputs
from nescio.training import (
    Checkpoint,
    TrainSettings,
    Tuning,
    extract,
    load_checkpoint,
    train,
    tune,
)

_BEST = "best.json"
_KEY_LENGTH = 16


@dataclass(frozen=True)
class LoadedSet:
    """The splits of a `BenchmarkSet`, indexed."""

    source: BenchmarkSet
    train: Split
    val: Split
    test: Split
    ood: Mapping[str, Split]

    @classmethod
    def of(cls, source: BenchmarkSet) -> LoadedSet:
        """Index the splits of a set."""
        splits = {
            name: load(source.data, split=name, skip_bad=source.skip_bad)
            for name in ("train", "val", "test")
        }
        ood = {
            name: load(address, skip_bad=source.skip_bad) for name, address in source.ood.items()
        }
        return cls(source, **splits, ood=ood)

    def splits(self) -> tuple[Split, ...]:
        """Return all splits, the out-of-distribution sets last."""
        return (self.train, self.val, self.test, *self.ood.values())

    def without(self, bad: Sequence[Sequence[BadFile]]) -> LoadedSet:
        """Return a copy without the damaged images of each of `splits()`."""
        train, val, test, *ood = map(without, self.splits(), bad)
        names = dict(zip(self.ood, ood, strict=True))
        return replace(self, train=train, val=val, test=test, ood=names)

    @property
    def name(self) -> str:
        """The name of the in-distribution set."""
        return self.source.name

    @property
    def mean_labels(self) -> int:
        """The mean number of labels per training image, rounded up."""
        return math.ceil(float(self.train.require_labels().sum(1).mean()))


@dataclass(frozen=True)
class Pipeline:
    """One network on one in-distribution set, and its outputs."""

    spec: BenchmarkSpec
    data: LoadedSet
    seed: int
    settings: TrainSettings  # with the seed
    cache: Path
    device: torch.device
    batch_size: int  # of tuning and extraction; training has its own in the settings
    watch: Watch

    def stage(self, what: str, total: int) -> AbstractContextManager[Callable[[int], object]]:
        """Report a stage of the work."""
        return self.watch(f"{self.data.name}, seed {self.seed}: {what}", total)

    def network(self) -> tuple[Checkpoint, dict[str, Any]]:
        """Return the network, and what the manifest records about its training."""
        source = self.data.source
        if source.network:
            file = Path(source.network).expanduser()
            return load_checkpoint(file, module=source.module or None), {"network": source.network}
        weights = Path(self.settings.model.weights)
        facts = {
            "settings": self.settings.as_dict(),
            "train": self.data.train.manifest(),
            "val": self.data.val.manifest(),
            "weights": content_hash(weights) if weights.is_file() else None,
        }
        folder = self.cache / "networks" / _key(facts)
        best = folder / _BEST
        if not best.exists():
            folder.mkdir(parents=True, exist_ok=True)
            total = self.settings.training.epochs * len(self.data.train)
            with self.stage("training", total) as advance:
                run = train(
                    self.settings,
                    self.data.train,
                    self.data.val,
                    folder,
                    device=self.device,
                    resume=True,
                    cache=self.cache / "features",
                    on_images=advance,
                )
            with replacing(best) as temporary:
                temporary.write_text(json.dumps(asdict(run.best)), "utf-8")
        training = {"settings": facts["settings"], "best": json.loads(best.read_text("utf-8"))}
        # The spec, and not the file, names the code to run.
        name = self.settings.model.name
        module = name.removeprefix(OWN) if name.startswith(OWN) else None
        return load_checkpoint(folder / "best.safetensors", module=module), training

    def outputs(self, checkpoint: Checkpoint, split: Split, tuning: Tuning | None) -> Path:
        """Return the file of the network's outputs on a split; compute it if necessary."""
        facts = {
            "data": split.manifest(),
            "tuning": tuning and tuning.chosen(),
            "features": self.spec.features,
            "batch_size": self.batch_size,
            "device": self.device.type,
        }
        path = self._outputs_folder(checkpoint) / f"{split.title}-{_key(facts)}.safetensors"
        if path.exists():
            return path
        with self.stage(f"extracting {split.title}", len(split)) as advance:
            extract(
                checkpoint,
                split,
                path,
                features=self.spec.features,
                tuning=tuning,
                device=self.device,
                batch_size=self.batch_size,
                cache=self.cache / "features",
                on_images=advance,
            )
        return path

    def tuning(self, checkpoint: Checkpoint, train_outputs: Outputs) -> Tuning | None:
        """Return the parameters of ODIN and Mahalanobis; None if no detector uses them."""
        aggregates = self.spec.aggregates()
        if not aggregates:
            return None
        val, n_images = self.data.val, self.spec.tune.images
        facts = {
            "data": val.manifest(),
            "train": self.data.train.manifest(),
            "aggregates": aggregates,
            "features": self.spec.features,
            "n_images": n_images,
            "seed": self.seed,
            "batch_size": self.batch_size,
        }
        path = self._outputs_folder(checkpoint) / f"tuned-{_key(facts)}.json"
        if path.exists():
            return Tuning.load(path)
        total = (1 + len(CORRUPTIONS)) * min(n_images, len(val))
        with self.stage("tuning ODIN and Mahalanobis", total) as advance:
            tuning = tune(
                checkpoint,
                val,
                train_outputs,
                features=self.spec.features,
                aggregates=aggregates,
                n_images=n_images,
                seed=self.seed,
                device=self.device,
                batch_size=self.batch_size,
                on_images=advance,
            )
        tuning.save(path)
        return tuning

    def _outputs_folder(self, checkpoint: Checkpoint) -> Path:
        folder = self.cache / "outputs" / checkpoint.content_hash()[:_KEY_LENGTH]
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def make_pipelines(
    spec: BenchmarkSpec,
    cache: Path,
    *,
    device: torch.device | str = "cpu",
    batch_size: int = 16,
    check: Thoroughness = "fast",
    watch: Watch = unwatched,
) -> list[Pipeline]:
    """Return one pipeline per set and seed; raise if data, images or settings are wrong."""
    try:
        settings = TrainSettings().updated(spec.train, where="train")
    except ParameterError as error:
        raise ParameterError(f"{spec.name}: {error}") from error
    seeded = {seed: settings.updated({"training": {"seed": seed}}) for seed in spec.seeds}
    sets = checked_sets([LoadedSet.of(source) for source in spec.sets], cache, check, watch)
    return [
        Pipeline(spec, data, seed, seeded[seed], cache, torch.device(device), batch_size, watch)
        for data in sets
        for seed in spec.seeds
    ]


def checked_sets(
    sets: Sequence[LoadedSet], cache: Path, check: Thoroughness, watch: Watch
) -> list[LoadedSet]:
    """Return the sets without damaged images, where these may be left out; raise elsewhere.

    What is left out must be known before training, so the images of such a set are all decoded.
    """
    wanted: list[tuple[Split, Thoroughness]] = [
        (split, "full" if one.source.skip_bad else check) for one in sets for split in one.splits()
    ]
    found = iter(damaged_images(wanted, cache, watch))
    bad = [[next(found) for _ in one.splits()] for one in sets]
    of_strict = [bad for one, bad in zip(sets, bad, strict=True) if not one.source.skip_bad]
    refuse_damaged([one for splits in of_strict for split in splits for one in split])
    return [one.without(bad) for one, bad in zip(sets, bad, strict=True)]


def _key(facts: Mapping[str, Any]) -> str:
    """Return a short hash of what something is made from, with the versions of the software."""
    versions = {"nescio_version": __version__, "torch_version": torch.__version__}
    text = json.dumps({**facts, **versions}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY_LENGTH]
