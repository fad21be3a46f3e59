"""The folder of a benchmark: lines and evidence belong together."""

import shutil

import pytest

pytest.importorskip("torchvision")

from nescio.benchmark.evidence import load_evidence
from nescio.benchmark.folder import BenchmarkRun
from nescio.benchmark.run import run_benchmark
from nescio.errors import FileError


def test_the_lines_are_on_disk(small_run):
    assert BenchmarkRun.load(small_run.folder).lines == small_run.lines


def test_evidence_of_another_run_is_not_taken(small_spec, small_run, bench_folder):
    """As if another spec of that name had been stopped after its first seed."""
    evidence = load_evidence(bench_folder / "small" / "runs" / "digits-seed-0.safetensors")
    path = bench_folder / "small" / "runs" / "digits-seed-1.safetensors"
    shutil.copy(bench_folder / "small" / "runs" / "digits-seed-0.safetensors", path)
    assert evidence.of_lines
    with pytest.raises(FileError, match=r"does not belong to .*results.jsonl"):
        BenchmarkRun.load(bench_folder / "small").evidence()
    run_benchmark(small_spec, bench_folder)  # as the message says
    assert len(BenchmarkRun.load(bench_folder / "small").evidence()) == 2


def test_evidence_survives_a_move_and_says_when_outputs_are_gone(small_run, bench_folder):
    moved = BenchmarkRun.load(bench_folder / "small")
    assert len(moved.evidence()) == 2
    shutil.rmtree(bench_folder / "cache")
    with pytest.raises(FileError, match=r"there is no file.*Run the benchmark again"):
        moved.evidence()


def test_a_folder_without_results(tmp_path):
    with pytest.raises(FileError, match=r"there is no results.jsonl in"):
        BenchmarkRun.load(tmp_path)
