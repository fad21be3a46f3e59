"""Ways to compute the joint energy on the CPU, side by side: what was tried, and what it costs.

docs/adr/0001-one-numpy-kernel.md says which of them nescio has, and why.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np

from nescio._threads import map_rows
from nescio.scores import kernels
from speed.harness import Bench
from speed.scoring import logits_of

_OURS = "NumPy: exp, log1p, sum"
_COMPILED = "numba: polynomial exp, products"
_START = """
import time, numpy as np
from nescio._threads import map_rows
from nescio.scores import kernels
start = time.perf_counter()
map_rows(kernels.joint_energy_compiled, np.zeros((1, 80), np.float32))
print(time.perf_counter() - start)
"""


def run(bench: Bench) -> None:
    for n_samples, n_labels in ((200_000, 80), (16_000, 1_000)):
        logits = logits_of(n_samples, n_labels)
        ways = contenders(logits)
        baseline = _OURS if kernels._has_vectorised_log1p() else "NumPy: exp, products, log1p"
        bench.compare(
            f"joint energy of {n_samples:,} x {n_labels:,} float32",
            baseline,
            ways,
            goal={_COMPILED: 1.5},
            rounds=5,
        )
        far = logits[:2_000] - np.float32(36)
        exact = np.logaddexp(far.astype(np.float64), 0).sum(1)
        for name, way in contenders(far).items():
            error = float(np.max(np.abs(np.asarray(way(), np.float64) / exact - 1)))
            bench.fact(f"{name}: largest relative error with logits around -40", error)
    first = [float(subprocess.check_output([sys.executable, "-c", _START])) for _ in range(2)]
    bench.fact("numba: import, and machine code from the cache", min(first), "s")


def contenders(logits: np.ndarray) -> dict[str, Callable[[], object]]:
    found: dict[str, Callable[[], object]] = {
        _OURS: lambda: map_rows(kernels.joint_energy_direct, logits),
        "NumPy: exp, products, log1p": lambda: map_rows(kernels.joint_energy_by_products, logits),
        "NumPy: exp2, log2(1 + e)": lambda: map_rows(_by_powers_of_two, logits),
        "NumPy: exp, log1p in blocks of 32,768": lambda: _in_blocks(logits, 1 << 15),
        "NumPy: logaddexp": lambda: np.logaddexp(logits, 0).sum(1),
        _COMPILED: lambda: map_rows(kernels.joint_energy_compiled, logits),
    }
    return found | _numexpr(logits) | _torch(logits) | _onnxruntime(logits)


def _by_powers_of_two(rows: np.ndarray, work: np.ndarray, result: np.ndarray) -> None:
    """The two fastest functions of NumPy with AVX-512, but not the same precision."""
    np.multiply(rows, np.float32(1.44269504), out=work)
    np.exp2(work, out=work)
    work += 1
    np.log2(work, out=work)
    np.einsum("ij->i", work, out=result)
    result *= np.float32(0.69314718)


def _in_blocks(logits: np.ndarray, elements: int) -> np.ndarray:
    block = max(1, elements // logits.shape[1])
    work, result = np.empty((block, logits.shape[1]), np.float32), np.empty(len(logits), np.float32)
    for start in range(0, len(logits), block):
        rows = slice(start, start + block)
        kernels.joint_energy_direct(logits[rows], work[: len(result[rows])], result[rows])
    return result


def _numexpr(logits: np.ndarray) -> dict[str, Callable[[], object]]:
    try:
        import numexpr
    except ImportError:
        return {}
    formula = "sum(log1p(exp(x)), axis=1)"
    return {"numexpr": lambda: numexpr.evaluate(formula, {"x": logits})}


def _torch(logits: np.ndarray) -> dict[str, Callable[[], object]]:
    import torch

    tensor = torch.from_numpy(logits)

    def in_blocks() -> torch.Tensor:
        result = torch.empty(len(tensor))
        for start in range(0, len(tensor), 2048):
            rows = slice(start, start + 2048)
            torch.sum(tensor[rows].exp().log1p_(), 1, out=result[rows])
        return result

    return {"torch: exp, log1p in blocks": in_blocks}


def _onnxruntime(logits: np.ndarray) -> dict[str, Callable[[], object]]:
    import onnxruntime
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [
            helper.make_node("Softplus", ["x"], ["terms"]),
            helper.make_node("ReduceSum", ["terms", "axes"], ["sums"], keepdims=0),
        ],
        "energy",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "k"])],
        [helper.make_tensor_value_info("sums", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor("axes", TensorProto.INT64, [1], [1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return {"onnxruntime: Softplus, ReduceSum": lambda: session.run(None, {"x": logits})[0]}
