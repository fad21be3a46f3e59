"""A runner for torch modules: in eval mode without gradients, and unchanged afterwards."""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from nescio._validation import Array, to_numpy
from nescio.errors import InputError, NescioError, ParameterError, ShapeError
from nescio.networks.checkpoint import weights_hash
from nescio.runners.base import Runner
from nescio.runners.call_order import CallOrder
from nescio.runners.passes import Pass, build_pass
from nescio.runners.runtimes import CHANNELS_LAST, EAGER, RUNTIMES
from nescio.runners.taps import Recorder, Tap
from nescio.runners.tokenizing import NAMES, TextTokenizer

# A pass sets the model's mode and hooks for its duration, so only one pass may run at a time.
_LOCKS: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
_LOCKS_LOCK = threading.Lock()


class LogitsAndFeatures(nn.Module):
    """A module from a model's inputs to (logits, features, further layers...).

    Features are None if none are chosen. It hooks into the model until `release`. One pass at a
    time. The first pass shows in which order the layers are called, and confirms the taps by it.

    Parameters
    ----------
    model : Module
    taps : sequence of Tap
        Where the features are taken, then each further layer.
    output : str, int or None
        Which output holds the logits.
    input_names : tuple of str, optional
        The names of the model's arguments that the positional inputs are.
    """

    def __init__(
        self,
        model: nn.Module,
        taps: Sequence[Tap],
        output: str | int | None,
        input_names: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self.model = model
        self.output = output
        self.input_names = input_names
        self.taps = tuple(taps)
        self._recorders = [Recorder(tap, model) for tap in taps]

    def forward(self, *inputs: Any, **named: Any) -> tuple[Any, ...]:
        """Return logits, features and further layers of one pass."""
        if self.input_names:
            named = {**dict(zip(self.input_names, inputs, strict=False)), **named}
            inputs = inputs[len(self.input_names) :]
        if any(tap.sought for tap in self.taps) and not torch.compiler.is_compiling():
            self._confirm_taps(*inputs, **named)
        logits = logits_of(self.model(*inputs, **named), self.output)
        found = [recorder.features(logits.shape[0]) for recorder in self._recorders]
        return (logits, *found) if found else (logits, None)

    def _confirm_taps(self, *inputs: Any, **named: Any) -> None:
        self.release()  # a layer that was registered in another order may have no matrix
        with _left_unchanged(self.model), CallOrder(self.model) as calls:
            logits = logits_of(self.model(*inputs, **named), self.output)
        called = calls.leaves(logits)
        self.taps = tuple(tap.confirmed(self.model, called) for tap in self.taps)
        self._recorders = [Recorder(tap, self.model) for tap in self.taps]

    def release(self) -> None:
        """Remove the hooks from the model."""
        for recorder in self._recorders:
            recorder.handle.remove()


def logits_of(given: Any, output: str | int | None) -> Tensor:
    """Return the logits among a model's outputs, of shape (n_samples, n_labels)."""
    found = _picked(given, output)
    if not isinstance(found, Tensor) or found.ndim != 2 or not found.is_floating_point():
        raise ShapeError(
            "the model must return logits of shape (n_samples, n_labels), as one tensor of "
            f"floating point, got {_described(found)}."
            + ("" if isinstance(found, Tensor) else " Choose one with output=...")
        )
    return found


def _picked(given: Any, output: str | int | None) -> Any:
    if output is None:
        if isinstance(given, Mapping):
            return given.get("logits", given)
        return getattr(given, "logits", given)
    try:
        if isinstance(output, str) and not isinstance(given, Mapping):
            return getattr(given, output)
        return given[output]
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ParameterError(
            f"the model has no output {output!r}: it returned {_described(given)}."
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
def _left_unchanged(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; afterwards every part's own mode, and the random state.

    Flags are set instead of calling `eval()`: a model's own `train` may do more than that, and a
    part that was in eval mode before must stay in it.
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


class TorchRunner(Runner):
    """Runs a torch module, such as torchvision's and timm's models."""

    kind = "torch"
    runtimes = RUNTIMES
    runtime = EAGER
    forward: Pass | None = None  # how another runtime runs a batch; None if the model itself does

    def __init__(self, model: nn.Module, **settings: Any) -> None:
        if settings.get("device") is not None:
            settings["device"] = _checked_device(settings["device"], _device_of(model))
        super().__init__(model, **settings)
        self._taps = tuple(self._tap_of(name) for name in self.layers)

    def _tap_of(self, layer: str) -> Tap:
        return Tap.parse(layer, self.model)

    def has_layer(self, name: str) -> bool:
        """Return whether the model has a layer of this name, or one that the name stands for."""
        try:
            return bool(self._tap_of(name))
        except ParameterError:
            return False

    def module(self, example: Any = None) -> LogitsAndFeatures:
        """Return a copy of the model in eval mode, from positional inputs to (logits, features).

        The positional inputs are those of `input_names(example)`. Features are None if none are
        chosen, and followed by further layers if several are. Probabilities stay probabilities,
        whatever `from_probs` says. torch.export and torch.onnx.export take it.
        """
        own = copy.deepcopy(self.model).eval()
        return LogitsAndFeatures(own, self._taps, self.output, self.input_names(example)).eval()

    def input_names(self, example: Any = None) -> tuple[str, ...]:
        """Return the names of the inputs that `module` takes by position; empty if none."""
        return tuple(example) if isinstance(example, Mapping) else ()

    @contextmanager
    def running(self) -> Iterator[LogitsAndFeatures]:
        """Give the model itself as such a module, in eval mode; it is unchanged afterwards."""
        with _left_unchanged(self.model):
            whole = LogitsAndFeatures(self.model, self._taps, self.output)
            whole.training = False
            try:
                yield whole
                self._taps = whole.taps  # confirmed by a pass
            finally:
                whole.release()

    def _tokenizer_of(self, given: Any) -> TextTokenizer:
        arguments = inspect.signature(self.model.forward).parameters
        takes_any = any(one.kind is one.VAR_KEYWORD for one in arguments.values())
        names = NAMES if takes_any else tuple(arguments)
        if "input_ids" not in names:
            raise ParameterError(
                f"a tokenizer gives {', '.join(NAMES)}, but this {type(self.model).__name__} takes "
                f"{', '.join(arguments) or 'nothing'}. Name the arguments of its forward so."
            )
        return TextTokenizer(given, names, longest=_n_positions(self.model))

    @property
    def _rounding(self) -> float:
        """How much of a logit the lengths of the inputs may change by rounding."""
        is_half = _dtype_of(self.model, torch.float32).itemsize < 4
        return 0.05 if is_half else super()._rounding

    def takes(self, inputs: Any) -> bool:
        """Return whether these are arrays or tensors, by position or by name."""
        return isinstance(inputs, Tensor | np.ndarray | Mapping | tuple)

    def _run(self, inputs: Any) -> dict[str, Any]:
        named: dict[str, Any] = {}
        if isinstance(inputs, Mapping):
            named, inputs = {name: self.placed(part) for name, part in inputs.items()}, ()
        parts = inputs if isinstance(inputs, tuple) else (inputs,)
        placed = [self.placed(part) for part in parts]
        with self.running() as module, _explained([*placed, *named.values()]):
            return self._by_name(module(*placed, **named))

    def _given(self, inputs: Any) -> dict[str, Any]:
        if self.forward is None:
            return self._run(inputs)
        images = self.placed(inputs)
        with _explained([images]):
            return self._by_name(self.forward(images))

    def _by_name(self, given: Sequence[Any]) -> dict[str, Any]:
        logits, *found = given
        return {"logits": logits, **dict(zip(self.array_names, found, strict=False))}  # or None

    def by(self, runtime: str, images: Array, shared: dict[str, Any]) -> Self:
        """Return a runner that runs a copy of the model by another runtime."""
        other = copy.copy(self)
        inputs = self.placed(images)
        other.forward = build_pass(self.module(), runtime, inputs, shared, exact=self.from_probs)
        other.runtime = runtime
        return other

    def placed(self, part: Any) -> Any:
        """Return an input as a tensor on the model's device; anything else, such as a flag, as is.

        Images of bytes are preprocessed there.
        """
        if isinstance(part, list):
            part = _array(part)
        # Where the model is now: it may have been moved since the runner was made.
        device = self.device if self.device is not None else _device_of(self.model)
        if isinstance(part, np.ndarray):
            if part.dtype.kind not in "fiub":
                raise InputError(
                    f"the model takes numbers, got an array of dtype {part.dtype}."
                    + (f" {self._text_advice()}" if part.dtype.kind in "OUT" else "")
                )
            # A copy: torch complains about read-only memory and negative strides.
            part = torch.from_numpy(np.array(part, order="C"))
            if part.is_floating_point():
                part = part.to(_dtype_of(self.model, part.dtype))  # NumPy's default is float64
        if not isinstance(part, Tensor):
            return part
        part = part.to(device)
        return self._preprocessed(part) if self.is_image_bytes(part) else part

    def _text_advice(self) -> str:
        if self.tokenizer is None:
            return "For texts, pass tokenizer=... to wrap."
        return 'For texts, pass a list or a column, such as frame["text"], and nothing around it.'

    def _preprocessed(self, pixels: Tensor) -> Tensor:
        assert self.preprocessing is not None
        images: Tensor = self.preprocessing.normalise(pixels)
        images = images.to(_dtype_of(self.model, images.dtype))
        if self.runtime == CHANNELS_LAST:
            return images.contiguous(memory_format=torch.channels_last)
        return images

    def _last_layers(self, shape: tuple[int, int]) -> Iterator[tuple[Array, Array]]:
        linear = [part for part in self.model.modules() if isinstance(part, nn.Linear)]
        for part in reversed([part for part in linear if part.weight.shape == shape]):
            weight, bias = part.weight, part.bias
            # Copies: the model may be trained further.
            yield (
                np.array(to_numpy(weight)),
                np.zeros(len(weight), np.float32) if bias is None else np.array(to_numpy(bias)),
            )

    def content_hash(self) -> str | None:
        """Return a hash of the weights and of the way they are run."""
        about = self.describe()
        return weights_hash(self.model, f"{about['model']} {self.output} {self.from_probs}")

    def describe(self) -> dict[str, Any]:
        """Return what a manifest says about the model."""
        device = _device_of(self.model)
        return {
            **super().describe(),
            "device": "cpu" if device is None else device.type,
            "torch_version": torch.__version__,
        }


@contextmanager
def _explained(inputs: list[Any]) -> Iterator[None]:
    """Say which batch the model failed on."""
    try:
        yield
    except (NescioError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # torch and models raise many kinds
        raise _failed(inputs, error) from error


def _failed(inputs: list[Any], error: Exception) -> InputError:
    lines = str(error).strip().splitlines()
    reason = lines[0].rstrip(".") if lines else type(error).__name__
    return InputError(
        f"the model failed on a batch, {' and '.join(map(_described, inputs))}: {reason}. Pass "
        "samples first (a single one as x[None]), in the type and the size that the model takes; "
        "a list is taken as batches."
    )


def _n_positions(model: nn.Module) -> int | None:
    """Return how many tokens a model of transformers can take; None if it does not say so."""
    found = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if not isinstance(found, int) or found <= 0:
        return None
    for name, part in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(part, nn.Embedding):
            # RoBERTa counts positions from the one after that of the padding.
            return found if part.padding_idx is None else found - part.padding_idx - 1
    return found


def _tensors_of(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def _device_of(model: nn.Module) -> torch.device | None:
    """Return where the model's first parameter is; None if it has none."""
    return next((tensor.device for tensor in _tensors_of(model)), None)


def _dtype_of(model: nn.Module, default: torch.dtype) -> torch.dtype:
    """Return the precision of the model's parameters."""
    kinds = (tensor.dtype for tensor in _tensors_of(model) if tensor.is_floating_point())
    return next(kinds, default)


def _array(values: list[Any]) -> Any:
    try:
        return np.asarray(values)
    except ValueError as error:
        raise InputError(
            "the lists of an input differ in length. Pad them, for example by calling the "
            "tokenizer with padding=True, return_tensors='pt'."
        ) from error


def _checked_device(device: Any, current: torch.device | None) -> torch.device:
    """Return where inputs go; raise if the model is elsewhere, because it is not moved."""
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ParameterError(f"there is no device {device!r}: {error}") from error
    if current is not None and wanted.type != current.type:
        raise ParameterError(
            f"the model is on {current}, but device is {str(wanted)!r}. The model is not moved: "
            f"call model.to({str(wanted)!r}) first."
        )
    return wanted
