"""ONNX graphs: that of a classifier, that of a detector, and how they are joined.

torch traces its modules; errors say what could not be traced.
"""

from __future__ import annotations

import itertools
import logging
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nescio._version import __version__
from nescio.errors import ExportError, FileFormatError, NescioError, require
from nescio.export.detector_head import DetectorHead
from nescio.export.parity import Samples
from nescio.models import Runner
from nescio.models.base import FEATURES, flat_input, pooled
from nescio.outputs.outputs import INPUT

OUTPUTS = ("logits", "probs", "score", "p_value", "in_distribution")
"""The outputs of a fused graph, followed by the layers that the detector reads."""

BATCH = "batch"
"""The name of an open batch size if the classifier has no name for it."""

OPSET = 18
"""The oldest opset that torch exports to; most runtimes support it."""

LARGEST_FILE = 2**31 - 1
"""The number of bytes that one ONNX file can hold: the limit of its format."""

_LOGGERS = ("torch.onnx", "torch.export", "torch.fx", "onnxscript", "onnx_ir")
_TRACED_ROWS = 3


# --- the classifier -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Classifier:
    """A graph, and which of its outputs a detector takes."""

    model: Any  # onnx_ir.Model
    sources: dict[str, str]  # for the logits and each layer, the name of an output
    examples: dict[str, Tensor]  # a few rows of each, as the classifier gives them
    of_input: Collection[str] = ()  # which of them are the model's input itself
    open_length: bool = False  # whether it takes texts of any length


def classifier_graph(runner: Runner, samples: Samples, takes: tuple[str, ...]) -> Classifier:
    """Return the graph of a model that gives logits and the layers that are taken."""
    make = {"onnx": _of_file, "sklearn": _of_sklearn}.get(runner.kind, _of_torch)
    return make(runner, samples, takes)


def _of_sklearn(runner: Any, samples: Samples, takes: tuple[str, ...]) -> Classifier:
    from nescio.export.sklearn_graphs import sklearn_graph

    with _quiet():
        model, outputs = sklearn_graph(runner, samples, OPSET)
    arrays, places = list(runner.run(samples.data).values()), _places(takes, runner)
    examples = {n: torch.zeros(1, arrays[i].shape[1]).double() for n, i in places.items()}
    return Classifier(model, {name: outputs[i] for name, i in places.items()}, examples)


def _of_torch(runner: Any, samples: Samples, takes: tuple[str, ...]) -> Classifier:
    example = samples.resized(_TRACED_ROWS)
    weights = itertools.chain(runner.model.parameters(), runner.model.buffers())
    check_size(sum(tensor.numel() * tensor.element_size() for tensor in weights))
    module = runner.module(example.data).requires_grad_(False)
    inputs = [runner.placed(array) for array in example.feed.values()]
    text = runner.kind == "transformers" or runner.tokenizer is not None
    # The batch may change, and the length of a text if the model allows it.
    sizes = {0: torch.export.Dim.DYNAMIC}, {1: torch.export.Dim.AUTO}
    dynamic = [sizes[0] | sizes[1] if text and part.ndim == 2 else sizes[0] for part in inputs]
    with torch.no_grad():
        outputs = module(*inputs)
    if any(tensor.dtype == torch.bfloat16 for tensor in (*module.parameters(), *outputs)):
        raise ExportError(
            "the model computes in bfloat16, which onnxruntime does not support on the CPU. Export "
            "a copy in float32: copy.deepcopy(model).float()."
        )
    names = [f"classifier_{name}" for name in ("logits", *runner.array_names)]
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
    places = _places(takes, runner)
    return Classifier(
        model,
        {name: names[place] for name, place in places.items()},
        {name: outputs[place] for name, place in places.items()},
        open_length=text and all("length" in map(str, value.shape) for value in model.graph.inputs),
    )


def _places(takes: tuple[str, ...], runner: Runner) -> dict[str, int]:
    """Return where the logits and layers that are taken are among the outputs of a model."""
    names = ("logits", *runner.array_names)
    # The features may be the input of the head under another name.
    return {name: names.index(name if name in names else FEATURES) for name in takes}


