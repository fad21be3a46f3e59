"""A forward pass of a torch module by each runtime.

A pass is a copy of the module as it was: if the weights change afterwards, the pass does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nescio._io.tables import require
from nescio.errors import NescioError, ParameterError
from nescio.runners.onnx_models import open_session
from nescio.runners.openvino_models import OpenVinoSession
from nescio.runners.runtimes import CHANNELS_LAST, COMPILE, EAGER, ONNXRUNTIME, OPENVINO
from nescio.runners.tracing import Picked, traced

Pass = Callable[[Tensor], tuple[Tensor, ...]]
"""From a batch of preprocessed images to logits and layers."""

_IMAGES = "images"
_GRAPH = "graph"


def build_pass(
    module: nn.Module, runtime: str, images: Tensor, shared: dict[str, Any], *, exact: bool
) -> Pass:
    """Return a pass of a module that gives (logits, layers...) or (logits, None).

    Parameters
    ----------
    module : Module
        In eval mode. It is changed, so pass a copy.
    runtime : str
    images : Tensor
        A batch of preprocessed images.
    shared : dict
        Keeps the graph, or why there is none, for another runtime of the same module.
    exact : bool
        Whether a graph must compute sigmoids precisely, because logits are computed from them.
    """
    if runtime == EAGER:
        return _laid_out(module, torch.contiguous_format)
    if runtime == CHANNELS_LAST:
        return _laid_out(module, torch.channels_last)
    if runtime == COMPILE:
        return _compiled(module, len(images))
    if images.device.type != "cpu":
        raise ParameterError(f"it runs on the CPU, and the model is on {images.device}.")
    if runtime == OPENVINO:
        require("openvino", "openvino")  # before the long export
    graph, names = _shared_graph(module, images, shared, exact=exact)
    threads = torch.get_num_threads()
    session: Any = (
        open_session(graph, threads=threads)
        if runtime == ONNXRUNTIME
        else OpenVinoSession(graph, threads=threads)
    )

    def run(images: Tensor) -> tuple[Tensor, ...]:
        given = session.run(names, {_IMAGES: images.contiguous().numpy()})
        return tuple(torch.from_numpy(array) for array in given)

    return run


def _laid_out(module: nn.Module, layout: torch.memory_format) -> Pass:
    module = module.to(memory_format=layout)

    def run(images: Tensor) -> tuple[Tensor, ...]:
        # As when the runner runs the module itself: the caller's random numbers are kept.
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            found: tuple[Tensor, ...] = module(images.contiguous(memory_format=layout))
        return found

    return run


def _compiled(module: nn.Module, batch_size: int) -> Pass:
    plain = _laid_out(module, torch.channels_last)
    compiled: Any = torch.compile(module, dynamic=False)

    def run(images: Tensor) -> tuple[Tensor, ...]:
        if len(images) != batch_size:
            return plain(images)  # such as the last batch: compiling again takes tens of seconds
        with torch.no_grad():
            found: tuple[Tensor, ...] = compiled(
                images.contiguous(memory_format=torch.channels_last)
            )
        return found

    return run


def _shared_graph(
    module: nn.Module, images: Tensor, shared: dict[str, Any], *, exact: bool
) -> tuple[bytes, list[str]]:
    if _GRAPH not in shared:
        try:
            shared[_GRAPH] = _graph(module, images, exact=exact)
        except NescioError as error:
            shared[_GRAPH] = error
    if isinstance(shared[_GRAPH], NescioError):
        raise shared[_GRAPH]
    found: tuple[bytes, list[str]] = shared[_GRAPH]
    return found


def _graph(module: nn.Module, images: Tensor, *, exact: bool) -> tuple[bytes, list[str]]:
    """Return an ONNX graph that takes any number of images, and the names of its outputs."""
    for package in ("onnx", "onnxscript"):
        require(package, "export")
    ir = require("onnx_ir", "export")
    rows = images[:2].contiguous()
    if len(rows) < 2:  # one row would be taken as the only number of rows
        rows = torch.cat([rows, rows])
    with torch.no_grad():
        given = module(rows)
    places = [at for at, part in enumerate(given) if part is not None]
    names = [f"output_{at}" for at in places]
    model = traced(
        Picked(module, places).eval().requires_grad_(False),
        [rows],
        [{0: torch.export.Dim.DYNAMIC}],
        input_names=[_IMAGES],
        output_names=names,
        what="the model",
        exact=exact,
    )
    return ir.to_proto(model).SerializeToString(), names
