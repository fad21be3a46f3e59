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
    measured = benchmark.measured(lines[0]["pick"], lines[0]["predicted"], lines[0]["real"])
    far, low, mean = (measured[name] for name in ("far", "low", "mean FPR"))
    assert (far["best"], far["best_detector"]) == (0.0, "mahalanobis")
    assert (low["best"], low["best_detector"]) == (0.0, "joint_energy")
    assert far["pick"] + low["pick"] > 0.5  # no single detector is the best of both
    for result in (far, low, mean):
        assert result["regret"] == pytest.approx(result["pick"] - result["best"])
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
