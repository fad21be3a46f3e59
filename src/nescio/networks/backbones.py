"""Networks by name: torchvision, timm, EfficientNet-Lite, or a module of the user's own."""

from __future__ import annotations

import importlib
import itertools
import re
from pathlib import Path
from typing import Any

from torch import nn

from nescio._io.tables import require
from nescio._validation import checked_whole
from nescio.errors import FileError, ParameterError
from nescio.networks.network import HIDDEN_UNITS, Network, TwoLayerHead
from nescio.networks.tapped import TappedNetwork, nearest
from nescio.networks.weights import (
    IMAGENET,
    lite_imagenet_file,
    load_file,
    torchvision_imagenet_file,
)

OWN = "module:"
"""What the name of a network of the user's own begins with."""

_TIMM = "timm/"
_LITE = re.compile(r"efficientnet-lite([0-4])")
_IMAGENET_CLASSES = 1000
_SMALL = "small-cnn"
_SMALL_WIDTHS = (16, 32, 64)

# The models with classifiers in the middle, which serve their training from scratch only.
_AUXILIARY_CLASSIFIERS = {"googlenet": ("aux1", "aux2"), "inception_v3": ("AuxLogits",)}


def build_network(
    name: str,
    n_labels: int,
    *,
    weights: str | Path | None = None,
    n_hidden: int = HIDDEN_UNITS,
    features: str | None = None,
) -> Network | TappedNetwork:
    """A network by its name.

    The same name and sizes give the same state-dict names and shapes, whatever the weights.

    Parameters
    ----------
    name : str
        One of torchvision's classification models, such as "densenet121"; "timm/" and one of
        timm's; "efficientnet-lite0" to "efficientnet-lite4"; "small-cnn", three convolutions for
        small images, without published weights; all of these with a `TwoLayerHead` as their
        classifier. Or "module:package.module:factory" for a network of your own:
        `factory()` must return a module from images to logits, which is used as it is.
    n_labels : int
        Number of logits.
    weights : "imagenet", path or None
        What to start from: ImageNet weights (torchvision's IMAGENET1K_V1, timm's default), a file
        with a state dict as the library publishes it, whose classifier is ignored, or None for
        random ones. The file of a network of your own must hold all of its state dict.
    n_hidden : int
        Units of the head's first layer; a network of your own has no such head.
    features : str, optional
        For a network of your own: the dotted name of the layer whose output is the features.

    Returns
    -------
    Network or TappedNetwork
        The latter for a network of your own.
    """
    n_labels = checked_whole("n_labels", n_labels, minimum=1)
    n_hidden = checked_whole("n_hidden", n_hidden, minimum=1)
    if name.startswith(OWN):
        return _build_own(name.removeprefix(OWN), n_labels, weights, features)
    if features is not None:
        raise ParameterError(
            f"features names a layer of a network of your own (module:package.module:factory), "
            f"got {features!r} for {name!r}, whose features are what its classifier read."
        )
    backbone, n_features = _build_backbone(name, weights)
    return Network(backbone, TwoLayerHead(n_features, n_labels, n_hidden))


def _build_backbone(name: str, weights: str | Path | None) -> tuple[nn.Module, int]:
    """A module from images to pooled features, and the number of these."""
    if name.startswith(_TIMM):
        return _build_timm(name.removeprefix(_TIMM), weights)
    if lite := _LITE.fullmatch(name.lower()):
        return _build_lite(int(lite[1]), weights)
    if name.lower() == _SMALL:
        return _build_small(weights)
    return _build_torchvision(name.lower(), weights)


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
        raise ParameterError(f"there are no ImageNet weights of {_SMALL}: set weights to 'none'.")
    if weights is not None:
        load_file(model, weights, expected=f"the state dict of {_SMALL}'s backbone")
    return model, _SMALL_WIDTHS[-1]


def _build_torchvision(name: str, weights: str | Path | None) -> tuple[nn.Module, int]:
    models = require("torchvision.models", "vision")
    known = models.list_models(module=models)
    if name not in known:
        raise ParameterError(
            f"torchvision has no classification model {name!r}.{nearest(name, known)} Other "
            "networks: timm/<name>, efficientnet-lite0 to 4, small-cnn, "
            "module:package.module:factory."
        )
    auxiliary = _AUXILIARY_CLASSIFIERS.get(name, ())
    options: dict[str, bool] = {}
    if auxiliary:
        # Their published weights want transformed inputs. Always on, so that a network built
        # without weights, to load its own checkpoint into, computes the same.
        options = {"aux_logits": False, "transform_input": True, "init_weights": weights is None}
    model = models.get_model(name, weights=None, **options)
    classifier, n_features = _take_off_classifier(model, name)
    if weights is not None:
        load_file(
            model,
            torchvision_imagenet_file(name) if weights == IMAGENET else weights,
            expected=f"the state dict of torchvision's {name}",
            ignoring=(classifier, *auxiliary),
        )
    return model, n_features


