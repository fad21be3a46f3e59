"""From a spec to result lines: train, tune, extract and evaluate, each done once.

Networks, tunings and outputs are kept in a cache under what they were made from, so that another
spec on the same data and network, or the same one after a crash, takes them from there:

    FOLDER/cache/networks/KEY/      a training run; KEY hashes its settings and data
    FOLDER/cache/outputs/HASH/      outputs and tunings of the network of that content hash
    FOLDER/NAME/runs/               lines and evidence of each set and seed, as they get done
    FOLDER/NAME/results.jsonl       all lines
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nescio.benchmark.evidence import Evidence, load_evidence, save_evidence
from nescio.benchmark.results import Line, read_lines, write_lines
from nescio.benchmark.spec import BenchmarkSpec, DataPart, resolve_detector
from nescio.comparison import Comparison, compare
from nescio.data import CORRUPTIONS, Split, load
from nescio.errors import FileError, ParameterError
from nescio.files import replacing
from nescio.models import (
    Checkpoint,
    TrainSettings,
    Tuning,
    extract,
    load_checkpoint,
    train,
    tune,
)
from nescio.models.images import Reader, readable
from nescio.outputs import Outputs
from nescio.version import __version__

RESULTS = "results.jsonl"
_BEST = "best.json"
_KEY_LENGTH = 16

Watch = Callable[[str, int | None], AbstractContextManager[Callable[[int], object]]]
"""Called with a stage's name and number of steps; the function it gives is told of steps done."""


@dataclass(frozen=True)
class BenchmarkRun:
    """What `run_benchmark` found.

    Attributes
    ----------
    folder : Path
        `FOLDER/NAME`.
    lines : tuple of Line
        Of every set and seed that is done, those of earlier runs among them.
    """

    folder: Path
    lines: tuple[Line, ...]

    def evidence(self) -> list[Evidence]:
        """The scores behind the lines, in their order."""
        runs = dict.fromkeys((line.id, line.seed) for line in self.lines)
        return [load_evidence(_run_file(self.folder, *run, ".safetensors")) for run in runs]


def unwatched(_stage: str, _total: int | None) -> AbstractContextManager[Callable[[int], object]]:
    """Tell nobody."""
    return nullcontext(lambda steps: None)


def run_benchmark(
    spec: BenchmarkSpec,
    folder: str | Path,
    *,
    device: torch.device | str = "cpu",
    batch_size: int = 16,
    watch: Watch = unwatched,
) -> BenchmarkRun:
    """Run all of a spec that is not done yet.

    Parameters
    ----------
    spec : BenchmarkSpec
        With its data in place: see `BenchmarkSpec.with_data`.
    folder : path
        For the results, and for the cache that specs share.
    device, batch_size
        Of tuning and extraction; training takes the batch of its own settings.
    watch : callable
        Follows the work.
    """
    folder = Path(folder)
    settings = _settings(spec)
    parts = [_LoadedPart.of(part) for part in spec.sets]  # all of them, before any work
    runs_folder = folder / spec.name / "runs"
    try:
        runs_folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise FileError(f"{runs_folder} is in the way of a folder of that name.") from error
    lines: list[Line] = []
    for part in parts:
        for seed in spec.seeds:
            seeded = settings.updated({"training": {"seed": seed}})
            work = _Work(spec, part, seed, seeded, folder, torch.device(device), batch_size, watch)
            lines += work.run()
    write_lines(folder / spec.name / RESULTS, lines)
    return BenchmarkRun(folder / spec.name, tuple(lines))


def _settings(spec: BenchmarkSpec) -> TrainSettings:
    try:
        return TrainSettings().updated(spec.train)
    except ParameterError as error:
        raise ParameterError(f"{spec.name}: [train]: {error}") from error


@dataclass(frozen=True)
class _LoadedPart:
    """A `DataPart` with its images looked up."""

    part: DataPart
    train: Split
    val: Split
    test: Split
    ood: Mapping[str, Split]

    @classmethod
    def of(cls, part: DataPart) -> _LoadedPart:
        splits = {
            name: load(part.data, split=name, skip_bad=part.skip_bad)
            for name in ("train", "val", "test")
        }
        ood = {name: load(text, skip_bad=part.skip_bad) for name, text in part.ood.items()}
        return cls(part, **splits, ood=ood)

    @property
    def mean_labels(self) -> int:
        """How many labels a training image has on average, rounded up."""
        return math.ceil(float(self.train.require_labels().sum(1).mean()))


