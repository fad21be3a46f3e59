"""Detectors, models and servers for the tests of the service; all of them tiny."""

import io
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import nescio as ns

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("msgspec")
pytest.importorskip("prometheus_client")
pytest.importorskip("httpx")

NAMES = ("cat", "dog", "bird", "car")


def some_logits(n, *, seed=1, shift=0.0, dtype=np.float32):
    """Logits of an imagined model with four labels."""
    return np.random.default_rng(seed).normal(-1 + shift, 2, (n, len(NAMES))).astype(dtype)


@pytest.fixture(name="some_logits")
def _some_logits():
    return some_logits


@pytest.fixture
def detector_file(tmp_path):
    """Save a calibrated detector; by default joint energy over four labels."""

    def make(detector=None, *, seed=0, named=True, name="tagger.nescio", **calibration):
        held_out = ns.Outputs(some_logits(1000, seed=seed), label_names=NAMES if named else None)
        result = (detector or ns.JointEnergy()).calibrate(held_out, **calibration)
        result.save(tmp_path / name, force=True)
        return tmp_path / name

    return make


@pytest.fixture
def app(detector_file):
    """Make the application in this process, around the default detector or another's file."""
    from nescio.service import Settings, make_app

    def make(detector=None, **settings):
        return make_app(Settings(detector=detector or detector_file(), **settings))

    return make


@pytest.fixture
def client(app):
    """Make a client of an application that has been started."""
    from starlette.testclient import TestClient

    opened = []

    def make(detector=None, *, address=("127.0.0.1", 50000), **settings):
        application = app(detector, **settings)
        result = TestClient(
            application, "http://127.0.0.1:8000", raise_server_exceptions=False, client=address
        )
        result.__enter__()
        opened.append(result)
        return result

    yield make
    for result in opened:
        result.__exit__(None, None, None)


class Served:
    """`nescio serve` in a separate process."""

    def __init__(self, arguments, environment=None):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nescio", "serve", *map(str, arguments), "--port", "0"],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "default", **(environment or {})},
        )
        self.raw = []
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        self.url = self.wait_for("serving")["url"]
        self.port = int(self.url.rpartition(":")[2])

    def _read(self):
        self.raw.extend(iter(self.process.stderr.readline, ""))

    @property
    def lines(self):
        """The log so far; every line of it must be JSON."""
        return [json.loads(line) for line in list(self.raw)]

    def wait_for(self, event, seconds=120):
        """The first line of an event; an error if the process ends without it."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ended = self.process.poll() is not None
            if ended:
                self._reading.join()
            for line in self.lines:
                if line["event"] == event:
                    return line
            if ended:
                break
            time.sleep(0.01)
        raise AssertionError(f"no {event!r} in the log: {self.raw}")

    def signal(self, number):
        self.process.send_signal(number)

    def end(self, seconds=120):
        """The exit code, once it has stopped by itself; the log is whole then."""
        code = self.process.wait(seconds)
        self._reading.join()
        self.process.stderr.close()
        return code

    def memory(self):
        """Resident bytes."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def served(detector_file):
    """Start `nescio serve`; whatever is left running at the end is killed."""
    started = []

    def start(*arguments, detector=None, environment=None):
        result = Served((detector or detector_file(), *arguments), environment)
        started.append(result)
        return result

    yield start
    for result in started:
        if result.process.poll() is None:
            result.process.kill()
            result.end()


# --- models -----------------------------------------------------------------------------------


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
