"""ONNX files: their logits, inputs and outputs, and layers that are not among their outputs."""

import hashlib
import sys

import numpy as np
import pytest

import nescio as ns
from nescio.errors import (
    FileError,
    FileFormatError,
    InputError,
    MissingDependencyError,
    MissingInputError,
    ParameterError,
    ShapeError,
)

ort = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")


helper, FLOAT, INT64 = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def save(path, nodes, outputs, tensors=(), kind=FLOAT):
    """Write a graph from "x" to some outputs."""
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", kind, ["n", None])],
        [helper.make_tensor_value_info(name, FLOAT, ["n", None]) for name in outputs],
        list(tensors),
    )
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    return path


@pytest.fixture
def inputs(rng):
    return rng.normal(size=(10, 6))


def test_a_file_gives_its_logits(onnx_file, inputs):
    path = onnx_file()
    wrapped = ns.wrap(str(path))
    outputs = wrapped.outputs(inputs)  # float64, as NumPy has it
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    (expected,) = session.run(["logits"], {"x": inputs.astype(np.float32)})
    np.testing.assert_array_equal(outputs.logits, expected)
    np.testing.assert_array_equal(wrapped.outputs({"x": inputs}).logits, expected)
    cut = wrapped.outputs(inputs, batch_size=4).logits
    np.testing.assert_allclose(cut, onnx_file.compute(inputs), rtol=1e-5, atol=1e-6)
    runner = wrapped.runner
    assert (runner.kind, runner.path, runner.output) == ("onnx", path, "logits")
    assert wrapped.runner.input_names == ("x",)
    assert outputs.manifest["model"] == "model.onnx"
    assert outputs.manifest["model_hash"] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_which_output_is_said_or_found(onnx_file, inputs):
    assert ns.wrap(onnx_file(logits="scores")).runner.output == "scores"
    two = onnx_file("two.onnx", logits="scores", probs="probs")
    with pytest.raises(ParameterError, match=r"--logits.*None.*scores \(tensor\(float\).*probs"):
        ns.wrap(two)
    with pytest.raises(ParameterError, match="device must be 'cpu' or 'cuda'"):
        ns.wrap(two, device="tpu")
    expected = ns.wrap(two, output="scores").outputs(inputs).logits
    logits = ns.wrap(two, output="probs", from_probs=True).outputs(inputs).logits
    np.testing.assert_allclose(logits, expected, atol=1e-4)
    with pytest.raises(ParameterError, match=r"output must be an output of the graph.*got 'sco'"):
        ns.wrap(two, output="sco")
    with pytest.raises(ParameterError, match=r"features must be an output of the graph.*got 'g'"):
        ns.wrap(two, output="scores", features="g")


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
    for damaged in (b"[1", b"5", b'{"a": 1}', b"[" * 100_000, b'["\xff"]'):
        entry.value = "~" * len(damaged)
        path.write_bytes(model.SerializeToString().replace(entry.value.encode(), damaged))
        with pytest.raises(FileFormatError, match=r"nescio.label_names is damaged"):
            ns.wrap(path)
    entry.key = "nescio.table"
    for entry.value in (
        '{"names": ["a"]}',
        '{"names": ["a"], "mean": [1, 2], "scale": [1]}',
        "[1]",
    ):
        onnx.save(model, path)
        with pytest.raises(FileFormatError, match=r"nescio.table is damaged"):
            _ = ns.wrap(path).runner.table


def test_a_graph_of_one_sample_runs_one_at_a_time(onnx_file, inputs):
    logits = ns.wrap(onnx_file("one.onnx", batch=1)).outputs(inputs).logits
    np.testing.assert_allclose(logits, onnx_file.compute(inputs), rtol=1e-5, atol=1e-6)
    four = ns.wrap(onnx_file("four.onnx", batch=4))
    assert len(four.outputs(inputs[:8])) == 8
    with pytest.raises(ShapeError, match=r"takes exactly 4 samples at a time, got 2"):
        four.outputs(inputs)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"y": np.zeros((2, 6))}, "takes the inputs x, got y"),
        ((np.zeros((2, 6)), np.zeros((2, 6))), "takes the inputs x, got 0, 1"),
        (np.zeros((2, 5), np.float32), r"cannot run on these inputs: Got .*Got: 5 Expected: 6"),
        (np.zeros((2, 3, 4, 4), np.uint8), r"got uint8. For images of bytes.*Preprocessing\("),
        (np.array([["a"] * 6]), r"input 'x' must be tensor\(float\), got <U1"),
        ("a text", "got text"),
    ],
)
def test_inputs_that_do_not_fit(onnx_file, inputs, message):
    with pytest.raises(InputError, match=message):
        ns.wrap(onnx_file()).outputs(inputs)


