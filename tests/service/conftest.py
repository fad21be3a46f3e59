"""Models and images for the tests of the service; all of them tiny."""

import io
import json

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("msgspec")
pytest.importorskip("prometheus_client")
pytest.importorskip("httpx")


@pytest.fixture(scope="session")
def save_graph():
    """Write a small ONNX graph made of nodes to a path."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    types = {"float": 1, "int64": 7, "int32": 6, "uint8": 2}

    def save(path, nodes, inputs, outputs, weights=None, metadata=None):
        values = [
            [helper.make_tensor_value_info(n, types[kind], shape) for n, kind, shape in side]
            for side in (inputs, outputs)
        ]
        graph = helper.make_graph(
            [helper.make_node(op, ins, outs, **more) for op, ins, outs, more in nodes],
            "tiny",
            *values,
            [numpy_helper.from_array(array, n) for n, array in (weights or {}).items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        helper.set_model_props(
            model, {key: json.dumps(value) for key, value in (metadata or {}).items()}
        )
        onnx.checker.check_model(model)
        onnx.save(model, path)
        return path

    return save


@pytest.fixture
def onnx_file(save_graph, tmp_path):
    """Write a small ONNX graph to a temporary file."""

    def make(*graph, name="model.onnx"):
        return save_graph(tmp_path / name, *graph)

    return make


@pytest.fixture
def image_model(onnx_file):
    """Four logits of an image: the mean of each colour, and of all, times 3 minus 1."""

    def make(batch="batch", size=8, metadata=None, features=False, **more):
        mix = np.array([[3, 0, 0, 1], [0, 3, 0, 1], [0, 0, 3, 1]], np.float32)
        outputs = [("logits", "float", [batch, 4])]
        if features:
            outputs.append(("features", "float", [batch, 3]))
        return onnx_file(
            [
                ("ReduceMean", ["image"], ["features"], {"axes": [2, 3], "keepdims": 0}),
                ("MatMul", ["features", "mix"], ["mixed"], {}),
                ("Sub", ["mixed", "one"], ["logits"], {}),
            ],
            [("image", "float", [batch, 3, size, size])],
            outputs,
            {"mix": mix, "one": np.ones(1, np.float32)},
            metadata,
            **more,
        )

    return make


@pytest.fixture
def text_model(onnx_file):
    """Four logits of token ids: a quarter of the sum of a table's rows, where the mask is 1.

    Without a mask, padding counts too.
    """

    def make(*, masked=True):
        table = np.random.default_rng(3).normal(-1, 2, (50, 4)).astype(np.float32) / 4
        names = ["input_ids", "attention_mask"] if masked else ["input_ids"]
        mask = [
            ("Cast", ["attention_mask"], ["ones"], {"to": 1}),
            ("Unsqueeze", ["ones", "last"], ["weights"], {}),
            ("Mul", ["rows", "weights"], ["kept"], {}),
        ]
        return onnx_file(
            [
                ("Gather", ["table", "input_ids"], ["rows"], {}),
                *(mask if masked else [("Identity", ["rows"], ["kept"], {})]),
                ("ReduceSum", ["kept", "one"], ["logits"], {"keepdims": 0}),
            ],
            [(name, "int64", ["batch", "length"]) for name in names],
            [("logits", "float", ["batch", 4])],
            {"table": table, "last": np.array([2], np.int64), "one": np.array([1], np.int64)},
        )

    return make


@pytest.fixture
def encoded_image():
    """The bytes of an image file."""
    image = pytest.importorskip("PIL.Image")

    def encode(pixels, kind="PNG", **how):
        stream = io.BytesIO()
        image.fromarray(np.asarray(pixels, np.uint8)).save(stream, kind, **how)
        return stream.getvalue()

    return encode


@pytest.fixture
def many_scans(encoded_image):
    """A JPEG with one scan many times; decoding each takes as long as the image is large."""

    def make(side, n_scans):
        whole = encoded_image(np.zeros((side, side, 3)), "JPEG", progressive=True)
        last = whole[whole.rfind(b"\xff\xda") : -2]
        return whole[:-2] + last * n_scans + whole[-2:]

    return make
