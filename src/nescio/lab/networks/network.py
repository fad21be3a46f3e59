"""Networks by name, and as checkpoints: a backbone gives pooled features, and a head gives logits.

The backbone is one of torchvision, timm or EfficientNet-Lite; or the whole network is the user's
own module. A checkpoint is a trained network on disk: one safetensors file that says how to build
it and preprocess for it. The file contains no code, and the same network gives the same bytes.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nescio._io.tensors import FileKind
from nescio._validation import Array, checked_choice, checked_whole, from_table
from nescio.detectors.registry import imported
from nescio.errors import FileError, FileFormatError, ParameterError, ShapeError, nearest, require
from nescio.lab.networks.weights import (
    lite_imagenet_file,
    load_file,
    read_state_dict,
    torchvision_imagenet_file,
    torchvision_imagenet_source,
)
from nescio.models import Runner
from nescio.models.base import POOLED
from nescio.models.images import Preprocessing
from nescio.models.torch_models import Tap, TorchRunner, arrays_of, weights_hash
from nescio.outputs.outputs import INPUT, PENULTIMATE, check_label_names

HIDDEN_UNITS = 1000
IMAGENET = "imagenet"

OWN = "module:"
"""The prefix of the name of a user's own network: module:package.module:factory."""

_TIMM = "timm/"
_LITE = re.compile(r"efficientnet-lite([0-4])")
_IMAGENET_CLASSES = 1000
_SMALL = "small-cnn"
_SMALL_WIDTHS = (16, 32, 64)

# These models return the logits of auxiliary classifiers too while they are trained.
_AUXILIARY_CLASSIFIERS = {"googlenet", "inception_v3"}

_KIND = FileKind("nescio.checkpoint", "network saved by nescio train or nescio convert")
_NETWORK = "network."
_STATE = "state."

# Where the modules are that the paper's repository numbers in its backbone files.
_PAPER_STAGES = {"densenet121": "features", "resnet101": ""}


class TwoLayerHead(nn.Module):
    """The paper's classifier: n_features, 1,000 units with batch norm and ReLU, n_labels logits."""

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

    The backbone gives pooled features of shape (n_images, n_features), from which the head gives
    logits; its last layer is called `labels`.
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
    if isinstance(outputs, Tensor) and outputs.shape[1:] == (n_labels,):
        return outputs
    what = type(outputs).__name__
    what = f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else what
    raise ShapeError(f"the network must return logits of shape (n_images, {n_labels}), got {what}.")


def build_network(
    name: str,
    n_labels: int,
    *,
    weights: str | Path | None = None,
    n_hidden: int = HIDDEN_UNITS,
    features: str | None = None,
) -> nn.Module:
    """Build a network from images to logits by its name: a `Network`, or your own module.

    The same name and sizes give the same state-dict names and shapes, whatever the weights.

    Parameters
    ----------
    name : str
        One of torchvision's classification models, such as "densenet121"; "timm/" and one of
        timm's; "efficientnet-lite0" to "efficientnet-lite4"; "small-cnn", three convolutions for
        small images, without published weights; all of these with a `TwoLayerHead` as their
        classifier. Or "module:package.module:factory" for your own network: `factory()` must
        return a module from images to logits, which is used unchanged.
    weights : "imagenet", path or None
        The initial weights: ImageNet weights (torchvision's IMAGENET1K_V1, timm's default), a file
        with a state dict as the library publishes it, whose classifier is ignored, or None for
        random ones. The file for your own network must hold its whole state dict.
    n_hidden : int
        Units of the head's first layer. Your own network has no such head.
    features : str, optional
        For your own network: the dotted name of the layer whose output is the features.

    Examples
    --------
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
            f"only your own network needs features, got {features!r} for {name!r}."
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
        convolution = nn.Conv2d(n_in, n_out, 3, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(n_out), nn.ReLU(), nn.MaxPool2d(2)]
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
    model = models.get_model(name, weights=None)
    return _without_classifier(model, f"torchvision's {name}", weights)


def _build_lite(size: int, weights: str | Path | None) -> tuple[nn.Module, int]:
    name = f"efficientnet-lite{size}"
    model = require("efficientnet_lite_pytorch", "torch").EfficientNet.from_name(name)
    if weights == IMAGENET:
        weights = lite_imagenet_file(size)
    return _without_classifier(model, f"efficientnet_lite_pytorch's {name}", weights)


def _without_classifier(
    model: nn.Module, name: str, weights: str | Path | None
) -> tuple[nn.Module, int]:
    """Replace a model's classifier by the identity; return it and the number of its features."""
    linear = {path: part for path, part in model.named_modules() if isinstance(part, nn.Linear)}
    path = next(reversed(linear), None)
    if path is None or linear[path].out_features != _IMAGENET_CLASSES:
        raise ParameterError(
            f"{name} does not end in a linear layer on pooled features, so its classifier cannot "
            "be replaced. Build it as your own network: module:package.module:factory."
        )
    parent_path, _, child = path.rpartition(".")
    parent = model.get_submodule(parent_path)
    # A dropout before it regularised the classifier; our head takes the features unchanged.
    for (before, part), (after, _) in itertools.pairwise([*parent.named_children()]):
        if after == child and isinstance(part, nn.Dropout):
            parent.register_module(before, nn.Identity())
    parent.register_module(child, nn.Identity())
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
                f"{published.get('hf_hub_id') or 'not'} on the Hugging Face hub; pass a local file."
            ) from error
    elif weights is not None:
        classifier = published.get("classifier") or ()
        ignoring = (classifier,) if isinstance(classifier, str) else classifier
        load_file(model, weights, expected=f"the state dict of timm's {name}", ignoring=ignoring)
    # If there is a layer between pooling and classifier, num_features is the size before it.
    return model, getattr(model, "head_hidden_size", None) or model.num_features


