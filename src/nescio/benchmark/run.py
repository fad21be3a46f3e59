"""Run a spec: write its result lines and the evidence for them."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
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
        lines += _network_lines(pipeline, folder / spec.name)
        write_lines(folder / spec.name / RESULTS, lines)
    for name, table in benchmark_tables(lines, spec.paper_tables).items():
        table.write(folder / spec.name / "tables", name)
    return BenchmarkRun(folder / spec.name, tuple(lines))


def _network_lines(pipeline: Pipeline, folder: Path) -> list[Line]:
    """Return the lines of one network, from an earlier run if it was the same."""
    data, spec, seed = pipeline.data, pipeline.spec, pipeline.seed
    checkpoint, training = pipeline.network()
    train = Outputs.load(pipeline.outputs(checkpoint, data.train, None))
    tuning = pipeline.tuning(checkpoint, train)
    splits = {data.name: data.test, **data.ood}
    paths = {name: pipeline.outputs(checkpoint, split, tuning) for name, split in splits.items()}
    outputs = {name: Outputs.load(path) for name, path in paths.items()}
    roots = {name: split.root.resolve() for name, split in splits.items()}
    manifest = _manifest(pipeline, checkpoint, training, tuning, train, outputs)
    lines_file = run_file(folder, data.name, seed, ".jsonl")
    evidence_file = run_file(folder, data.name, seed, ".safetensors")
    try:
        lines, evidence = read_lines(lines_file), load_evidence(evidence_file)
        of_lines = evidence.of_lines == lines_hash(lines) and evidence.image_roots == roots
        if of_lines and _is_current(lines, pipeline, manifest):
            return lines
    except FileError:  # missing, or written by another version
        pass
    id_outputs = outputs.pop(data.name)
    with pipeline.stage("evaluating", len(spec.detectors) * len(outputs)) as advance:
        comparison = compare(
            {text: resolve_detector(text, mean_labels=data.mean_labels) for text in spec.detectors},
            id_outputs,
            outputs,
            train=train,
            n_bootstrap=spec.bootstrap,
            on_step=advance,
        )
    lines = comparison_lines(comparison, spec.name, data.name, seed, manifest)
    evidence = Evidence(
        data.name, seed, id_outputs, outputs, comparison.scores, roots, lines_hash(lines)
    )
    save_evidence(evidence_file, evidence, paths)
    write_lines(lines_file, lines)
    return lines


def _manifest(
    pipeline: Pipeline,
    checkpoint: Checkpoint,
    training: Mapping[str, Any],
    tuning: Tuning | None,
    train: Outputs,
    outputs: Mapping[str, Outputs],
) -> dict[str, Any]:
    """Return what the lines are made from."""
    tuned = tuning and {
        "data": _data_facts(tuning.data),
        "seed": tuning.data["seed"],
        "best": tuning.chosen(),
    }
    found = {
        "title": pipeline.spec.title,
        "model": checkpoint.architecture.name,
        "model_hash": checkpoint.content_hash(),
        "n_labels": len(checkpoint.label_names),
        "mean_labels": pipeline.data.mean_labels,
        "training": dict(training),
        "tuning": tuned,
        "data": {
            "train": _data_facts(train.manifest),
            "id": _data_facts(outputs[pipeline.data.name].manifest),
            "ood": {ood: _data_facts(outputs[ood].manifest) for ood in pipeline.data.ood},
        },
        "batch_size": pipeline.batch_size,
        "device": pipeline.device.type,
        "features": pipeline.spec.features,
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


def _is_current(lines: Sequence[Line], pipeline: Pipeline, manifest: Mapping[str, Any]) -> bool:
    """Whether lines of an earlier run are for the same detectors, sets and manifest."""
    detectors = pipeline.spec.detectors
    if any(":" in text for text in detectors):
        return False  # the code of a user's own detector may have changed
    wanted = {(ood, text) for ood in pipeline.data.ood for text in detectors}
    found = {(line.ood, line.detector) for line in lines}
    return found == wanted and all(line.manifest == manifest for line in lines)


def _data_facts(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a line records about data; the outputs list the images left out."""
    names = ("dataset", "split", "n_images", "data_fingerprint", "data_notes")
    facts = {name: manifest[name] for name in names if name in manifest}
    return facts | {"n_skipped": len(manifest["skipped"])}
