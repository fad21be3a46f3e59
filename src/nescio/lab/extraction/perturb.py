"""Input perturbation: a small step that makes a network more certain of its prediction.

ODIN and Mahalanobis score x - epsilon * sign(gradient of the loss at x), where the loss is the
binary cross-entropy of the network's own prediction: of its top label, taken as positive, for the
max; of every label against its prediction (logit above 0 or not), for the sum. As an alternative
for the max, the top label is taken as it is predicted (`OdinSettings.label`), and Mahalanobis can
step towards the mean of the nearest label (`MahalanobisSettings.step`). The sign is divided
by the input's standard deviation, so that epsilon is on the scale of pixels from 0 to 1. (The paper
prints a second minus before the gradient, reading its loss as a log-likelihood; either way the step
raises the confidence.)

The temperature divides the logits only when they are scored. So one backward pass serves every
temperature and epsilon, and one forward pass per epsilon serves every temperature.

`TuneSettings` says how epsilon and temperature are chosen: `nescio tune --config`, or [tune] of a
benchmark. `Tuning` holds those that were found, as one JSON file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nescio._io.files import existing_file, replacing
from nescio._io.tensors import FileKind
from nescio._io.toml import from_table, from_toml, read_toml
from nescio._validation import Array, checked_choice, checked_whole, to_numpy
from nescio.detectors import Mahalanobis
from nescio.errors import FileFormatError, NescioError, ParameterError
from nescio.lab.data.batches import CORRUPTIONS, SYNTHETIC_SETS
from nescio.models.base import Runner
from nescio.models.images import Preprocessing
from nescio.outputs import Outputs

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nescio.models.torch_models import Pass

METHODS = ("odin", "mahalanobis")
AGGREGATES = ("max", "sum")
DIRECTIONS = ("max", "predicted_max", "sum", "gaussian")

_KIND = FileKind("nescio.tuning", "file written by nescio tune")

ODIN_EPSILONS = tuple(round(0.0002 * step, 4) for step in range(21))


@dataclass(frozen=True)
class OdinSettings:
    """The section [odin]: how ODIN perturbs its inputs.

    Attributes
    ----------
    label : {"top", "predicted"}
        Under the max, the label that the step makes the network more certain of. "top" takes the
        label of the largest logit as present. "predicted" takes it as predicted: present if the
        logit is at least 0, else absent, so that the step lowers a negative logit further.
    epsilons : tuple of float
        The sizes of the step to try, on the scale of pixels from 0 to 1.
    """

    label: str = "top"
    epsilons: tuple[float, ...] = ODIN_EPSILONS

    def __post_init__(self) -> None:
        checked_choice("label", self.label, ("top", "predicted"))
        if not self.epsilons or not all(0 <= epsilon < 1 for epsilon in self.epsilons):
            raise ParameterError(
                "epsilons must be numbers of at least 0 and less than 1, got "
                f"{list(self.epsilons)}."
            )


@dataclass(frozen=True)
class MahalanobisSettings:
    """The section [mahalanobis]: how Mahalanobis perturbs its inputs.

    Attributes
    ----------
    step : {"prediction", "gaussian"}
        What the step increases: the certainty of the prediction, as for ODIN, or the Gaussian score
        of the nearest label.
    """

    step: str = "prediction"

    def __post_init__(self) -> None:
        checked_choice("step", self.step, ("prediction", "gaussian"))


@dataclass(frozen=True)
class TuneSettings:
    """How the parameters of ODIN and Mahalanobis are chosen.

    Attributes
    ----------
    images : int
        The maximum number of validation images, and of images of each synthetic set.
    synthetic : tuple of str
        The synthetic sets, by their names in `nescio.lab.data.CORRUPTIONS`.
    odin : OdinSettings
    mahalanobis : MahalanobisSettings
    """

    images: int = 1000
    synthetic: tuple[str, ...] = SYNTHETIC_SETS
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

    @classmethod
    def from_toml(cls, path: str | Path) -> TuneSettings:
        """Read a TOML file; keys that it leaves out have their default values."""
        return from_toml(cls, read_toml(path), path)

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


@dataclass(frozen=True)
class Setting:
    """One point of the grid that `tune` searches, and its result.

    Attributes
    ----------
    method : {"odin", "mahalanobis"}
    aggregate : {"max", "sum"}
    epsilon : float
        The size of the perturbation, on the scale of pixels from 0 to 1.
    temperature : float or None
        For ODIN only.
    fpr95 : float
        Over all synthetic sets.
    direction : str
        The direction of the step, as for `find_directions`; by default that of the aggregate.
    """

    method: str
    aggregate: str
    epsilon: float
    temperature: float | None
    fpr95: float
    direction: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "direction", self.direction or self.aggregate)
        checked_choice("method", self.method, METHODS)
        checked_choice("aggregate", self.aggregate, AGGREGATES)
        checked_choice("direction", self.direction, DIRECTIONS)
        temperature = 1.0 if self.temperature is None else self.temperature
        if not (0 <= self.epsilon < 1 and 0 <= self.fpr95 <= 1 and 0 < temperature < math.inf):
            raise ParameterError(
                "epsilon and fpr95 must be between 0 and 1, and temperature greater than 0, got "
                f"{self}."
            )
        if (self.temperature is not None) != (self.method == "odin"):
            raise ParameterError(f"ODIN has a temperature, Mahalanobis has none, got {self}.")


@dataclass(frozen=True)
class Tuning:
    """The settings that `tune` found.

    Attributes
    ----------
    model_hash : str
        The hash of the network that they hold for.
    features : str
        The features that Mahalanobis reads.
    grid : tuple of Setting
        Every setting that was tried.
    data : mapping
        The validation images that they were chosen on.
    """

    model_hash: str
    features: str
    grid: tuple[Setting, ...]
    data: Mapping[str, Any]

    @property
    def best(self) -> tuple[Setting, ...]:
        """The setting of the lowest FPR95 for each method and aggregate.

        Among equally good ones, that of the smallest step and temperature.
        """
        worst_first = sorted(
            self.grid, key=lambda s: (s.fpr95, s.epsilon, s.temperature or 0.0), reverse=True
        )
        best = {(setting.method, setting.aggregate): setting for setting in worst_first}
        return tuple(best[key] for key in sorted(best))

    @property
    def directions(self) -> tuple[str, ...]:
        """The directions of the best settings that take a step at all."""
        return tuple(sorted({setting.direction for setting in self.best if setting.epsilon > 0}))

    @property
    def needs_train(self) -> bool:
        """Whether the step needs the Gaussians that Mahalanobis learns from the training data."""
        return "gaussian" in self.directions

    def chosen(self) -> list[dict[str, Any]]:
        """Return the best settings as plain data."""
        return [asdict(setting) for setting in self.best]

    def check_model(self, model_hash: str, features: str) -> None:
        """Raise unless the settings were chosen for this network and these features."""
        if model_hash != self.model_hash:
            raise ParameterError(
                "the settings were tuned for another network. Tune this one: nescio tune."
            )
        if features != self.features:
            raise ParameterError(
                f"the settings were tuned on {self.features} features, not {features}."
            )

    def checked_train(self, train: Outputs | None) -> Outputs:
        """Return the training outputs; raise if there are none, or those of another network."""
        if train is None:
            raise ParameterError(
                "Mahalanobis was tuned to step towards the mean of the nearest label, which it "
                "learns from the training data: pass train= (--train), the training outputs that "
                "nescio tune has written next to the settings."
            )
        check_same_network(train, self.model_hash, self.features)
        return train

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write one JSON file atomically."""
        content = {**_KIND.header(), **asdict(self), "best": self.chosen()}
        with replacing(path, force=force) as temporary:
            temporary.write_text(json.dumps(content, indent=1) + "\n", "utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Tuning:
        """Read a file that `save` wrote."""
        path = existing_file(path)
        try:
            content = json.loads(path.read_text("utf-8"))
            _KIND.check(content, path)
            return from_table(cls, {entry.name: content[entry.name] for entry in fields(cls)})
        except FileFormatError:
            raise
        except NescioError as error:
            raise FileFormatError(f"{path} is damaged: {error}") from error
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise FileFormatError(f"{path} is not a {_KIND.what}.") from error


def check_same_network(train: Outputs, model_hash: str, features: str) -> None:
    """Raise unless the training outputs were extracted from this network."""
    if train.manifest.get("model_hash") != model_hash:
        raise ParameterError(
            "the training outputs were not extracted from this network. Extract them again: "
            "nescio extract."
        )
    if train.manifest.get("features") != features:
        raise ParameterError(
            f"the training outputs have {train.manifest.get('features')} features, not {features}."
        )


class Perturbation(NamedTuple):
    """What one forward pass and the backward passes give for a batch."""

    outputs: tuple[Tensor | None, ...]  # logits, features and further layers, as the inputs are
    directions: dict[str, Tensor]  # by name; a step of epsilon is subtracted


def find_directions(
    module: nn.Module,
    inputs: Tensor,
    preprocessing: Preprocessing,
    names: Sequence[str] = AGGREGATES,
    gaussian: Mahalanobis | None = None,
) -> Perturbation:
    """Return in which directions to change normalised inputs.

    Parameters
    ----------
    module : Module
        From inputs to (logits, features) and further layers, in eval mode, so that an image's
        direction depends on that image alone. Its parameters get no gradient.
    inputs : Tensor of shape (n_images, 3, height, width)
    preprocessing : Preprocessing
    names : sequence of {"max", "predicted_max", "sum", "gaussian"}
        The directions: towards the top label, towards the prediction for the top label, towards the
        prediction for every label, and towards the mean of the nearest label.
    gaussian : Mahalanobis, optional
        A fitted detector, for the direction "gaussian".
    """
    import torch

    if module.training:
        raise ParameterError("put the network in eval mode first: network.eval().")
    with torch.enable_grad():
        inputs = inputs.detach().requires_grad_(True)
        logits, features, *further = module(inputs)
        directions = {}
        std = preprocessing.per_colour(preprocessing.std, inputs)
        for name in names:
            if name == "gaussian":
                assert gaussian is not None
                loss = _nearest_distances(features, gaussian).sum()
            else:
                loss = _loss(logits, name)
            (gradient,) = torch.autograd.grad(loss, inputs, retain_graph=True)
            directions[name] = gradient.sign_().div_(std)
    outputs = (logits, features, *further)
    return Perturbation(
        tuple(None if part is None else part.detach() for part in outputs), directions
    )


def _loss(logits: Tensor, direction: str) -> Tensor:
    """Return a loss whose gradient has the sign of the binary cross-entropy's.

    The cross-entropy of a positive label decreases with its logit and with nothing else, so minus
    the logit points in the same direction, even if the cross-entropy's gradient rounds to zero. For
    a negative label, it is the logit itself.
    """
    from torch.nn import functional

    if direction != "sum":
        top = logits.amax(1)
        return -(top if direction == "max" else top.where(top >= 0, -top)).sum()
    predicted = (logits > 0).to(logits.dtype)
    return functional.binary_cross_entropy_with_logits(logits, predicted, reduction="sum")


def _nearest_distances(features: Tensor, gaussian: Mahalanobis) -> Tensor:
    """Return the squared Mahalanobis distance of each sample to the nearest label mean."""
    import torch

    center, whitening, means = (
        torch.as_tensor(array, dtype=features.dtype, device=features.device)
        for array in (gaussian.center_, gaussian.whitening_, gaussian.means_)
    )
    whitened = (features - center) @ whitening
    return (whitened[:, None] - means).square().sum(2).amin(1)


def step(
    module: nn.Module | Pass,
    inputs: Tensor,
    perturbation: Perturbation,
    direction: str,
    epsilon: float,
) -> tuple[Any, ...]:
    """Return logits, features and further layers after a step of epsilon.

    Those of the unchanged inputs if epsilon is 0.

    It takes no gradient, so the module may be a pass by any runtime.
    """
    import torch

    if epsilon == 0:
        return perturbation.outputs
    with torch.inference_mode():
        outputs: tuple[Any, ...] = module(inputs - epsilon * perturbation.directions[direction])
        return outputs


def run_perturbed(
    runner: Runner,
    tuning: Tuning,
    gaussian: Mahalanobis | None,
    pixels: Array,
    *,
    fast: Runner | None = None,
) -> dict[str, Array]:
    """Run images as `runner.run` does, and add what ODIN and the perturbed Mahalanobis read.

    The gradient needs the module itself; `fast`, the same by another runtime, runs the rest.
    """
    from nescio.models.torch_models import TorchRunner

    assert isinstance(runner, TorchRunner)
    assert runner.preprocessing is not None
    inputs = runner.placed(pixels)
    with runner.running() as module:
        perturbation = find_directions(
            module, inputs, runner.preprocessing, tuning.directions, gaussian
        )
        logits, *layers = perturbation.outputs
        arrays = {"logits": logits, **dict(zip(runner.array_names, layers, strict=False))}
        forward = (fast.forward if isinstance(fast, TorchRunner) else None) or module
        for setting in tuning.best:
            moved = step(forward, inputs, perturbation, setting.direction, setting.epsilon)
            name = f"{setting.method}_{setting.aggregate}"
            temperature = setting.temperature  # of ODIN; Mahalanobis has none
            arrays[name] = moved[1] if temperature is None else moved[0] / temperature
    return {name: to_numpy(array) for name, array in arrays.items() if array is not None}
