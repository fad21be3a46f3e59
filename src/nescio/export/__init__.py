"""A classifier and its detector as one ONNX file; a detector as a torch module.

This package needs torch, and for ONNX files onnx, onnxruntime and onnxscript:
pip install '.[torch,onnx]'.
"""

from __future__ import annotations

from nescio.errors import require

require("torch", "torch")

from nescio.export.detector_head import DetectorHead, FusedOutputs  # noqa: E402
from nescio.export.exporting import Exported, export_onnx  # noqa: E402
from nescio.export.parity import Differences  # noqa: E402

__all__ = ["DetectorHead", "Differences", "Exported", "FusedOutputs", "export_onnx"]
