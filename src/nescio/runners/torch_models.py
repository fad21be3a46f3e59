"""A torch module: run without gradients in eval mode, and left as it was."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from nescio.errors import InputError, NescioError, ParameterError, ShapeError
from nescio.networks.tapped import nearest
from nescio.runners.base import Wrapped

_INPUT = ":input"

# A pass changes the mode of the model and hooks into it for its time: one pass at a time.
_LOCKS: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
_LOCKS_LOCK = threading.Lock()


class Tap(NamedTuple):
    """Where features are taken: what a layer gives, or what it reads."""

    layer: str
    reads: bool

    @classmethod
    def parse(cls, name: str, model: nn.Module) -> Tap:
        """From "layer" or "layer:input"; raises if the model has no such layer."""
        layers = dict(model.named_modules())
        if not isinstance(name, str):
            raise ParameterError(f"features must be the name of a layer, got {name!r}.")
        if name in layers and name:
            return cls(name, reads=False)
        layer = name.removesuffix(_INPUT)
        if not layer or layer not in layers:
            raise ParameterError(f"the model has no layer {layer!r}.{nearest(layer, layers)}")
        return cls(layer, reads=True)


class _Recorder:
    """A forward hook that keeps what a layer gave or read. A class, so that it can be copied."""

    def __init__(self, tap: Tap) -> None:
        self.tap = tap
        self.found: list[Any] = []

    def hook_into(self, model: nn.Module) -> RemovableHandle:
        layer = model.get_submodule(self.tap.layer)
        if self.tap.reads:
            return layer.register_forward_pre_hook(self.before, with_kwargs=True)
        return layer.register_forward_hook(self.after)

    def before(self, layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._keep(inputs[0] if inputs else next(iter(named.values()), None))

    def after(self, layer: nn.Module, inputs: Any, output: Any) -> None:
        self._keep(output)

    def _keep(self, value: Any) -> None:
        # A copy, as a next layer may work in place.
        self.found.append(value.clone() if isinstance(value, Tensor) else value)

    def features(self, n_samples: int) -> Tensor:
        """The features of the pass that was; the last, if the layer ran more than once."""
        layer = self.tap.layer
        if not self.found:
            raise ParameterError(
                f"layer {layer!r} was not called in the forward pass. Name one that is."
            )
        features = _pooled(self.found[-1], self.tap)
        self.found.clear()
        if features.shape[0] != n_samples:
            raise ShapeError(
                f"layer {layer!r} has features of {features.shape[0]} rows, and there are logits "
                f"of {n_samples}. Name a layer with one row per sample."
            )
        return features


def _pooled(value: Any, tap: Tap) -> Tensor:
    """Features of shape (n_samples, n_features)."""
    if isinstance(value, Tensor) and value.ndim == 4:
        return value.mean((2, 3))
    if isinstance(value, Tensor) and value.ndim == 2:
        return value
    verb = "reads" if tap.reads else "gives"
    raise ShapeError(
        f"layer {tap.layer!r} {verb} {_described(value)}; features must have shape (n_samples, "
        "n_features), or (n_samples, n_features, height, width). Name another layer, or what the "
        "last one reads, such as 'classifier:input'."
    )


class LogitsAndFeatures(nn.Module):
    """A model's inputs by position to (logits, features), features being None if none are named.

    One pass at a time: it hooks into the model, until `release`.

    Parameters
    ----------
    model : Module
    tap : Tap or None
    output : str, int or None
        Which output holds the logits.
    input_names : tuple of str, optional
        The names of the model's arguments that the positional inputs are.
    """

    def __init__(
        self,
        model: nn.Module,
        tap: Tap | None,
        output: str | int | None,
        input_names: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self.model = model
        self.output = output
        self.input_names = input_names
        self._recorder = None if tap is None else _Recorder(tap)
        self._handle = None if self._recorder is None else self._recorder.hook_into(model)

    def forward(self, *inputs: Any, **named: Any) -> tuple[Tensor, Tensor | None]:
        """One pass for logits and features."""
        if self.input_names:
            named = {**dict(zip(self.input_names, inputs, strict=False)), **named}
            inputs = inputs[len(self.input_names) :]
        if self._recorder is None:
            return logits_of(self.model(*inputs, **named), self.output), None
        self._recorder.found.clear()
        logits = logits_of(self.model(*inputs, **named), self.output)
        return logits, self._recorder.features(logits.shape[0])

    def release(self) -> None:
        """Leave the model without a hook."""
        if self._handle is not None:
            self._handle.remove()


def logits_of(given: Any, output: str | int | None) -> Tensor:
    """The logits among what the model gave, of shape (n_samples, n_labels)."""
    found = _picked(given, output)
    if not isinstance(found, Tensor) or found.ndim != 2 or not found.is_floating_point():
        raise ShapeError(
            "the model must give logits of shape (n_samples, n_labels), as one tensor of floating "
            f"point, got {_described(found)}."
            + ("" if isinstance(found, Tensor) else " Say which with output=...")
        )
    return found


def _picked(given: Any, output: str | int | None) -> Any:
    if output is None:
        if isinstance(given, Tensor):
            return given
        if isinstance(given, Mapping):
            return given.get("logits", given)
        return getattr(given, "logits", given)
    try:
        if isinstance(output, str) and not isinstance(given, Mapping):
            return getattr(given, output)
        return given[output]
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ParameterError(
            f"the model gives no output {output!r}: it gave {_described(given)}."
        ) from error


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        return f"{kind} of shape {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} with {', '.join(map(repr, value))}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


@contextmanager
def left_as_it_was(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients, and afterwards every part's own mode and the random state.

    Flags are set, not `eval()` called: a model's own `train` may do more than that, and a part
    that was in eval mode before must stay so.
    """
    with _LOCKS_LOCK:
        lock = _LOCKS.setdefault(model, threading.RLock())
    with lock:
        training = [part for part in model.modules() if part.training]
        devices = {part.device for part in model.parameters() if part.device.type == "cuda"}
        try:
            for part in training:
                part.training = False
            # Not inference_mode: a tensor that a model keeps for later, such as a table of
            # positions, could not be trained with afterwards.
            with torch.random.fork_rng(sorted(devices, key=str)), torch.no_grad():
                yield
        finally:
            for part in training:
                part.training = True