def test_a_file_that_is_no_onnx(tmp_path, onnx_file, monkeypatch):
    with pytest.raises(FileError, match="there is no file"):
        ns.wrap(tmp_path / "no.onnx")
    with pytest.raises(ParameterError, match=r"is not the path of an \.onnx file"):
        ns.wrap("bert-base-uncased")
    for content in (b"", b"no protobuf at all", b"\x08\x0a"):
        (tmp_path / "bad.onnx").write_bytes(content)
        with pytest.raises(FileFormatError, match=r"cannot read .*bad.onnx as ONNX"):
            ns.wrap(tmp_path / "bad.onnx")
    path = onnx_file()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingDependencyError, match=r"pip install '.\[onnx\]'"):
        ns.wrap(path)


def test_integers_in_a_graph_of_integers(tmp_path):
    cast = helper.make_node("Cast", ["x"], ["logits"], to=FLOAT)
    wrapped = ns.wrap(save(tmp_path / "cast.onnx", [cast], ["logits"], kind=INT64))
    assert wrapped.outputs(np.array([[1, 2]], np.int32)).logits.tolist() == [[1.0, 2.0]]
    with pytest.raises(InputError, match=r"must be tensor\(int64\), got float64"):
        wrapped.outputs(np.array([[1.5, 2.0]]))


@pytest.fixture
def arrays(inputs, rng):
    """The weights of a network with a head of two layers, and what its layers give."""
    weights = {
        "w1": rng.normal(size=(6, 8)).astype("f4"),
        "b1": rng.normal(size=8).astype("f4"),
        "w2": rng.normal(size=(8, 4)).astype("f4"),
        "b2": rng.normal(size=4).astype("f4"),
    }
    body = np.exp(inputs.astype("f4"))
    hidden = np.maximum(body @ weights["w1"] + weights["b1"], 0)
    return weights, {"pooled": body, "penultimate": hidden}


@pytest.fixture
def network(arrays, tmp_path):
    """Write a graph: a body, a head of two linear layers, and some nodes after or instead."""
    weights, _ = arrays

    def make(*last, body="Exp", constants_are_nodes=False, outputs=("logits",)):
        tensors = {name: onnx.numpy_helper.from_array(a, name) for name, a in weights.items()}
        nodes = [
            helper.make_node(body, ["x"], ["e"]),
            helper.make_node("Gemm", ["e", "w1", "b1"], ["g"]),
            helper.make_node("Relu", ["g"], ["r"]),
            helper.make_node("Dropout", ["r"], ["h"]),
            helper.make_node("MatMul", ["h", "w2"], ["m"]),
            *(last or [helper.make_node("Add", ["b2", "m"], ["logits"])]),
        ]
        if constants_are_nodes:
            made = [
                helper.make_node("Constant", [], [name], value=tensor)
                for name, tensor in tensors.items()
            ]
            nodes, tensors = [*made, *nodes], {}
        return save(tmp_path / "net.onnx", nodes, outputs, tensors.values())

    return make


@pytest.mark.parametrize("constants_are_nodes", [False, True])
def test_layers_of_a_file_that_has_only_logits(network, arrays, inputs, constants_are_nodes):
    weights, layers = arrays
    path = network(constants_are_nodes=constants_are_nodes)
    content = path.read_bytes()
    wrapped = ns.wrap(path, features="pooled,penultimate,r")
    outputs = wrapped.outputs(inputs, batch_size=4)
    np.testing.assert_allclose(outputs.features, layers["pooled"], rtol=1e-5)
    for name in ("penultimate", "r"):  # an inner tensor, by its own name
        np.testing.assert_allclose(outputs.get(name), layers["penultimate"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(outputs.head.weight, weights["w2"].T)
    np.testing.assert_allclose(outputs.head.bias, weights["b2"])
    expected = ns.wrap(path).outputs(inputs).logits
    np.testing.assert_allclose(outputs.logits, expected, rtol=1e-4, atol=1e-5)
    assert path.read_bytes() == content
    assert wrapped.runner.output_names == ("logits",)
    assert wrapped.runner.content_hash() == hashlib.sha256(content).hexdigest()
    # Probabilities come from the same layer.
    add = helper.make_node("Add", ["m", "b2"], ["z"])
    path = network(add, helper.make_node("Sigmoid", ["z"], ["probs"]), outputs=("probs",))
    outputs = ns.wrap(path, features="penultimate", from_probs=True).outputs(inputs)
    np.testing.assert_allclose(outputs.features, layers["penultimate"], rtol=1e-4, atol=1e-5)


def test_a_file_that_is_its_own_head(network, arrays, inputs, tmp_path):
    """The linear layers read the input, so there is no representation before them."""
    tensors = [onnx.numpy_helper.from_array(arrays[0][name], name) for name in ("w1", "b1")]
    gemm = helper.make_node("Gemm", ["x", "w1", "b1"], ["logits"])
    linear = save(tmp_path / "linear.onnx", [gemm], ["logits"], tensors)
    outputs = ns.wrap(linear, features="penultimate").outputs(inputs)
    np.testing.assert_allclose(outputs.features, inputs, rtol=1e-6)
    assert outputs.head is not None
    path = network(body="Relu")
    with pytest.raises(ParameterError, match=r"got 'pooled'.*that follows other layers"):
        ns.wrap(path, features="pooled")
    assert ns.wrap(path, features="auto").runner.layers == ("penultimate",)


def test_a_graph_that_does_not_end_in_a_linear_layer(network, inputs):
    path = network(helper.make_node("Softsign", ["m"], ["logits"]))
    with pytest.raises(ParameterError, match="The graph does not end in a linear"):
        ns.wrap(path, features="penultimate")
    assert ns.wrap(path, features="auto").runner.layers == ()
    with pytest.raises(MissingInputError, match=r"mahalanobis reads.*The file has the outputs log"):
        ns.wrap(path, detector="mahalanobis")
    assert ns.wrap(path, features="h").outputs(inputs).features.shape == (10, 8)
    assert ns.wrap(path, detector="joint_energy").outputs(inputs).features is None


def test_which_layer_is_taken_for_a_detector(network, onnx_file, inputs):
    assert ns.wrap(network(), detector="mahalanobis").runner.layers == ("pooled",)
    assert ns.wrap(onnx_file(), detector="mahalanobis").runner.layers == ("penultimate",)
    # An output of that name comes first.
    named = onnx_file(hidden="features")
    assert ns.wrap(named, features="auto").runner.layers == ("features",)
    assert ns.wrap(named, detector="mahalanobis").runner.layers == ("features",)


@pytest.mark.parametrize(("kind", "width"), [("torch", 6), ("torch", 8), ("onnx", 8), (None, 8)])
def test_the_pooled_layer_of_a_module_in_a_graph(network, inputs, rng, kind, width):
    """It may be another one, unless no other linear layer has as many columns."""

    def make_outputs(n):
        manifest = {"layers": ["pooled", "input"], "kind": kind}
        arrays = {"input": rng.normal(size=(n, 6))}
        features = rng.normal(size=(n, width))
        return ns.Outputs(rng.normal(size=(n, 4)), features, arrays=arrays, manifest=manifest)

    parts = ["joint_energy", "out_of_range", "out_of_range(layer=input)"]
    detector = ns.Combined(parts).fit(make_outputs(50)).calibrate(make_outputs(100))
    path = network()
    if kind != "onnx" and width == 8:
        message = r"features and input.*the one it was made with, or 'auto' \(features="
        with pytest.raises(MissingInputError, match=message):
            ns.wrap(path, detector=detector)
    else:
        assert ns.wrap(path, detector=detector).runner.layers == ("pooled", "input")
    chosen = ns.wrap(path, detector=detector, features="pooled")  # the user knows it is the same
    assert chosen.outputs(inputs).features.shape == (10, 6)
