"""Metrics in a real MLflow, whose store is a folder. Its import is slow: the fixture imports it."""

import json
from pathlib import Path

import numpy as np
import pytest

import nescio as ns
from nescio.errors import FileError, ParameterError
from nescio.metrics.comparison import compare

NAMES = ["fpr95", "auroc", "aupr"]


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    package = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    before = package.get_tracking_uri()
    package.set_tracking_uri((tmp_path / "store").as_uri())
    yield package
    package.set_tracking_uri(before)


def some_outputs(mean, seed):
    return ns.Outputs(np.random.default_rng(seed).normal(mean, 3, (150, 4)))


def logged(mlflow, *arguments, **options):
    """Log within a run; return the metrics that were reported, and what the run holds."""
    registry = pytest.importorskip("nescio.mlflow")
    with mlflow.start_run() as run:
        found = registry.log_evaluation(*arguments, **options)
    run = mlflow.get_run(run.info.run_id)
    folder = Path(mlflow.artifacts.download_artifacts(run.info.artifact_uri))
    return found, run.data, folder / "nescio"


def test_metrics_parameters_and_the_report_of_a_run(mlflow, tmp_path):
    detector = ns.JointEnergy().calibrate(some_outputs(2, seed=1), tpr=0.9)
    scores = [detector.score_samples(some_outputs(mean, seed=2)) for mean in (2, -2)]
    result = ns.evaluate(*scores, n_bootstrap=20)
    page = tmp_path / "report.html"
    page.write_text("<p>report</p>")
    metrics, run, folder = logged(mlflow, result, model=detector, report=page)
    assert run.metrics == metrics
    assert list(metrics) == [name + end for name in NAMES for end in ("", "_low", "_high")]
    assert metrics["auroc"] == result.auroc.value
    assert (metrics["fpr95_low"], metrics["fpr95_high"]) == (result.fpr.low, result.fpr.high)
    assert run.params["nescio.detector"] == "joint_energy"
    assert run.params["nescio.tpr"] == "0.9"
    assert run.params["nescio.n_calibration"] == "150"
    assert json.loads(run.params["nescio.threshold"]) == {"all": detector.offset_}
    assert run.tags["nescio.guarantee"] == detector.calibration_.statement()
    assert (folder / "report.html").read_text() == page.read_text()
    stored = json.loads((folder / "evaluation.json").read_text())
    assert ns.Evaluation.from_dict(stored) == result


def test_a_comparison_has_metrics_of_each_set_and_detector(mlflow):
    detectors = {"joint_energy": ns.JointEnergy(), "top k (k=2)": ns.TopKLogit(2), "vim": ns.ViM()}
    unknown = {"photos: sea": some_outputs(-2, seed=3), "noise": some_outputs(0, seed=4)}
    result = compare(detectors, some_outputs(2, seed=5), unknown, n_bootstrap=0)
    metrics, run, folder = logged(mlflow, result, prefix="test/")
    assert run.metrics == metrics
    assert set(metrics) == {
        f"test/{ood}/{name}/{measure}"
        for ood in ("photos_ sea", "noise")
        for name in ("joint_energy", "top k _k_2_")
        for measure in NAMES
    }
    expected = result.results["noise"]["top k (k=2)"].aupr.value
    assert metrics["test/noise/top k _k_2_/aupr"] == expected
    stored = json.loads((folder / "test" / "evaluation.json").read_text())
    assert list(stored["skipped"]) == ["vim"]


def test_nothing_is_logged_of_what_is_wrong(mlflow, tmp_path):
    result = ns.evaluate([2.0, 3.0], [1.0, 0.0], n_bootstrap=0)
    ids = some_outputs(2, seed=5)
    same = {"a b": ns.JointEnergy(), "a?b": ns.MaxLogit(), "a!b": ns.MaxProb()}
    both = compare(same, ids, {"noise": some_outputs(0, seed=4)}, n_bootstrap=0)
    registry = pytest.importorskip("nescio.mlflow")
    with mlflow.start_run() as run:
        with pytest.raises(FileError, match="no file"):
            registry.log_evaluation(result, report=tmp_path / "missing.html")
        with pytest.raises(ns.NotCalibratedError, match="calibrated"):
            registry.log_evaluation(result, model=ns.JointEnergy())
        with pytest.raises(ParameterError, match="Evaluation or a Comparison"):
            registry.log_evaluation({"auroc": 0.9})
        with pytest.raises(ParameterError, match="two metrics would have the name 'noise/a_b/"):
            registry.log_evaluation(both)
    assert mlflow.get_run(run.info.run_id).data.metrics == {}
