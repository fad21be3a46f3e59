"""Runners for torch modules and transformers models.

They run in eval mode without gradients, and are unchanged afterwards. Features are taken by hooks:
a `Tap` says where, and the first pass shows in which order the layers are called.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from typing import Any, NamedTuple, Self
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import activation, dropout

from nescio._validation import Array, to_numpy
from nescio.errors import InputError, NescioError, ParameterError, ShapeError, nearest, require
from nescio.models.base import POOLED, Runner, flat_input, pooled
from nescio.models.texts import NAMES, TextTokenizer
from nescio.outputs.outputs import INPUT, PENULTIMATE

Leaves = Sequence[tuple[str, nn.Module]]
"""Layers without layers inside, by name and in an order."""

Pass = Callable[[Tensor], tuple[Tensor, ...]]
"""From a batch of preprocessed images to logits and layers."""

# A pass sets the model's mode and hooks for its duration, so only one pass may run at a time.
_LOCKS: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
_LOCKS_LOCK = threading.Lock()

_READ = ":input"
# What these take and return has shape (n_samples, channels, time). Of other layers, three
# dimensions may as well be one row per token.
_OVER_TIME = (
    nn.Conv1d, nn.ConvTranspose1d, nn.BatchNorm1d, nn.AvgPool1d, nn.MaxPool1d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d,
)  # fmt: skip
_SHOWN_LAYERS = 5


# --- where features are taken ---------------------------------------------------------------------


def registered_leaves(model: nn.Module) -> Leaves:
    """Return the leaves in the order of `named_modules()`; a pass may call them in another."""
    return [(path, part) for path, part in model.named_modules() if not any(part.children())]


class CallOrder:
    """A context that notes which leaves, the layers that call no other one, a pass calls."""

    def __init__(self, model: nn.Module) -> None:
        self._paths = {part: path for path, part in model.named_modules()}
        self._leaves: list[tuple[str, nn.Module]] = []
        self._last_linear = -1  # its place among the leaves
        # What linear layers gave and may be the logits, by their place. The others, such as the
        # tokens of a transformer, would fill the memory.
        self._outputs: dict[int, Tensor] = {}
        self._calls_others: list[bool] = []  # of each layer that is running

    def __enter__(self) -> Self:
        self._handles = [part.register_forward_pre_hook(self._before) for part in self._paths]
        self._handles += [part.register_forward_hook(self._after) for part in self._paths]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, part: nn.Module, inputs: Any) -> None:
        if self._calls_others:
            self._calls_others[-1] = True
        self._calls_others.append(False)

    def _after(self, part: nn.Module, inputs: Any, output: Any) -> None:
        if self._calls_others.pop():
            return
        if isinstance(part, nn.Linear) and isinstance(output, Tensor):
            self._last_linear = len(self._leaves)
            if output.ndim == 2:
                self._outputs[self._last_linear] = output
        self._leaves.append((self._paths[part], part))

    def leaves(self, logits: Tensor) -> Leaves:
        """Return the leaves until the linear layer that gives the logits, or until the last one."""
        gives = [
            place
            for place, output in self._outputs.items()
            if output is logits or torch.equal(output, logits)
        ]
        return self._leaves[: max(gives, default=self._last_linear) + 1]


class Tap(NamedTuple):
    """Where features are taken: the output of a layer, or its input."""

    layer: str  # empty for the model itself
    reads: bool
    sought: str = ""  # "pooled" or "penultimate" as long as no pass has shown that it is that

    @classmethod
    def parse(cls, name: str, model: nn.Module) -> Tap:
        """Return the tap for a layer, "layer:input", or one of the names that any model has.

        "input" is the model's input, "penultimate" the input of its last linear layer, "pooled"
        what `find_pooled` finds. Layers are in the order of `named_modules()`, so the tap is to be
        `confirmed` once the model has been called.
        """
        layers = dict(model.named_modules())
        if name in layers and name:
            return cls(name, reads=False)
        if name == INPUT:
            return cls("", reads=True)
        if name in (PENULTIMATE, POOLED):
            return _find(name, model, registered_leaves(model))._replace(sought=name)
        layer = name.removesuffix(_READ)
        if not layer or layer not in layers:
            hint = nearest(layer, (*layers, PENULTIMATE, POOLED, INPUT))
            last = f" Its last layers are {', '.join([*layers][1:][-_SHOWN_LAYERS:])}."
            raise ParameterError(f"the model has no layer {layer!r}.{hint or last}")
        return cls(layer, reads=True)

    def confirmed(self, model: nn.Module, called: Leaves) -> Tap:
        """Return the tap for what is sought, given the leaves called until the logits."""
        return _find(self.sought, model, called) if self.sought and called else self

    def __str__(self) -> str:
        return f"layer {self.layer!r}" if self.layer else "the model"


def _find(name: str, model: nn.Module, leaves: Leaves) -> Tap:
    """Return the tap for "pooled" or "penultimate"; raise if the leaves have no such layer."""
    linear = [path for path, part in leaves if isinstance(part, nn.Linear)]
    tap = Tap(linear[-1], reads=True) if linear else None
    if name == POOLED:
        tap = find_pooled(model, leaves)
    if tap is None:
        why = "before its last linear layers, nothing has weights" if linear else "none is linear"
        paths = [path for path, _ in leaves if path][-_SHOWN_LAYERS:]
        raise ParameterError(
            f"the model has no layer {name!r}: {why}. Choose 'penultimate', 'input' or the name of "
            f"a layer. Its last layers are {', '.join(paths)}."
        )
    return tap


def find_pooled(model: nn.Module, leaves: Leaves) -> Tap | None:
    """Return where a model has its representation, before its task head; None if not found.

    The task head is the last linear layer together with the linear layers right before it, with
    nothing but activations, dropout and batch norm between them. Its input is the representation,
    and the output of an adaptive average pooling if that comes right before it (so maps that are
    flattened for the head, as in VGG, are averaged instead). If nothing before the head has
    weights, the model is its own head, and there is no representation.
    """
    linear = [place for place, (_, part) in enumerate(leaves) if isinstance(part, nn.Linear)]
    if not linear:
        return None
    place = first = linear[-1]
    while place >= 0 and _within_head(leaves[place][1], leaves[first][1]):
        first = place if isinstance(leaves[place][1], nn.Linear) else first
        place -= 1
    before_head = {weight for _, part in leaves[: place + 1] for weight in part.parameters()}
    of_leaves = {weight for _, part in registered_leaves(model) for weight in part.parameters()}
    if not before_head and of_leaves.issuperset(model.parameters()):
        return None
    while place >= 0 and isinstance(leaves[place][1], nn.Flatten | nn.Dropout | nn.Identity):
        place -= 1
    if place >= 0 and isinstance(leaves[place][1], nn.AdaptiveAvgPool1d | nn.AdaptiveAvgPool2d):
        return Tap(leaves[place][0], reads=False)
    return Tap(leaves[first][0], reads=True)


def _within_head(part: nn.Module, after: Any) -> bool:
    """Return whether a layer belongs to a task head, of which `after` is the first linear layer."""
    if part is after:
        return True
    if type(part) is nn.Linear:  # its subclass in an attention layer is not called
        return bool(part.out_features == after.in_features)
    if isinstance(part, nn.BatchNorm1d):
        return bool(part.num_features == after.in_features)
    between = type(part).__module__ in (activation.__name__, dropout.__name__)
    return between or isinstance(part, nn.Identity)


class Recorder:
    """A forward hook that keeps the output or input of a layer. A class, so it can be copied."""

    def __init__(self, tap: Tap, model: nn.Module) -> None:
        self.tap = tap
        self.kept: list[Tensor] = []
        layer = model.get_submodule(tap.layer)
        self.over_time = isinstance(layer, _OVER_TIME)
        if tap.reads:
            self.handle = layer.register_forward_pre_hook(self.before, with_kwargs=True)
        else:
            self.handle = layer.register_forward_hook(self.after)

    def before(self, layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Keep the input of the layer."""
        self._keep(inputs[0] if inputs else next(iter(named.values()), None), "takes")

    def after(self, layer: nn.Module, inputs: Any, output: Any) -> None:
        """Keep the output of the layer."""
        self._keep(output, "returns")

    def _keep(self, value: Any, verb: str) -> None:
        if self.over_time and isinstance(value, Tensor) and value.ndim == 3:
            value = value[..., None]  # (n_samples, channels, time, 1)
        as_matrix = pooled if self.tap.layer else flat_input
        features = as_matrix(value, f"{self.tap} {verb}")
        # A copy, because a later layer may work in place.
        same = features is value or not self.tap.layer  # flattened inputs share their memory
        self.kept.append(features.clone() if same else features)

    def features(self, n_samples: int) -> Tensor:
        """Return the features of the last pass; of the last call, if the layer ran repeatedly."""
        if not self.kept:
            raise ParameterError(
                f"{self.tap} was not called in the forward pass. Name a layer that is."
            )
        features = self.kept[-1]
        self.kept.clear()
        if features.shape[0] != n_samples:
            raise ShapeError(
                f"{self.tap} has features of {features.shape[0]} rows, but there are logits of "
                f"{n_samples}. Name a layer with one row per sample."
            )
        return features