def _build_own(target: str, weights: str | Path | None, features: str | None) -> nn.Module:
    if weights == IMAGENET:
        raise ParameterError(
            f"there are no ImageNet weights for {target}: pass None, or the path of a state dict."
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
    if not re.fullmatch("[^:]+:[^:]+", target):
        raise ParameterError(
            f"your own network is named module:package.module:factory, got 'module:{target}'."
        )
    factory = imported(target)
    try:
        made = factory()
    except Exception as error:  # the factory is not ours and may raise anything
        raise ParameterError(
            f"{target}() failed: {type(error).__name__}: {error}. It must take no arguments."
        ) from error
    if not isinstance(made, nn.Module):
        raise ParameterError(f"{target}() must return a torch module, got {type(made).__name__}.")
    return made


@dataclass(frozen=True)
class Architecture:
    """How to build a network."""

    name: str  # as `build_network` takes it
    n_hidden: int = HIDDEN_UNITS  # units of the hidden layer of the head
    features: str | None = None  # the layer of the user's own module whose output they are

    def build(self, n_labels: int, weights: str | Path | None = None) -> nn.Module:
        """Build the network, with pre-trained weights if any are named."""
        return build_network(
            self.name, n_labels, weights=weights, n_hidden=self.n_hidden, features=self.features
        )


@dataclass(frozen=True)
class Checkpoint:
    """A network and all that is needed to use it.

    The hashes are computed once: do not change the network's weights after asking for one.
    """

    network: nn.Module  # from images to logits
    architecture: Architecture
    label_names: tuple[str, ...]
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    # How it was trained: settings, data, epoch, history. Anything that JSON can hold.
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
        """Write the file, with `state`, what else is needed to resume training.

        `weights` replaces the state dict of the network, whose names may differ in training.
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

    The default of `features` is "pooled,penultimate" (what the head reads, and what its last layer
    reads); for a module of the user's own, "pooled".
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
    checked_choice("name", name, tuple(_PAPER_STAGES))
    head_state = _renamed_state(head_file, {"way1": "hidden", "cls": "labels"})
    if "labels.weight" not in head_state or head_state["labels.weight"].ndim != 2:
        raise FileFormatError(
            f"{head_file} has no matrix 'cls.weight', so it is not a classifier that the paper's "
            "code saved. Are the two files swapped?"
        )
    n_labels, n_hidden = head_state["labels.weight"].shape
    network = build_network(name, n_labels, n_hidden=n_hidden)
    assert isinstance(network, Network)
    stages = _PAPER_STAGES[name]
    parts = [part for part, _ in network.backbone.get_submodule(stages).named_children()]
    numbered = {str(number): f"{stages}.{part}".lstrip(".") for number, part in enumerate(parts)}
    backbone_state = _renamed_state(backbone_file, numbered)
    what = f"the head (way1, cls) that the paper's code saves with its {name}"
    load_file(network.head, head_file, expected=what, state=head_state)
    what = f"the numbered modules of {name} that the paper's code saves"
    load_file(network.backbone, backbone_file, expected=what, state=backbone_state)
    return network


def paper_revision(name: str, network: Network) -> str:
    """Return which revision of the paper's training code a network of theirs fits, in words.

    The earlier revisions keep ImageNet's weights in all batch norms of the backbone.
    """
    file, url = torchvision_imagenet_source(name)
    if not file.exists():
        return f"unknown without ImageNet's weights: download {url} to {file.parent}."
    ours, theirs = network.backbone.state_dict(), _build_torchvision(name, file)[0].state_dict()
    norms = [key.removesuffix("running_var") for key in ours if key.endswith(".running_var")]

    def kept(*parts: str) -> bool:
        keys = [norm + part for norm in norms for part in parts]
        return all(torch.allclose(ours[key], theirs[key]) for key in keys)

    if not kept("weight", "bias"):
        return 'of September 2021 or later (d7b1547): the protocol "authors"'
    if kept("running_mean", "running_var"):
        return 'b0bc0cd: the protocol "authors-earlier" with batch_norm = "fixed" and epochs = 80'
    return '9342b35: the protocol "authors-earlier"'


def _renamed_state(path: str | Path, names: Mapping[str, str]) -> dict[str, Tensor]:
    """Return the state dict in a file with our names: "0.weight" is "features.conv0.weight"."""
    state = {}
    for key, tensor in read_state_dict(path).items():
        part, _, rest = key.partition(".")
        state[f"{names.get(part, part)}.{rest}"] = tensor
    return state
