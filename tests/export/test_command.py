"""nescio export."""

import json
import sys

import numpy as np
import pytest

import nescio as ns
from nescio.cli import main
from nescio.export.sample_files import read_samples

from .conftest import N_LABELS, metadata, run, some_inputs, some_logits
from .test_onnx_files import classifier

torch = pytest.importorskip("torch")


@pytest.fixture
def detector(tmp_path):
    """A detector of logits, saved."""
    ns.JointEnergy().calibrate(some_logits(), tpr=0.9).save(tmp_path / "tagger.nescio")
    return str(tmp_path / "tagger.nescio")


@pytest.fixture
def checkpoint(tmp_path):
    """A small network of nescio's own with random weights, saved, and images."""
    pytest.importorskip("torchvision")
    from nescio.models import Architecture, Checkpoint, Preprocessing

    torch.manual_seed(0)
    architecture = Architecture("small-cnn", n_hidden=8)
    network = architecture.build(3).eval()
    saved = Checkpoint(network, architecture, ("red", "green", "blue"), Preprocessing(16))
    saved.save(tmp_path / "network.safetensors")
    return saved, torch.randn(200, 3, 16, 16)


def test_a_detector_alone(detector, tmp_path, capsys):
    path = tmp_path / "alone.onnx"
    np.save(tmp_path / "new.npy", some_logits(30, seed=2))
    arguments = ["export", detector, "-o", str(path), "--samples", str(tmp_path / "new.npy")]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "inputs   logits (batch, 6)" in printed
    assert "outputs  probs, score, p_value, in_distribution" in printed
    assert f"saved {path}" in printed
    assert run(path, logits=some_logits(3))["score"].shape == (3,)
    assert main(arguments) == 1  # it is there already
    assert "--force" in capsys.readouterr().err


def test_an_onnx_file(detector, tmp_path, capsys):
    model = classifier(tmp_path / "model.onnx", batch=4, input_name="x")
    path = tmp_path / "fused.onnx"
    arguments = ["export", detector, "-o", str(path), "--model", str(model)]
    assert main([*arguments, "--logits", "in_distribution", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["inputs"] == {"x": [4, 5]}
    assert (facts["n_samples"], facts["fixed_batch"], facts["opset"]) == (4, 4, 18)
    assert facts["differences"]["score"] <= 1e-4
    assert run(path, x=some_inputs(4))["p_value"].shape == (4,)
    assert main([*arguments, "--logits", "wrong", "--force"]) == 1
    assert "must be an output of the graph" in capsys.readouterr().err


@pytest.mark.parametrize("features", ["pooled", "penultimate"])
def test_a_network_of_nescios_own_reads_the_features_that_extract_stores(
    features, checkpoint, tmp_path, capsys
):
    saved, images = checkpoint
    with torch.no_grad():
        outputs = saved.network(images)
    rng = np.random.default_rng(0)
    given = ns.Outputs(
        outputs.logits,
        features=getattr(outputs, features),
        labels=rng.integers(0, 2, (200, 3)),
        label_names=saved.label_names,
    )
    detector = ns.Mahalanobis().fit(given[:100]).calibrate(given[100:], tpr=0.9)
    detector.save(tmp_path / "detector.nescio")
    path = tmp_path / "fused.onnx"
    arguments = [
        *("export", str(tmp_path / "detector.nescio"), "-o", str(path)),
        *("--model", str(tmp_path / "network.safetensors"), "--features", features),
    ]
    # Eight hidden units that hardly vary: the distances magnify what rounding leaves.
    assert main([*arguments, "--tolerance", "0.01"]) == 0
    assert "checked on 12 samples" in capsys.readouterr().out
    name = json.loads(metadata(path)["nescio.inputs"])[0]
    found = run(path, **{name: images.numpy()})
    np.testing.assert_allclose(found["features"], given.features, atol=1e-4)
    np.testing.assert_allclose(found["score"], detector.score_samples(given), rtol=0.01, atol=1e-3)
    assert json.loads(metadata(path)["nescio.preprocessing"])["size"] == 16
    assert json.loads(metadata(path)["nescio.label_names"]) == ["red", "green", "blue"]


def test_a_module_of_ones_own(detector, tmp_path, monkeypatch, capsys):
    (tmp_path / "my_tagger.py").write_text(
        f"from torch import nn\n\n\ndef make():\n    return nn.Linear(5, {N_LABELS})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "fused.onnx"
    arguments = ["export", detector, "-o", str(path), "--model", "module:my_tagger:make"]
    assert main(arguments) == 1
    assert "--input-shape" in capsys.readouterr().err
    assert main([*arguments, "--input-shape", "5x"]) == 1
    assert "such as 3,224,224" in capsys.readouterr().err
    assert main([*arguments, "--input-shape", "5"]) == 0
    assert run(path, input=some_inputs(2))["logits"].shape == (2, N_LABELS)
    sys.modules.pop("my_tagger")


def test_what_cannot_be_exported(tmp_path, capsys):
    rng = np.random.default_rng(0)
    forest = ns.IsolationForest(n_trees=50)
    outputs = ns.Outputs(rng.normal(size=(400, 3)), features=rng.normal(size=(400, 4)))
    forest.fit(outputs[:200]).calibrate(outputs[200:])
    forest.save(tmp_path / "forest.nescio")
    path = tmp_path / "forest.onnx"
    assert main(["export", str(tmp_path / "forest.nescio"), "-o", str(path)]) == 1
    assert "error: isolation_forest cannot be exported" in capsys.readouterr().err
    assert not path.exists()


def test_samples_from_files(tmp_path):
    inputs = some_inputs(7)
    np.save(tmp_path / "one.npy", inputs)
    np.savez(tmp_path / "one.npz", inputs=inputs)
    np.savez(tmp_path / "two.npz", a=inputs, b=inputs)
    ns.Outputs(inputs).save(tmp_path / "one.safetensors")
    for name in ("one.npy", "one.npz", "one.safetensors"):
        np.testing.assert_array_equal(read_samples(tmp_path / name), inputs)
    assert list(read_samples(tmp_path / "two.npz")) == ["a", "b"]
    (tmp_path / "bad.npy").write_bytes(b"no array")
    with pytest.raises(ns.NescioError, match="not a NumPy file"):
        read_samples(tmp_path / "bad.npy")
    (tmp_path / "text.csv").write_text("1,2")
    with pytest.raises(ns.NescioError, match=r"expected one of \.npy"):
        read_samples(tmp_path / "text.csv")


def test_samples_from_parquet(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    inputs = some_inputs(7)
    columns = {"id": [str(n) for n in range(7)]} | {f"c{n}": inputs[:, n] for n in range(5)}
    parquet.write_table(pyarrow.table(columns), tmp_path / "numbers.parquet")
    np.testing.assert_array_equal(read_samples(tmp_path / "numbers.parquet"), inputs)
    parquet.write_table(pyarrow.table({"x": inputs.tolist()}), tmp_path / "lists.parquet")
    np.testing.assert_allclose(read_samples(tmp_path / "lists.parquet"), inputs)
