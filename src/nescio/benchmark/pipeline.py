"""Train, tune and extract, each only once.

Networks, tunings and outputs are kept in a cache, by a hash of what they were made from. Another
benchmark on the same data and network finds them there, and so does the same one after a crash:

    CACHE/networks/KEY/     a training run; KEY is a hash of its settings and data
    CACHE/outputs/HASH/     outputs and tunings of the network with this content hash
    CACHE/features/         features of frozen backbones
    CACHE/checked/          the damaged images of each split

The hashes have the names and sizes of images. Whether their contents are the same too is checked
before something is used again. The hashes include the version of the code that makes a thing
(`TRAINING_VERSION`, and so on), and not that of nescio or torch, so that an upgrade does not train
again. Each thing is made under a lock: of several processes, one makes it and the others wait.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from nescio._io.files import replacing
from nescio._io.locks import locked
from nescio.benchmark.image_checks import checked_sets
from nescio.benchmark.outliers import refuse_test_images
from nescio.benchmark.progress import READING, Report, Watch, in_turn, unwatched
from nescio.benchmark.spec import BenchmarkSet, BenchmarkSpec
from nescio.data import BadFile, Split, content_hash, load
from nescio.data.damage import Thoroughness, without
from nescio.data.split import check_content
from nescio.errors import ParameterError
from nescio.networks.backbones import OWN
from nescio.outputs import Outputs
from nescio.runners.checkpoints import CheckpointRunner
from nescio.runners.extract import EXTRACTION_VERSION
from nescio.runners.feature_cache import cached_features
from nescio.runners.features import POOLED, layer_names
from nescio.runners.runtimes import AUTO, Runtimes
from nescio.runners.tune_settings import TuneSettings
from nescio.training import (
    Checkpoint,
    TrainSettings,
    Tuning,
    extract,
    load_checkpoint,
    train,
    tune,
)
from nescio.training.train import TRAINING_VERSION, initial_network, load_outliers
from nescio.training.tuning import TUNING_VERSION

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
    def of(cls, source: BenchmarkSet, spec: BenchmarkSpec, *, verify: bool = False) -> LoadedSet:
        """Index the splits of a set; with `verify`, all bytes of their images are compared."""

        def indexed(address: str, split: str | None = None) -> Split:
            return replace(load(address, split=split, skip_bad=source.skip_bad), hash_images=verify)

        splits = {
            name: indexed(source.data, spec.split_name(source, name))
            for name in ("train", "val", "test")
        }
        return cls(source, **splits, ood={name: indexed(at) for name, at in source.ood.items()})

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
        """What k=mean_labels stands for: as the set says, or counted in the training data."""
        mean = float(self.train.require_labels().sum(1).mean())
        return self.source.mean_labels or max(1, math.floor(mean + 0.5))


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
    position: str = ""  # such as "network 2 of 6"
    outliers: Split | None = None  # what the settings name by an address
    runtimes: Runtimes = field(default_factory=Runtimes)  # what runs the network, except to train

    @property
    def title(self) -> str:
        """The set and the seed, in words."""
        return f"{self.data.name}, seed {self.seed}"

    def stage(self, what: str, total: int) -> AbstractContextManager[Report]:
        """Report a stage of the work."""
        where = f"{self.position}, {self.title}" if self.position else self.title
        return self.watch(f"{where}: {what}", total)

    def network(self) -> tuple[Checkpoint, dict[str, Any]]:
        """Return the network, and what the manifest records about its training."""
        source = self.data.source
        if source.network:
            file = Path(source.network).expanduser()
            return load_checkpoint(file, module=source.module or None), {"network": source.network}
        best = self._best_file()
        self._make(best, lambda: self._train(best))
        # The spec, and not the file, names the code to run.
        name = self.settings.model.name
        module = name.removeprefix(OWN) if name.startswith(OWN) else None
        checkpoint = load_checkpoint(best.with_name("best.safetensors"), module=module)
        splits = {"train": self.data.train, "val": self.data.val, "outliers": self.outliers}
        for part, split in splits.items():
            if split is not None:
                check_content(checkpoint.training.get(part, {}), split, best.parent)
        training = {
            "settings": self.settings.as_dict(),
            "best": json.loads(best.read_text("utf-8")),
            "versions": {
                name: checkpoint.training.get(f"{name}_version") for name in ("nescio", "torch")
            },
        }
        return checkpoint, training

    def check_network(self) -> None:
        """Raise if the network cannot be loaded from its file, or cannot be built."""
        if self.data.source.network:
            self.network()
        elif not self._best_file().exists():
            with torch.random.fork_rng(devices=[]):  # the caller's random numbers are kept
                initial_network(self.settings, len(self.data.train.label_names or ()))

    def _best_file(self) -> Path:
        """Return the file that says which epoch is the best; it is written after the training."""
        weights = Path(self.settings.model.weights)
        settings = _changed(asdict(self.settings), asdict(TrainSettings()))
        if self.outliers is not None:  # which images they are, and not where
            settings["training.outliers"] = self.outliers.identity()
        facts = {
            "settings": settings,
            "train": self.data.train.identity(),
            "val": self.data.val.identity(),
            "weights": content_hash(weights) if weights.is_file() else None,
            "version": TRAINING_VERSION,
        }
        return self.cache / "networks" / _key(facts) / _BEST

    def _train(self, best: Path) -> None:
        n_train, n_val = len(self.data.train), len(self.data.val)
        training = self.stage("training", self.settings.training.epochs * n_train)
        with ExitStack() as shown:
            if self.settings.model.freeze:
                n_images = n_train + n_val + len(self.outliers or ())
                features = self.stage("computing features", n_images)
                on_reading, on_images = shown.enter_context(in_turn(features, training))
            else:
                on_reading = on_images = shown.enter_context(training)
            run = train(
                self.settings,
                self.data.train,
                self.data.val,
                best.parent,
                device=self.device,
                resume=True,
                cache=self.cache / "features",
                runtime=self.runtimes.name,
                on_reading=on_reading,
                on_images=on_images,
            )
        with replacing(best) as temporary:
            temporary.write_text(json.dumps(asdict(run.best)), "utf-8")

    def _make(self, path: Path, make: Callable[[], object]) -> None:
        """Make a file if it does not exist; wait if another process is making it."""
        if path.exists():
            return
        with locked(path, lambda: self.stage("waiting for another process", 0)):
            if not path.exists():
                make()

    def outputs(
        self,
        checkpoint: Checkpoint,
        split: Split,
        tuning: Tuning | None = None,
        train: Outputs | None = None,
    ) -> Path:
        """Return the file of the network's outputs on a split; compute it if necessary.

        All seeds share the features of a frozen backbone, unless the inputs are perturbed. `train`
        are the outputs on the training data, which the tuned step may need.
        """
        facts = {
            "data": split.identity(),
            "tuning": tuning and tuning.chosen(),
            "features": self.spec.features,
            "batch_size": self.batch_size,
            "device": self.device.type,
            "version": EXTRACTION_VERSION,
        }
        if tuning is not None and tuning.needs_train:
            facts["train"] = self.data.train.identity()
        path = self._outputs_folder(checkpoint) / f"{split.title}-{_key(facts)}.safetensors"

        def make() -> None:
            if self.settings.model.freeze and tuning is None:
                self._compute_features(checkpoint, split)
            with self.stage(f"extracting {split.title}", len(split)) as advance:
                extract(
                    checkpoint,
                    split,
                    path,
                    features=self.spec.features,
                    tuning=tuning,
                    train=train,
                    device=self.device,
                    batch_size=self.batch_size,
                    runtime=self.runtimes,
                    cache=self.cache / "features",
                    on_images=advance,
                )

        self._make(path, make)
        check_content(Outputs.load(path, verify=False).manifest, split, path)
        return path

    def _compute_features(self, checkpoint: Checkpoint, split: Split) -> None:
        """Compute the features of a frozen backbone into the cache, if it does not have them."""
        runner = CheckpointRunner(checkpoint, features=self.spec.features, device=self.device)
        cache = self.cache / "features"
        if not runner.is_after_backbone or runner.cached(split, cache) is not None:
            return
        backbone = runner.model.get_submodule("backbone")
        with self.stage(f"computing features of {split.title}", len(split)) as advance:
            cached_features(
                backbone, checkpoint, split, cache, self.device, advance, runtime=self.runtimes
            )

    def tuning(self, checkpoint: Checkpoint, train_outputs: Outputs) -> Tuning | None:
        """Return the parameters of ODIN and Mahalanobis; None if no detector uses them."""
        aggregates = self.spec.aggregates()
        if not aggregates:
            return None
        facts = {
            "data": self.data.val.identity(),
            "train": self.data.train.identity(),
            "aggregates": aggregates,
            "features": self._tuned_layer,
            "settings": _changed(asdict(self.spec.tune), asdict(TuneSettings())),
            "seed": self.seed,
            "batch_size": self.batch_size,
            "device": self.device.type,
            "version": TUNING_VERSION,
        }
        path = self._outputs_folder(checkpoint) / f"tuned-{_key(facts)}.json"
        self._make(path, lambda: self._tune(checkpoint, train_outputs, path))
        tuning = Tuning.load(path)
        check_content(tuning.data, self.data.val.sample(self.spec.tune.images, self.seed), path)
        return tuning

    def _tune(self, checkpoint: Checkpoint, train_outputs: Outputs, path: Path) -> None:
        val = self.data.val
        total = self.spec.tune.n_steps(len(val))
        with self.stage("tuning ODIN and Mahalanobis", total) as advance:
            tuning = tune(
                checkpoint,
                val,
                train_outputs,
                self.spec.tune,
                features=self._tuned_layer,
                aggregates=self.spec.aggregates(),
                seed=self.seed,
                device=self.device,
                batch_size=self.batch_size,
                runtime=self.runtimes,
                on_images=advance,
            )
        tuning.save(path)

    @property
    def _tuned_layer(self) -> str:
        """The layer that Mahalanobis reads."""
        return (*layer_names(self.spec.features), POOLED)[0]

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
    runtime: str = AUTO,
    check: Thoroughness = "fast",
    verify: bool = False,
    watch: Watch = unwatched,
) -> list[Pipeline]:
    """Return one pipeline per set and seed; raise if data, settings or network cannot be used."""
    try:
        settings = TrainSettings().updated(spec.train, where="train")
    except ParameterError as error:
        raise ParameterError(f"{spec.name}: {error}") from error
    seeded = {seed: settings.updated({"training": {"seed": seed}}) for seed in spec.seeds}
    sets = []
    with watch(READING, len(spec.sets)) as advance:
        for source in spec.sets:
            sets.append(LoadedSet.of(source, spec, verify=verify))
            advance(1)
    outliers = load_outliers(settings)
    if outliers is not None:
        outliers = replace(outliers, hash_images=verify)
        refuse_test_images(outliers, sets)
    where = torch.device(device)
    pipelines = [
        Pipeline(
            spec,
            data,
            seed,
            seeded[seed],
            cache,
            where,
            batch_size,
            watch,
            outliers=outliers,
            runtimes=Runtimes(runtime),
        )
        for data in checked_sets(sets, cache, check, watch)
        for seed in spec.seeds
    ]
    for pipeline in pipelines:
        if pipeline.seed == spec.seeds[0]:  # all seeds have the same network
            pipeline.check_network()
    return [
        replace(pipeline, position=f"network {number} of {len(pipelines)}")
        for number, pipeline in enumerate(pipelines, 1)
    ]


def _changed(settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from the defaults, those of sections as "section.name".

    With these in the hash, and not all settings, a new setting does not train old networks again.
    """
    changed: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            inner = _changed(value, defaults[name])
            changed |= {f"{name}.{key}": inner[key] for key in inner}
        elif value != defaults[name]:
            changed[name] = value
    return changed


def _key(facts: Mapping[str, Any]) -> str:
    """Return a short hash of what something is made from."""
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY_LENGTH]
