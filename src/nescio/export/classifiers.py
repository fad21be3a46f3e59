"""A classifier as a graph, whose outputs are what a detector takes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nescio._io.tables import require
from nescio.errors import ExportError, FileFormatError
from nescio.export.fused import places_of
from nescio.export.graphs import check_size, name_sizes
from nescio.export.samples import Samples
from nescio.runners import Runner
from nescio.runners.tracing import Picked, traced

_TRACED_ROWS = 3


@dataclass(frozen=True)
class Classifier:
    """A graph, and which of its outputs a detector takes."""

    model: Any  # onnx_ir.Model
    sources: dict[str, str]  # for the logits and each layer, the name of an output
    examples: dict[str, Tensor]  # a few rows of each, as the classifier gives them
    open_length: bool = False  # whether it takes texts of any length


def classifier_graph(runner: Runner, samples: Samples, takes: tuple[str, ...]) -> Classifier:
    """Return the graph of a model that gives logits and the layers that are taken."""
    if runner.kind == "onnx":
        return _of_file(runner, samples, takes)
    return _of_torch(runner, samples, takes)


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


def _of_torch(runner: Any, samples: Samples, takes: tuple[str, ...]) -> Classifier:
    example = samples.resized(_TRACED_ROWS)
    weights = itertools.chain(runner.model.parameters(), runner.model.buffers())
    check_size(sum(tensor.numel() * tensor.element_size() for tensor in weights))
    module = Picked(runner.module(example.data), places_of(takes, runner))
    module = module.eval().requires_grad_(False)
    inputs = [runner.placed(array) for array in example.feed.values()]
    text = runner.kind == "transformers" or runner.tokenizer is not None
    dynamic = [_dynamic(tensor, text=text) for tensor in inputs]
    with torch.no_grad():
        given = module(*inputs)
    if any(tensor.dtype == torch.bfloat16 for tensor in (*module.parameters(), *given)):
        raise ExportError(
            "the model computes in bfloat16, which onnxruntime does not support on the CPU. Export "
            "a copy in float32: copy.deepcopy(model).float()."
        )
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
        open_length=text and all("length" in map(str, value.shape) for value in model.graph.inputs),
    )


def _dynamic(tensor: Tensor, *, text: bool) -> dict[int, Any]:
    """Return which sizes may change: the batch, and the length of a text if the model allows it."""
    sizes: dict[int, Any] = {0: torch.export.Dim.DYNAMIC}
    if text and tensor.ndim == 2:
        sizes[1] = torch.export.Dim.AUTO
    return sizes


def _of_file(runner: Any, samples: Samples, takes: tuple[str, ...]) -> Classifier:
    tensors = (runner.output, *runner.tensors)
    taken = {name: tensors[at] for name, at in zip(takes, places_of(takes, runner), strict=True)}
    feed = samples.resized(runner.fixed_batch or _TRACED_ROWS).feed
    wanted = [tensor for tensor in dict.fromkeys(taken.values()) if tensor not in feed]
    given = dict(zip(wanted, runner.session.run(wanted, feed), strict=True)) | feed
    return Classifier(
        _with_outputs(_loaded(runner.path), taken.values()),
        taken,
        {name: torch.from_numpy(given[tensor]) for name, tensor in taken.items()},
    )


def _with_outputs(model: Any, tensors: Iterable[str]) -> Any:
    """Return a graph whose outputs include these tensors."""
    graph = model.graph
    values = {value.name: value for node in graph for value in node.outputs}
    values |= {value.name: value for value in graph.inputs}
    for name in tensors:
        if all(output.name != name for output in graph.outputs):
            graph.outputs.append(values[name])
    return model


def _loaded(path: Path) -> Any:
    onnx, ir = require("onnx", "export"), require("onnx_ir", "export")
    try:
        model = ir.from_proto(onnx.load(path))
    except Exception as error:  # protobuf and onnx_ir raise many kinds
        raise FileFormatError(f"cannot read the graph of {path}: {error}") from error
    for value in [v for v in model.graph.inputs if v.name in model.graph.initializers]:
        model.graph.inputs.remove(value)  # weights, in files from before 2019
    return model
