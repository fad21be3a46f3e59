"""Run a spec: train, tune and extract, each only once, and write result lines with their evidence.

Networks, tunings and outputs are kept in a cache, by a hash of what they were made from. Another
benchmark on the same data and network finds them there, and so does the same one after a crash:

    CACHE/networks/KEY/     a training run; KEY is a hash of its settings and data
    CACHE/outputs/HASH/     outputs and tunings of the network with this content hash
    CACHE/features/         features of frozen backbones
    CACHE/checked/          the damaged images of each split

The hashes include the version of the code that makes a thing (`TRAINING_VERSION`, and so on), and
not that of nescio or torch, so that an upgrade does not train again. Each thing is made under a
lock: of several processes, one makes it and the others wait.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nescio._io.files import locked, write_text
from nescio._version import __version__
from nescio.errors import (
    BenchmarkError,
    DatasetError,
    FileError,
    ImplausibleValuesWarning,
    NescioError,
    counted,
    listed,
    warn,
)
from nescio.lab.benchmark.paper import size_remark
from nescio.lab.benchmark.results import (
    RESULTS,
    BenchmarkRun,
    Evidence,
    Line,
    comparison_lines,
    lines_file,
    lines_hash,
    load_evidence,
    read_lines,
    save_evidence,
    write_lines,
)
from nescio.lab.benchmark.spec import BenchmarkSet, BenchmarkSpec
from nescio.lab.benchmark.tables import benchmark_tables
from nescio.lab.data import load
from nescio.lab.data.split import BadFile, Split, find_damaged
from nescio.lab.extraction import (
    AUTO_RUNTIME,
    EXTRACTION_VERSION,
    Runtimes,
    cached_features,
    extract,
)
from nescio.lab.networks.network import OWN, Checkpoint, CheckpointRunner, load_checkpoint
from nescio.lab.perturbation import TUNING_VERSION, Tuning, tune
from nescio.lab.settings import TrainSettings
from nescio.lab.training import TRAINING_VERSION, initial_checkpoint, train
from nescio.metrics import mean_average_precision
from nescio.metrics.comparison import compare_outputs
from nescio.models.base import POOLED, layer_names
from nescio.models.images import content_hash
from nescio.outputs import Outputs

Advance = Callable[[int], object]
"""Called with the number of steps just done."""

Watch = Callable[[str, int], AbstractContextManager[Advance]]
"""Called with the name of a stage and its number of steps, or 0; yields what to report steps to."""


def unwatched(_stage: str, _total: int) -> AbstractContextManager[Advance]:
    """Advance to nobody."""
    return nullcontext(lambda steps: None)


_KEY_LENGTH = 16
_NAMED = 5  # damaged images in an error


def run_benchmark(
    spec: BenchmarkSpec,
    folder: str | Path,
    *,
    device: torch.device | str = "cpu",
    batch_size: int = 16,
    runtime: str = AUTO_RUNTIME,
    watch: Watch = unwatched,
) -> BenchmarkRun:
    """Run the parts of a spec that are not done yet.

    If some of several networks fail, the results of the others are written before the error.

    Parameters
    ----------
    spec : BenchmarkSpec
        With the folder of its data filled in: see `BenchmarkSpec.with_data`.
    folder : path
        The results are written to `folder/NAME`. All benchmarks of a folder share `folder/cache`.
        A rehearsal (`BenchmarkSpec.rehearsed`) has both in `folder/rehearsal`, and no tables.
    device, batch_size
        What networks run on, and the images per batch of tuning and extraction. Training has its
        own batch size in the settings.
    runtime : str
        What runs the networks, except to train them; as for `extract`.
    """
    folder = Path(folder) / "rehearsal" if spec.limit else Path(folder)
    pipelines = make_pipelines(
        spec, folder, device=device, batch_size=batch_size, runtime=runtime, watch=watch
    )
    folder = folder / spec.name
    lines = _all_lines(pipelines, folder)
    for name, table in benchmark_tables(lines, spec.paper_tables).items():
        if not spec.limit:
            table.write(folder / "tables", name)
    return BenchmarkRun(folder, tuple(lines), _left_out(pipelines))


def _all_lines(pipelines: Sequence[Pipeline], folder: Path) -> list[Line]:
    """Return the lines of all networks, written to the folder as soon as there are some."""
    lines: list[Line] = []
    failed = []
    for pipeline in pipelines:
        try:
            path = lines_file(folder, pipeline.data.name, pipeline.seed)
            # Two commands never run the same network at once.
            with locked(path, partial(pipeline.stage, "waiting for another process", 0)):
                lines += _network_lines(pipeline, path)
        except NescioError as error:
            if len(pipelines) == 1:
                raise
            failed.append(f"  {pipeline.title}: {error}")
            continue
        write_lines(folder / RESULTS, lines)
    if failed:
        named = "\n".join(failed)
        raise BenchmarkError(
            f"{len(failed)} of {len(pipelines)} networks failed:\n{named}\nThe results of the "
            "others are kept. Run the same command again to continue with these."
        )
    return lines


def _network_lines(pipeline: Pipeline, path: Path) -> list[Line]:
    """Return the lines of one network, from an earlier run if it was the same; write new ones."""
    data, spec, seed = pipeline.data, pipeline.spec, pipeline.seed
    checkpoint, training = pipeline.network()
    train = Outputs.load(pipeline.outputs(checkpoint, data.train))
    tuning = pipeline.tuning(checkpoint, train)
    val_file = pipeline.outputs(checkpoint, data.val)
    val = Outputs.load(val_file)
    if data.source.network and val.labels is not None and val.labels.any():
        area = pipeline.settings.training.map_area
        val_map = mean_average_precision(val.labels, val.logits, area=area)
        training = {**training, "best": {"val_map": val_map}}
    splits = {data.name: data.test, **data.ood}
    paths = {
        name: pipeline.outputs(checkpoint, split, tuning, train) for name, split in splits.items()
    }
    outputs = {name: Outputs.load(file) for name, file in paths.items()}
    roots = {name: split.root.resolve() for name, split in splits.items()}
    manifest = _manifest(pipeline, checkpoint, training, tuning, train, val, outputs)
    finished = _finished_lines(pipeline, path, manifest, roots)
    if finished is not None:
        return finished
    id_outputs = outputs.pop(data.name)
    with pipeline.stage("evaluating", len(spec.detectors) * len(outputs)) as advance:
        comparison = compare_outputs(
            {text: spec.detector(text, mean_labels=data.mean_labels) for text in spec.detectors},
            id_outputs,
            outputs,
            train=train,
            train_of=dict.fromkeys(spec.fitted_on_val(), val),
            held_out=val if spec.calibrated_on_val() else None,
            n_bootstrap=spec.bootstrap,
            on_step=advance,
        )
    lines = comparison_lines(comparison, spec.name, data.name, seed, manifest)
    evidence = Evidence(
        data.name, seed, id_outputs, outputs, comparison.scores, roots, lines_hash(lines), val
    )
    save_evidence(path.with_suffix(".safetensors"), evidence, paths, val_file)
    write_lines(path, lines)
    return lines


def _finished_lines(
    pipeline: Pipeline, path: Path, manifest: Mapping[str, Any], roots: Mapping[str, Path]
) -> list[Line] | None:
    """Return the lines of an earlier run if they are for the same detectors, sets and manifest."""
    detectors = pipeline.spec.detectors
    if any(":" in text for text in detectors):
        return None  # the code of a user's own detector may have changed
    try:
        lines = read_lines(path, rehearsal=True)
        evidence = load_evidence(path.with_suffix(".safetensors"))
    except FileError:  # missing, or written by another version
        return None
    wanted = {(ood, text) for ood in pipeline.data.ood for text in detectors}
    same = (
        evidence.of_lines == lines_hash(lines)
        and evidence.image_roots == roots
        and {(line.ood, line.detector) for line in lines} == wanted
        and all(line.manifest == manifest for line in lines)
    )
    return lines if same else None


def _manifest(
    pipeline: Pipeline,
    checkpoint: Checkpoint,
    training: Mapping[str, Any],
    tuning: Tuning | None,
    train: Outputs,
    val: Outputs,
    outputs: Mapping[str, Outputs],
) -> dict[str, Any]:
    """Return what the lines are made from."""
    tuned = tuning and {
        "data": _data_facts(tuning.data),
        "seed": tuning.data["seed"],
        "settings": asdict(pipeline.spec.tune),
        "best": tuning.chosen(),
    }
    facts = {
        "protocol": pipeline.spec.protocol,
        "title": pipeline.spec.title,
        "model": checkpoint.architecture.name,
        "model_hash": checkpoint.content_hash(),
        "n_labels": len(checkpoint.label_names),
        "mean_labels": pipeline.data.mean_labels,
        "training": dict(training),
        "tuning": tuned,
        "data": {
            "train": _data_facts(train.manifest),
            "val": _data_facts(val.manifest),
            "id": _data_facts(outputs[pipeline.data.name].manifest),
            "ood": {ood: _data_facts(outputs[ood].manifest) for ood in pipeline.data.ood},
        },
        "batch_size": pipeline.batch_size,
        "device": pipeline.device.type,
        "features": ",".join(train.manifest["layers"]),
        "fit_on": dict(pipeline.spec.fit_on),
        "variants": dict(pipeline.spec.variants),
        **({"held_out": {"val": on_val}} if (on_val := pipeline.spec.calibrated_on_val()) else {}),
        "bootstrap": pipeline.spec.bootstrap,
        **({"rehearsal": {"limit": pipeline.spec.limit}} if pipeline.spec.limit else {}),
        "versions": {
            "nescio": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }
    as_read: dict[str, Any] = json.loads(json.dumps(facts))  # with lists instead of tuples
    return as_read


def _data_facts(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a line records about data; the outputs list the images left out."""
    names = ("dataset", "split", "n_images", "data_fingerprint", "data_notes")
    facts = {name: manifest[name] for name in names if name in manifest}
    return facts | {"n_skipped": len(manifest["skipped"])}


