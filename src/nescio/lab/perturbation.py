"""Input perturbation, a small step that makes a network more certain, and its tuning.

docs/explanation/input-perturbation.md explains the step, its directions and the grid. The
temperature divides the logits only when they are scored. So one backward pass serves every
temperature and epsilon, and one forward pass per epsilon serves every temperature.

`tune` chooses the settings of the lowest FPR95 on the paper's synthetic validation sets, without
out-of-distribution data. `Tuning` holds the result, as one JSON file.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from nescio import scores
from nescio._io.files import existing_file, write_text
from nescio._io.tensors import FileKind
from nescio._validation import Array, checked_choice, from_table, to_numpy
from nescio.detectors import Mahalanobis
from nescio.errors import FileFormatError, ParameterError
from nescio.lab.data.corruptions import corrupted_batches
from nescio.lab.data.split import Reader, Split, in_batches
from nescio.lab.extraction import AUTO_RUNTIME, Runtimes, memory_advice
from nescio.lab.networks.network import Checkpoint, CheckpointRunner
from nescio.lab.settings import TuneSettings
from nescio.metrics import fpr_at_tpr
from nescio.models.base import Runner, layer_names
from nescio.models.images import Preprocessing
from nescio.models.torch_models import Pass, TorchRunner
from nescio.outputs import Outputs

__all__ = ["tune"]

METHODS = ("odin", "mahalanobis")
AGGREGATES = ("max", "sum")
DIRECTIONS = ("max", "predicted_max", "sum", "gaussian")

_KIND = FileKind("nescio.tuning", "file written by nescio tune")

TEMPERATURES = (1.0, 10.0, 100.0, 1000.0)
MAHALANOBIS_EPSILONS = (0.0, 0.0005, 0.001, 0.0014, 0.002, 0.005)

TUNING_VERSION = 1
"""Raise it if the same network, images and settings give another choice than before."""

_ID = "in-distribution"
_EXTRACTED = "the training outputs were extracted for"


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
    names : sequence of {"max", "predicted_max", "sum", "gaussian"}
        The directions: towards the top label, towards the prediction for the top label, towards the
        prediction for every label, and towards the mean of the nearest label.
    gaussian : Mahalanobis, optional
        A fitted detector, for the direction "gaussian".
    """
    if module.training:
        raise ParameterError("put the network in eval mode first: network.eval().")
    with torch.enable_grad():
        inputs = inputs.detach().requires_grad_(True)
        outputs = logits, features, *_ = module(inputs)
        directions = {}
        std = preprocessing.per_colour(preprocessing.std, inputs)
        for name in names:
            loss = _loss(logits, name) if name != "gaussian" else _distance(features, gaussian)
            (gradient,) = torch.autograd.grad(loss, inputs, retain_graph=True)
            directions[name] = gradient.sign_().div_(std)
    detached = tuple(None if part is None else part.detach() for part in outputs)
    return Perturbation(detached, directions)


def _loss(logits: Tensor, direction: str) -> Tensor:
    """Return a loss whose gradient has the sign of the binary cross-entropy's.

    The cross-entropy of a positive label decreases with its logit and with nothing else, so minus
    the logit points in the same direction, even if the cross-entropy's gradient rounds to zero. For
    a negative label, it is the logit itself.
    """
    if direction != "sum":
        top = logits.amax(1)
        return -(top if direction == "max" else top.where(top >= 0, -top)).sum()
    predicted = (logits > 0).to(logits.dtype)
    return binary_cross_entropy_with_logits(logits, predicted, reduction="sum")


def _distance(features: Tensor, gaussian: Mahalanobis | None) -> Tensor:
    """Return the sum of the samples' squared Mahalanobis distances to the nearest label mean."""
    assert gaussian is not None
    center, whitening, means = (
        torch.as_tensor(array, dtype=features.dtype, device=features.device)
        for array in (gaussian.center_, gaussian.whitening_, gaussian.means_)
    )
    whitened = (features - center) @ whitening
    return (whitened[:, None] - means).square().sum(2).amin(1).sum()


def step(
    module: nn.Module | Pass,
    inputs: Tensor,
    perturbation: Perturbation,
    direction: str,
    epsilon: float,
) -> tuple[Any, ...]:
    """Return logits, features and further layers after a step of epsilon.

    Those of the unchanged inputs if epsilon is 0. The module may be a pass by any runtime.
    """
    if epsilon == 0:
        return perturbation.outputs
    with torch.inference_mode():
        outputs: tuple[Any, ...] = module(inputs - epsilon * perturbation.directions[direction])
        return outputs