def _of_file(runner: Any, samples: Samples, takes: tuple[str, ...]) -> Classifier:
    tensors = (runner.output, *runner.tensors)
    taken = {name: tensors[place] for name, place in _places(takes, runner).items()}
    feed = samples.resized(runner.fixed_batch or _TRACED_ROWS).feed
    wanted = [tensor for tensor in dict.fromkeys(taken.values()) if tensor not in feed]
    arrays = dict(zip(wanted, runner.session.run(wanted, feed), strict=True)) | feed
    onnx, ir = require("onnx", "onnx"), require("onnx_ir", "onnx")
    try:
        model = ir.from_proto(onnx.load(runner.path))
    except Exception as error:  # protobuf and onnx_ir raise many kinds
        raise FileFormatError(f"cannot read the graph of {runner.path}: {error}") from error
    graph = model.graph
    for value in [v for v in graph.inputs if v.name in graph.initializers]:
        graph.inputs.remove(value)  # weights, in files from before 2019
    values = {value.name: value for node in graph for value in node.outputs}
    values |= {value.name: value for value in graph.inputs}
    for name in taken.values():  # inner tensors and inputs become outputs too
        if all(output.name != name for output in graph.outputs):
            graph.outputs.append(values[name])
    examples = {name: torch.from_numpy(arrays[tensor]) for name, tensor in taken.items()}
    return Classifier(model, taken, examples, [name for name in taken if taken[name] in feed])


# --- the detector, and both together --------------------------------------------------------------


def as_matrix(name: str, array: Any, of_input: Collection[str]) -> Any:
    """Return what a classifier gives to the detector as a matrix."""
    return (flat_input if name in of_input else pooled)(array, f"{name} have")


class _GraphHead(nn.Module):
    """A detector head that takes its inputs by position and returns a tuple.

    If it is alone, without a classifier before it, its inputs are not repeated as outputs.
    """

    def __init__(
        self, head: DetectorHead, takes: tuple[str, ...], of_input: Collection[str], alone: bool
    ) -> None:
        super().__init__()
        self.head, self.takes, self.of_input, self.alone = head, takes, of_input, alone
        # The layers that the graph returns; whoever runs it has its input.
        self.layers = tuple(name for name in takes if name not in ("logits", INPUT))
        self.output_names = (*OUTPUTS, *self.layers)
        if alone:
            self.output_names = OUTPUTS[1:] if "logits" in takes else OUTPUTS[2:]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        arrays = dict(zip(self.takes, inputs, strict=True))
        logits = arrays.pop("logits", None)
        layers = {name: as_matrix(name, layer, self.of_input) for name, layer in arrays.items()}
        if logits is None:
            return self.head.judge(None, *layers.values())
        outputs = self.head(logits, *layers.values())
        if self.alone:
            return tuple(outputs[1:])
        # Copies, as an output cannot be an input too.
        return (*outputs, *(layers[name].clone() for name in self.layers))


def detector_graph(
    head: DetectorHead,
    examples: Mapping[str, Tensor],
    of_input: Collection[str] = (),
    *,
    alone: bool = False,
) -> Any:
    """Return the graph of a detector; `examples` has one or more rows of its inputs."""
    takes = tuple(examples)
    module = _GraphHead(head, takes, of_input, alone)
    rows = [
        torch.zeros((_TRACED_ROWS, *example.shape[1:]), dtype=example.dtype)
        for example in examples.values()
    ]
    model = traced(
        module.eval(),
        rows,
        [{0: torch.export.Dim.DYNAMIC}] * len(rows),
        # An input and an output cannot have the same name.
        input_names=takes if alone else [f"given_{name}" for name in takes],
        output_names=module.output_names,
        what="the detector",
        exact=True,
    )
    # Constants in the precision in which they are used, and in no other.
    limits = {"input_size_limit": LARGEST_FILE, "output_size_limit": LARGEST_FILE}
    with _quiet():
        require("onnxscript.optimizer", "onnx").fold_constants(model, **limits)
    require("onnx_ir", "onnx").passes.common.RemoveUnusedNodesPass()(model)
    name_sizes([*model.graph.inputs, *model.graph.outputs])
    return model