def _build_lite(size: int, weights: str | Path | None) -> tuple[nn.Module, int]:
    name = f"efficientnet-lite{size}"
    model = require("efficientnet_lite_pytorch", "lite").EfficientNet.from_name(name)
    classifier, n_features = _take_off_classifier(model, name)
    if weights is not None:
        load_file(
            model,
            lite_imagenet_file(size) if weights == IMAGENET else weights,
            expected=f"the state dict of efficientnet_lite_pytorch's {name}",
            ignoring=(classifier,),
        )
    return model, n_features


def _take_off_classifier(model: nn.Module, name: str) -> tuple[str, int]:
    """Make the last linear layer, and a dropout before it, do nothing.

    Returns the layer's name and the number of features that it read.
    """
    linear = {path: part for path, part in model.named_modules() if isinstance(part, nn.Linear)}
    path = next(reversed(linear), None)
    if path is None or linear[path].out_features != _IMAGENET_CLASSES:
        raise ParameterError(
            f"{name} does not end in a linear layer that reads pooled features, so its classifier "
            "cannot be replaced. Choose another model, or wrap it as a network of your own: "
            "module:package.module:factory."
        )
    parent_path, _, child = path.rpartition(".")
    parent = model.get_submodule(parent_path)
    siblings = [sibling for sibling, _ in parent.named_children()]
    at = siblings.index(child)
    parent.register_module(child, nn.Identity())
    # It regularises the classifier that is gone; the features are for the head as they are.
    if at > 0 and isinstance(parent.get_submodule(siblings[at - 1]), nn.Dropout):
        parent.register_module(siblings[at - 1], nn.Identity())
    return path, linear[path].in_features


def _build_timm(name: str, weights: str | Path | None) -> tuple[nn.Module, int]:
    timm = require("timm", "timm")
    if not timm.is_model(name):
        raise ParameterError(f"timm has no model {name!r}.{nearest(name, timm.list_models())}")
    model = timm.create_model(name, num_classes=0)
    published = model.pretrained_cfg
    if weights == IMAGENET:
        try:
            model = timm.create_model(name, num_classes=0, pretrained=True)
        # What comes from below timm when there is no network depends on its hub's libraries.
        except Exception as error:
            raise FileError(
                f"timm could not load its weights of {name}: {error}. They are "
                f"{published.get('hf_hub_id') or 'not'} on the Hugging Face hub; offline, pass "
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
    # Where a layer lies between pooling and classifier, num_features is what the former gives.
    return model, getattr(model, "head_hidden_size", None) or model.num_features


def _build_own(
    target: str, n_labels: int, weights: str | Path | None, features: str | None
) -> TappedNetwork:
    model = import_factory(target)()
    if not isinstance(model, nn.Module):
        raise ParameterError(f"{target} must return a torch module, got {type(model).__name__}.")
    if features is None:
        last = ", ".join([path for path, _ in model.named_modules()][-5:])
        raise ParameterError(
            "features must name the layer of your network whose output is the features, usually "
            f"the one before the last. Its last layers are {last}."
        )
    if weights == IMAGENET:
        raise ParameterError(
            f"there are no ImageNet weights for {target}. Load them in your factory and pass "
            "weights=None, or pass the path of a file with its state dict."
        )
    network = TappedNetwork(model, features, n_labels=n_labels)
    if weights is not None:
        load_file(model, weights, expected=f"the whole state dict of {target}()")
    return network


def import_factory(target: str) -> Any:
    """The function that "package.module:factory" names."""
    module_name, _, factory_name = target.partition(":")
    if not module_name or not factory_name:
        raise ParameterError(
            f"a network of your own is module:package.module:factory, got 'module:{target}'."
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise  # something that the user's module needs
        raise ParameterError(
            f"there is no module {module_name!r} to import. Is its folder on PYTHONPATH?"
        ) from error
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        hint = nearest(factory_name, vars(module))
        raise ParameterError(f"{module_name} has no function {factory_name!r}.{hint}")
    return factory