# --- one network ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadedSet:
    """The splits of a `BenchmarkSet`, indexed."""

    source: BenchmarkSet
    train: Split
    val: Split
    test: Split
    ood: Mapping[str, Split]

    def splits(self) -> tuple[Split, ...]:
        """Return all splits, the out-of-distribution sets last."""
        return (self.train, self.val, self.test, *self.ood.values())

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
    position: str  # such as "network 2 of 6"
    runtimes: Runtimes  # what runs the network, except to train

    @property
    def title(self) -> str:
        """The set and the seed, in words."""
        return f"{self.data.name}, seed {self.seed}"

    def stage(self, what: str, total: int) -> AbstractContextManager[Advance]:
        """Advance a stage of the work."""
        return self.watch(f"{self.position}, {self.title}: {what}", total)

    def network(self) -> tuple[Checkpoint, dict[str, Any]]:
        """Return the network, and what the manifest records about its training."""
        # The spec, and not the file, names the code to run.
        name, file = self.settings.model.name, self.data.source.network
        module = name.removeprefix(OWN) if name.startswith(OWN) else None
        if file:
            return load_checkpoint(Path(file).expanduser(), module=module), {"network": file}
        best = self.best_file()
        self._make(best, lambda: self._train(best))
        checkpoint = load_checkpoint(best.with_name("best.safetensors"), module=module)
        training = {
            "settings": self.settings.as_dict(),
            "best": json.loads(best.read_text("utf-8")),
            "versions": {
                name: checkpoint.training.get(f"{name}_version") for name in ("nescio", "torch")
            },
        }
        return checkpoint, training

    def best_file(self) -> Path:
        """Return the file that says which epoch is the best; it is written after the training."""
        weights = Path(self.settings.model.weights)
        facts = {
            "settings": self.settings.as_dict(),
            "train": self.data.train.manifest(),
            "val": self.data.val.manifest(),
            "weights": content_hash(weights) if weights.is_file() else None,
            "version": TRAINING_VERSION,
        }
        return self.cache / "networks" / _key(facts) / "best.json"

    def _train(self, best: Path) -> None:
        n_images = self.settings.training.epochs * len(self.data.train)
        if self.settings.model.freeze:  # the features of all images are computed first
            n_images += len(self.data.train) + len(self.data.val)
        with self.stage("training", n_images) as advance:
            run = train(
                self.settings,
                self.data.train,
                self.data.val,
                best.parent,
                device=self.device,
                resume=True,
                cache=self.cache / "features",
                runtime=self.runtimes.name,
                on_images=advance,
            )
        write_text(best, json.dumps(asdict(run.best)))

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
        """Return the file of the network's outputs on a split; compute it if necessary."""
        facts = {
            "data": split.manifest(),
            "tuning": tuning and tuning.chosen(),
            "features": self.spec.features,
            "batch_size": self.batch_size,
            "device": self.device.type,
            "version": EXTRACTION_VERSION,
        }
        if tuning is not None and tuning.needs_train:
            facts["train"] = self.data.train.manifest()
        path = self._outputs_folder(checkpoint) / f"{split.title}-{_key(facts)}.safetensors"

        def make() -> None:
            pooled = None if tuning else self._pooled(checkpoint, split)
            with self.stage(f"extracting {split.title}", len(split)) as advance:
                extract(
                    checkpoint,
                    split,
                    path,
                    features=self.spec.features,
                    tuning=tuning,
                    train=train,
                    pooled=pooled,
                    device=self.device,
                    batch_size=self.batch_size,
                    runtime=self.runtimes,
                    on_images=advance,
                )

        self._make(path, make)
        return path

    def _pooled(self, checkpoint: Checkpoint, split: Split) -> NDArray[np.float32] | None:
        """Return the features of a frozen backbone, which all seeds share; None if not frozen."""
        runner = CheckpointRunner(checkpoint, features=self.spec.features, device=self.device)
        if not self.settings.model.freeze or not runner.is_after_backbone:
            return None
        with self.stage(f"computing features of {split.title}", len(split)) as advance:
            return cached_features(
                checkpoint,
                split,
                self.cache / "features",
                device=self.device,
                runtime=self.runtimes,
                on_images=advance,
            )

    def tuning(self, checkpoint: Checkpoint, train_outputs: Outputs) -> Tuning | None:
        """Return the parameters of ODIN and Mahalanobis; None if no detector uses them."""
        aggregates, settings, val = self.spec.aggregates(), self.spec.tune, self.data.val
        if not aggregates:
            return None
        layer = (*layer_names(self.spec.features), POOLED)[0]  # what Mahalanobis reads
        facts = {
            "data": val.manifest(),
            "train": self.data.train.manifest(),
            "aggregates": aggregates,
            "features": layer,
            "settings": asdict(settings),
            "seed": self.seed,
            "batch_size": self.batch_size,
            "device": self.device.type,
            "version": TUNING_VERSION,
        }
        path = self._outputs_folder(checkpoint) / f"tuned-{_key(facts)}.json"

        def make() -> None:
            total = settings.n_steps(len(val))
            with self.stage("tuning ODIN and Mahalanobis", total) as advance:
                tuning = tune(
                    checkpoint,
                    val,
                    train_outputs,
                    settings,
                    features=layer,
                    aggregates=aggregates,
                    seed=self.seed,
                    device=self.device,
                    batch_size=self.batch_size,
                    runtime=self.runtimes,
                    on_images=advance,
                )
            tuning.save(path)

        self._make(path, make)
        return Tuning.load(path)

    def _outputs_folder(self, checkpoint: Checkpoint) -> Path:
        return self.cache / "outputs" / checkpoint.content_hash()[:_KEY_LENGTH]


