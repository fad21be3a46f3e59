"""nescio export, and nescio serve: what is wrong is said before anything is served."""

import json
import logging
import socket
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import nescio as ns
from fixtures.export import N_LABELS, classifier, metadata, run, some_inputs, some_logits

torch = pytest.importorskip("torch")


@pytest.fixture
def detector(tmp_path):
    """A detector of logits, saved."""
    ns.JointEnergy().calibrate(some_logits(), tpr=0.9).save(tmp_path / "tagger.nescio")
    return str(tmp_path / "tagger.nescio")


def test_a_detector_alone(detector, tmp_path, succeeds, fails):
    path = tmp_path / "alone.onnx"
    np.save(tmp_path / "new.npy", some_logits(30, seed=2))
    arguments = ["export", detector, "-o", str(path), "--samples", str(tmp_path / "new.npy")]
    printed = succeeds(*arguments)
    assert "inputs               logits=batch, 6\n" in printed
    assert "outputs              probs, score, p_value, in_distribution\n" in printed
    assert f"path                 {path}" in printed
    assert run(path, logits=some_logits(3))["score"].shape == (3,)
    assert "--force" in fails(*arguments)


def test_a_network_of_nescios_own(tmp_path, succeeds):
    pytest.importorskip("torchvision")
    from nescio.lab.networks.network import Architecture, Checkpoint

    torch.manual_seed(0)
    architecture = Architecture("small-cnn", n_hidden=8)
    network = architecture.build(3).eval()
    saved = Checkpoint(network, architecture, ("red", "green", "blue"), ns.Preprocessing(16))
    saved.save(tmp_path / "network.safetensors")
    images, features = torch.randn(200, 3, 16, 16), "penultimate"
    truth = np.random.default_rng(0).integers(0, 2, (200, 3))
    outputs = ns.wrap(saved, features=features).outputs(images, labels=truth)
    detector = ns.Mahalanobis().fit(outputs[:100]).calibrate(outputs[100:], tpr=0.9)
    detector.save(tmp_path / "detector.nescio")
    path = tmp_path / "fused.onnx"
    arguments = ["export", tmp_path / "detector.nescio", "-o", path, "--features", features]
    arguments += ["--model", tmp_path / "network.safetensors"]
    # Eight hidden units that hardly vary: the distances magnify what rounding leaves.
    assert "n_samples            12\n" in succeeds(*arguments, "--tolerance", "0.01")
    result = run(path, **{ns.wrap(path).runner.input_names[0]: images.numpy()})
    np.testing.assert_allclose(result["features"], outputs.features, atol=1e-4)
    np.testing.assert_allclose(
        result["score"], detector.score_samples(outputs), rtol=0.01, atol=1e-3
    )
    assert json.loads(metadata(path)["nescio.preprocessing"])["size"] == 16
    assert json.loads(metadata(path)["nescio.label_names"]) == ["red", "green", "blue"]


def test_a_module_of_ones_own(detector, tmp_path, monkeypatch, succeeds, fails):
    (tmp_path / "my_tagger.py").write_text(
        f"from torch import nn\n\n\ndef make():\n    return nn.Linear(5, {N_LABELS})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "fused.onnx"
    arguments = ["export", detector, "-o", str(path), "--model", "module:my_tagger:make"]
    assert "--input-shape" in fails(*arguments)
    assert "--input-shape must be numbers" in fails(*arguments, "--input-shape", "5x")
    succeeds(*arguments, "--input-shape", "5")
    assert run(path, input=some_inputs(2))["logits"].shape == (2, N_LABELS)
    sys.modules.pop("my_tagger")


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


def test_preprocessing_is_said_and_goes_into_the_file(detector, tmp_path, succeeds, fails):
    path = tmp_path / "fused.onnx"
    model = image_classifier(tmp_path / "open.onnx")
    arguments = ["export", detector, "-o", str(path), "--model", model, "--std", "0.5,0.5,0.25"]
    assert "--image-size" in fails(*arguments)
    facts = json.loads(succeeds(*arguments, "--image-size", "16", "--json"))
    assert facts["inputs"] == {"image": ["n", 3, "h", "w"]}
    assert (facts["n_samples"], facts["opset"]) == (12, 18)
    assert facts["differences"]["score"] <= 1e-4
    assert json.loads(metadata(path)["nescio.preprocessing"]) == {
        "size": 16,
        "mean": [0.485, 0.456, 0.406],
        "std": [0.5, 0.5, 0.25],
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--image-size", "64"], "(batch, 3, 64, 64), but the model takes"),
        (["--mean", "0.5,0.5"], "mean must be three numbers"),
        (["--mean", "a,b,c"], "--mean must be numbers with commas between them"),
        (["-o", "fused.bin"], "the file to write must end in .onnx"),
    ],
)
def test_images_that_do_not_fit(options, message, detector, tmp_path, fails):
    model = image_classifier(tmp_path / "fixed.onnx", 32, 32)
    output = str(tmp_path / "fused.onnx")
    assert message in fails(*["export", detector, "-o", output, "--model", model, *options])


@pytest.mark.parametrize("model", ["network.pt", "model.joblib", "my_tagger:make"])
def test_models_that_no_command_reads(model, detector, tmp_path, fails):
    message = fails("export", detector, "-o", tmp_path / "fused.onnx", "--model", model)
    assert f"module:PACKAGE.MODULE:FACTORY for your own torch module; got '{model}'" in message
    message = fails("serve", detector, "--model", model)
    assert f"must be an .onnx file, got '{model}'. Write one in Python" in message


