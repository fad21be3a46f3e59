"""nescio export."""

import json
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import nescio as ns
from fixtures.export import (
    N_LABELS,
    classifier,
    mahalanobis,
    metadata,
    run,
    some_inputs,
    some_logits,
)
from nescio.cli import main
from nescio.export.samples import read_samples

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
    from nescio.training import Architecture, Checkpoint, Preprocessing

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


def test_a_network_of_nescios_own(checkpoint, tmp_path, capsys):
    saved, images = checkpoint
    features = "penultimate"
    truth = np.random.default_rng(0).integers(0, 2, (200, 3))
    given = ns.wrap(saved, features=features).outputs(images, labels=truth)
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
        f"from torch import nn\n\n\ndef make():\n    return nn.Linear(5, {N_LABELS}).double()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "fused.onnx"
    arguments = ["export", detector, "-o", str(path), "--model", "module:my_tagger:make"]
    assert main(arguments) == 1
    assert "--input-shape" in capsys.readouterr().err
    assert main([*arguments, "--input-shape", "5x"]) == 1
    assert "such as 3,224,224" in capsys.readouterr().err
    assert main([*arguments, "--input-shape", "4"]) == 1
    told = capsys.readouterr().err
    assert "the model failed on random inputs of the shape 4: " in told
    assert "that of one input, without the batch (input_shape=..., --input-shape)" in told
    # In float64, of which onnxruntime lacks some operators.
    assert main([*arguments, "--input-shape", "5"]) == 0
    found = run(path, input=some_inputs(2).astype(np.float64))
    assert (found["logits"].shape, found["logits"].dtype) == ((2, N_LABELS), np.float64)
    sys.modules.pop("my_tagger")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("module:math:sin", "math:sin() failed: TypeError: "),
        ("module:builtins:dict", "builtins:dict() must return a torch module, got dict."),
    ],
)
def test_a_factory_that_fails(model, message, detector, tmp_path, capsys):
    assert main(["export", detector, "-o", str(tmp_path / "f.onnx"), "--model", model]) == 1
    assert f"error: {message}" in capsys.readouterr().err


def test_what_looks_like_probabilities_is_refused_until_it_is_said(detector, tmp_path, capsys):
    model = classifier(tmp_path / "model.onnx", probabilities=True, input_name="x", batch=1)
    path = tmp_path / "fused.onnx"
    arguments = ["export", detector, "-o", str(path), "--model", str(model), "--logits", "logits"]
    assert main(arguments) == 1
    assert "--from-probs if they are probabilities, --from-logits if not" in capsys.readouterr().err
    assert not path.exists()
    assert main([*arguments, "--from-probs"]) == 0
    printed = capsys.readouterr().out
    assert "checked on 1 sample; " in printed
    assert "fixed batch size, as in the model: 1" in printed
    assert main([*arguments, "--force", "--from-logits", "--input-shape", "7"]) == 1
    assert (
        "has the shape (5), but the given shape (--input-shape, --image-size) is (7)"
        in capsys.readouterr().err
    )


def image_classifier(path, height="h", width="w", channels=3):
    """The mean of each colour, twice: as many logits as the detector has labels."""
    sizes = ["n", channels, height, width]
    nodes = [
        helper.make_node("GlobalAveragePool", ["image"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("Concat", ["flat", "flat"], ["scores"], axis=1),
    ]
    inputs = [helper.make_tensor_value_info("image", TensorProto.FLOAT, sizes)]
    outputs = [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 2 * channels])]
    graph = helper.make_graph(nodes, "colours", inputs, outputs)
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return str(path)


def test_preprocessing_is_said_and_goes_into_the_file(detector, tmp_path, capsys):
    path = tmp_path / "fused.onnx"
    model = image_classifier(tmp_path / "open.onnx")
    arguments = ["export", detector, "-o", str(path), "--model", model, "--std", "0.5,0.5,0.25"]
    assert main(arguments) == 1
    assert "--image-size" in capsys.readouterr().err
    assert main([*arguments, "--image-size", "16", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["inputs"] == {"image": ["n", 3, "h", "w"]}
    assert (facts["n_samples"], facts["fixed_batch"], facts["opset"]) == (12, None, 18)
    assert facts["differences"]["score"] <= 1e-4
    assert json.loads(metadata(path)["nescio.preprocessing"]) == {
        "size": 16,
        "mean": [0.485, 0.456, 0.406],
        "std": [0.5, 0.5, 0.25],
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--image-size", "64"], "makes images of 64 x 64 pixels (--image-size), but the model "),
        (["--mean", "0.5,0.5"], "--mean must be three numbers"),
        (["--mean", "a,b,c"], "--mean must be three numbers, such as 0.485,0.456,0.406"),
        (["--input-shape", "3,64,64"], "shape (3, 32, 32), but the given shape (--input-shape"),
        (["-o", "fused.bin"], "--output must end in .onnx"),
    ],
)
def test_images_that_do_not_fit(options, message, detector, tmp_path, capsys):
    model = image_classifier(tmp_path / "fixed.onnx", 32, 32)
    output = str(tmp_path / "fused.onnx")
    assert main(["export", detector, "-o", output, "--model", model, *options]) == 1
    assert message in capsys.readouterr().err


def test_images_for_a_model_that_takes_none(detector, checkpoint, tmp_path, capsys):
    arguments = ["export", detector, "-o", str(tmp_path / "f.onnx"), "--image-size", "16"]
    assert main(arguments) == 1
    assert "need --model" in capsys.readouterr().err
    assert main([*arguments, "--model", str(tmp_path / "network.safetensors")]) == 1
    assert "has its own preprocessing" in capsys.readouterr().err
    for model in (
        classifier(tmp_path / "rows.onnx", input_name="x"),
        image_classifier(tmp_path / "grey.onnx", channels=1),
    ):
        assert main([*arguments, "--model", str(model), "--logits", "wrong"]) == 1
        assert "must be an output" in capsys.readouterr().err
        name = "scores" if "grey" in str(model) else "in_distribution"
        assert main([*arguments, "--model", str(model), "--logits", name]) == 1
        assert "preprocessing is for models with one input" in capsys.readouterr().err


def test_features_that_were_not_named(tmp_path, capsys):
    mahalanobis()[0].save(tmp_path / "maha.nescio")
    model = classifier(tmp_path / "model.onnx", input_name="x")
    arguments = ["export", str(tmp_path / "maha.nescio"), "-o", str(tmp_path / "f.onnx")]
    assert main([*arguments, "--model", str(model), "--logits", "in_distribution"]) == 1
    told = capsys.readouterr().err
    assert "mahalanobis reads features" in told
    assert "Choose the one that it was made with (features=..., --features)" in told
    assert "The file has the outputs in_distribution, hidden, unused." in told


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
