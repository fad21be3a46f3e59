"""A trained network on disk: one safetensors file that says how to build it and preprocess for it.

The file contains no code, and the same network gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nescio._io.kinds import FileKind
from nescio._io.toml import from_table
from nescio._validation import Array
from nescio.data.preprocessing import Preprocessing
from nescio.errors import FileFormatError, ParameterError
from nescio.networks.backbones import OWN, build_network
from nescio.networks.network import HIDDEN_UNITS, Network
from nescio.outputs import check_label_names

_KIND = FileKind(
    "nescio.checkpoint", "network saved by nescio train or nescio convert", schema=2, hashed_from=2
)
_NETWORK = "network."
_STATE = "state."
_OLD_OWN = "model."  # before each name of the user's own module in files of older versions


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
        check_label_names(self.label_names, len(self.label_names))

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

    def layer(self, features: str) -> str:
        """Return the layer that "pooled" or "penultimate" stands for; other names are unchanged.

        "pooled" is what the head reads, and "penultimate" what the head's last layer reads. In the
        user's own module, "pooled" is the output of the layer that the architecture names.
        """
        if isinstance(self.network, Network):
            known = {"pooled": "backbone", "penultimate": "head.labels:input"}
        else:
            known = {"pooled": self.architecture.features or ""}
        return known.get(features, features)

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


def load_checkpoint(path: str | Path, *, module: str | None = None) -> Checkpoint:
    """Read a network, in eval mode and on the CPU.

    A file never chooses code to run: the user's own network is built by `module`,
    "package.module:factory", and not by the name in the file.
    """
    return load_with_state(path, module=module)[0]


def load_with_state(
    path: str | Path, *, module: str | None = None
) -> tuple[Checkpoint, dict[str, Tensor]]:
    """Read a network and the training state that was saved with it."""
    tensors, metadata = _KIND.read(path)
    try:
        architecture = from_table(Architecture, metadata["architecture"], where="architecture")
        label_names = tuple(map(str, metadata["label_names"]))
        preprocessing = from_table(Preprocessing, metadata["preprocessing"], where="preprocessing")
        training = dict(metadata["training"])
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{path} is damaged: {error}") from error
    trusted = _trusted(path, architecture, module)
    # Before a network is built that is much larger than the file.
    largest = max((max(one.shape, default=0) for one in tensors.values()), default=0)
    if module is None and max(architecture.n_hidden, len(label_names)) > largest:
        raise FileFormatError(f"{path} is damaged: its arrays are smaller than its layers.")
    network = trusted.build(len(label_names))
    weights = _tensors_under(_NETWORK, tensors)
    if module is not None and weights.keys() != network.state_dict().keys():
        weights = _without_old_prefix(weights)
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        first = str(error).splitlines()[1].strip()
        raise FileFormatError(f"{path} does not fit {architecture.name}: {first}") from error
    checkpoint = Checkpoint(network.eval(), architecture, label_names, preprocessing, training)
    return checkpoint, _tensors_under(_STATE, tensors)


def _trusted(path: str | Path, architecture: Architecture, module: str | None) -> Architecture:
    """Return the architecture, with the user's own module if the file needs one."""
    own = architecture.name.startswith(OWN)
    if own and module is None:
        raise ParameterError(
            f"{path} was made from the module {architecture.name.removeprefix(OWN)!r}. If you "
            "trust it, name it yourself (module=..., --module): a file does not choose code to run."
        )
    if module is None:
        return architecture
    if not own:
        raise ParameterError(f"{path} holds {architecture.name}: leave out module (--module).")
    return Architecture(f"{OWN}{module}", architecture.n_hidden, architecture.features)


def _without_old_prefix(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of the user's own module without the prefix that older files have."""
    if not all(name.startswith(_OLD_OWN) for name in weights):
        return weights
    return {name.removeprefix(_OLD_OWN): tensor for name, tensor in weights.items()}


def _tensors_under(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Tensor]:
    """Return copies of the arrays with this prefix: torch cannot use the file's memory."""
    return {
        name.removeprefix(prefix): torch.from_numpy(np.array(array))
        for name, array in arrays.items()
        if name.startswith(prefix)
    }
