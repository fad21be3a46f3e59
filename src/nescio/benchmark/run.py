"""Run a spec: write its result lines and the evidence for them."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nescio._version import __version__
from nescio.benchmark.evidence import Evidence, load_evidence, save_evidence
from nescio.benchmark.folder import RESULTS, BenchmarkRun, run_file
from nescio.benchmark.pipeline import Pipeline, Watch, make_pipelines, unwatched
from nescio.benchmark.results import (
    Line,
    comparison_lines,
    lines_hash,
    read_lines,
    write_lines,
)
from nescio.benchmark.spec import BenchmarkSpec, resolve_detector
from nescio.benchmark.tables import benchmark_tables
from nescio.errors import FileError
from nescio.metrics.comparison import compare
from nescio.outputs import Outputs
from nescio.training import Checkpoint, Tuning

CACHE = "cache"


def run_benchmark(
    spec: BenchmarkSpec,
    folder: str | Path,
    *,
    device: torch.device | str = "cpu",
    batch_size: int = 16,
    watch: Watch = unwatched,
) -> BenchmarkRun:
    """Run the parts of a spec that are not done yet.

    Parameters
    ----------
    spec : BenchmarkSpec
        With the folder of its data filled in: see `BenchmarkSpec.with_data`.
    folder : path
        The results are written to `folder/NAME`. All benchmarks of a folder share `folder/cache`.
    device, batch_size, watch
        As for `Pipeline`.
    """
    folder = Path(folder)
    pipelines = make_pipelines(
        spec, folder / CACHE, device=device, batch_size=batch_size, watch=watch
    )
    runs = folder / spec.name / "runs"
    try:
        runs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot create the folder {runs}: {error.strerror}.") from error
    lines: list[Line] = []
    for pipeline in pipelines:
        lines += _Evaluation(pipeline, folder / spec.name).lines()
        write_lines(folder / spec.name / RESULTS, lines)
    for name, table in benchmark_tables(lines, spec.paper_tables).items():
        table.write(folder / spec.name / "tables", name)
    return BenchmarkRun(folder / spec.name, tuple(lines))


@dataclass(frozen=True)
class _Evaluation:
    """The evaluation of every detector on the outputs of one network."""

    pipeline: Pipeline
    folder: Path

    def lines(self) -> list[Line]:
        """Return the lines, from an earlier run if it was the same."""
        pipeline, data = self.pipeline, self.pipeline.data
        checkpoint, training = pipeline.network()
        train_outputs = Outputs.load(pipeline.outputs(checkpoint, data.train, None))
        tuning = pipeline.tuning(checkpoint, train_outputs)
        paths = {data.name: pipeline.outputs(checkpoint, data.test, tuning)}
        for ood, split in data.ood.items():
            paths[ood] = pipeline.outputs(checkpoint, split, tuning)
        outputs = {name: Outputs.load(path) for name, path in paths.items()}
        manifest = self.manifest(checkpoint, training, tuning, train_outputs, outputs)
        earlier = self.earlier(manifest, paths)
        return earlier or self.evaluate(train_outputs, outputs, paths, manifest)

    def file(self, suffix: str) -> Path:
        """Return the path of the lines or of the evidence."""
        return run_file(self.folder, self.pipeline.data.name, self.pipeline.seed, suffix)

    def manifest(
        self,
        checkpoint: Checkpoint,
        training: Mapping[str, Any],
        tuning: Tuning | None,
        train_outputs: Outputs,
        outputs: Mapping[str, Outputs],
    ) -> dict[str, Any]:
        """Return what the lines are made from."""
        pipeline = self.pipeline
        found = {
            "model": checkpoint.architecture.name,
            "model_hash": checkpoint.content_hash(),
            "n_labels": len(checkpoint.label_names),
            "mean_labels": pipeline.data.mean_labels,
            "training": dict(training),
            "tuning": None
            if tuning is None
            else {
                "data": _data_facts(tuning.data),
                "seed": tuning.data["seed"],
                "best": tuning.chosen(),
            },
            "data": {
                "train": _data_facts(train_outputs.manifest),
                "id": _data_facts(outputs[pipeline.data.name].manifest),
                "ood": {ood: _data_facts(outputs[ood].manifest) for ood in pipeline.data.ood},
            },
            "batch_size": pipeline.batch_size,
            "device": pipeline.device.type,
            "bootstrap": pipeline.spec.bootstrap,
            "versions": {
                "nescio": __version__,
                "torch": torch.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
        }
        as_read: dict[str, Any] = json.loads(json.dumps(found))  # with lists instead of tuples
        return as_read

    def earlier(self, manifest: Mapping[str, Any], paths: Mapping[str, Path]) -> list[Line] | None:
        """Return the lines of an earlier run if this run would give the same."""
        try:
            lines = read_lines(self.file(".jsonl"))
            evidence = load_evidence(self.file(".safetensors"))
        except FileError:  # missing, or written by another version
            return None
        if not self.is_current(lines, manifest) or evidence.of_lines != lines_hash(lines):
            return None
        if evidence.image_roots != self.roots():  # the images have moved
            moved = replace(evidence, image_roots=self.roots())
            save_evidence(self.file(".safetensors"), moved, paths)
        return lines

    def is_current(self, lines: Sequence[Line], manifest: Mapping[str, Any]) -> bool:
        """Whether lines of an earlier run are for the same detectors, sets and manifest."""
        detectors, oods = self.pipeline.spec.detectors, self.pipeline.data.ood
        if any(":" in text for text in detectors):
            return False  # the code of a user's own detector may have changed
        wanted = {(ood, text) for ood in oods for text in detectors}
        found = {(line.ood, line.detector) for line in lines}
        return found == wanted and all(line.manifest == manifest for line in lines)

    def roots(self) -> dict[str, Path]:
        """Return the folder of the images of each set."""
        data = self.pipeline.data
        splits = {data.name: data.test, **data.ood}
        return {name: split.root.resolve() for name, split in splits.items()}

    def evaluate(
        self,
        train_outputs: Outputs,
        outputs: Mapping[str, Outputs],
        paths: Mapping[str, Path],
        manifest: Mapping[str, Any],
    ) -> list[Line]:
        """Run the detectors; write and return the lines."""
        pipeline, data = self.pipeline, self.pipeline.data
        name, spec = data.name, pipeline.spec
        ood_outputs = {ood: outputs[ood] for ood in data.ood}
        with pipeline.stage("evaluating", len(spec.detectors) * len(ood_outputs)) as advance:
            comparison = compare(
                {
                    text: resolve_detector(text, mean_labels=data.mean_labels)
                    for text in spec.detectors
                },
                outputs[name],
                ood_outputs,
                train=train_outputs,
                n_bootstrap=spec.bootstrap,
                on_step=advance,
            )
        lines = comparison_lines(comparison, spec.name, name, pipeline.seed, manifest)
        evidence = Evidence(
            name,
            pipeline.seed,
            outputs[name],
            ood_outputs,
            comparison.scores,
            self.roots(),
            of_lines=lines_hash(lines),
        )
        save_evidence(self.file(".safetensors"), evidence, paths)
        write_lines(self.file(".jsonl"), lines)
        return lines


def _data_facts(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a line records about data; the outputs list the images left out."""
    names = ("dataset", "split", "n_images", "data_fingerprint", "data_notes")
    facts = {name: manifest[name] for name in names if name in manifest}
    return facts | {"n_skipped": len(manifest["skipped"])}
