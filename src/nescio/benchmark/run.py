"""Run a spec: write its result lines and the evidence for them."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nescio._io.locks import locked
from nescio._validation import checked_whole
from nescio._version import __version__
from nescio.benchmark.evidence import Evidence, load_evidence, save_evidence
from nescio.benchmark.folder import RESULTS, BenchmarkRun, run_file
from nescio.benchmark.parallel import run_in_processes
from nescio.benchmark.pipeline import Pipeline, make_pipelines
from nescio.benchmark.progress import Watch, unwatched
from nescio.benchmark.results import (
    Line,
    comparison_lines,
    lines_hash,
    read_lines,
    write_lines,
)
from nescio.benchmark.spec import BenchmarkSpec, resolve_detector
from nescio.benchmark.tables import benchmark_tables
from nescio.data.damage import Thoroughness
from nescio.errors import BenchmarkError, FileError, NescioError
from nescio.metrics.comparison import compare_outputs
from nescio.outputs import Outputs
from nescio.runners.runtimes import AUTO
from nescio.training import Checkpoint, Tuning

CACHE = "cache"


def run_benchmark(
    spec: BenchmarkSpec,
    folder: str | Path,
    *,
    device: torch.device | str = "cpu",
    batch_size: int = 16,
    runtime: str = AUTO,
    check: Thoroughness = "fast",
    verify: bool = False,
    jobs: int = 1,
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
    runtime : str
        What runs the networks, except to train them; as for `extract`.
    check : {"fast", "full"}
        How all images are checked before the work begins; see `nescio.data.damage.find_damaged`.
        A set with `skip_bad` is always checked fully, and damaged images are left out.
    verify : bool
        Compare all bytes of the images with those that earlier results were made from, and not
        samples of each image; see `Split.content`.
    jobs : int
        Number of networks that are run at once, each in a process of its own. With the device
        "cuda", they are distributed over all GPUs. A script that uses this needs
        `if __name__ == "__main__":` around its code.

    Raises
    ------
    BenchmarkError
        If some of several networks failed. The results of the others are written.
    """
    folder = Path(folder)
    checked_whole("jobs", jobs, minimum=1)
    pipelines = make_pipelines(
        spec,
        folder / CACHE,
        device=device,
        batch_size=batch_size,
        runtime=runtime,
        check=check,
        verify=verify,
        watch=watch,
    )
    runs = folder / spec.name / "runs"
    try:
        runs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot create the folder {runs}: {error.strerror}.") from error
    lines = _all_lines(pipelines, folder / spec.name, jobs, watch)
    for name, table in benchmark_tables(lines, spec.paper_tables).items():
        table.write(folder / spec.name / "tables", name)
    return BenchmarkRun(folder / spec.name, tuple(lines))


def _all_lines(pipelines: Sequence[Pipeline], folder: Path, jobs: int, watch: Watch) -> list[Line]:
    """Return the lines of all networks, written to the folder as soon as there are some."""
    lines: list[Line] = []
    failed: dict[int, str] = {}
    several = jobs > 1 and len(pipelines) > 1
    if several:
        failed = run_in_processes(run_network, pipelines, folder, jobs, watch)
    for index, pipeline in enumerate(pipelines):
        if index in failed:
            continue
        try:
            if several:
                lines += read_lines(run_file(folder, pipeline.data.name, pipeline.seed, ".jsonl"))
            else:
                lines += run_network(pipeline, folder)
        except NescioError as error:
            if len(pipelines) == 1:
                raise
            failed[index] = str(error)
            continue
        write_lines(folder / RESULTS, lines)
    if failed:
        named = "\n".join(f"  {pipelines[at].title}: {why}" for at, why in sorted(failed.items()))
        raise BenchmarkError(
            f"{len(failed)} of {len(pipelines)} networks failed:\n{named}\nThe results of the "
            "others are kept. Run the same command again to continue with these."
        )
    return lines


def run_network(pipeline: Pipeline, folder: Path) -> list[Line]:
    """Return the lines of one network; two processes never run the same one at once."""
    lines_file = run_file(folder, pipeline.data.name, pipeline.seed, ".jsonl")
    with locked(lines_file, lambda: pipeline.stage("waiting for another process", 0)):
        return _network_lines(pipeline, folder)


def _network_lines(pipeline: Pipeline, folder: Path) -> list[Line]:
    """Return the lines of one network, from an earlier run if it was the same."""
    data, spec, seed = pipeline.data, pipeline.spec, pipeline.seed
    checkpoint, training = pipeline.network()
    train = Outputs.load(pipeline.outputs(checkpoint, data.train))
    tuning = pipeline.tuning(checkpoint, train)
    fitted_on_val, calibrated_on_val = spec.fitted_on_val(), spec.calibrated_on_val()
    val = None
    if fitted_on_val or calibrated_on_val:
        val = Outputs.load(pipeline.outputs(checkpoint, data.val))
    splits = {data.name: data.test, **data.ood}
    paths = {
        name: pipeline.outputs(checkpoint, split, tuning, train) for name, split in splits.items()
    }
    outputs = {name: Outputs.load(path) for name, path in paths.items()}
    roots = {name: split.root.resolve() for name, split in splits.items()}
    manifest = _manifest(pipeline, checkpoint, training, tuning, train, val, outputs)
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
        comparison = compare_outputs(
            {text: resolve_detector(text, mean_labels=data.mean_labels) for text in spec.detectors},
            id_outputs,
            outputs,
            train=train,
            train_of={} if val is None else dict.fromkeys(fitted_on_val, val),
            held_out=val if calibrated_on_val else None,
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
    val: Outputs | None,
    outputs: Mapping[str, Outputs],
) -> dict[str, Any]:
    """Return what the lines are made from."""
    tuned = tuning and {
        "data": _data_facts(tuning.data),
        "seed": tuning.data["seed"],
        "settings": asdict(pipeline.spec.tune),
        "best": tuning.chosen(),
    }
    found = {
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
            **({} if val is None else {"val": _data_facts(val.manifest)}),
            "id": _data_facts(outputs[pipeline.data.name].manifest),
            "ood": {ood: _data_facts(outputs[ood].manifest) for ood in pipeline.data.ood},
        },
        "batch_size": pipeline.batch_size,
        "device": pipeline.device.type,
        "features": ",".join(train.manifest["layers"]),
        "fit_on": dict(pipeline.spec.fit_on),
        **({"held_out": {"val": on_val}} if (on_val := pipeline.spec.calibrated_on_val()) else {}),
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
