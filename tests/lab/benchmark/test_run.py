"""Running a benchmark: the lines, their manifest, and continuing after an interruption."""

import shutil
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest

pytest.importorskip("torchvision")

from nescio._io.files import locked
from nescio.errors import BenchmarkError, NonFiniteError
from nescio.lab.benchmark import run as runs
from nescio.lab.benchmark.pipeline import unwatched
from nescio.lab.benchmark.results import BenchmarkRun, run_file
from nescio.lab.benchmark.run import run_benchmark
from nescio.lab.benchmark.spec import parse_benchmark


def test_a_line_for_every_seed_set_and_detector(small_spec, small_run):
    found = [(line.seed, line.ood, line.detector) for line in small_run.lines]
    assert found == [
        (seed, ood, detector)
        for seed in small_spec.seeds
        for ood in small_spec.sets[0].ood
        for detector in small_spec.detectors
    ]
    assert all(line.evaluation is not None for line in small_run.lines)


def test_the_manifest_says_what_it_was_made_from(small_run):
    first, last = small_run.lines[0].manifest, small_run.lines[-1].manifest
    assert first["model_hash"] != last["model_hash"]
    assert first["data"] == last["data"]
    assert first["data"]["train"]["n_images"] == 160
    assert set(first["data"]["ood"]) == {"unseen digits", "noise"}
    assert first["training"]["settings"]["training"]["seed"] == 0
    assert 0 < first["training"]["best"]["val_map"] <= 1
    methods = {(one["method"], one["aggregate"]) for one in first["tuning"]["best"]}
    assert methods >= {("odin", "max"), ("mahalanobis", "sum")}
    assert set(first["versions"]) == {"nescio", "torch", "numpy", "python"}


def test_a_second_run_does_nothing(small_spec, small_run, bench_folder, counted):
    before = (bench_folder / "small" / "results.jsonl").read_bytes()
    stages = []

    def watch(stage, total):
        stages.append(stage)
        return unwatched(stage, total)

    again = run_benchmark(small_spec, bench_folder, watch=watch)
    assert counted == []
    assert not any("evaluating" in stage for stage in stages)
    assert again.lines == small_run.lines
    assert (bench_folder / "small" / "results.jsonl").read_bytes() == before


def test_a_second_run_waits_for_the_first(small_spec, small_run, bench_folder, counted):
    """Two at once would write the same lines and evidence."""
    stages = []

    def watch(stage, total):
        stages.append(stage.rpartition(": ")[2])
        if stages[-1] == "waiting for another process":
            held.close()
        return unwatched(stage, total)

    held = ExitStack()
    folder, name = bench_folder / "small", small_spec.sets[0].name
    held.enter_context(locked(run_file(folder, name, small_spec.seeds[0], ".jsonl")))
    run_benchmark(small_spec, bench_folder, watch=watch)
    assert stages.count("waiting for another process") == 1
    assert counted == []


@pytest.mark.parametrize("freeze", [False, True])
def test_every_stage_reports_all_of_its_steps(small_spec, tmp_path, freeze):
    """Or its time left would be wrong."""
    model = {**small_spec.train["model"], "freeze": freeze}
    spec = replace(
        small_spec,
        detectors=("joint_energy", "odin"),
        seeds=(0,),
        train={**small_spec.train, "model": model},
    )
    totals, done = {}, Counter()

    @contextmanager
    def watch(stage, total):
        name = stage.rpartition(": ")[2]
        totals[name] = total
        yield lambda steps: done.update({name: steps})

    run_benchmark(spec, tmp_path / "bench", watch=watch)
    assert totals == {
        "reading the data sets": 1,
        "checking images": 160 + 4 * 48,
        "training": 160 + (160 + 48 if freeze else 0),
        **({"computing features of digits-train": 160} if freeze else {}),
        "extracting digits-train": 160,
        "tuning ODIN and Mahalanobis": 6 * 6,
        **{f"extracting digits-{name}": 48 for name in ("test", "unseen", "noise")},
        "evaluating": 2 * 2,
    }
    assert done == totals


def test_a_network_that_fails_is_named_and_the_others_are_kept(
    small_spec, small_run, bench_folder, monkeypatch
):
    real = runs._network_lines

    def failing(pipeline, folder):
        if pipeline.seed == 0:
            raise NonFiniteError("the training loss is nan.")
        return real(pipeline, folder)

    monkeypatch.setattr(runs, "_network_lines", failing)
    with pytest.raises(BenchmarkError) as raised:
        run_benchmark(small_spec, bench_folder)
    assert "1 of 2 networks failed:\n  digits, seed 0: the training loss" in str(raised.value)
    assert {line.seed for line in BenchmarkRun.load(bench_folder / "small").lines} == {1}
    with pytest.raises(NonFiniteError):  # the only one
        run_benchmark(small_spec.only([], [0]), bench_folder)
    monkeypatch.undo()
    assert run_benchmark(small_spec, bench_folder).lines == small_run.lines


def test_detectors_of_your_own(small_spec, bench_folder, own_detectors, counted):
    kinds = ("Neighbours(k=3)", "ReAct", "Together")
    names = tuple(f"fixtures.own_detectors:{kind}" for kind in kinds)
    # The features before the last layer, so that ReAct has a head to read.
    spec = replace(small_spec, name="own", detectors=names, seeds=(0,), features="penultimate")
    found = run_benchmark(spec, bench_folder)
    assert {line.detector for line in found.lines} == set(names)
    assert all(line.evaluation is not None for line in found.lines)
    assert "train" not in counted


def test_names_that_are_no_file_names(small_spec, bench_folder):
    part = replace(small_spec.sets[0], name="a/b [c]")
    spec = replace(small_spec, name="odd", detectors=("joint_energy",), seeds=(0,), sets=(part,))
    found = run_benchmark(spec, bench_folder)
    assert {line.id for line in found.lines} == {"a/b [c]"}
    assert (bench_folder / "odd" / "runs" / "a_b__c_-seed-0.jsonl").is_file()
    assert len(found.evidence()) == 1


def test_the_results_are_of_what_was_run_last_and_the_whole_is_gathered(
    small_spec, small_run, bench_folder, counted
):
    run_benchmark(small_spec.only([], [0]), bench_folder)
    assert {line.seed for line in BenchmarkRun.load(bench_folder / "small").lines} == {0}
    assert run_benchmark(small_spec, bench_folder).lines == small_run.lines
    assert counted == []


def test_images_that_have_moved_are_found_again(spec_text, small_run, bench_folder, tmp_path):
    data = small_run.evidence()[0].image_roots["noise"].parent
    shutil.copytree(data / "digits", tmp_path / "moved" / "digits")
    moved = parse_benchmark("small", spec_text).with_data(tmp_path / "moved")
    run = run_benchmark(moved, bench_folder)
    assert run.lines == small_run.lines
    roots = run.evidence()[0].image_roots
    assert roots["noise"] == (tmp_path / "moved" / "digits").resolve()
