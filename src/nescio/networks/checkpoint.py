"""A trained network on disk: one safetensors file that says how to build it and what it reads.

Nothing in it can run, and the same network gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nescio._io.kinds import FileKind
from nescio._validation import Array
from nescio.data.preprocessing import Preprocessing
from nescio.errors import FileFormatError, ParameterError
from nescio.networks.backbones import OWN, build_network
from nescio.networks.network import HIDDEN_UNITS
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
        The penultimate layer of a module of one's own.
    """

    name: str
    n_hidden: int = HIDDEN_UNITS
    features: str | None = None

    def build(self, n_labels: int, weights: str | Path | None = None) -> nn.Module:
        """The network, with pre-trained weights if any are named."""
        return build_network(
            self.name, n_labels, weights=weights, n_hidden=self.n_hidden, features=self.features
        )


@dataclass(frozen=True)
class Checkpoint:
    """A network and all that is needed to use it.

    Attributes
    ----------
    network : Module
        Gives `NetworkOutputs`.
    architecture : Architecture
    label_names : tuple of str
    preprocessing : Preprocessing
    training : mapping
        Where it comes from: settings, data, epoch, history. Anything that JSON holds.
    """

    network: nn.Module
    architecture: Architecture
    label_names: tuple[str, ...]
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    training: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_label_names(self.label_names, len(self.label_names))

    def content_hash(self) -> str:
        """SHA-256 of what decides the outputs: weights, architecture, labels, preprocessing."""
        return weights_hash(self.network, json.dumps(self._identity(), sort_keys=True))

    def save(
        self,
        path: str | Path,
        *,
        state: Mapping[str, Tensor] | None = None,
        force: bool = False,
    ) -> None:
        """Write the file, atomically; `state` holds what else is needed to go on training."""
        tensors = {
            _NETWORK + name: array for name, array in arrays_of(self.network.state_dict()).items()
        }
        tensors |= {_STATE + name: array for name, array in arrays_of(state or {}).items()}
        metadata = {
            **self._identity(),
            "training": dict(self.training),
        }
        _KIND.write(path, tensors, metadata, force=force)

    def _identity(self) -> dict[str, Any]:
        return {
            "architecture": asdict(self.architecture),
            "label_names": list(self.label_names),
            "preprocessing": asdict(self.preprocessing),
        }


def weights_hash(module: nn.Module, what_else: str = "") -> str:
    """SHA-256 of a module's weights, and of what else decides its outputs."""
    digest = hashlib.sha256(what_else.encode())
    for name, array in sorted(arrays_of(module.state_dict()).items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def arrays_of(state: Mapping[str, Tensor]) -> dict[str, Array]:
    """The tensors as NumPy arrays on the CPU."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in state.items()}


def load_checkpoint(path: str | Path, *, module: str | None = None) -> Checkpoint:
    """Read a network, in eval mode and on the CPU.

    A file never chooses code to run: a network of the user's own is built by `module`, as
    "package.module:factory", and not by the name that the file gives.
    """
    return load_with_state(path, module=module)[0]


def load_with_state(
    path: str | Path, *, module: str | None = None
) -> tuple[Checkpoint, dict[str, Tensor]]:
    """Read a network and what else was saved with it."""
    tensors, metadata = _KIND.read(path)
    try:
        architecture = Architecture(**metadata["architecture"])
        label_names = tuple(map(str, metadata["label_names"]))
        preprocessing = Preprocessing(**metadata["preprocessing"])
        training = dict(metadata["training"])
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{path} is damaged: {error}") from error
    network = _trusted(path, architecture, module).build(len(label_names))
    state = {name: torch.from_numpy(np.array(array)) for name, array in tensors.items()}
    weights = _without_prefix(state, _NETWORK)
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        first = str(error).splitlines()[1].strip()
        raise FileFormatError(f"{path} does not fit {architecture.name}: {first}") from error
    checkpoint = Checkpoint(network.eval(), architecture, label_names, preprocessing, training)
    return checkpoint, _without_prefix(state, _STATE)


def _trusted(path: str | Path, architecture: Architecture, module: str | None) -> Architecture:
    """The architecture, with the user's own module where the file needs one."""
    own = architecture.name.startswith(OWN)
    if own and module is None:
        raise ParameterError(
            f"{path} was made from the module {architecture.name.removeprefix(OWN)!r}. "
            "Name it yourself (--module) if you trust it: a file does not choose code to run."
        )
    if module is None:
        return architecture
    if not own:
        raise ParameterError(f"{path} holds {architecture.name}: leave --module out.")
    return Architecture(f"{OWN}{module}", architecture.n_hidden, architecture.features)


def _without_prefix(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in state.items()
        if name.startswith(prefix)
    }
