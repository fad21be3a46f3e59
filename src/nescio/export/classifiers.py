"""A classifier as a graph, whose outputs are what a detector takes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nescio._io.tables import require
from nescio.errors import ExportError, FileFormatError
from nescio.export.graphs import name_sizes, too_large
from nescio.export.samples import Samples
from nescio.export.tracing import LARGEST_FILE, traced
from nescio.runners import Runner

__all__ = ["Classifier", "check_kind", "classifier_graph", "fixed_batch_of"]

_TRACED_ROWS = 3


@dataclass(frozen=True)
class Classifier:
    """A graph, and which of its outputs a detector takes.

    Attributes
    ----------
    model : onnx_ir.Model
    sources : dict of str to str
        For each of logits and features, the name of an output.
    examples : dict of str to Tensor
        A few rows of each, as the classifier gives them.
    fixed_batch : int or None
        The only batch size that it takes.
    open_length : bool
        Whether it takes texts of any length.
    """

    model: Any
    sources: dict[str, str]
    examples: dict[str, Tensor]
    fixed_batch: int | None = None
    open_length: bool = False


def classifier_graph(runner: Runner, samples: Samples, takes: tuple[str, ...]) -> Classifier:
    """Return the graph of a model that gives logits and, if they are taken, features."""
    of_kind = _of_file if runner.kind == "onnx" else _of_torch
    return of_kind(runner, samples, takes)


def check_kind(runner: Runner) -> None:
    """Raise if there is no way from this kind of model to a graph."""
    if runner.kind not in ("onnx", "torch", "transformers"):
        raise ExportError(
            f"a {runner.kind} model cannot be exported directly. Convert a OneVsRestClassifier or "
            "an MLPClassifier with skl2onnx (zipmap=False), and wrap the ONNX file. For others, "
            "such as forests and MultiOutputClassifier, skl2onnx makes graphs that give no matrix "
            "of probabilities: run these in Python, wrapped, and export only the detector "
            "(model=None)."
        )
    if runner.kind == "onnx" and runner.path is None:  # type: ignore[attr-defined]
        raise ExportError("a session does not give access to its graph: wrap the path of the file.")


def fixed_batch_of(runner: Runner) -> int | None:
    """Return the only batch size that an ONNX file takes; None for any."""
    fixed: int | None = getattr(runner, "fixed_batch", None)
    return fixed


class _Tuple(nn.Module):
    """A module that gives (logits, features or None), of which the first outputs are a tuple."""

    def __init__(self, module: nn.Module, n_taken: int) -> None:
        super().__init__()
        self.module = module
        self.n_taken = n_taken

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.module(*inputs)[: self.n_taken])


def _of_torch(runner: Any, samples: Samples, takes: tuple[str, ...]) -> Classifier:
    example = samples.resized(_TRACED_ROWS)
    weights = itertools.chain(runner.model.parameters(), runner.model.buffers())
    size = sum(tensor.numel() * tensor.element_size() for tensor in weights)
    if size > LARGEST_FILE:
        raise too_large(size)
    module = _Tuple(runner.module(example.data), len(takes)).eval().requires_grad_(False)
    inputs = [runner.placed(array) for array in example.feed.values()]
    text = runner.kind == "transformers"
    dynamic = [_dynamic(tensor, text=text) for tensor in inputs]
    with torch.no_grad():
        given = module(*inputs)
    _check_precision([*module.parameters(), *given])
    names = [f"classifier_{name}" for name in takes]
    model = traced(
        module,
        inputs,
        dynamic,
        input_names=list(example.feed),
        output_names=names,
        what=f"the model ({type(runner.model).__name__})",
        exact=runner.from_probs,  # logits are computed from these probabilities
    )
    name_sizes(model.graph.inputs, other="length")
    return Classifier(
        model,
        dict(zip(takes, names, strict=True)),
        dict(zip(takes, given, strict=True)),
        open_length=all("length" in map(str, value.shape) for value in model.graph.inputs),
    )


def _check_precision(tensors: Iterable[Tensor]) -> None:
    """Raise for bfloat16, which onnxruntime does not support on the CPU."""
    if any(tensor.dtype == torch.bfloat16 for tensor in tensors):
        raise ExportError(
            "the model computes in bfloat16, which onnxruntime does not support on the CPU. Export "
            "a copy in float32: copy.deepcopy(model).float()."
        )


def _dynamic(tensor: Tensor, *, text: bool) -> dict[int, Any]:
    """Return which sizes may change: the batch, and the length of a text if the model allows it."""
    sizes: dict[int, Any] = {0: torch.export.Dim.DYNAMIC}
    if text and tensor.ndim == 2:
        sizes[1] = torch.export.Dim.AUTO
    return sizes


def _of_file(runner: Any, samples: Samples, takes: tuple[str, ...]) -> Classifier:
    sources = {"logits": runner.output, "features": runner.features}
    taken = {name: sources[name] for name in takes}
    feed = samples.resized(runner.fixed_batch or _TRACED_ROWS).feed
    given = runner.session.run(list(taken.values()), feed)
    return Classifier(
        _loaded(runner.path),
        taken,
        {name: torch.from_numpy(array) for name, array in zip(taken, given, strict=True)},
        runner.fixed_batch,
    )


def _loaded(path: Path) -> Any:
    onnx, ir = require("onnx", "export"), require("onnx_ir", "export")
    try:
        model = ir.from_proto(onnx.load(path))
    except Exception as error:  # protobuf and onnx_ir raise many kinds
        raise FileFormatError(f"cannot read the graph of {path}: {error}") from error
    for value in [v for v in model.graph.inputs if v.name in model.graph.initializers]:
        model.graph.inputs.remove(value)  # weights, in files from before 2019
    return model
