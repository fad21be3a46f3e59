"""Networks by name: a backbone that gives pooled features, and a head that gives logits.

The backbone is one of torchvision, timm or EfficientNet-Lite; or the whole network is the user's
own module.
"""

from __future__ import annotations

import importlib
import itertools
import re
from pathlib import Path

import torch
from torch import Tensor, nn

from nescio._validation import checked_whole
from nescio.errors import FileError, ParameterError, ShapeError, nearest, require
from nescio.lab.networks.weights import (
    IMAGENET,
    lite_imagenet_file,
    load_file,
    torchvision_imagenet_file,
)

HIDDEN_UNITS = 1000


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
