"""The configuration that NVIDIA Triton needs to serve an exported file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nescio._io.files import existing_file
from nescio._io.tables import require
from nescio.errors import ExportError
from nescio.runners.onnx_models import open_session

MAX_BATCH_SIZE = 64

_TYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "bfloat16": "BF16",
    "float": "FP32",
    "double": "FP64",
    "string": "STRING",
}


def triton_config(path: str | Path) -> str:
    """Return config.pbtxt for an ONNX file: its inputs and outputs as Triton describes them.

    Triton joins requests to batches of up to 64 samples, unless the file has a fixed batch size. A
    tensor in Triton has at least one dimension besides the batch, so score, p_value and
    in_distribution have shape (n_samples, 1) in its answers.

    Parameters
    ----------
    path : path
        A file that `export_onnx` wrote, or another ONNX file.
    """
    require("onnxruntime", "onnx")
    session = open_session(existing_file(path))
    inputs, outputs = session.get_inputs(), session.get_outputs()
    any_batch = all(node.shape and not isinstance(node.shape[0], int) for node in inputs + outputs)
    lines = ['backend: "onnxruntime"', f"max_batch_size: {MAX_BATCH_SIZE if any_batch else 0}"]
    for field, nodes in (("input", inputs), ("output", outputs)):
        for node in nodes:
            lines += [f"{field} {{", *_tensor(node, any_batch=any_batch), "}"]
    if any_batch:
        lines.append("dynamic_batching { }")
    return "\n".join(lines) + "\n"


def _tensor(node: Any, *, any_batch: bool) -> list[str]:
    kind = node.type.removeprefix("tensor(").removesuffix(")")
    if kind not in _TYPES:
        raise ExportError(f"Triton has no type for {node.name!r}, which is {node.type}.")
    # Strings in JSON are strings in protobuf's text format too.
    lines = [
        f"  name: {json.dumps(node.name, ensure_ascii=False)}",
        f"  data_type: TYPE_{_TYPES[kind]}",
    ]
    shape = node.shape[1:] if any_batch else node.shape
    if shape:
        return [*lines, f"  dims: {_dims(shape)}"]
    return [*lines, "  dims: [ 1 ]", "  reshape { shape: [ ] }"]  # dims must not be empty


def _dims(shape: Sequence[Any]) -> str:
    """Write a shape; -1 is a size that may change."""
    sizes = (str(size) if isinstance(size, int) else "-1" for size in shape)
    return f"[ {', '.join(sizes)} ]"