def make_pipelines(
    spec: BenchmarkSpec,
    folder: str | Path,
    *,
    device: torch.device | str = "cpu",
    batch_size: int = 16,
    runtime: str = AUTO_RUNTIME,
    watch: Watch = unwatched,
) -> list[Pipeline]:
    """Return one pipeline per set and seed; raise if data or network cannot be used."""

    def indexed(source: BenchmarkSet, address: str, part: str | None = None) -> Split:
        whole = load(address, split=part, skip_bad=source.skip_bad)
        return whole.sample(spec.limit or len(whole), seed=0)

    cache = Path(folder) / "cache"
    sets = []
    with watch("reading the data sets", len(spec.sets)) as advance:
        for source in spec.sets:
            parts = (spec.split_name(source, part) for part in ("train", "val", "test"))
            train, val, test = (indexed(source, source.data, part) for part in parts)
            ood = {name: indexed(source, address) for name, address in source.ood.items()}
            sets.append(LoadedSet(source, train, val, test, ood))
            advance(1)
    sets = checked_sets(sets, cache, watch)
    for data in sets if spec.paper_tables and not spec.limit else ():
        for name, split in data.ood.items():
            if remark := size_remark(data.name, name, len(split)):
                warn(remark, ImplausibleValuesWarning)
    pairs = [(data, seed) for data in sets for seed in spec.seeds]
    pipelines = [
        Pipeline(
            spec,
            data,
            seed,
            spec.train.updated({"training": {"seed": seed}}),
            cache,
            torch.device(device),
            batch_size,
            watch,
            position=f"network {number} of {len(pairs)}",
            runtimes=Runtimes(runtime),
        )
        for number, (data, seed) in enumerate(pairs, 1)
    ]
    for pipeline in pipelines[:: len(spec.seeds)]:  # all seeds have the same network
        if pipeline.data.source.network:
            pipeline.network()  # raises if its file cannot be read
        elif not pipeline.best_file().exists():
            with torch.random.fork_rng(devices=[]):  # the caller's random numbers are kept
                initial_checkpoint(pipeline.settings, pipeline.data.train.label_names or ())
    return pipelines


