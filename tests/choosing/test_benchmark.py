"""benchmarks/choose.py: the regret of the pick, and how well the order is predicted."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fixtures.labelled import labelled

SOURCE = Path(__file__).resolve().parents[2] / "benchmarks" / "choose.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("choose_benchmark", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("train", "val", "test")):
        labelled(300, seed=seed).save(f"{name}.safetensors")
    far = labelled(100, seed=5)
    replace(far, features=far.features + 20).save("far.safetensors")  # only distances see it
    replace(far, logits=far.logits - 20).save("low.safetensors")  # only logits see it
    return (
        *("--train", "train.safetensors", "--held-out", "val.safetensors"),
        *("--id", "test.safetensors", "--ood", "far=far.safetensors"),
        *("--ood", "low=low.safetensors", "-d", "joint_energy", "-d", "mahalanobis"),
    )


def test_regret_is_against_the_best_in_hindsight(benchmark, files, capsys):
    benchmark.main([*files, "--json"])
    found = json.loads(capsys.readouterr().out)
    far, low, mean = (found["results"][name] for name in ("far", "low", "mean FPR"))
    assert (far["best"], far["best_detector"]) == (0.0, "mahalanobis")
    assert (low["best"], low["best_detector"]) == (0.0, "joint_energy")
    assert far["pick"] + low["pick"] > 0.5  # no single detector is the best of both
    for one in (far, low, mean):
        assert one["regret"] == pytest.approx(one["pick"] - one["best"])
    assert mean["pick"] == pytest.approx(np.mean([far["pick"], low["pick"]]))
    assert far["correlation"]["criterion"] == -low["correlation"]["criterion"] != 0
    benchmark.main(files)
    out = capsys.readouterr().out
    regret = 100 * np.mean([far["regret"], low["regret"]])
    assert f"mean regret against the best of each set: {regret:.1f} points" in out


def test_ood_files_are_read_after_the_choice_only(benchmark, files, monkeypatch):
    Path("far.safetensors").unlink()
    made = []
    chosen = benchmark.choose
    monkeypatch.setattr(
        benchmark, "choose", lambda *a, **k: made.append(chosen(*a, **k)) or made[0]
    )
    with pytest.raises(OSError, match="far"):
        benchmark.main(files)
    assert len(made) == 1
