"""The settings of a training run, with the paper's values as defaults.

One TOML file holds them. It has the sections [model], [images], [augmentation] and [training].
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nescio._io.toml import from_table, from_toml, read_toml
from nescio._validation import checked_choice, checked_whole
from nescio.errors import ParameterError
from nescio.lab.data.batches import Augmentation
from nescio.lab.networks.checkpoint import Architecture
from nescio.lab.networks.network import HIDDEN_UNITS
from nescio.models.images import IMAGENET_MEAN, IMAGENET_STD, Preprocessing


@dataclass(frozen=True)
class ModelSettings:
    """The section [model]: the network and its initial weights.

    Attributes
    ----------
    name : str
        The name of the network, as for `build_network`.
    weights : str
        "imagenet", the path of a file, or "none".
    n_hidden : int
        Number of units in the hidden layer of the head.
    features : str, optional
        The name of the penultimate layer, for a module of your own.
    freeze : bool
        Whether to keep the backbone as it is, compute its features once, and train only the head.
    spectral_norm : bool
        Whether the weights of all trained convolutions and linear layers have the spectral norm 1.
    """

    name: str = "densenet121"
    weights: str = "imagenet"
    n_hidden: int = HIDDEN_UNITS
    features: str | None = None
    freeze: bool = False
    spectral_norm: bool = False

    def __post_init__(self) -> None:
        checked_whole("n_hidden", self.n_hidden, minimum=1)

    @property
    def architecture(self) -> Architecture:
        """The architecture that a checkpoint of this network records."""
        return Architecture(self.name, self.n_hidden, self.features)


@dataclass(frozen=True)
class ImageSettings:
    """The section [images]: how an image becomes the input of the network.

    Attributes
    ----------
    size : int
        Height and width in pixels.
    mean, std : tuple of three floats, optional
        Mean and standard deviation of each colour, on the scale from 0 to 1. The default is what
        the network was pre-trained with: 0.5 for EfficientNet-Lite, ImageNet's for all others.
    """

    size: int = 256
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None

    def preprocessing(self, model: str) -> Preprocessing:
        """Return the preprocessing for a network of this name."""
        lite = model.lower().startswith("efficientnet-lite")
        mean, std = ((0.5, 0.5, 0.5),) * 2 if lite else (IMAGENET_MEAN, IMAGENET_STD)
        return Preprocessing(self.size, self.mean or mean, self.std or std)


@dataclass(frozen=True)
class OptimiserSettings:
    """The section [training]: epochs, batches and the Adam optimiser.

    Attributes
    ----------
    epochs, seed : int
    batch_size : int
        Images per batch, over all processes together.
    lr_head, lr_backbone : float
        Learning rates of the head and of the backbone.
    betas : tuple of two floats
    weight_decay : float
    select : {"val_loss", "val_map", "last"}
        How the best epoch is chosen: by the lowest loss or the highest mAP on the validation data,
        or simply the last one.
    map_area : {"step", "trapezoid"}
        How the mAP is computed, as for `nescio.metrics.average_precisions`.
    freeze_batch_norm : bool
        Whether batch norm (and dropout) is in evaluation mode from the second epoch on, so that the
        batch statistics remain those of the first epoch.
    precision : {"auto", "float32"}
        "auto" uses mixed precision (bfloat16) on a GPU that supports it, else float32.
    """

    epochs: int = 50
    batch_size: int = 64
    seed: int = 0
    lr_head: float = 1e-4
    lr_backbone: float = 1e-5
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    select: str = "val_loss"
    map_area: str = "step"
    freeze_batch_norm: bool = False
    precision: str = "auto"

    def __post_init__(self) -> None:
        checked_whole("epochs", self.epochs, minimum=1)
        checked_whole("batch_size", self.batch_size, minimum=2)
        checked_whole("seed", self.seed, minimum=0)
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ParameterError(
                f"betas must be at least 0 and less than 1, got {list(self.betas)}."
            )
        for name in ("lr_head", "lr_backbone", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ParameterError(
                    f"{name} must be a number of at least 0, got {getattr(self, name)!r}."
                )
        checked_choice("select", self.select, ("val_loss", "val_map", "last"))
        checked_choice("map_area", self.map_area, ("step", "trapezoid"))
        checked_choice("precision", self.precision, ("auto", "float32"))


@dataclass(frozen=True)
class TrainSettings:
    """All settings of a training run, by section.

    Examples
    --------
    >>> TrainSettings().training.epochs
    50
    """

    model: ModelSettings = field(default_factory=ModelSettings)
    images: ImageSettings = field(default_factory=ImageSettings)
    augmentation: Augmentation = field(default_factory=Augmentation)
    training: OptimiserSettings = field(default_factory=OptimiserSettings)

    def __post_init__(self) -> None:
        self.images.preprocessing(self.model.name)  # raises an error if the values are invalid

    @property
    def preprocessing(self) -> Preprocessing:
        """The preprocessing of an image before the network."""
        return self.images.preprocessing(self.model.name)

    @classmethod
    def from_toml(cls, path: str | Path) -> TrainSettings:
        """Read a TOML file; keys that it leaves out have their default values."""
        return from_toml(cls, read_toml(path), path)

    def updated(
        self, changes: Mapping[str, Mapping[str, Any]], *, where: str = ""
    ) -> TrainSettings:
        """Return a copy with other values, given as {section: {name: value}}.

        `where` is the table that the sections are in, for errors.
        """
        return from_table(TrainSettings, changes, where=where, base=self)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as plain data, as JSON holds them."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain
