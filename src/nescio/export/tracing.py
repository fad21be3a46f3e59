"""From torch modules to ONNX graphs, with errors that say what could not be traced."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nescio.errors import ExportError, NescioError

OPSET = 18
"""The oldest opset that torch exports to; most runtimes support it."""

LARGEST_FILE = 2**31 - 1
"""The number of bytes that one ONNX file can hold: the limit of its format."""

_LOGGERS = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")


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

    `inputs` are an example of at least two rows, and `dynamic` has the dimensions of each whose
    size may change, as torch.export takes them. `what` is the subject of error messages. With
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


class Picked(nn.Module):
    """A module that gives some of the outputs of another one, as a tuple."""

    def __init__(self, module: nn.Module, places: Sequence[int]) -> None:
        super().__init__()
        self.module = module
        self.places = tuple(places)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs at the places."""
        given = self.module(*inputs)
        return tuple(given[at] for at in self.places)


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


# Runtimes approximate these two: onnxruntime's sigmoid is 0 below -18, OpenVINO's softplus below
# -20. Far from the data all logits are that small, and a score consists of these digits only.


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
