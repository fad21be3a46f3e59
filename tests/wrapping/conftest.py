"""Tiny models of each kind, made by the test."""

import numpy as np
import pytest


@pytest.fixture
def multi_label(rng):
    """Inputs (n, 6) and multi-hot truth (n, 4) that a linear model can learn."""
    inputs = rng.normal(size=(300, 6))
    weights = rng.normal(size=(6, 4))
    return inputs, (inputs @ weights + 0.3 * rng.normal(size=(300, 4)) > 0).astype(int)


@pytest.fixture
def onnx_file(tmp_path):
    """Write a linear graph; gives its path, and the function it computes."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    weights = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)

    def make(name="model.onnx", *, batch="n", logits="logits", probs=None, hidden=None):
        nodes = [
            helper.make_node("Relu", ["x"], ["h"]),
            helper.make_node("MatMul", ["h", "w"], [logits]),
        ]
        outputs = [helper.make_tensor_value_info(logits, floats, [batch, 4])]
        if probs is not None:
            nodes.append(helper.make_node("Sigmoid", [logits], [probs]))
            outputs.append(helper.make_tensor_value_info(probs, floats, [batch, 4]))
        if hidden is not None:
            nodes.append(helper.make_node("Identity", ["h"], [hidden]))
            outputs.append(helper.make_tensor_value_info(hidden, floats, [batch, 6]))
        graph = helper.make_graph(
            nodes,
            "linear",
            [helper.make_tensor_value_info("x", floats, [batch, 6])],
            outputs,
            [onnx.numpy_helper.from_array(weights, "w")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
        path = tmp_path / name
        onnx.save(model, path)
        return path

    make.compute = lambda x: np.maximum(x.astype(np.float32), 0) @ weights
    return make
