import hashlib
import subprocess
import sys

import numpy as np
import pytest

import nescio as ns
from nescio.errors import (
    FileError,
    FileFormatError,
    InputError,
    MissingDependencyError,
    ParameterError,
    ShapeError,
)

ort = pytest.importorskip("onnxruntime")


@pytest.fixture
def inputs(rng):
    return rng.normal(size=(10, 6))


def test_a_file_gives_its_logits(onnx_file, inputs):
    path = onnx_file()
    wrapped = ns.wrap(str(path))
    outputs = wrapped.outputs(inputs, batch_size=4)  # float64, as NumPy has it
    np.testing.assert_allclose(outputs.logits, onnx_file.compute(inputs), rtol=1e-5, atol=1e-6)
    assert (wrapped.runner.kind, wrapped.runner.path, wrapped.runner.output) == (
        "onnx",
        path,
        "logits",
    )
    assert wrapped.runner.input_names == ("x",)
    assert outputs.manifest["model"] == "model.onnx"
    assert outputs.manifest["model_hash"] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_logits_are_the_sessions_own_to_the_bit(onnx_file, inputs):
    session = ort.InferenceSession(onnx_file(), providers=["CPUExecutionProvider"])
    wrapped = ns.wrap(session)
    assert wrapped.runner.session is session
    assert wrapped.runner.path is None
    (expected,) = session.run(["logits"], {"x": inputs.astype(np.float32)})
    np.testing.assert_array_equal(wrapped.outputs({"x": inputs}).logits, expected)
    with pytest.raises(ParameterError, match="leave out device"):
        ns.wrap(session, device="cpu")


def test_features_are_another_output(onnx_file, inputs):
    wrapped = ns.wrap(onnx_file(hidden="h2"), features="h2")
    assert wrapped.runner.output == "logits"
    outputs = wrapped.outputs(inputs, batch_size=3)
    np.testing.assert_allclose(outputs.features, np.maximum(inputs, 0), rtol=1e-6)
    truth = np.arange(10)[:, None] % 4 == np.arange(4)
    held_out = np.random.default_rng(4).normal(size=(100, 6))
    wrapped = ns.wrap(wrapped, detector="mahalanobis").fit(inputs, truth).calibrate(held_out)
    assert not wrapped(inputs + 50).in_distribution.any()


def test_which_output_is_said_or_found(onnx_file, inputs):
    assert ns.wrap(onnx_file(logits="scores")).runner.output == "scores"
    two = onnx_file("two.onnx", logits="scores", probs="probs")
    with pytest.raises(ParameterError, match=r"scores \(tensor\(float\).*probs.*--logits"):
        ns.wrap(two)
    expected = ns.wrap(two, output="scores").outputs(inputs).logits
    found = ns.wrap(two, output="probs", from_probs=True).outputs(inputs).logits
    np.testing.assert_allclose(found, expected, atol=1e-4)
    with pytest.raises(ParameterError, match=r"output must be an output of the graph, got 'sco'"):
        ns.wrap(two, output="sco")
    with pytest.raises(ParameterError, match=r"features must be an output of the graph.*got 'g'"):
        ns.wrap(two, output="scores", features="g")


def test_what_skl2onnx_makes_of_a_forest(tmp_path):
    helper, proto = pytest.importorskip("onnx.helper"), pytest.importorskip("onnx").TensorProto
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["probabilities"])],
        "forest",
        [helper.make_tensor_value_info("x", proto.FLOAT, [3, "n", 2])],
        [helper.make_tensor_value_info("probabilities", proto.FLOAT, [3, "n", 2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    (tmp_path / "forest.onnx").write_bytes(model.SerializeToString())
    for output in (None, "probabilities"):
        with pytest.raises(ParameterError, match=r"Run a forest .* in Python: wrap the estimator"):
            ns.wrap(tmp_path / "forest.onnx", output=output, from_probs=True)


def test_verdicts(onnx_file, inputs, rng):
    wrapped = ns.wrap(onnx_file(), label_names=list("abcd")).calibrate(rng.normal(size=(200, 6)))
    prediction = wrapped(inputs)
    np.testing.assert_array_equal(prediction.predicted, onnx_file.compute(inputs) > 0)
    assert ns.wrap(wrapped).runner.session is wrapped.runner.session  # the file is not read again
    assert ns.wrap(wrapped, device="cpu").runner.session is not wrapped.runner.session
    assert ns.wrap(wrapped).detector is wrapped.detector


def test_names_that_the_file_brings(onnx_file):
    onnx = pytest.importorskip("onnx")
    path = onnx_file()
    model = onnx.load(path)
    entry = model.metadata_props.add(key="nescio.label_names", value='["a", "b", "c", "d"]')
    onnx.save(model, path)
    assert ns.wrap(path).label_names == ("a", "b", "c", "d")
    assert ns.wrap(path, label_names=["e", "f", "g", "h"]).label_names[0] == "e"
    entry.value = "null"
    onnx.save(model, path)
    assert ns.wrap(path).label_names is None
    entry.value = "[1"
    onnx.save(model, path)
    with pytest.raises(FileFormatError, match=r"nescio.label_names is damaged"):
        ns.wrap(path)


def test_tensors_loaders_and_generators(onnx_file, inputs):
    torch = pytest.importorskip("torch")
    wrapped = ns.wrap(onnx_file())
    expected = wrapped.outputs(inputs).logits
    np.testing.assert_array_equal(wrapped.outputs(torch.from_numpy(inputs)).logits, expected)
    pairs = [(inputs[:5], np.ones((5, 4))), (inputs[5:], np.zeros((5, 4)))]
    outputs = wrapped.outputs(iter(pairs))
    np.testing.assert_allclose(outputs.logits, expected, rtol=1e-5, atol=1e-6)
    assert outputs.labels.sum() == 20


def test_a_graph_of_one_sample_runs_one_at_a_time(onnx_file, inputs):
    found = ns.wrap(onnx_file("one.onnx", batch=1)).outputs(inputs).logits
    np.testing.assert_allclose(found, onnx_file.compute(inputs), rtol=1e-5, atol=1e-6)
    four = ns.wrap(onnx_file("four.onnx", batch=4))
    assert len(four.outputs(inputs[:8])) == 8
    with pytest.raises(ShapeError, match=r"takes exactly 4 samples at a time, got 2"):
        four.outputs(inputs)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"y": np.zeros((2, 6))}, "takes the inputs x, got y"),
        ((np.zeros((2, 6)), np.zeros((2, 6))), "takes the inputs x, got 0, 1"),
        (np.zeros((2, 5), np.float32), "cannot run on these inputs"),
        (np.array([["a"] * 6]), r"input 'x' must be tensor\(float\), got <U1"),
        ("a text", "got text"),
    ],
)
def test_inputs_that_do_not_fit(onnx_file, given, message):
    with pytest.raises(InputError, match=message):
        ns.wrap(onnx_file()).outputs(given)