def test_a_file_with_a_detector_alone_is_no_model(detector, tmp_path, succeeds, fails):
    path = tmp_path / "alone.onnx"
    succeeds("export", detector, "-o", path)
    assert "holds a detector without a model" in fails("serve", detector, "--model", path)


def test_samples_from_files_and_a_model_of_probabilities(detector, tmp_path, succeeds, fails):
    model = classifier(tmp_path / "model.onnx", probabilities=True, input_name="x")
    command = ["export", detector, "--model", model, "--logits", "logits", "--from-probs"]
    command += ["--force", "-o", tmp_path / "fused.onnx", "--samples"]
    np.save(tmp_path / "one.npy", some_inputs(7))
    np.savez(tmp_path / "one.npz", x=some_inputs(7))
    for name in ("one.npy", "one.npz"):
        assert "n_samples            7\n" in succeeds(*command, tmp_path / name)
    (tmp_path / "bad.npy").write_bytes(b"no array")
    assert "not an .npy or .npz file" in fails(*command, tmp_path / "bad.npy")


# --- serve ----------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _logging_as_before():
    names = ("nescio.service", "uvicorn", "uvicorn.error", "py.warnings")
    loggers = [logging.getLogger(name) for name in names]
    before = [(log.handlers[:], log.level, log.propagate) for log in loggers]
    yield
    logging.captureWarnings(False)
    for log, (handlers, level, propagate) in zip(loggers, before, strict=True):
        log.handlers, log.propagate = handlers, propagate
        log.setLevel(level)


@pytest.fixture
def never_serves(monkeypatch):
    """Take down the settings and the address instead of serving."""
    import nescio.service

    called = {}
    monkeypatch.setattr(
        nescio.service, "serve", lambda settings, **address: called.update(s=settings, **address)
    )
    return called


def test_options_become_settings(succeeds, detector, never_serves, tmp_path, monkeypatch):
    monkeypatch.delenv("NESCIO_TOKEN", raising=False)
    (tmp_path / "token").write_text(" secret \n")
    succeeds(
        "serve", detector, "--host", "0.0.0.0", "--port", 80, "--token-file", tmp_path / "token",
        "--max-body-mb", 2, "--max-megapixels", 1.5, "--max-requests", 3,
        "--drain-seconds", 5, "--alpha", 0.05, "--log-level", "error",
    )  # fmt: skip
    settings = never_serves["s"]
    assert (never_serves["host"], never_serves["port"]) == ("0.0.0.0", 80)
    assert never_serves["log_level"] == "error"
    assert settings.token == "secret"
    assert settings.max_body_bytes == 2_000_000
    assert (settings.max_pixels, settings.max_requests) == (1_500_000, 3)
    assert (settings.drain_seconds, settings.alpha) == (5.0, 0.05)


def test_a_token_of_the_environment_is_taken_and_one_of_a_file_goes_first(
    nescio, fails, detector, never_serves, monkeypatch, tmp_path
):
    monkeypatch.delenv("NESCIO_TOKEN", raising=False)
    assert nescio("serve", detector)[0] == 0
    assert (never_serves["host"], never_serves["s"].token) == ("127.0.0.1", None)
    monkeypatch.setenv("NESCIO_TOKEN", "")
    assert "token" in fails("serve", detector)  # an empty one does not open the service
    monkeypatch.setenv("NESCIO_TOKEN", "outer\n")
    nescio("serve", detector)
    assert never_serves["s"].token == "outer"
    (tmp_path / "token").write_text("inner")
    nescio("serve", detector, "--token-file", tmp_path / "token")
    assert never_serves["s"].token == "inner"


@pytest.mark.parametrize("content", [b" \n", b"\xff\xfe"])
def test_a_token_that_is_none_does_not_open_the_service(content, fails, detector, tmp_path):
    (tmp_path / "token").write_bytes(content)
    assert "token" in fails("serve", detector, "--token-file", tmp_path / "token")


def test_files_and_options_that_cannot_be_served(nescio, fails, detector, tmp_path):
    np.save(tmp_path / "logits.npy", np.zeros((3, 3)))
    for reason, *arguments in (
        ("there is no file", tmp_path / "nowhere.nescio"),
        ("nowhere", detector, "--token-file", tmp_path / "nowhere"),
        ("logits.npy", tmp_path / "logits.npy"),
        (".onnx", detector, "--model", tmp_path / "logits.npy"),
        ("--log-level", detector, "--log-level", "loud"),
        ("alpha", detector, "--alpha", 2),
        ("nowhere", detector, "--monitor-state", tmp_path / "nowhere" / "state"),
    ):
        assert reason in fails("serve", *arguments)
    assert nescio("serve", detector, "--port", 70000)[0] == 2
    assert nescio("serve", detector, "--max-requests", 0)[0] == 2


def test_a_port_in_use(fails, detector):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port}" in fails("serve", detector, "--port", port)


def test_a_missing_extra_is_named(fails, detector, monkeypatch):
    monkeypatch.setitem(sys.modules, "starlette", None)
    assert "'.[serve]'" in fails("serve", detector)
