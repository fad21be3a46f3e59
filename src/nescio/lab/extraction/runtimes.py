"""What runs a network on images: torch, or onnxruntime with a copy of it.

Both compute the same function and round differently, by about 1e-6. A copy is used only if its
arrays equal those of the network itself to `TOLERANCE` on the first batch; an extraction compares
again on batches 2, 4, 8 and so on.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from nescio._validation import Array, checked_choice
from nescio.errors import ExportError, ParameterError, require
from nescio.models.base import Runner

if TYPE_CHECKING:
    from torch import Tensor

    from nescio.models.torch_models import TorchRunner

AUTO, TORCH, ONNXRUNTIME = "auto", "torch", "onnxruntime"
RUNTIMES = (AUTO, TORCH, ONNXRUNTIME)

TOLERANCE = 1e-4
"""The largest difference from the network itself, absolute and relative."""

_MIN_BATCHES = 20  # with fewer, the export takes longer than it saves
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_IMAGES = "images"


@dataclass(frozen=True)
class RuntimeChoice:
    """Which runtime runs a network, and why."""

    runtime: str
    why: str

    def __str__(self) -> str:
        return f"runtime {self.runtime} ({self.why})."

    def facts(self) -> dict[str, str]:
        """Return what a manifest says about it."""
        facts = {"runtime": self.runtime}
        return facts if self.runtime == TORCH else facts | {"runtime_version": version(ONNXRUNTIME)}


class Runtimes:
    """Chooses the runtime of networks, and keeps the exported copy for the next data set.

    Parameters
    ----------
    name : {"auto", "torch", "onnxruntime"}
        "auto" is onnxruntime for a torch module on the CPU if it is installed and there are more
        than 20 batches to run, else torch. The choice does not depend on a measurement, so the same
        data and packages give the same bytes.
    """

    def __init__(self, name: str = AUTO) -> None:
        self.name = checked_choice("runtime", name, RUNTIMES)
        self._copy: tuple[Any, Runner] | None = None  # what it was made from, and its runner

    @classmethod
    def of(cls, runtime: str | Runtimes) -> Runtimes:
        """Return the object itself, or one for a name."""
        return runtime if isinstance(runtime, Runtimes) else cls(runtime)

    def choose(
        self, own: Runner, first_batch: Callable[[], Array], n_batches: int
    ) -> tuple[Runner, RuntimeChoice]:
        """Return a runner by the chosen runtime, and the choice.

        `own` runs the network itself. `first_batch` gives images to compare both runtimes on.
        """
        choice = self._named(own, n_batches)
        if own.kind == "onnx" or choice.runtime == TORCH:
            return own, choice
        key = (own.content_hash(), str(own.describe()), own.preprocessing)
        if self._copy is None or self._copy[0] != key:
            try:
                self._copy = (key, _checked_copy(own, first_batch()))
            except ParameterError as error:
                if self.name == AUTO:
                    return own, RuntimeChoice(TORCH, str(error))
                raise ParameterError(f"{error}. Choose torch.") from error
        return self._copy[1], choice

    def _named(self, own: Runner, n_batches: int) -> RuntimeChoice:
        """Return the choice without trying it."""
        if own.kind == "onnx":
            if self.name == TORCH:
                raise ParameterError("an ONNX file is run by onnxruntime, got runtime='torch'.")
            return RuntimeChoice(ONNXRUNTIME, "it runs ONNX files")
        if self.name != AUTO:
            return RuntimeChoice(self.name, "as requested")
        # Only runners of torch place inputs.
        if own.describe().get("device") != "cpu" or not hasattr(own, "placed"):
            return RuntimeChoice(TORCH, "it is no torch network on the CPU")
        if n_batches <= _MIN_BATCHES:
            return RuntimeChoice(TORCH, "there are few batches")
        missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
        if missing:
            return RuntimeChoice(TORCH, f"{' and '.join(missing)} not installed")
        return RuntimeChoice(ONNXRUNTIME, "a copy of the network on the CPU")


def checked_run(fast: Runner, own: Runner) -> Callable[[Any], dict[str, Array]]:
    """Return how `fast` runs a batch, compared with the network on batches 2, 4, 8 and so on."""
    if fast is own:
        return own.run
    n_batches = 0

    def run(inputs: Any) -> dict[str, Array]:
        nonlocal n_batches
        n_batches += 1
        arrays = fast.run(inputs)
        if n_batches > 1 and n_batches & (n_batches - 1) == 0:
            problem = difference(arrays, own.run(inputs))
            if problem:
                raise ExportError(
                    f"onnxruntime is wrong in a later batch: {problem}. Start again with "
                    "--runtime torch (runtime='torch')."
                )
        return arrays

    return run


def difference(arrays: Mapping[str, Array], expected: Mapping[str, Array]) -> str:
    """Return how arrays differ from those of the network itself; empty if they do not.

    Nothing is close to infinity: a masked label must be masked by every runtime.
    """
    for name, theirs in expected.items():
        ours = arrays[name]
        close = np.isclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
        if not close.all():
            largest = float(np.abs(ours - theirs)[~close].max())
            return f"its {name} differ from those of the model itself by up to {largest:.2g}"
    return ""


def _checked_copy(own: Runner, images: Array) -> Runner:
    """Return a runner of a copy by onnxruntime; raise if it cannot be used."""
    try:
        fast = _exported(own, images)  # type: ignore[arg-type]
        problem = difference(fast.run(images), own.run(images))
    except Exception as error:  # a runtime is not ours and may raise anything
        problem = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    if problem:
        raise ParameterError(f"onnxruntime cannot be used: {problem}")
    return fast


def _exported(own: TorchRunner, images: Array) -> TorchRunner:
    """Return a runner whose passes are run by onnxruntime, with the weights as they are now."""
    for package in _PACKAGES:
        require(package, "onnx")
    import torch

    from nescio.export.graphs import traced
    from nescio.models.onnx_models import open_session

    ir = require("onnx_ir", "onnx")
    inputs = own.placed(images)
    if inputs.device.type != "cpu":
        raise ParameterError(f"it runs on the CPU, and the model is on {inputs.device}.")
    rows = inputs[:2].contiguous()
    if len(rows) < 2:  # one row would be taken as the only number of rows
        rows = torch.cat([rows, rows])
    names = [f"output_{place}" for place in range(1 + len(own.layers))]
    graph = traced(
        own.module().requires_grad_(False),
        [rows],
        [{0: torch.export.Dim.DYNAMIC}],
        input_names=[_IMAGES],
        output_names=names,
        what="the model",
        exact=bool(own.from_probs),  # logits are then computed from its sigmoids
    )
    content = ir.to_proto(graph).SerializeToString()
    session = open_session(content, threads=torch.get_num_threads())

    def forward(images: Tensor) -> tuple[Tensor, ...]:
        arrays = session.run(names, {_IMAGES: images.contiguous().numpy()})
        return tuple(torch.from_numpy(array) for array in arrays)

    fast = copy.copy(own)
    fast.forward = forward
    return fast
