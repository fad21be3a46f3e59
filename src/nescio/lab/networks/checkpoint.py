"""A trained network on disk: one safetensors file that says how to build it and preprocess for it.

The file contains no code, and the same network gives the same bytes. `load_paper_checkpoint` reads
the two files of a network that was trained with the code of the paper's authors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nescio._io.tensors import FileKind
from nescio._validation import Array, from_table
from nescio.errors import FileFormatError, ParameterError
from nescio.lab.networks.network import (
    HIDDEN_UNITS,
    OWN,
    Network,
    build_network,
    load_state,
    prepared,
    read_state_dict,
)
from nescio.models import Runner
from nescio.models.base import INPUT, PENULTIMATE, POOLED
from nescio.models.images import Preprocessing
from nescio.models.torch_layers import Tap
from nescio.models.torch_models import TorchRunner, arrays_of, weights_hash
from nescio.outputs import check_label_names

_KIND = FileKind("nescio.checkpoint", "network saved by nescio train or nescio convert")
_NETWORK = "network."
_STATE = "state."


@dataclass(frozen=True)
class Architecture:
    """How to build a network.

    Attributes
    ----------
    name : str
        As `build_network` takes it: a torchvision name, timm/<name>, efficientnet-lite0, or
        module:package.module:factory.
    n_hidden : int
        Units of the hidden layer of the head.
    features : str, optional
        The layer of the user's own module whose output is the features.
    """

    name: str
    n_hidden: int = HIDDEN_UNITS
    features: str | None = None

    def build(self, n_labels: int, weights: str | Path | None = None) -> nn.Module:
        """Build the network, with pre-trained weights if any are named."""
        return build_network(
            self.name, n_labels, weights=weights, n_hidden=self.n_hidden, features=self.features
        )


@dataclass(frozen=True)
class Checkpoint:
    """A network and all that is needed to use it.

    The hashes are computed once: do not change the network's weights after asking for one.

    Attributes
    ----------
    network : Module
        From images to logits.
    architecture : Architecture
    label_names : tuple of str
    preprocessing : Preprocessing
    training : mapping
        How it was trained: settings, data, epoch, history. Anything that JSON can hold.
    """

    network: nn.Module
    architecture: Architecture
    label_names: tuple[str, ...]
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    training: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_label_names(self.label_names)

    def make_runner(self, **settings: Any) -> Runner:
        """Return a runner of the network: what `nescio.wrap` asks a model for."""
        return CheckpointRunner(self, **settings)

    def content_hash(self) -> str:
        """Return a SHA-256 of weights, architecture, labels and preprocessing."""
        return self._content_hash

    @cached_property
    def _content_hash(self) -> str:
        return weights_hash(self.network, json.dumps(self._identity(), sort_keys=True))

    @cached_property
    def backbone_hash(self) -> str | None:
        """A SHA-256 of the backbone's weights; None if the network has no backbone and head."""
        network = self.network
        return weights_hash(network.backbone) if isinstance(network, Network) else None

    def save(
        self,
        path: str | Path,
        *,
        weights: Mapping[str, Tensor] | None = None,
        state: Mapping[str, Tensor] | None = None,
        force: bool = False,
    ) -> None:
        """Write the file atomically.

        `weights` replaces the state dict of the network, whose names may be others while it is
        trained. `state` holds what else is needed to resume training.
        """
        weights = self.network.state_dict() if weights is None else weights
        tensors = arrays_of(weights, _NETWORK) | arrays_of(state or {}, _STATE)
        metadata = {**self._identity(), "training": dict(self.training)}
        _KIND.write(path, tensors, metadata, force=force)

    def _identity(self) -> dict[str, Any]:
        return {
            "architecture": asdict(self.architecture),
            "label_names": list(self.label_names),
            "preprocessing": asdict(self.preprocessing),
        }


class CheckpointRunner(TorchRunner):
    """Runs the network of a checkpoint, which it moves to its device and puts in eval mode.

    Parameters
    ----------
    model : Checkpoint
    features : str or sequence of str
        "pooled" (what the head reads), "penultimate" (what the head's last layer reads), "input",
        or the name of a layer. The default is "pooled,penultimate"; for a module of the user's own,
        "pooled".
    device : optional
        The CPU if not given.
    """

    channels_last = True

    def __init__(self, model: Checkpoint, **settings: Any) -> None:
        self.checkpoint = model
        own = not isinstance(model.network, Network)
        default = settings.get("features") is None
        if default:
            settings["features"] = POOLED if own else (POOLED, PENULTIMATE)
        settings["label_names"] = settings.get("label_names") or model.label_names
        settings["preprocessing"] = settings.get("preprocessing") or model.preprocessing
        network = prepared(model.network, settings.get("device") or "cpu")
        super().__init__(network, **settings)
        self.source = model
        self.layers_are_default = default

    def _tap_of(self, layer: str) -> Tap:
        if isinstance(self.model, Network):
            layers = {POOLED: "backbone", PENULTIMATE: "head.labels:input"}
        else:
            layers = {POOLED: self.checkpoint.architecture.features or ""}
        return Tap.parse(layers.get(layer, layer), self.model)

    def content_hash(self) -> str:
        """Return the checkpoint's hash."""
        if self.preprocessing != self.checkpoint.preprocessing:
            raise ParameterError("a checkpoint has its own preprocessing: pass no other.")
        return self.checkpoint.content_hash()

    def describe(self) -> dict[str, Any]:
        """Return what a manifest says about the network."""
        return {**super().describe(), "model": self.checkpoint.architecture.name}

    @property
    def is_after_backbone(self) -> bool:
        """Whether logits and layers can be computed from the features of the backbone."""
        return isinstance(self.model, Network) and {*self.layers} <= {POOLED, PENULTIMATE}

    def head_runner(self) -> TorchRunner:
        """Return a runner of the head, whose input are the pooled features."""
        return _HeadRunner(self.model.head, features=self.layers)