def join(classifier: Any, head: Any, sources: Mapping[str, str]) -> None:
    """Append a detector's graph to a classifier's of the same opset in place; the head is consumed.

    `sources` names, for the logits and each layer, the output that the head takes.
    """
    graph = classifier.graph
    by_name = {value.name: value for value in graph.outputs}
    feeds = dict(zip(head.graph.inputs, (by_name[name] for name in sources.values()), strict=True))
    # A number if the classifier takes no other batch size, else its name for it.
    sizes = [
        value.shape[0] for value in graph.inputs if value.shape is not None and len(value.shape)
    ]
    batch = next((n if isinstance(n, int) else n.value or BATCH for n in sizes), BATCH)
    outputs = list(head.graph.outputs)
    for node in head.graph:
        for position, value in enumerate(node.inputs):
            if value in feeds:
                node.replace_input_with(position, feeds[value])
    taken = {value.name for value in outputs}
    _add_prefix(graph, "classifier/", except_for=graph.inputs)
    _add_prefix(head.graph, "nescio/", except_for=outputs)
    for value in graph.inputs:
        if value.name in taken:
            value.name = f"input_{value.name}"
    nodes = list(head.graph)
    head.graph.outputs.clear()
    head.graph.remove(nodes)
    for value in list(head.graph.initializers.values()):
        del head.graph.initializers[value.name]
        graph.register_initializer(value)
    for value in itertools.chain.from_iterable(node.outputs for node in nodes):
        value.shape = value.shape if value in outputs else None
    graph.extend(nodes)
    graph.outputs.clear()
    graph.outputs.extend(outputs)
    name_sizes(outputs, batch)
    classifier.ir_version = max(classifier.ir_version, head.ir_version)
    for domain, version in head.opset_imports.items():
        classifier.opset_imports.setdefault(domain, version)
    common = require("onnx_ir", "onnx").passes.common
    common.RemoveUnusedNodesPass()(classifier)
    common.RemoveUnusedFunctionsPass()(classifier)


def _add_prefix(graph: Any, prefix: str, except_for: Sequence[Any]) -> None:
    """Rename the nodes and values of a graph, so that none has the name of one in another graph."""
    kept = {id(value) for value in except_for}
    for value in list(_values(graph)):
        if value.name and id(value) not in kept:
            value.name = prefix + value.name
    for node in require("onnx_ir", "onnx").traversal.RecursiveGraphIterator(graph):
        node.name = node.name and prefix + node.name  # nodes may lack one, but not share it


def at_opset(model: Any, target: int, *, what: str) -> None:
    """Convert a graph to an opset in place."""
    own = model.opset_imports.get("", OPSET)
    if own == target:
        return
    converter = require("onnxscript.version_converter", "onnx")
    with _quiet(), suppress(Exception):  # the converters raise many kinds
        converter.convert_version(model, target, fallback=True)
    if model.opset_imports.get("") != target:
        raise ExportError(
            f"{what} has opset {own} and could not be converted to {target}. Export it again "
            f"with an opset of {target}."
        )


def to_bytes(model: Any, metadata: Mapping[str, str]) -> bytes:
    """Return the content of the file; the same graph gives the same bytes."""
    ir = require("onnx_ir", "onnx")
    ir.passes.common.ClearMetadataAndDocStringPass()(model)
    for value in _values(model.graph):
        value.metadata_props.clear()
    model.graph.name = "nescio"
    model.producer_name, model.producer_version = "nescio", __version__
    kept = {k: v for k, v in model.metadata_props.items() if not k.startswith("nescio.")}
    model.metadata_props.clear()
    model.metadata_props.update(kept | dict(metadata))
    check_size(sum(value.const_value.nbytes for value in model.graph.initializers.values()))
    proto = ir.to_proto(model)
    check_size(proto.ByteSize())
    data: bytes = proto.SerializeToString(deterministic=True)
    return data


def check_size(size: int) -> None:
    """Raise if a graph of this many bytes is larger than one file can be."""
    if size > LARGEST_FILE:
        raise ExportError(
            f"the graph would have {size / 1e9:.1f} GB, but an ONNX file can hold only 2 GB. "
            "External weight files are not supported: export only the detector (model=None; "
            "without --model), fitted with a smaller bank if it keeps training samples. Or convert "
            "the model to float16, and allow for its rounding (tolerance=0.01, --tolerance 0.01)."
        )