# --- runners --------------------------------------------------------------------------------------


class LogitsAndFeatures(nn.Module):
    """A module from a model's inputs to (logits, features, further layers...).

    There are as many layers as taps. It hooks into the model until `release`. One pass at a
    time. The first pass shows in which order the layers are called, and confirms the taps by it.
    """

    def __init__(
        self,
        model: nn.Module,
        taps: Sequence[Tap],
        output: str | int | None,
        input_names: tuple[str, ...] = (),  # of the positional inputs
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
        return (logits, *(recorder.features(logits.shape[0]) for recorder in self._recorders))

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


def logits_of(outputs: Any, output: str | int | None) -> Tensor:
    """Return the logits among a model's outputs, of shape (n_samples, n_labels)."""
    logits = _picked(outputs, output)
    if not isinstance(logits, Tensor) or logits.ndim != 2 or not logits.is_floating_point():
        raise ShapeError(
            "the model must return logits of shape (n_samples, n_labels), as one tensor of "
            f"floating point, got {_described(logits)}."
            + ("" if isinstance(logits, Tensor) else " Choose one with output=...")
        )
    return logits


def _picked(outputs: Any, output: str | int | None) -> Any:
    if output is None:
        if isinstance(outputs, Mapping):
            return outputs.get("logits", outputs)
        return getattr(outputs, "logits", outputs)
    try:
        if isinstance(output, str) and not isinstance(outputs, Mapping):
            return getattr(outputs, output)
        return outputs[output]
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ParameterError(
            f"the model has no output {output!r}: it returned {_described(outputs)}."
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
    channels_last = False  # the memory format of the images that it preprocesses
    forward: Pass | None = None  # what runs a batch of images in place of the model

    def __init__(self, model: nn.Module, **settings: Any) -> None:
        if settings.get("device") is not None:
            settings["device"] = _checked_device(settings["device"], _device_of(model))
        super().__init__(model, **settings)
        self._taps = tuple(self._tap_of(name) for name in self.layers)

    def _tap_of(self, layer: str) -> Tap:
        return Tap.parse(layer, self.model)

    def has_layer(self, name: str, n_columns: int | None = None) -> bool:
        """Return whether the model has a layer of this name, or one that the name stands for."""
        try:
            return bool(self._tap_of(name))
        except ParameterError:
            return False

    def module(self, example: Any = None) -> LogitsAndFeatures:
        """Return a copy of the model in eval mode, from positional inputs to (logits, features).

        The positional inputs are those of `input_names(example)`. Without features, it gives a
        tuple of only the logits; with several layers, further ones follow. Probabilities stay
        probabilities, whatever `from_probs` says. torch.export and torch.onnx.export take it.
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

    def _tokenizer_of(self, tokenizer: Any) -> TextTokenizer:
        arguments = inspect.signature(self.model.forward).parameters
        takes_any = any(value.kind is value.VAR_KEYWORD for value in arguments.values())
        names = NAMES if takes_any else tuple(arguments)
        if "input_ids" not in names:
            raise ParameterError(
                f"a tokenizer gives {', '.join(NAMES)}, but this {type(self.model).__name__} takes "
                f"{', '.join(arguments) or 'nothing'}. Name the arguments of its forward so."
            )
        return TextTokenizer(tokenizer, names, longest=_n_positions(self.model))

    @property
    def _rounding(self) -> float:
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
        running = self.running() if self.forward is None else nullcontext(self.forward)
        with running as forward, _explained([*placed, *named.values()], named):
            values = forward(*placed, **named)
        return dict(zip(("logits", *self.array_names), values, strict=True))

    def placed(self, part: Any) -> Any:
        """Return an input as a preprocessed tensor on the model's device; a flag, say, as it is."""
        if isinstance(part, list):
            try:
                part = np.asarray(part)
            except ValueError as error:
                raise InputError(
                    "the lists of an input differ in length. Pad them, for example by calling the "
                    "tokenizer with padding=True, return_tensors='pt'."
                ) from error
        # Where the model is now: it may have been moved since the runner was made.
        device = self.device if self.device is not None else _device_of(self.model)
        is_wide = isinstance(part, np.ndarray) or getattr(part, "dtype", None) == torch.float64
        if isinstance(part, np.ndarray):
            if part.dtype.kind not in "fiub":
                raise InputError(
                    f"the model takes numbers, got an array of dtype {part.dtype}. For texts, pass "
                    "a tokenizer to wrap, and the texts as a list or a column, nothing around it."
                )
            # A copy: torch complains about read-only memory and negative strides.
            part = torch.from_numpy(np.array(part, order="C"))
        if not isinstance(part, Tensor):
            return part
        if is_wide and part.is_floating_point():
            part = part.to(_dtype_of(self.model, part.dtype))  # NumPy's default is float64
        part = part.to(device)
        images = self.preprocessed(part)
        if images is part:
            return part
        images = images.to(_dtype_of(self.model, images.dtype))
        if self.channels_last:
            return images.contiguous(memory_format=torch.channels_last)
        return images

    def _last_layers(self, shape: tuple[int, int]) -> Iterator[tuple[Array, Array]]:
        linear = [part for part in self.model.modules() if isinstance(part, nn.Linear)]
        for part in reversed([part for part in linear if part.weight.shape == shape]):
            bias = torch.zeros(len(part.weight)) if part.bias is None else part.bias
            # Copies: the model may be trained further.
            yield np.array(to_numpy(part.weight)), np.array(to_numpy(bias))

    def content_hash(self) -> str:
        """Return a hash of the weights and of the way they are run."""
        about = self.describe()
        return weights_hash(self.model, f"{about['model']} {self.output} {bool(self.from_probs)}")

    def describe(self) -> dict[str, Any]:
        """Return what a manifest says about the model."""
        device = _device_of(self.model)
        return {
            **super().describe(),
            "device": "cpu" if device is None else device.type,
            "torch_version": torch.__version__,
        }


def weights_hash(module: nn.Module, what_else: str = "") -> str:
    """Return a SHA-256 of a module's weights and of a text that describes the rest of it."""
    digest = hashlib.sha256(what_else.encode())
    for name, array in sorted(arrays_of(module.state_dict()).items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def arrays_of(state: Mapping[str, Tensor], prefix: str = "") -> dict[str, Array]:
    """Return the tensors as NumPy arrays on the CPU, with a prefix before their names."""
    return {prefix + name: tensor.detach().cpu().numpy() for name, tensor in state.items()}


@contextmanager
def _explained(inputs: list[Any], names: Collection[str]) -> Iterator[None]:
    """Say which batch the model failed on."""
    try:
        yield
    except (NescioError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # torch and models raise many kinds
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        if names and "unexpected keyword" in reason:
            raise InputError(
                f"{reason}. A mapping is passed to the model by name: give its parts, "
                f"{', '.join(names)}, the names of the arguments of forward, or take the inputs "
                "out of it; batches can be pairs (inputs, labels)."
            ) from error
        shapes = [tuple(getattr(part, "shape", ())) for part in inputs]
        colours = (1, 3, 4)
        if any(len(s) == 4 and s[3] in colours and s[1] not in colours for s in shapes):
            reason += ". If the colours are last, pass np.moveaxis(images, -1, 1)"
        raise InputError(
            f"the model failed on a batch, {' and '.join(map(_described, inputs))}: {reason}. Pass "
            "samples first (a single one as x[None]), in the type and the size that the model "
            "takes; a list is taken as batches. For images of bytes (uint8), pass preprocessing=..."
        ) from error


def _n_positions(model: nn.Module) -> int | None:
    """Return how many tokens a model of transformers can take; None if it does not say so."""
    n_positions = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if not isinstance(n_positions, int) or n_positions <= 0:
        return None
    for name, part in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(part, nn.Embedding):
            # RoBERTa counts positions from the one after that of the padding.
            return n_positions - (0 if part.padding_idx is None else part.padding_idx + 1)
    return n_positions


def _device_of(model: nn.Module) -> torch.device | None:
    """Return where the model's first parameter is; None if it has none."""
    return next((tensor.device for tensor in chain(model.parameters(), model.buffers())), None)


def _dtype_of(model: nn.Module, default: torch.dtype) -> torch.dtype:
    """Return the precision of the model's parameters."""
    tensors = chain(model.parameters(), model.buffers())
    return next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), default)


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


_MULTI_LABEL = "multi_label_classification"
_AFTER_INPUT_IDS = ("attention_mask", "token_type_ids")


class TransformersRunner(TorchRunner):
    """Runs a `PreTrainedModel` whose config says multi-label classification."""

    kind = "transformers"

    def __init__(self, model: Any, **settings: Any) -> None:
        problem = getattr(model.config, "problem_type", None)
        if problem != _MULTI_LABEL:
            raise ParameterError(
                f"the config of this {type(model).__name__} has problem_type {problem!r}, but "
                "nescio is for models whose labels can be present together, not for labels that "
                "exclude each other (softmax). If the model was trained with one sigmoid per "
                f"label, set model.config.problem_type = {_MULTI_LABEL!r}."
            )
        if settings.get("label_names") is None:
            settings["label_names"] = _label_names(model.config)
        if settings.get("output") is None and not getattr(model.config, "return_dict", True):
            settings["output"] = 0
        super().__init__(model, **settings)

    def input_names(self, example: Any = None) -> tuple[str, ...]:
        """Return the names of the inputs that `module` takes by position.

        `example` is what the tokenizer or the image processor returns. Without it, the names are
        the usual ones of models of this kind.
        """
        main = str(self.model.main_input_name)
        arguments = inspect.signature(self.model.forward).parameters if main == "input_ids" else ()
        usual = (main, *(name for name in _AFTER_INPUT_IDS if name in arguments))
        if not isinstance(example, Mapping):
            return usual
        names = [
            name
            for name, part in example.items()
            if name != "labels" and isinstance(part, Tensor | np.ndarray | list)
        ]
        return (*(n for n in usual if n in names), *(n for n in names if n not in usual))

    def _run(self, inputs: Any) -> dict[str, Any]:
        if isinstance(inputs, tuple):
            raise InputError(
                "pass the inputs by name, as the tokenizer or the image processor returns them."
            )
        if not isinstance(inputs, Mapping):
            inputs = {self.model.main_input_name: inputs}
        return super()._run(inputs)

    def describe(self) -> dict[str, Any]:
        """Return what a manifest says about the model."""
        version = require("transformers", "text").__version__
        return {**super().describe(), "transformers_version": version}


def _label_names(config: Any) -> tuple[str, ...] | None:
    """Return the names in the config, unless they are only numbers."""
    names = getattr(config, "id2label", None)
    if not names or all(re.fullmatch(r"LABEL_\d+", str(name)) for name in names.values()):
        return None
    return tuple(str(names[number]) for number in sorted(names, key=int))


def choose_device(name: str = "auto") -> torch.device:
    """Return a device by name, such as "cuda:1"; "auto" takes CUDA, then MPS, then the CPU.

    Examples
    --------
    >>> choose_device("cpu")
    device(type='cpu')
    """
    kinds = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    available = [*(kind for kind, is_available in kinds.items() if is_available), "cpu"]
    if name == "auto":
        return torch.device(available[0])
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ParameterError(
            f"device must be one of auto, cpu, cuda, mps, or for example cuda:1; got {name!r}."
        ) from error
    missing_gpu = device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()
    if missing_gpu or device.type not in available:
        raise ParameterError(f"the device {name!r} is not available here; try --device auto.")
    return device
