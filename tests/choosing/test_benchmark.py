"""benchmarks/detection/choose.py: the regret of the pick, and how well the order is predicted."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fixtures.labelled import labelled

SOURCE = Path(__file__).resolve().parents[2] / "benchmarks" / "detection" / "choose.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("choose_benchmark", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


DETECTORS = ("-d", "joint_energy", "-d", "mahalanobis")


@pytest.fixture
def saved(tmp_path):
    """Two problems in a folder; `far` is seen by distances only, `low` by logits only."""
    far = labelled(100, seed=5)
    parts = {
        "train": labelled(300, seed=0),
        "val": labelled(300, seed=1),
        "test": labelled(300, seed=2),
        "ood-far": replace(far, features=far.features + 20),
        "ood-low": replace(far, logits=far.logits - 20),
    }
    for problem, seed in (("first", 0), ("first", 1), ("second", 0)):
        for part, outputs in parts.items():
            outputs.save(tmp_path / f"{problem}-seed{seed}-{part}.safetensors")
    return tmp_path


def test_results_are_added_once_and_regret_is_against_the_best_in_hindsight(
    benchmark, saved, capsys
):
    results = saved / "all.jsonl"
    options = ["--saved", str(saved), "--results", str(results), *DETECTORS]
    benchmark.main(options)
    capsys.readouterr()
    lines = benchmark.read_results(results)
    assert [(line["problem"], line["seed"]) for line in lines] == [
        *(("first", 0), ("second", 0), ("first", 1))
    ]
    found = benchmark.measured(lines[0]["pick"], lines[0]["predicted"], lines[0]["real"])
    far, low, mean = (found[name] for name in ("far", "low", "mean FPR"))
    assert (far["best"], far["best_detector"]) == (0.0, "mahalanobis")
    assert (low["best"], low["best_detector"]) == (0.0, "joint_energy")
    assert far["pick"] + low["pick"] > 0.5  # no single detector is the best of both
    for one in (far, low, mean):
        assert one["regret"] == pytest.approx(one["pick"] - one["best"])
    assert mean["pick"] == pytest.approx(np.mean([far["pick"], low["pick"]]))
    assert far["correlation"]["criterion"] == -low["correlation"]["criterion"] != 0
    results.write_text("".join(f"{json.dumps(line)}\n" for line in lines[:2]), "utf-8")
    benchmark.main(options)
    assert capsys.readouterr().out.startswith("first, seed 1: ")  # and no other
    assert benchmark.read_results(results) == lines


def test_ood_files_are_read_after_the_choice_only(benchmark, saved, monkeypatch):
    (saved / "first-seed0-ood-far.safetensors").write_bytes(b"")
    made = []
    chosen = benchmark.choose
    monkeypatch.setattr(
        benchmark, "choose", lambda *a, **k: made.append(chosen(*a, **k)) or made[0]
    )
    with pytest.raises(OSError, match="far"):
        benchmark.main(["--saved", str(saved), "--results", str(saved / "all.jsonl"), *DETECTORS])
    assert len(made) == 1


def test_the_summary_counts_every_problem_the_same(benchmark, capsys):
    def line(problem, seed, fprs, pick="max_logit"):
        near = {"joint_energy": 0.4, "max_logit": 0.3, "knn": 0.5}
        return {
            **{"problem": problem, "seed": seed, "pick": pick},
            "predicted": {
                name: {"near": value, "far": None, "criterion": value}
                for name, value in near.items()
            },
            "real": {
                ood: dict(zip(("joint_energy", "max_logit", "knn"), values, strict=True))
                for ood, values in fprs.items()
            },
        }

    benchmark.print_summary(
        [
            # pick 30, best of each 10 and 30; knn has the lowest mean, 25
            line("images", 0, {"a": (0.5, 0.3, 0.1), "b": (0.5, 0.3, 0.4)}),
            line("images", 1, {"a": (0.5, 0.3, 0.1), "b": (0.5, 0.3, 0.4)}),
            line("tables", 0, {"a": (0.4, 0.3, 0.5)}, pick="knn"),
        ]
    )
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert rows[0][:7] == ["| images", "2", "30.0", "50.0", "10.0", "30.0", "5.0"]
    assert rows[0][7:] == ["-0.50", "", "-0.50", "`max_logit` (2) |"]
    assert rows[1][:7] == ["| tables", "1", "50.0", "40.0", "20.0", "10.0", "20.0"]
    assert rows[1][7:] == ["1.00", "", "1.00", "`knn` (1) |"]
    assert rows[2][:7] == ["| mean", "3", "40.0", "45.0", "15.0", "20.0", "12.5"]
    assert rows[2][7:10] == ["0.25", "", "0.25"]
