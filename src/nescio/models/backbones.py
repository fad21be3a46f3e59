"""Networks by name: torchvision, timm, EfficientNet-Lite, or a module of the user's own."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from nescio.errors import FileError, FileFormatError, ParameterError, ShapeError
from nescio.models.network import HIDDEN_UNITS, Network, NetworkOutputs, TwoLayerHead
from nescio.models.weights import (
    IMAGENET,
    lite_imagenet_file,
    load_file,
    load_state,
    read_state_dict,
    torchvision_imagenet_file,
)
from nescio.parameters import checked_whole
from nescio.tables import require

_OWN = "module:"
_TIMM = "timm/"
_LITE = re.compile(r"efficientnet-lite([0-4])")
_IMAGENET_CLASSES = 1000

# The models with classifiers in the middle, which serve their training from scratch only.
_AUXILIARY_CLASSIFIERS = {"googlenet": ("aux1", "aux2"), "inception_v3": ("AuxLogits",)}

# Where the modules are that the paper's repository numbers in its backbone files.
_PAPER_STAGES = {"densenet121": "features", "resnet101": ""}
_PAPER_HEAD = {"way1.0.": "hidden.0.", "way1.1.": "hidden.1.", "cls.": "labels."}


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
        timm's; "efficientnet-lite0" to "efficientnet-lite4"; all of these with their classifier
        replaced by a `TwoLayerHead`. Or "module:package.module:factory" for a network of your own:
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
    if name.startswith(_OWN):
        return _build_own(name.removeprefix(_OWN), n_labels, weights, features)
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
    return _build_torchvision(name.lower(), weights)


def _build_torchvision(name: str, weights: str | Path | None) -> tuple[nn.Module, int]:
    models = require("torchvision.models", "vision")
    known = models.list_models(module=models)
    if name not in known:
        raise ParameterError(
            f"torchvision has no classification model {name!r}.{_nearest(name, known)} Other "
            "networks: timm/<name>, efficientnet-lite0 to 4, module:package.module:factory."
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
        raise ParameterError(f"timm has no model {name!r}.{_nearest(name, timm.list_models())}")
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
    model = _import_factory(target)()
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


def _import_factory(target: str) -> Any:
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
        nearest = _nearest(factory_name, vars(module))
        raise ParameterError(f"{module_name} has no function {factory_name!r}.{nearest}")
    return factory


def _nearest(name: str, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(name, list(known), cutoff=0.4)
    return f" Nearest: {', '.join(matches)}." if matches else ""


class _Tap:
    """A layer whose output one forward pass waits for."""

    def __init__(self, layer: nn.Module, name: str) -> None:
        self.layer = layer
        self.name = name
        self.features: Tensor | None = None  # (n_images, n_features)


# Not on the network: a pass that runs in another thread, or within this one, has taps of its own,
# and a network that holds no tensors of a pass can be copied and pickled.
_OPEN_TAPS: ContextVar[tuple[_Tap, ...]] = ContextVar("open taps", default=())


@contextmanager
def _open(tap: _Tap) -> Iterator[None]:
    token = _OPEN_TAPS.set((*_OPEN_TAPS.get(), tap))
    try:
        yield
    finally:
        _OPEN_TAPS.reset(token)


def _fill_taps(layer: nn.Module, inputs: object, output: object) -> None:
    """Forward hook: give the output to the passes that wait for it."""
    for tap in _OPEN_TAPS.get():
        if tap.layer is layer:
            tap.features = _pooled(output, tap.name)


def _pooled(output: object, layer: str) -> Tensor:
    """A copy, (n_images, n_features), as a next layer may work in place."""
    if isinstance(output, Tensor) and output.ndim == 4:
        return output.mean((2, 3))
    if isinstance(output, Tensor) and output.ndim == 2:
        return output.clone()
    raise ShapeError(
        f"layer {layer!r} must give features of shape (n_images, n_features) or (n_images, "
        f"n_features, height, width), got {_described(output)}. Name another layer."
    )


def _described(output: object) -> str:
    if isinstance(output, Tensor):
        return f"shape {tuple(output.shape)}"
    return f"a {type(output).__name__}"


class TappedNetwork(nn.Module):
    """A module from images to logits, with the output of one of its layers as the features.

    Gives what a `Network` gives, `pooled` and `penultimate` being the same.

    Parameters
    ----------
    model : Module
        From images to logits of shape (n_images, n_labels).
    layer : str
        Dotted name of the layer, as `model.named_modules()` has it. Its output must have shape
        (n_images, n_features), or (n_images, n_features, height, width), which is averaged over
        height and width. If the layer runs more than once in a pass, the last output counts.
    n_labels : int, optional
        Number of logits that the model must give.

    Examples
    --------
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 2))
    >>> network = TappedNetwork(model, "2")
    >>> import torch
    >>> [tuple(output.shape) for output in network(torch.zeros(4, 3, 2, 2))]
    [(4, 2), (4, 5), (4, 5)]
    """

    def __init__(self, model: nn.Module, layer: str, *, n_labels: int | None = None) -> None:
        super().__init__()
        parts = dict(model.named_modules())
        if not layer or layer not in parts:
            raise ParameterError(f"the network has no layer {layer!r}.{_nearest(layer, parts)}")
        self.model = model
        self.layer = layer
        self.n_labels = n_labels
        parts[layer].register_forward_hook(_fill_taps)

    def forward(self, images: Tensor) -> NetworkOutputs:
        """One pass for logits and features."""
        tap = _Tap(self.model.get_submodule(self.layer), self.layer)
        with _open(tap):
            logits = self.model(images)
        self._check_logits(logits)
        if tap.features is None:
            raise ParameterError(
                f"layer {self.layer!r} was not called in the forward pass. Name one that is."
            )
        if len(tap.features) != len(logits):
            raise ShapeError(
                f"layer {self.layer!r} gave features of {len(tap.features)} images, and there are "
                f"logits of {len(logits)}. Name a layer with one row per image."
            )
        return NetworkOutputs(logits, tap.features, tap.features)

    def _check_logits(self, logits: object) -> None:
        if not isinstance(logits, Tensor) or logits.ndim != 2:
            raise ShapeError(
                "the network must give logits of shape (n_images, n_labels), got "
                f"{_described(logits)}."
            )
        if self.n_labels is not None and logits.shape[1] != self.n_labels:
            raise ShapeError(
                f"the network gives {logits.shape[1]} logits per image, and there are "
                f"{self.n_labels} labels. Change its last layer."
            )


def load_paper_checkpoint(name: str, backbone_file: str | Path, head_file: str | Path) -> Network:
    """A network trained with the paper's own code.

    Parameters
    ----------
    name : "densenet121" or "resnet101"
        The backbone's architecture.
    backbone_file, head_file : path
        Such as densenet.pth and densenetclsfier.pth, with or without the `module.` prefix of
        data-parallel training. The numbers of labels and hidden units are read from the head.

    Raises
    ------
    FileFormatError
        If one of the files does not hold what the paper's code writes.
    """
    if name not in _PAPER_STAGES:
        allowed = " or ".join(map(repr, _PAPER_STAGES))
        raise ParameterError(f"name must be {allowed}, got {name!r}.")
    head_state = _paper_head_state(head_file)
    n_labels, n_hidden = head_state["labels.weight"].shape
    backbone, n_features = _build_backbone(name, None)
    network = Network(backbone, TwoLayerHead(n_features, n_labels, n_hidden))
    load_state(
        network.head,
        head_state,
        source=head_file,
        expected=f"the head (way1, cls) that the paper's code saves beside its {name}",
    )
    load_state(
        network.backbone,
        _paper_backbone_state(backbone, _PAPER_STAGES[name], backbone_file),
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
    """The state with names for numbers: "0.weight" becomes "features.conv0.weight"."""
    children = [name for name, _ in backbone.get_submodule(stages).named_children()]
    names = {str(at): f"{stages}.{name}".lstrip(".") for at, name in enumerate(children)}
    state = {}
    for key, tensor in read_state_dict(path).items():
        number, _, rest = key.partition(".")
        state[f"{names.get(number, number)}.{rest}"] = tensor
    return state
