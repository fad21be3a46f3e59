"""What a training run is: one TOML file, the paper's settings where it says nothing."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from nescio._io.files import existing_file
from nescio._validation import checked_whole
from nescio.data.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from nescio.errors import FileFormatError, ParameterError
from nescio.networks.checkpoint import Architecture
from nescio.networks.network import HIDDEN_UNITS
from nescio.runners.images import Augmentation

SELECT_BY = ("val_loss", "val_map")
PRECISIONS = ("auto", "float32")


@dataclass(frozen=True)
class ModelSettings:
    """[model]

    Attributes
    ----------
    name : str
        As for `build_network`.
    weights : str
        "imagenet", a local file, or "none".
    n_hidden : int
        Units of the hidden layer of the head.
    features : str, optional
        The penultimate layer of a module of one's own.
    freeze : bool
        Keep the backbone as it is, compute its features once and train the head on them.
    """

    name: str = "densenet121"
    weights: str = "imagenet"
    n_hidden: int = HIDDEN_UNITS
    features: str | None = None
    freeze: bool = False

    def __post_init__(self) -> None:
        checked_whole("n_hidden", self.n_hidden, minimum=1)

    @property
    def architecture(self) -> Architecture:
        """What a checkpoint says of it."""
        return Architecture(self.name, self.n_hidden, self.features)


@dataclass(frozen=True)
class ImageSettings:
    """[images]

    Attributes
    ----------
    size : int
        Pixels a side.
    mean, std : tuple of three floats, optional
        Of each colour, from 0 to 1. If not given, those that the network was pre-trained with:
        0.5 for EfficientNet-Lite, ImageNet's for all others.
    """

    size: int = 256
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None

    def preprocessing(self, model: str) -> Preprocessing:
        """What happens to an image, for a network of this name."""
        lite = model.lower().startswith("efficientnet-lite")
        mean, std = ((0.5, 0.5, 0.5),) * 2 if lite else (IMAGENET_MEAN, IMAGENET_STD)
        return Preprocessing(self.size, self.mean or mean, self.std or std)


@dataclass(frozen=True)
class OptimiserSettings:
    """[training]

    Attributes
    ----------
    epochs, batch_size, seed : int
        The batch is that of all processes together.
    lr_head, lr_backbone : float
        Learning rates of Adam.
    betas : tuple of two floats
    weight_decay : float
    select : {"val_loss", "val_map"}
        What makes an epoch the best.
    precision : {"auto", "float32"}
        Mixed precision on CUDA, or not.
    """

    epochs: int = 50
    batch_size: int = 64
    seed: int = 0
    lr_head: float = 1e-4
    lr_backbone: float = 1e-5
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    select: str = "val_loss"
    precision: str = "auto"

    def __post_init__(self) -> None:
        checked_whole("epochs", self.epochs, minimum=1)
        checked_whole("batch_size", self.batch_size, minimum=2)
        checked_whole("seed", self.seed, minimum=0)
        betas = tuple(self.betas) if isinstance(self.betas, list | tuple) else ()
        if len(betas) != 2 or not all(isinstance(b, int | float) and 0 <= b < 1 for b in betas):
            raise ParameterError(f"betas must be two numbers in [0, 1), got {self.betas!r}.")
        object.__setattr__(self, "betas", betas)
        rates = {name: getattr(self, name) for name in ("lr_head", "lr_backbone", "weight_decay")}
        for name, value in rates.items():
            if not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ParameterError(f"{name} must be a number of at least 0, got {value!r}.")
        if self.select not in SELECT_BY:
            raise ParameterError(f"select must be one of {SELECT_BY}, got {self.select!r}.")
        if self.precision not in PRECISIONS:
            raise ParameterError(f"precision must be one of {PRECISIONS}, got {self.precision!r}.")


@dataclass(frozen=True)
class TrainSettings:
    """All of it, section by section."""

    model: ModelSettings = field(default_factory=ModelSettings)
    images: ImageSettings = field(default_factory=ImageSettings)
    augmentation: Augmentation = field(default_factory=Augmentation)
    training: OptimiserSettings = field(default_factory=OptimiserSettings)

    def __post_init__(self) -> None:
        self.images.preprocessing(self.model.name)  # raises if they make no sense

    @property
    def preprocessing(self) -> Preprocessing:
        """What happens to an image before the network."""
        return self.images.preprocessing(self.model.name)

    @classmethod
    def from_toml(cls, path: str | Path) -> TrainSettings:
        """Read a TOML file; a section or name that is not known is an error."""
        path = existing_file(path)
        try:
            content = tomllib.loads(path.read_text("utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise FileFormatError(f"{path} is not TOML: {error}") from error
        try:
            return cls().updated(content)
        except ParameterError as error:
            raise ParameterError(f"{path}: {error}") from error

    def updated(self, changes: Mapping[str, Mapping[str, Any]]) -> TrainSettings:
        """The same with other values, given as {section: {name: value}}."""
        sections = {section.name: getattr(self, section.name) for section in fields(self)}
        for name, values in changes.items():
            known = ", ".join(f"[{section}]" for section in sections)
            if name not in sections:
                raise ParameterError(f"there is no section [{name}]; there are {known}.")
            if not isinstance(values, Mapping):
                raise ParameterError(f"{name} is a section, [{name}], got {name} = {values!r}.")
            allowed = {one.name for one in fields(sections[name])}
            if unknown := sorted(set(values) - allowed):
                raise ParameterError(
                    f"[{name}] has no {unknown[0]!r}; it has {', '.join(sorted(allowed))}."
                )
            hints = get_type_hints(type(sections[name]))
            for key, value in values.items():
                if not _fits(value, hints[key]):
                    raise ParameterError(
                        f"[{name}] {key} must be {_described(hints[key])}, got {value!r}."
                    )
            try:
                sections[name] = replace(sections[name], **values)
            except ParameterError as error:
                raise ParameterError(f"[{name}]: {error}") from error
        return TrainSettings(**sections)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value from TOML is of the kind that a field is annotated with."""
    parts = get_args(kind)
    if parts and getattr(kind, "__origin__", None) is tuple:
        sequence = isinstance(value, list | tuple) and len(value) == len(parts)
        return sequence and all(map(_fits, value, parts))
    if parts:
        return any(_fits(value, part) for part in parts)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is kind


def _described(kind: Any) -> str:
    """A kind of value in words."""
    parts = [part for part in get_args(kind) if part is not NoneType]
    if getattr(kind, "__origin__", None) is tuple:
        return f"a list of {len(parts)} numbers"
    if parts:
        return _described(parts[0])
    return {str: "a text", bool: "true or false", int: "a whole number"}.get(kind, "a number")
