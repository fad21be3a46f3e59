"""Layers of ONNX files that are not among their outputs."""

import numpy as np
import pytest

import nescio as ns
from nescio.errors import FileFormatError, MissingInputError, ParameterError
from nescio.runners.onnx_layers import OnnxGraph

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
helper, FLOAT = onnx.helper, onnx.TensorProto.FLOAT


@pytest.fixture
def inputs(rng):
    return rng.normal(size=(10, 6))


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
        graph = helper.make_graph(
            nodes,
            "network",
            [helper.make_tensor_value_info("x", FLOAT, ["n", 6])],
            [helper.make_tensor_value_info(name, FLOAT, ["n", None]) for name in outputs],
            list(tensors.values()),
        )
        opset = [helper.make_opsetid("", 18)]
        onnx.save(
            helper.make_model(graph, opset_imports=opset, ir_version=10), tmp_path / "net.onnx"
        )
        return tmp_path / "net.onnx"

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
    assert wrapped.runner.content_hash() == ns.wrap(path).runner.content_hash()


def test_probabilities_come_from_the_same_layer(network, arrays, inputs):
    add, sigmoid = (
        helper.make_node("Add", ["m", "b2"], ["z"]),
        helper.make_node("Sigmoid", ["z"], ["probs"]),
    )
    path = network(add, sigmoid, outputs=("probs",))
    outputs = ns.wrap(path, features="penultimate", from_probs=True).outputs(inputs)
    np.testing.assert_allclose(outputs.features, arrays[1]["penultimate"], rtol=1e-4, atol=1e-5)


def test_a_file_that_is_its_own_head(network, inputs):
    """The linear layers read the input, so there is no representation before them."""
    path = network(body="Relu")
    with pytest.raises(ParameterError, match=r"no layer 'pooled'.*that follows other layers"):
        ns.wrap(path, features="pooled")
    assert ns.wrap(path, features="auto").runner.layers == ("penultimate",)


def test_a_linear_layer_that_reads_the_input(tmp_path, inputs, arrays):
    weights, _ = arrays
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w1", "b1"], ["logits"])],
        "linear",
        [helper.make_tensor_value_info("x", FLOAT, ["n", 6])],
        [helper.make_tensor_value_info("logits", FLOAT, ["n", 8])],
        [onnx.numpy_helper.from_array(weights[name], name) for name in ("w1", "b1")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, tmp_path / "linear.onnx")
    outputs = ns.wrap(tmp_path / "linear.onnx", features="penultimate").outputs(inputs)
    np.testing.assert_allclose(outputs.features, inputs, rtol=1e-6)
    assert outputs.head is not None


def test_a_graph_that_does_not_end_in_a_linear_layer(network, inputs):
    path = network(helper.make_node("Softsign", ["m"], ["logits"]))
    with pytest.raises(ParameterError, match="no layer 'penultimate': it does not end in a linear"):
        ns.wrap(path, features="penultimate")
    assert ns.wrap(path, features="auto").runner.layers == ()
    with pytest.raises(MissingInputError, match=r"mahalanobis reads.*The file has the outputs log"):
        ns.wrap(path, detector="mahalanobis")
    assert ns.wrap(path, features="h").outputs(inputs).features.shape == (10, 8)
    assert ns.wrap(path, detector="joint_energy").outputs(inputs).features is None


def test_weights_that_are_not_constant(tmp_path):
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "y"], ["logits"])],
        "product",
        [
            helper.make_tensor_value_info("x", FLOAT, ["n", 6]),
            helper.make_tensor_value_info("y", FLOAT, [6, 4]),
        ],
        [helper.make_tensor_value_info("logits", FLOAT, ["n", 4])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, tmp_path / "product.onnx")
    graph = OnnxGraph(tmp_path / "product.onnx")
    assert graph.last_linear("logits") is None
    assert graph.find("pooled", "logits") is None


def test_which_layer_is_taken_for_a_detector(network, onnx_file, inputs):
    assert ns.wrap(network(), detector="mahalanobis").runner.layers == ("pooled",)
    assert ns.wrap(onnx_file(), detector="mahalanobis").runner.layers == ("penultimate",)
    # An output of that name comes first.
    named = onnx_file(hidden="features")
    assert ns.wrap(named, features="auto").runner.layers == ("features",)
    assert ns.wrap(named, detector="mahalanobis").runner.layers == ("features",)


def test_a_session_has_no_inner_tensors(onnx_file):
    session = ort.InferenceSession(onnx_file(), providers=["CPUExecutionProvider"])
    with pytest.raises(ParameterError, match=r"got 'penultimate': a session.*Pass the path"):
        ns.wrap(session, features="penultimate")
    assert ns.wrap(session, features="auto").runner.layers == ()


def test_a_file_that_cannot_be_read(tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"no protobuf at all")
    with pytest.raises(FileFormatError, match=r"cannot read the graph of .*bad\.onnx"):
        OnnxGraph(tmp_path / "bad.onnx")


def test_the_pooled_layer_of_a_module_is_not_looked_up_in_a_graph(network, inputs, rng):
    # A detector that a torch module was wrapped with: "pooled" of a graph may be another layer.
    def given(n):
        manifest = {"layers": ["pooled"]}
        return ns.Outputs(rng.normal(size=(n, 4)), rng.normal(size=(n, 6)), manifest=manifest)

    detector = ns.NearestNeighbours().fit(given(50)).calibrate(given(50))
    path = network()
    with pytest.raises(MissingInputError, match="features="):
        ns.wrap(path, detector=detector)
    chosen = ns.wrap(path, detector=detector, features="pooled")  # the user knows it is the same
    assert chosen.outputs(inputs).features.shape == (10, 6)