class _HeadRunner(TorchRunner):
    """Runs the head of a network, whose input are the pooled features."""

    def _tap_of(self, layer: str) -> Tap:
        return super()._tap_of(INPUT if layer == POOLED else layer)


def load_checkpoint(path: str | Path, *, module: str | None = None) -> Checkpoint:
    """Read a network, in eval mode and on the CPU.

    A file never chooses code to run: the user's own network is built by `module`,
    "package.module:factory", and not by the name in the file.
    """
    tensors, metadata = _KIND.read(path)
    try:
        architecture = from_table(Architecture, metadata["architecture"], where="architecture")
        label_names = tuple(map(str, metadata["label_names"]))
        preprocessing = from_table(Preprocessing, metadata["preprocessing"], where="preprocessing")
        training = dict(metadata["training"])
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{path} is damaged: {error}") from error
    own = architecture.name.startswith(OWN)
    if own and module is None:
        raise ParameterError(
            f"{path} was made from the module {architecture.name.removeprefix(OWN)!r}. If you "
            "trust it, name it yourself (module=..., --module): a file does not choose code to run."
        )
    if module is not None and not own:
        raise ParameterError(f"{path} holds {architecture.name}: leave out module (--module).")
    # Before a network is built that is much larger than the file.
    largest = max((max(array.shape, default=0) for array in tensors.values()), default=0)
    if not own and max(architecture.n_hidden, len(label_names)) > largest:
        raise FileFormatError(f"{path} is damaged: its arrays are smaller than its layers.")
    trusted = replace(architecture, name=f"{OWN}{module}") if own else architecture
    network = trusted.build(len(label_names))
    try:
        network.load_state_dict(_tensors_under(_NETWORK, tensors))
    except RuntimeError as error:
        first = str(error).splitlines()[1].strip()
        raise FileFormatError(f"{path} does not fit {architecture.name}: {first}") from error
    return Checkpoint(network.eval(), architecture, label_names, preprocessing, training)


def load_training(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    """Read how a network was trained, its weights, and the state that was saved with it."""
    tensors, metadata = _KIND.read(path)
    weights, state = (_tensors_under(prefix, tensors) for prefix in (_NETWORK, _STATE))
    return metadata["training"], weights, state


def _tensors_under(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Tensor]:
    """Return copies of the arrays with this prefix: torch cannot use the file's memory."""
    return {
        name.removeprefix(prefix): torch.from_numpy(np.array(array))
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


# Where the modules are that the paper's repository numbers in its backbone files.
_PAPER_STAGES = {"densenet121": "features", "resnet101": ""}
_PAPER_HEAD = {"way1.0.": "hidden.0.", "way1.1.": "hidden.1.", "cls.": "labels."}


def load_paper_checkpoint(name: str, backbone_file: str | Path, head_file: str | Path) -> Network:
    """Read a network that was trained with the paper's own code.

    Parameters
    ----------
    name : "densenet121" or "resnet101"
        The backbone's architecture.
    backbone_file, head_file : path
        Such as densenet.pth and densenetclsfier.pth, with or without the `module.` prefix of
        data-parallel training. The numbers of labels and hidden units are read from the head.
    """
    if name not in _PAPER_STAGES:
        allowed = " or ".join(map(repr, _PAPER_STAGES))
        raise ParameterError(f"name must be {allowed}, got {name!r}.")
    head_state = _paper_head_state(head_file)
    n_labels, n_hidden = head_state["labels.weight"].shape
    network = build_network(name, n_labels, n_hidden=n_hidden)
    assert isinstance(network, Network)
    load_state(
        network.head,
        head_state,
        source=head_file,
        expected=f"the head (way1, cls) that the paper's code saves with its {name}",
    )
    load_state(
        network.backbone,
        _paper_backbone_state(network.backbone, _PAPER_STAGES[name], backbone_file),
        source=backbone_file,
        expected=f"the numbered modules of {name} that the paper's code saves",
    )
    return network


def _paper_head_state(path: str | Path) -> dict[str, Tensor]:
    state = {}
    for name, tensor in read_state_dict(path).items():
        prefix = next((prefix for prefix in _PAPER_HEAD if name.startswith(prefix)), "")
        state[_PAPER_HEAD.get(prefix, "") + name.removeprefix(prefix)] = tensor
    if "labels.weight" not in state or state["labels.weight"].ndim != 2:
        raise FileFormatError(
            f"{path} has no matrix 'cls.weight', so it is not a classifier that the paper's code "
            "saved. Are the two files swapped?"
        )
    return state


def _paper_backbone_state(backbone: nn.Module, stages: str, path: str | Path) -> dict[str, Tensor]:
    """Return the state with names instead of numbers: "0.weight" is "features.conv0.weight"."""
    children = [name for name, _ in backbone.get_submodule(stages).named_children()]
    names = {str(number): f"{stages}.{name}".lstrip(".") for number, name in enumerate(children)}
    state = {}
    for key, tensor in read_state_dict(path).items():
        number, _, rest = key.partition(".")
        state[f"{names.get(number, number)}.{rest}"] = tensor
    return state