class TorchModel(Wrapped):
    """A torch module. torchvision's and timm's models are such."""

    kind = "torch"

    def __init__(self, model: nn.Module, **settings: Any) -> None:
        if settings.get("device") is not None:
            settings["device"] = _checked_device(settings["device"], _device_of(model))
        super().__init__(model, **settings)
        self._tap = None if self.features is None else Tap.parse(self.features, model)

    def module(self, example: Any = None) -> LogitsAndFeatures:
        """A copy of the model, in eval mode, from its inputs by position to (logits, features).

        Features are None if none are named. Probabilities stay probabilities, whatever
        `from_probs` says. torch.export and torch.onnx.export take it.

        Parameters
        ----------
        example : optional
            Inputs, for a model that takes them by name: the positional inputs are those of
            `input_names(example)`.
        """
        own = copy.deepcopy(self.model).eval()
        return LogitsAndFeatures(own, self._tap, self.output, self.input_names(example)).eval()

    def input_names(self, example: Any = None) -> tuple[str, ...]:
        """The names of the inputs that `module` takes by position; empty if they have none."""
        return tuple(example) if isinstance(example, Mapping) else ()

    def _is_data(self, inputs: Any) -> bool:
        return isinstance(inputs, Tensor | np.ndarray | Mapping | tuple)

    def _run(self, inputs: Any) -> tuple[Any, Any]:
        named: dict[str, Any] = {}
        if isinstance(inputs, Mapping):
            named, inputs = {name: self._placed(part) for name, part in inputs.items()}, ()
        parts = inputs if isinstance(inputs, tuple) else (inputs,)
        placed = [self._placed(part) for part in parts]
        with left_as_it_was(self.model):
            whole = LogitsAndFeatures(self.model, self._tap, self.output)
            try:
                logits, features = whole(*placed, **named)
                return logits, features
            except (NescioError, torch.OutOfMemoryError):
                raise
            except Exception as error:  # torch and models raise many kinds
                raise _failed([*placed, *named.values()], error) from error
            finally:
                whole.release()

    def _placed(self, part: Any) -> Any:
        """An input as a tensor where the model is; what is no array, such as a flag, as it is."""
        if isinstance(part, list):
            part = _array(part)
        if isinstance(part, np.ndarray):
            if part.dtype.kind not in "fiub":
                raise InputError(f"the model takes numbers, got an array of dtype {part.dtype}.")
            # torch takes neither read-only memory nor negative strides without complaint.
            part = torch.from_numpy(np.array(part, order="C"))
            if part.is_floating_point():
                part = part.to(_dtype_of(self.model, part.dtype))  # NumPy's own is float64
        # Where the model is now: it may have been moved since it was wrapped.
        device = self.device if self.device is not None else _device_of(self.model)
        return part.to(device) if isinstance(part, Tensor) and device is not None else part

    def _describe(self) -> dict[str, Any]:
        return {**super()._describe(), "torch_version": torch.__version__}


def _failed(inputs: list[Any], error: Exception) -> InputError:
    lines = str(error).strip().splitlines()
    reason = lines[0].rstrip(".") if lines else type(error).__name__
    return InputError(
        f"the model failed on a batch, {' and '.join(map(_described, inputs))}: {reason}. Pass "
        "samples first (one alone as x[None]), in the type and the size that the model takes; a "
        "list is taken as batches."
    )


def _tensors_of(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def _device_of(model: nn.Module) -> torch.device | None:
    """Where the model's first parameter is; None if it has none."""
    first = next(_tensors_of(model), None)
    return None if first is None else first.device


def _dtype_of(model: nn.Module, default: torch.dtype) -> torch.dtype:
    """The precision of the model's parameters."""
    kinds = (tensor.dtype for tensor in _tensors_of(model) if tensor.is_floating_point())
    return next(kinds, default)


def _array(values: list[Any]) -> Any:
    try:
        return np.asarray(values)
    except ValueError as error:
        raise InputError(
            "the lists of an input differ in length. Pad them: a tokenizer does with "
            "padding=True, return_tensors='pt'."
        ) from error


def _checked_device(device: Any, current: torch.device | None) -> torch.device:
    """Where inputs go; raises if the model is elsewhere, as it is not moved."""
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ParameterError(f"there is no device {device!r}: {error}") from error
    if current is not None and wanted.type != current.type:
        raise ParameterError(
            f"the model is on {current}, and device is {str(wanted)!r}. wrap does not move "
            f"it: call model.to({str(wanted)!r}) first."
        )
    return wanted