def _key(facts: Mapping[str, Any]) -> str:
    """Return a short hash of what something is made from."""
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY_LENGTH]


# --- images, before any work ----------------------------------------------------------------------


def checked_sets(sets: Sequence[LoadedSet], cache: Path, watch: Watch) -> list[LoadedSet]:
    """Return the sets without damaged images, where these may be left out; raise elsewhere.

    What is left out must be known before training, so all images are decoded once, and again only
    if the path, size or time of a file has changed.
    """
    splits = [split for data in sets for split in data.splits()]
    records = {
        split: cache / "checked" / f"{split.title}-{_files_key(split)}.json" for split in splits
    }
    # Two sets often have an OOD set in common.
    missing = {path: split for split, path in records.items() if not path.exists()}
    if missing:
        (cache / "checked").mkdir(parents=True, exist_ok=True)
        with watch("checking images", sum(map(len, missing.values()))) as advance:
            for path, split in missing.items():
                bad = [asdict(image) for image in find_damaged(split, advance)]
                write_text(path, json.dumps(bad), force=True)
    damaged = {
        split: [BadFile(**bad) for bad in json.loads(path.read_text("utf-8"))]
        for split, path in records.items()
    }
    strict = [split for data in sets if not data.source.skip_bad for split in data.splits()]
    reasons = list(dict.fromkeys(image.reason for split in strict for image in damaged[split]))
    if reasons:
        named = "\n".join(f"  {reason}" for reason in reasons[:_NAMED])
        more = f"\n  and {len(reasons) - _NAMED:,} more" if len(reasons) > _NAMED else ""
        raise DatasetError(
            f"the benchmark cannot use {counted(len(reasons), 'image')}:\n{named}{more}\n"
            "Replace or remove these files, or leave them out: --skip-bad for all sets, or "
            "skip_bad = true for a set in the benchmark's file."
        )
    clean = {split: split.without(damaged[split]) for split in splits}
    return [
        replace(
            data,
            train=clean[data.train],
            val=clean[data.val],
            test=clean[data.test],
            ood={name: clean[split] for name, split in data.ood.items()},
        )
        for data in sets
    ]


def _left_out(pipelines: Sequence[Pipeline]) -> tuple[str, ...]:
    """Say of each split, which several networks may share, which images were left out."""
    lines = (
        f"left out {len(split.skipped):,} of {len(split) + len(split.skipped):,} images of "
        f"{split.title} in {split.root}: {listed([b.file for b in split.skipped], quoted=False)}"
        for pipeline in pipelines
        for split in pipeline.data.splits()
        if split.skipped
    )
    return tuple(dict.fromkeys(lines))


def _files_key(split: Split) -> str:
    digest = hashlib.sha256(f"{split.root.resolve()}\n".encode())
    for file in split.files:
        try:
            status = os.stat(split.root / file)
            digest.update(f"{file}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
        except OSError:
            digest.update(f"{file}\0missing\n".encode())
    return digest.hexdigest()[:_KEY_LENGTH]
