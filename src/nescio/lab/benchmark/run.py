"""Run a spec: write its result lines and the evidence for them."""

from __future__ import annotations

import json
import multiprocessing
import platform
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from nescio._io.files import locked
from nescio._threads import available_cpus, limit_cpus
from nescio._validation import checked_whole
from nescio._version import __version__
from nescio.errors import BenchmarkError, FileError, NescioError
from nescio.lab.benchmark.pipeline import Pipeline, Report, Watch, make_pipelines, unwatched
from nescio.lab.benchmark.results import (
    RESULTS,
    BenchmarkRun,
    Evidence,
    Line,
    comparison_lines,
    lines_hash,
    load_evidence,
    read_lines,
    run_file,
    save_evidence,
    write_lines,
)
from nescio.lab.benchmark.spec import BenchmarkSpec, resolve_detector
from nescio.lab.benchmark.tables import benchmark_tables
from nescio.lab.extraction.perturb import Tuning
from nescio.lab.extraction.runtimes import AUTO
from nescio.lab.networks.checkpoint import Checkpoint
from nescio.metrics.comparison import compare_outputs
from nescio.outputs import Outputs

CACHE = "cache"


def run_benchmark(
    spec: BenchmarkSpec,
    folder: str | Path,
    *,
    device: torch.device | str = "cpu",
    batch_size: int = 16,
    runtime: str = AUTO,
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
        watch=watch,
    )
    runs = folder / spec.name / "runs"
    runs.mkdir(parents=True, exist_ok=True)
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
        named = "\n".join(
            f"  {pipelines[index].title}: {why}" for index, why in sorted(failed.items())
        )
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
    as_read: dict[str, Any] = json.loads(json.dumps(facts))  # with lists instead of tuples
    return as_read


def _is_current(lines: Sequence[Line], pipeline: Pipeline, manifest: Mapping[str, Any]) -> bool:
    """Whether lines of an earlier run are for the same detectors, sets and manifest."""
    detectors = pipeline.spec.detectors
    if any(":" in text for text in detectors):
        return False  # the code of a user's own detector may have changed
    wanted = {(ood, text) for ood in pipeline.data.ood for text in detectors}
    existing = {(line.ood, line.detector) for line in lines}
    return existing == wanted and all(line.manifest == manifest for line in lines)


def _data_facts(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a line records about data; the outputs list the images left out."""
    names = ("dataset", "split", "n_images", "data_fingerprint", "data_notes")
    facts = {name: manifest[name] for name in names if name in manifest}
    return facts | {"n_skipped": len(manifest["skipped"])}


# --- several networks at once ---------------------------------------------------------------------

Task = Callable[[Pipeline, Path], object]


def run_in_processes(
    task: Task, pipelines: Sequence[Pipeline], folder: Path, jobs: int, watch: Watch
) -> dict[int, str]:
    """Call `task(pipeline, folder)` for each pipeline, each in a process of its own.

    At most `jobs` run at once, and the processors are divided among them. Pipelines on "cuda" are
    distributed over all GPUs. Every process is started anew (spawn), because CUDA and the threads
    of torch do not survive a fork. Returns the reason for each pipeline that failed, by its index.
    """
    jobs = min(jobs, len(pipelines))
    n_cpus = max(1, available_cpus() // jobs)
    spawn = multiprocessing.get_context("spawn")
    processes: list[multiprocessing.process.BaseProcess] = []
    slots: SimpleQueue[int] = SimpleQueue()
    for slot in range(jobs):
        slots.put(slot)

    def run(pipeline: Pipeline) -> str:
        """Run one process to its end; return why it failed, or an empty text."""
        slot = slots.get()
        # Functions that report to a terminal cannot be sent; the process gets its own.
        placed = replace(pipeline, device=device_of(pipeline.device, slot), watch=unwatched)
        ours, theirs = spawn.Pipe(duplex=False)
        process = spawn.Process(
            target=_work, args=(task, placed, folder, n_cpus, theirs), daemon=True
        )
        process.start()
        processes.append(process)
        theirs.close()  # so that the end of the process is seen here
        try:
            failure = _listen(ours, watch)
            process.join()
        finally:
            slots.put(slot)
        return failure or _ended(process.exitcode)

    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(run, pipeline) for pipeline in pipelines]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            failures = [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.terminate()
            for process in processes:
                process.join()
            raise
    return {index: failure for index, failure in enumerate(failures) if failure}


def device_of(device: torch.device, slot: int) -> torch.device:
    """Return the GPU of a slot; a device that is named completely is used by all."""
    if str(device) == "cuda":
        return torch.device("cuda", slot % torch.cuda.device_count())
    return device


def _listen(connection: Connection, watch: Watch) -> str:
    """Show the progress of a process until it ends; return the error that it sent, if any.

    It sends the name and the steps of each stage, then numbers of steps.
    """
    failure = ""
    with ExitStack() as shown:
        while True:
            try:
                message = connection.recv()
            except EOFError:
                return failure
            if isinstance(message, tuple):
                shown.close()
                report = shown.enter_context(watch(*message))
            elif isinstance(message, int):
                report(message)
            else:
                failure = message


def _ended(exit_code: int | None) -> str:
    if exit_code == -getattr(signal, "SIGKILL", 9):
        return "its process was killed, perhaps because memory ran out. Run fewer --jobs."
    return f"its process ended with exit code {exit_code}." if exit_code else ""


def _work(
    task: Task, pipeline: Pipeline, folder: Path, n_cpus: int, connection: Connection
) -> None:
    """Run one network; this is the main function of the other process."""
    # Ctrl-C reaches all processes of a terminal; the parent ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that temporary files are removed
    warnings.filterwarnings("ignore", module="PIL")  # as the command line does
    limit_cpus(n_cpus)
    torch.set_num_threads(min(n_cpus, torch.get_num_threads()))

    @contextmanager
    def watch(stage: str, total: int) -> Iterator[Report]:
        connection.send((stage, total))
        yield connection.send

    try:
        with threadpool_limits(n_cpus):
            task(replace(pipeline, watch=watch), folder)
    except NescioError as error:
        connection.send(str(error))
    except Exception:
        connection.send(traceback.format_exc())