# --- the chosen settings --------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """One point of the grid that `tune` searches, and its result."""

    method: str  # "odin" or "mahalanobis"
    aggregate: str  # "max" or "sum"
    epsilon: float  # the size of the perturbation, on the scale of pixels from 0 to 1
    temperature: float | None  # for ODIN only
    fpr95: float  # over all synthetic sets
    direction: str = ""  # of the step, as for `find_directions`; by default the aggregate's

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
    """The settings that `tune` found."""

    model_hash: str  # of the network that they hold for
    features: str  # what Mahalanobis reads
    grid: tuple[Setting, ...]  # every setting that was tried
    data: Mapping[str, Any]  # the validation images that they were chosen on

    @property
    def best(self) -> tuple[Setting, ...]:
        """The setting of the lowest FPR95, then smallest step, for each method and aggregate."""
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
        what = "the settings were tuned for"
        _check_same(what, vars(self), model_hash, features, "nescio tune")

    def checked_train(self, train: Outputs | None) -> Outputs:
        """Return the training outputs; raise if there are none, or those of another network."""
        if train is None:
            raise ParameterError(
                "Mahalanobis was tuned to step towards the mean of the nearest label: pass train= "
                "(--train), the training outputs that nescio tune has written beside the settings."
            )
        _check_same(_EXTRACTED, train.manifest, self.model_hash, self.features, "nescio extract")
        return train

    def perturbed(
        self, runner: Runner, train: Outputs | None, *, fast: Runner
    ) -> Callable[[Array], dict[str, Array]]:
        """Return how a batch of images is run: as `runner.run` does, and after each step.

        The gradient needs the module itself; `fast`, the same by another runtime, runs the rest.
        """
        assert isinstance(runner, TorchRunner)
        preprocessing = runner.preprocessing
        assert preprocessing is not None
        gaussian = Mahalanobis().fit(train) if self.needs_train else None

        def run(pixels: Array) -> dict[str, Array]:
            inputs = runner.placed(pixels)
            with runner.running() as module:
                perturbation = find_directions(
                    module, inputs, preprocessing, self.directions, gaussian
                )
                logits, *layers = perturbation.outputs
                arrays = {"logits": logits, **dict(zip(runner.array_names, layers, strict=False))}
                forward = (fast.forward if isinstance(fast, TorchRunner) else None) or module
                for setting in self.best:
                    moved = step(forward, inputs, perturbation, setting.direction, setting.epsilon)
                    name = f"{setting.method}_{setting.aggregate}"
                    temperature = setting.temperature  # of ODIN; Mahalanobis has none
                    arrays[name] = moved[1] if temperature is None else moved[0] / temperature
            return {name: to_numpy(array) for name, array in arrays.items() if array is not None}

        return run

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write one JSON file atomically."""
        content = {**_KIND.header(), **asdict(self), "best": self.chosen()}
        write_text(path, json.dumps(content, indent=1) + "\n", force=force)

    @classmethod
    def load(cls, path: str | Path) -> Tuning:
        """Read a file that `save` wrote."""
        path = existing_file(path)
        try:
            content = json.loads(path.read_text("utf-8"))
            _KIND.check(content, path)
            return from_table(cls, {entry.name: content[entry.name] for entry in fields(cls)})
        except ParameterError as error:
            raise FileFormatError(f"{path} is damaged: {error}") from error
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise FileFormatError(f"{path} is not a {_KIND.what}.") from error


def _check_same(
    what: str, theirs: Mapping[str, Any], model_hash: str, features: str, command: str
) -> None:
    """Raise unless something was made with this network and these features."""
    if theirs.get("model_hash") != model_hash:
        raise ParameterError(f"{what} another network. Make them again: {command}.")
    if theirs.get("features") != features:
        raise ParameterError(f"{what} {theirs.get('features')} features, not {features}.")


def tune(
    checkpoint: Checkpoint,
    split: Split,
    train: Outputs,
    settings: TuneSettings | None = None,
    *,
    features: str = "pooled",
    aggregates: Sequence[str] = AGGREGATES,
    seed: int = 0,
    device: torch.device | str = "cpu",
    batch_size: int = 16,
    runtime: str | Runtimes = AUTO_RUNTIME,
    on_images: Callable[[int], object] = lambda count: None,
) -> Tuning:
    """Choose ODIN's temperature and epsilon, and Mahalanobis' epsilon.

    Parameters
    ----------
    split : Split
        In-distribution validation images.
    train : Outputs
        Outputs of the same network on the training data: Mahalanobis learns from its features.
    settings : TuneSettings, optional
        The number of images, the synthetic sets and ODIN's step; the paper's by default.
    features : str
        The features that Mahalanobis reads; of several layers, the first.
    seed : int
        Decides the choice of images and the synthetic sets.
    runtime : str or Runtimes
        What runs the perturbed images, as for `extract`. The gradients always come from torch.
    on_images : callable
        Called with the number of images just done, out of `settings.n_steps(len(split))`.
    """
    settings = settings or TuneSettings()
    model_hash = checkpoint.content_hash()
    features = layer_names(features)[0]
    _check_same(_EXTRACTED, train.manifest, model_hash, features, "nescio extract")
    runner = CheckpointRunner(checkpoint, features=features, device=device)
    chosen = split.sample(settings.images, seed)
    if len(chosen) < 2:
        raise ParameterError("tuning needs at least two images: synthetic ones mix two of them.")
    learned = {name: Mahalanobis(aggregate=name).fit(train) for name in aggregates}
    preprocessing = checkpoint.preprocessing
    n_batches = len(in_batches(settings.n_steps(len(chosen)), batch_size))
    reader, first = Reader(chosen, preprocessing), in_batches(len(chosen), batch_size)[:1]
    fast, choice = Runtimes.of(runtime).choose(
        runner, lambda: next(reader.batches(first)), n_batches
    )
    assert isinstance(fast, CheckpointRunner)
    forward = fast.forward
    id_scores: dict[Point, list[NDArray[np.float64]]] = defaultdict(list)
    ood_scores: dict[Point, list[NDArray[np.float64]]] = defaultdict(list)
    advice = f"Take a batch size (--batch-size) of less than {batch_size}."
    with memory_advice(advice), runner.running() as module:
        for name, batches in synthetic_sets(reader, seed, batch_size, settings.synthetic):
            scores_of = id_scores if name == _ID else ood_scores
            for pixels in batches:
                inputs = preprocessing.inputs(pixels, torch.device(device))
                columns = grid_scores(
                    module, inputs, preprocessing, learned, settings, forward=forward
                )
                for point, values in columns.items():
                    scores_of[point].append(values)
                on_images(len(pixels))
    grid = []
    for point, blocks in id_scores.items():
        fpr = fpr_at_tpr(np.concatenate(blocks), np.concatenate(ood_scores[point]))
        grid.append(Setting(*point, fpr, settings.direction(*point[:2])))
    data = {
        **chosen.facts(),
        "seed": seed,
        "synthetic": list(settings.synthetic),
        "runtime": choice.runtime,
    }
    return Tuning(model_hash, features, tuple(grid), data)


Point = tuple[str, str, float, float | None]  # method, aggregate, epsilon, temperature


def grid_scores(
    module: nn.Module,
    inputs: torch.Tensor,
    preprocessing: Preprocessing,
    mahalanobis: Mapping[str, Mahalanobis],
    settings: TuneSettings,
    *,
    forward: Pass | None = None,
) -> dict[Point, NDArray[np.float64]]:
    """Return the scores of a batch of normalised inputs at every setting."""
    # The methods and aggregates to score, by direction and epsilon of the step.
    wanted: dict[tuple[str, float], list[tuple[str, str]]] = defaultdict(list)
    for aggregate, method in itertools.product(mahalanobis, METHODS):
        direction = settings.direction(method, aggregate)
        for epsilon in settings.odin.epsilons if method == "odin" else MAHALANOBIS_EPSILONS:
            wanted[direction, epsilon].append((method, aggregate))
    names = tuple(dict.fromkeys(name for name, _ in wanted))
    gaussian = next(iter(mahalanobis.values()))  # they learn the same for every aggregate
    perturbation = find_directions(module, inputs, preprocessing, names, gaussian)
    columns: dict[Point, NDArray[np.float64]] = {}
    for (direction, epsilon), readers in wanted.items():
        logits, features = step(forward or module, inputs, perturbation, direction, epsilon)[:2]
        for method, aggregate in readers:
            if method == "mahalanobis":
                values = mahalanobis[aggregate].score_samples(features)
                columns[method, aggregate, epsilon, None] = values
                continue
            score = scores.max_prob if aggregate == "max" else scores.sum_prob
            for temperature in TEMPERATURES:
                scaled = logits.cpu().double().numpy() / temperature
                columns[method, aggregate, epsilon, temperature] = score(scaled)
    return columns


def synthetic_sets(
    reader: Reader, seed: int, batch_size: int, names: Sequence[str]
) -> Iterator[tuple[str, Iterator[torch.Tensor]]]:
    """Give the images, then each synthetic set made from them, as pixels from 0 to 1."""
    batches = in_batches(len(reader.split), batch_size)
    yield _ID, (torch.from_numpy(pixels).float() / 255 for pixels in reader.batches(batches))
    for number, name in enumerate(names):
        corrupted = corrupted_batches(reader, name, batches, (seed, number))
        yield name, map(torch.from_numpy, corrupted)
