"""benchmarks/detection/tables.py on a tiny run, and its page."""

import importlib.util
import itertools
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "tables.jsonl"


@pytest.fixture(scope="module")
def benchmark():
    source = ROOT / "benchmarks" / "detection" / "tables.py"
    spec = importlib.util.spec_from_file_location("tables_benchmark", source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_run_has_every_set_and_detector(benchmark, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "N_SAMPLES", 300)
    monkeypatch.setattr(
        benchmark,
        "DETECTORS",
        {name: detectors[:1] for name, detectors in benchmark.DETECTORS.items()},
    )
    path = tmp_path / "lines.jsonl"
    benchmark.main(
        [*["--only", "sensors", "--model", "boosting", "--seeds", "1", "--results"], str(path)]
    )
    printed = capsys.readouterr().out
    [line] = benchmark.read(path)
    assert all(list(by_ood) == list(benchmark.OOD) for by_ood in line.fpr.values())
    assert (
        set(line.fpr)
        == set(line.auroc)
        == {
            *(
                "logits: joint_energy",
                "inputs: knn",
                "standardised: knn",
                "table: knn",
                "leaves: knn",
            ),
            *("table: isolation_forest", "table: lof"),
        }
    )
    assert printed.endswith("\n\n".join(["", *benchmark.tables([line])]) + "\n")


def test_the_parts_of_a_problem_are_disjoint_and_without_the_group(benchmark, monkeypatch):
    monkeypatch.setattr(benchmark, "N_SAMPLES", 100)
    benchmark.problem_of.cache_clear()
    for name in benchmark.PROBLEMS:
        parts, ood = benchmark.problem_of(name, 1)
        sets = [{row.tobytes() for row in x} for x, _ in parts.values()]
        group = {row.tobytes() for row in ood["group"]}
        if name != "counts":  # of counts, some rows are equal by chance
            assert sum(map(len, [*sets, group])) == len(set().union(*sets, group))
        assert all(y.shape[1] >= 5 and np.isin(y, (0, 1)).all() for _, y in parts.values())
        assert all(len(rows) for rows in ood.values())


def test_the_page_shows_the_committed_results(benchmark):
    page = (ROOT / "docs" / "explanation" / "tables.md").read_text("utf-8")
    lines = benchmark.read(RESULTS)
    runs = {(line.problem, line.model, line.seed) for line in lines}
    assert runs == {*itertools.product(benchmark.PROBLEMS, benchmark.MODELS, range(5))}
    by_kind, _, _, unseen = benchmark.tables(lines)
    for text in (by_kind, unseen):
        assert text in page, f"the page should show:\n{text}"