def test_integers_in_a_graph_of_integers(tmp_path):
    helper, proto = pytest.importorskip("onnx.helper"), pytest.importorskip("onnx").TensorProto
    graph = helper.make_graph(
        [helper.make_node("Cast", ["tokens"], ["logits"], to=proto.FLOAT)],
        "cast",
        [helper.make_tensor_value_info("tokens", proto.INT64, ["n", 2])],
        [helper.make_tensor_value_info("logits", proto.FLOAT, ["n", 2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    (tmp_path / "cast.onnx").write_bytes(model.SerializeToString())
    wrapped = ns.wrap(tmp_path / "cast.onnx")
    assert wrapped.outputs(np.array([[1, 2]], np.int32)).logits.tolist() == [[1.0, 2.0]]
    with pytest.raises(InputError, match=r"must be tensor\(int64\), got float64"):
        wrapped.outputs(np.array([[1.5, 2.0]]))


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("no.onnx", FileError, "there is no file"),
        ("model.pt", ParameterError, "Load it with torch"),
        ("tagger.nescio", ParameterError, "That is a detector"),
        ("bert-base-uncased", ParameterError, "does not load models by name"),
    ],
)
def test_paths_that_lead_nowhere(tmp_path, name, error, message):
    with pytest.raises(error, match=message):
        ns.wrap(str(tmp_path / name))


def test_a_file_that_is_no_onnx(tmp_path):
    for content in (b"", b"no protobuf at all", b"\x08\x0a"):
        (tmp_path / "bad.onnx").write_bytes(content)
        with pytest.raises(FileFormatError, match=r"cannot read .*bad.onnx as ONNX"):
            ns.wrap(tmp_path / "bad.onnx")


def test_a_device_that_is_not_there(onnx_file):
    for device in ("tpu", "cuda:0"):
        if device.startswith("cuda") and "CUDAExecutionProvider" in ort.get_available_providers():
            continue
        with pytest.raises(ParameterError, match="device must be 'cpu' or 'cuda'"):
            ns.wrap(onnx_file(), device=device)


def test_without_onnxruntime_it_says_what_to_install(onnx_file, monkeypatch):
    path = onnx_file()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingDependencyError, match=r"pip install '.\[onnx\]'"):
        ns.wrap(path)


@pytest.mark.slow
def test_it_runs_without_torch(onnx_file):
    code = (
        "import sys, numpy as np, nescio as ns\n"
        f"wrapped = ns.wrap({str(onnx_file())!r})\n"
        "x = np.random.default_rng(0).normal(size=(100, 6))\n"
        "wrapped.calibrate(x)(x)\n"
        "print([m for m in ('torch', 'transformers', 'onnx') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_scikit_learn_model_that_was_converted(multi_label, tmp_path):
    skl2onnx = pytest.importorskip("skl2onnx")
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    inputs, truth = multi_label
    model = OneVsRestClassifier(LogisticRegression()).fit(inputs, truth)
    kind = skl2onnx.common.data_types.FloatTensorType([None, 6])
    (tmp_path / "sk.onnx").write_bytes(
        skl2onnx.convert_sklearn(
            model, initial_types=[("x", kind)], options={id(model): {"zipmap": False}}
        ).SerializeToString()
    )
    found = ns.wrap(tmp_path / "sk.onnx", from_probs=True).outputs(inputs).logits
    probs = model.predict_proba(inputs)
    np.testing.assert_allclose(ns.scores.label_prob(found), probs, atol=1e-5)
