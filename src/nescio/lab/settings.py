"""The settings of training and of tuning, with the paper's values as defaults.

TOML files hold them. A training run has the sections [model], [images], [augmentation] and
[training]; tuning has its own keys and the sections [odin] and [mahalanobis]. A benchmark has both,
as [train] and [tune]. docs/how-to/train-a-network.md and docs/explanation/input-perturbation.md
describe every key.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

from nescio._io.files import existing_file
from nescio._validation import checked_choice, checked_number, checked_whole, from_table
from nescio.errors import FileFormatError, NescioError, ParameterError
from nescio.lab.data.corruptions import CORRUPTIONS, SYNTHETIC_SETS
from nescio.lab.data.split import Augmentation
from nescio.models.images import IMAGENET_MEAN, IMAGENET_STD, Preprocessing

Settings = TypeVar("Settings")


def read_toml(path: str | Path) -> str:
    """Return the text of a TOML file."""
    try:
        return existing_file(path).read_text("utf-8")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is not TOML: it is not text in UTF-8.") from error


def from_toml(
    kind: type[Settings],
    text: str,
    source: object,
    *,
    prepare: Callable[[dict[str, Any]], dict[str, Any]] = lambda table: table,
    **fixed: Any,
) -> Settings:
    """Return a dataclass from the text of a TOML file; `source` names the file in errors.

    `prepare` may change the table before it is read. The file may not contain `fixed` fields.
    """
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: numbers of thousands of digits too
        raise FileFormatError(f"{source} is not TOML: {error}") from error
    try:
        settings: Settings = from_table(kind, prepare(table), **fixed)
    except NescioError as error:
        raise ParameterError(f"{source}: {error}") from error
    return settings


class FromToml:
    """Settings that a TOML file of their own may hold."""

    @classmethod
    def from_toml(cls, path: str | Path) -> Self:
        """Read a TOML file; keys that it leaves out have their default values."""
        return from_toml(cls, read_toml(path), path)


# --- training -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelSettings:
    """The section [model]: the network and its initial weights."""

    name: str = "densenet121"  # as for `build_network`
    weights: str = "imagenet"  # or the path of a file, or "none"
    n_hidden: int = 1000  # units in the hidden layer of the head
    features: str | None = None  # the penultimate layer of a module of your own
    freeze: bool = False  # compute the features of the backbone once, and train only the head
    spectral_norm: bool | tuple[str, ...] = False  # of all trained layers, or of named modules: 1

    def __post_init__(self) -> None:
        checked_whole("n_hidden", self.n_hidden, minimum=1)


@dataclass(frozen=True)
class ImageSettings:
    """The section [images]: how an image becomes the input of the network.

    The default mean and standard deviation are those that the network was pre-trained with: 0.5 for
    EfficientNet-Lite, ImageNet's for all others.
    """

    size: int = 256  # height and width in pixels
    mean: tuple[float, float, float] | None = None  # of each colour, on the scale from 0 to 1
    std: tuple[float, float, float] | None = None

    def preprocessing(self, model: str) -> Preprocessing:
        """Return the preprocessing for a network of this name."""
        lite = model.lower().startswith("efficientnet-lite")
        mean, std = ((0.5, 0.5, 0.5),) * 2 if lite else (IMAGENET_MEAN, IMAGENET_STD)
        return Preprocessing(self.size, self.mean or mean, self.std or std)


BATCH_NORM = ("trained", "first_epoch", "fixed_weights", "fixed")
"""How batch norm is trained: "Batch norm" in docs/how-to/train-a-network.md says what they mean."""


@dataclass(frozen=True)
class OptimiserSettings:
    """The section [training]: epochs, batches and the Adam optimiser."""

    epochs: int = 50
    batch_size: int = 64
    seed: int = 0
    lr_head: float = 1e-4
    lr_backbone: float = 1e-5
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    select: str = "val_loss"  # the best epoch: or by the highest "val_map", or the "last" one
    map_area: str = "step"  # or "trapezoid", as for `nescio.metrics.average_precisions`
    # Images per pass, if the memory is too small for a batch: the passes' gradients are added. Only
    # batch norm in training mode notices: its statistics are of the images of a pass.
    micro_batch: int | None = None
    batch_norm: str = "trained"  # one of `BATCH_NORM`
    precision: str = "auto"  # bfloat16 on a GPU that supports it; or "float32"

    def __post_init__(self) -> None:
        checked_whole("epochs", self.epochs, minimum=1)
        checked_whole("batch_size", self.batch_size, minimum=2)
        checked_whole("seed", self.seed, minimum=0)
        # Batches are divided evenly; with 3, no pass has the single image that batch norm rejects.
        checked_whole("micro_batch", self.micro_batch or 3, minimum=3)
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ParameterError(f"betas must lie within [0, 1), got {list(self.betas)}.")
        for name in ("lr_head", "lr_backbone", "weight_decay"):
            checked_number(name, getattr(self, name), minimum=0)
        checked_choice("select", self.select, ("val_loss", "val_map", "last"))
        checked_choice("map_area", self.map_area, ("step", "trapezoid"))
        checked_choice("batch_norm", self.batch_norm, BATCH_NORM)
        checked_choice("precision", self.precision, ("auto", "float32"))


@dataclass(frozen=True)
class TrainSettings(FromToml):
    """All settings of a training run, by section."""

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

    def updated(self, changes: Mapping[str, Mapping[str, Any]]) -> TrainSettings:
        """Return a copy with other values, given as {section: {name: value}}."""
        return from_table(TrainSettings, changes, base=self)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as plain data, as JSON holds them."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain


# --- tuning of ODIN and Mahalanobis ---------------------------------------------------------------

ODIN_EPSILONS = tuple(round(0.0002 * step, 4) for step in range(21))


@dataclass(frozen=True)
class OdinSettings:
    """The section [odin]: how ODIN perturbs its inputs."""

    # Under the max, the step makes the network more certain of the label of the largest logit, as
    # present; or as "predicted": if its logit is negative, the step lowers it further.
    label: str = "top"
    epsilons: tuple[float, ...] = ODIN_EPSILONS  # to try, on the scale of pixels from 0 to 1

    def __post_init__(self) -> None:
        checked_choice("label", self.label, ("top", "predicted"))
        if not self.epsilons or not all(0 <= epsilon < 1 for epsilon in self.epsilons):
            raise ParameterError(f"epsilons must lie within [0, 1), got {list(self.epsilons)}.")


@dataclass(frozen=True)
class MahalanobisSettings:
    """The section [mahalanobis]: how Mahalanobis perturbs its inputs."""

    # What the step increases: the certainty of the prediction, as for ODIN, or with "gaussian" the
    # Gaussian score of the nearest label.
    step: str = "prediction"

    def __post_init__(self) -> None:
        checked_choice("step", self.step, ("prediction", "gaussian"))


@dataclass(frozen=True)
class TuneSettings(FromToml):
    """How the parameters of ODIN and Mahalanobis are chosen."""

    images: int = 1000  # at most, of the validation images and of each synthetic set
    synthetic: tuple[str, ...] = SYNTHETIC_SETS  # names of `nescio.lab.data.CORRUPTIONS`
    odin: OdinSettings = field(default_factory=OdinSettings)
    mahalanobis: MahalanobisSettings = field(default_factory=MahalanobisSettings)

    def __post_init__(self) -> None:
        checked_whole("images", self.images, minimum=2)
        if not self.synthetic or len(set(self.synthetic)) < len(self.synthetic):
            raise ParameterError(
                f"synthetic must be a list of different names, got {list(self.synthetic)}."
            )
        for name in self.synthetic:
            checked_choice("synthetic", name, tuple(CORRUPTIONS))

    def direction(self, method: str, aggregate: str) -> str:
        """Return the direction that a method steps in, as `find_directions` names it."""
        if method == "odin" and aggregate == "max" and self.odin.label == "predicted":
            return "predicted_max"
        if method == "mahalanobis" and self.mahalanobis.step == "gaussian":
            return "gaussian"
        return aggregate

    def n_steps(self, n_images: int) -> int:
        """Return how many images tuning runs, if the split has this number of images."""
        return (1 + len(self.synthetic)) * min(self.images, n_images)
