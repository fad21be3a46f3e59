"""Result lines and their evidence: on disk, and measures over seeds."""

import json
import shutil

import numpy as np
import pytest

pytest.importorskip("torchvision")

from fixtures.benchmark import result_line
from fixtures.rewriting import write_valid
from nescio._io.tensors import read_tensors
from nescio.detectors import JointEnergy
from nescio.errors import FileError, FileFormatError
from nescio.lab.benchmark.results import (
    BenchmarkRun,
    load_evidence,
    read_lines,
    summarise,
    write_lines,
)
from nescio.lab.benchmark.run import run_benchmark
from nescio.metrics import auroc
from nescio.metrics.comparison import Spread


def test_lines_are_read_as_they_were_written(tmp_path):
    lines = [result_line("msp", (60, 80, 85)), result_line("odin", "there is no odin_max.")]
    write_lines(tmp_path / "results.jsonl", lines)
    assert read_lines(tmp_path / "results.jsonl") == lines
    first, second = map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines())
    assert first["fpr"]["value"] == 0.6
    assert (second["skipped"], "fpr" in second) == ("there is no odin_max.", False)


def test_an_invalid_line_is_named(tmp_path):
    path = tmp_path / "results.jsonl"
    write_lines(path, [result_line("msp", (60, 80, 85))])
    for wrong in ("{}", "[1]", "no JSON", '{"spec": "x"}'):
        path.write_text(path.read_text().splitlines()[0] + f"\n{wrong}\n")
        with pytest.raises(FileFormatError, match=r"line 2 of .*results.jsonl is not a result"):
            read_lines(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(FileFormatError, match="is not a result line"):
        read_lines(path)


def test_measures_over_seeds():
    spread = Spread.of([0.60, 0.62])
    assert (spread.mean, spread.n) == (pytest.approx(0.61), 2)
    assert spread.deviation == pytest.approx(0.02 / 2**0.5)
    assert str(spread) == "61.00 ± 1.41"
    assert str(Spread.of([0.5])) == "50.00"


def test_the_summary_is_in_the_order_of_the_lines():
    lines = [
        result_line("msp", (60, 80, 85), seed=0, ood="b"),
        result_line("lof", (50, 80, 85), seed=0, ood="a"),
        result_line("msp", (70, 80, 85), seed=1, ood="b"),
        result_line("odin", "skipped", ood="c"),
    ]
    summary = summarise(lines)
    assert list(summary) == [("MS-COCO", "b"), ("MS-COCO", "a")]
    assert summary["MS-COCO", "b"]["msp"]["fpr"].mean == pytest.approx(0.65)


def test_the_lines_are_of_the_evidence(small_run):
    """The numbers are those of the scores, and the scores those of the outputs."""
    evidence = small_run.evidence()
    assert [of_run.seed for of_run in evidence] == [0, 1]
    for line in small_run.lines:
        [of_seed] = [of_run for of_run in evidence if of_run.seed == line.seed]
        scored = of_seed.scores[line.detector]
        area = auroc(scored.id_scores, scored.ood_scores[line.ood])
        assert line.evaluation.auroc.value == pytest.approx(area)
    first = evidence[0]
    np.testing.assert_allclose(
        first.scores["joint_energy"].ood_scores["noise"],
        JointEnergy().score_samples(first.ood_outputs["noise"]),
    )
    assert (first.image_roots["noise"] / first.ood_outputs["noise"].ids[0]).is_file()


@pytest.mark.parametrize(
    "damage",
    [{"outputs": {}}, {"outputs": [], "id": 9}, {"detectors": 3}, {"schema": 3}, {"kind": "x"}],
)
def test_damaged_evidence(small_run, tmp_path, damage):
    source = small_run.folder / "runs" / "digits-seed-0.safetensors"
    tensors, metadata = read_tensors(source)
    write_valid(tmp_path / "x.safetensors", tensors, metadata | damage)
    with pytest.raises(FileFormatError):
        load_evidence(tmp_path / "x.safetensors")


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
