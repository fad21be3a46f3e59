"""What the tests of exporting share. A graph takes a second or two: they share files."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
for package in ("onnx", "onnxruntime", "onnxscript"):
    pytest.importorskip(package)

import onnx  # noqa: E402
import onnxruntime  # noqa: E402

import nescio as ns  # noqa: E402

N_LABELS = 6


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(path, **feed):
    """The outputs of a file by name."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))


def metadata(path):
    return {item.key: item.value for item in onnx.load(path).metadata_props}


def tau_of(path):
    return json.loads(metadata(path)["nescio.tau"])


def some_logits(n=400, n_labels=N_LABELS, seed=0):
    return np.random.default_rng(seed).normal(-1, 3, (n, n_labels)).astype(np.float32)


def a_network(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(5, 16), torch.nn.ReLU(), torch.nn.Linear(16, N_LABELS)
    ).eval()


def some_inputs(n=300, seed=1):
    return np.random.default_rng(seed).normal(0, 2, (n, 5)).astype(np.float32)


@pytest.fixture(scope="package")
def fused(tmp_path_factory):
    """A small torch network with joint energy, calibrated by label count, as an ONNX file."""
    path = tmp_path_factory.mktemp("fused") / "fused.onnx"
    names = [f"label {number}" for number in range(N_LABELS)]
    wrapped = ns.wrap(a_network(), label_names=names)
    wrapped = wrapped.calibrate(some_inputs(), tpr=0.9, groups="label_count")
    exported = ns.export_onnx(wrapped, path, samples=some_inputs(20, seed=2))
    return SimpleNamespace(path=path, wrapped=wrapped, exported=exported, names=names)