def _values(graph: Any) -> Iterator[Any]:
    """Give every value of a graph and of the graphs within it."""
    ir = require("onnx_ir", "onnx")
    seen: set[int] = set()
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in ir.traversal.RecursiveGraphIterator(graph):
        if node.graph is not graph and id(node.graph) not in seen:
            seen.add(id(node.graph))
            yield from node.graph.inputs
            yield from node.graph.initializers.values()
        yield from node.outputs


def name_sizes(values: Sequence[Any], batch: Any = BATCH, other: str | None = None) -> None:
    """Set the name or size of the first dimension, and the name of another open one."""
    ir = require("onnx_ir", "onnx")
    for value in values:
        if value.shape is None or not len(value.shape):
            continue
        sizes = [size if isinstance(size, int) else other or size for size in value.shape]
        value.shape = ir.Shape([batch, *sizes[1:]])


# --- from torch to ONNX ---------------------------------------------------------------------------


def traced(
    module: nn.Module,
    inputs: Sequence[Tensor],
    dynamic: Sequence[dict[int, Any]],
    *,
    input_names: Sequence[str],
    output_names: Sequence[str],
    what: str,
    exact: bool = False,
) -> Any:
    """Return the graph of a module from tensors to a tuple of tensors, as an `onnx_ir.Model`.

    `inputs` are an example of at least two rows, and `dynamic` is as torch.export takes it. With
    `exact`, softplus and sigmoid are written in a form that is precise in every runtime.
    """
    try:
        with _quiet(), torch.no_grad():
            with _Exact() if exact else nullcontext():
                program = torch.export.export(
                    module, tuple(inputs), dynamic_shapes=(tuple(dynamic),), strict=False
                )
            exported = torch.onnx.export(
                program,
                tuple(inputs),
                dynamo=True,
                verbose=False,
                opset_version=OPSET,
                input_names=list(input_names),
                output_names=list(output_names),
            )
    except NescioError:
        raise
    except Exception as error:  # torch raises many kinds, without a common class
        raise ExportError(
            f"torch cannot export {what}: {_reason(error)}. If its code depends on the values of a "
            "tensor or on the batch size, rewrite that part; or export the model to ONNX yourself "
            "and wrap the file."
        ) from error
    assert exported is not None  # it returns None only if it writes a file
    return exported.model


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the exporter's warnings and notes: its result is checked by running it."""
    levels = {logger: logger.level for logger in map(logging.getLogger, _LOGGERS)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for logger in levels:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in levels.items():
                logger.setLevel(level)


def _reason(error: BaseException) -> str:
    """Return the first line of the first error, without torch's report of its attempts."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")


# Runtimes approximate these two: onnxruntime's sigmoid is 0 below -18. Far from the data all logits
# are that small, and a score consists of these digits only.


def _softplus(f: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    scaled = f * beta
    small = torch.exp(-scaled.abs())
    return (scaled.clamp(min=0) + _log1p(small)) / beta


def _log1p(x: Tensor) -> Tensor:
    """Compute log1p for x from 0 to 1; ONNX does not have it."""
    if x.dtype != torch.float64:
        return 2 * torch.atanh(x / (x + 2))
    # onnxruntime has no Atanh for doubles. The quotient corrects what 1 + x rounds off.
    rounded = 1 + x
    kept = rounded - 1
    nothing = kept == 0
    return torch.where(nothing, x, rounded.log() * (x / torch.where(nothing, 1.0, kept)))


def _sigmoid(f: Tensor) -> Tensor:
    return torch.reciprocal(1 + torch.exp(-f))


_EXACT: dict[Any, Callable[..., Any]] = {
    nn.functional.softplus: _softplus,
    torch.sigmoid: _sigmoid,
    Tensor.sigmoid: _sigmoid,
}


class _Exact(TorchFunctionMode):
    """Write them in the precise form. Decompositions would do so too, but trace all once more."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _EXACT.get(func, func)(*args, **(kwargs or {}))