@dataclass(frozen=True)
class _Work:
    """One network: one set and one seed."""

    spec: BenchmarkSpec
    data: _LoadedPart
    seed: int
    settings: TrainSettings
    folder: Path
    device: torch.device
    batch_size: int
    watch: Watch

    def run(self) -> list[Line]:
        """The lines, from an earlier run if it was the same."""
        checkpoint, training = self.network()
        train_outputs = self.outputs(checkpoint, self.data.train, None)
        tuning = self.tuning(checkpoint, Outputs.load(train_outputs))
        name = self.data.part.name
        paths = {name: self.outputs(checkpoint, self.data.test, tuning)}
        for ood, split in self.data.ood.items():
            paths[ood] = self.outputs(checkpoint, split, tuning)
        outputs = {one: Outputs.load(path) for one, path in paths.items()}
        outputs["train"] = Outputs.load(train_outputs)
        manifest = self.manifest(checkpoint, training, tuning, outputs)
        return self.evaluated(outputs, paths, manifest)

    def stage(
        self, what: str, total: int | None
    ) -> AbstractContextManager[Callable[[int], object]]:
        return self.watch(f"{self.data.part.name}, seed {self.seed}: {what}", total)

    # --- the network ---

    def network(self) -> tuple[Checkpoint, dict[str, Any]]:
        """The network, and what is to be said of its training."""
        if self.data.part.network:
            checkpoint = load_checkpoint(Path(self.data.part.network).expanduser())
            return checkpoint, {"network": self.data.part.network}
        facts = {
            "settings": self.settings.as_dict(),
            "train": self.data.train.manifest(),
            "val": self.data.val.manifest(),
            "nescio_version": __version__,
            "torch_version": torch.__version__,
        }
        folder = self.folder / "cache" / "networks" / _key(facts)
        best = folder / _BEST
        if not best.exists():
            folder.mkdir(parents=True, exist_ok=True)
            found = self.trained(folder)
            with replacing(best) as temporary:
                temporary.write_text(json.dumps(found), "utf-8")
        training = {"settings": facts["settings"], "best": json.loads(best.read_text("utf-8"))}
        return load_checkpoint(folder / "best.safetensors"), training

    def trained(self, folder: Path) -> dict[str, Any]:
        total = self.settings.training.epochs * len(self.data.train)
        with self.stage("training", total) as advance:
            run = train(
                self.settings,
                self.data.train,
                self.data.val,
                folder,
                device=self.device,
                resume=True,
                skip_bad=self.data.part.skip_bad,
                cache=self.folder / "cache" / "features",
                on_images=advance,
            )
        return asdict(run.best)

    # --- what it gives ---

    def outputs(self, checkpoint: Checkpoint, split: Split, tuning: Tuning | None) -> Path:
        """The file of the network's outputs on a split."""
        folder = self.cached_outputs(checkpoint)
        chosen = None if tuning is None else tuning.chosen()
        key = _key({"data": split.manifest(), "tuning": chosen, "batch_size": self.batch_size})
        path = folder / f"{split.title}-{key}.safetensors"
        with self.stage(f"extracting {split.title}", len(split)) as advance:
            extract(
                checkpoint,
                split,
                path,
                tuning=tuning,
                device=self.device,
                batch_size=self.batch_size,
                skip_bad=self.data.part.skip_bad,
                force=True,  # of the same name, and made by another version
                on_images=advance,
            )
        return path

    def tuning(self, checkpoint: Checkpoint, train_outputs: Outputs) -> Tuning | None:
        """Settings of ODIN and Mahalanobis, if a detector reads what they give."""
        aggregates = self.spec.aggregates()
        if not aggregates:
            return None
        n_images = self.spec.tune.images
        facts = {
            "data": self.data.val.manifest(),
            "train": self.data.train.manifest(),
            "aggregates": aggregates,
            "n_images": n_images,
            "seed": self.seed,
            "batch_size": self.batch_size,
            "nescio_version": __version__,
            "torch_version": torch.__version__,
        }
        path = self.cached_outputs(checkpoint) / f"tuned-{_key(facts)}.json"
        if path.exists():
            return Tuning.load(path)
        val = self.data.val
        if self.data.part.skip_bad:
            val = readable(Reader(val, checkpoint.preprocessing, skip_bad=True))
        total = (1 + len(CORRUPTIONS)) * min(n_images, len(val))
        with self.stage("tuning ODIN and Mahalanobis", total) as advance:
            tuning = tune(
                checkpoint,
                val,
                train_outputs,
                aggregates=aggregates,
                n_images=n_images,
                seed=self.seed,
                device=self.device,
                batch_size=self.batch_size,
                on_images=advance,
            )
        tuning.save(path)
        return tuning

    def cached_outputs(self, checkpoint: Checkpoint) -> Path:
        content = checkpoint.content_hash()[:_KEY_LENGTH]
        folder = self.folder / "cache" / "outputs" / content
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    # --- what is made of it ---

    def manifest(
        self,
        checkpoint: Checkpoint,
        training: Mapping[str, Any],
        tuning: Tuning | None,
        outputs: Mapping[str, Outputs],
    ) -> dict[str, Any]:
        facts = ("dataset", "split", "n_images", "data_fingerprint", "skipped", "data_notes")
        return {
            "model": checkpoint.architecture.name,
            "model_hash": checkpoint.content_hash(),
            "n_labels": len(checkpoint.label_names),
            "mean_labels": self.data.mean_labels,
            "training": dict(training),
            "tuning": None if tuning is None else {"data": tuning.data, "best": tuning.chosen()},
            "data": {
                name: {fact: one.manifest[fact] for fact in facts if fact in one.manifest}
                for name, one in outputs.items()
            },
            "batch_size": self.batch_size,
            "device": self.device.type,
            "bootstrap": self.spec.bootstrap,
            "versions": {
                "nescio": __version__,
                "torch": torch.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
        }

    def evaluated(
        self,
        outputs: Mapping[str, Outputs],
        paths: Mapping[str, Path],
        manifest: Mapping[str, Any],
    ) -> list[Line]:
        name = self.data.part.name
        run_file = _run_file(self.folder / self.spec.name, name, self.seed, ".jsonl")
        evidence_file = run_file.with_suffix(".safetensors")
        if run_file.exists() and evidence_file.exists():
            lines = read_lines(run_file)
            if self.is_current(lines, manifest):
                return lines
        ood_outputs = {ood: outputs[ood] for ood in self.data.ood}
        with self.stage("evaluating", len(self.spec.detectors) * len(ood_outputs)) as advance:
            comparison = compare(
                {
                    text: resolve_detector(text, mean_labels=self.data.mean_labels)
                    for text in self.spec.detectors
                },
                outputs[name],
                ood_outputs,
                train=outputs["train"],
                n_bootstrap=self.spec.bootstrap,
                on_step=advance,
            )
        roots = {name: self.data.test.root} | {
            ood: split.root for ood, split in self.data.ood.items()
        }
        evidence = Evidence(name, self.seed, outputs[name], ood_outputs, comparison.scores, roots)
        lines = comparison_lines(comparison, self.spec.name, name, self.seed, manifest)
        save_evidence(evidence_file, evidence, paths)
        write_lines(run_file, lines)
        return lines

    def is_current(self, lines: Sequence[Line], manifest: Mapping[str, Any]) -> bool:
        """Whether lines of an earlier run are those that this one would give."""
        wanted = [(ood, text) for ood in self.data.ood for text in self.spec.detectors]
        found = {(line.ood, line.detector) for line in lines}
        same = json.loads(json.dumps(manifest))  # as JSON has it: lists for tuples
        return found == set(wanted) and all(line.manifest == same for line in lines)


def comparison_lines(
    comparison: Comparison, spec: str, id_name: str, seed: int, manifest: Mapping[str, Any]
) -> list[Line]:
    """A line for each OOD set and detector, those that could not run among them."""
    lines = []
    for ood, results in comparison.results.items():
        lines += [
            Line(spec, id_name, ood, detector, seed, result, manifest=manifest)
            for detector, result in results.items()
        ]
        lines += [
            Line(spec, id_name, ood, detector, seed, None, reason, manifest)
            for detector, reason in comparison.skipped.items()
        ]
    return lines


def _run_file(folder: Path, id_name: str, seed: int, suffix: str) -> Path:
    safe = re.sub(r"[^\w.-]", "_", id_name)
    return folder / "runs" / f"{safe}-seed-{seed}{suffix}"


def _key(facts: Mapping[str, Any]) -> str:
    """A short name for what something is made from."""
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY_LENGTH]
