"""OpenVINO in the place of an onnxruntime session."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from nescio._io.tables import require
from nescio._validation import Array
from nescio.errors import FileFormatError


class OpenVinoSession:
    """Runs an ONNX graph on the CPU, as an InferenceSession does.

    Parameters
    ----------
    graph : Path or bytes
        The file, or its content.
    threads : int
    """

    def __init__(self, graph: Path | bytes, *, threads: int) -> None:
        openvino = require("openvino", "openvino")
        # Its own choice of a precision is bfloat16 where the processor has it.
        settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
        try:
            core = openvino.Core()
            model = core.read_model(graph)
            self._compiled = core.compile_model(model, "CPU", settings)
        except Exception as error:  # OpenVINO's errors have no common class
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            reason = lines[-1] if lines else type(error).__name__
            raise FileFormatError(f"OpenVINO cannot read the graph: {reason}") from error
        self._local = threading.local()  # a request cannot be used by two threads at once

    def run(self, names: Sequence[str], feed: Mapping[str, Array]) -> list[Array]:
        """Return the outputs of these names."""
        request = getattr(self._local, "request", None)
        if request is None:
            request = self._local.request = self._compiled.create_infer_request()
        request.infer({name: np.ascontiguousarray(array) for name, array in feed.items()})
        # Copies: the next run writes to the same memory.
        return [np.array(request.get_tensor(name).data) for name in names]
