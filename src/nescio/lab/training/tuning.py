"""Settings of ODIN and Mahalanobis, chosen on the paper's synthetic validation sets.

No out-of-distribution data is used: in-distribution validation images are compared with Gaussian
and uniform noise and with three corruptions of those images. The setting of the lowest FPR95 over
all five sets is chosen. `TuneSettings` says what else can be done.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from nescio import scores
from nescio.detectors import Mahalanobis
from nescio.errors import ParameterError
from nescio.lab.data.batches import CorruptedReader, Reader, in_batches
from nescio.lab.data.split import Split
from nescio.lab.extraction.perturb import (
    AGGREGATES,
    Setting,
    TuneSettings,
    Tuning,
    check_same_network,
    find_directions,
    step,
)
from nescio.lab.extraction.runtimes import AUTO, Runtimes
from nescio.lab.networks.checkpoint import Checkpoint, CheckpointRunner
from nescio.metrics import fpr_at_tpr
from nescio.models.base import layer_names
from nescio.models.images import Preprocessing
from nescio.models.torch_models import Pass
from nescio.outputs import Outputs

TEMPERATURES = (1.0, 10.0, 100.0, 1000.0)
MAHALANOBIS_EPSILONS = (0.0, 0.0005, 0.001, 0.0014, 0.002, 0.005)

TUNING_VERSION = 1
"""Raise it if the same network, images and settings give another choice than before."""

_ID = "in-distribution"


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
    runtime: str | Runtimes = AUTO,
    on_images: Callable[[int], object] = lambda count: None,
) -> Tuning:
    """Choose ODIN's temperature and epsilon, and Mahalanobis' epsilon.

    Parameters
    ----------
    checkpoint : Checkpoint
    split : Split
        In-distribution validation images.
    train : Outputs
        Outputs of the same network on the training data: Mahalanobis learns from its features.
    settings : TuneSettings, optional
        The number of images, the synthetic sets and ODIN's step; the paper's by default.
    features : str
        The features that Mahalanobis reads; of several layers, the first.
    aggregates : sequence of {"max", "sum"}
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
    check_same_network(train, model_hash, features)
    runner = CheckpointRunner(checkpoint, features=features, device=device)
    chosen = split.sample(settings.images, seed)
    if len(chosen) < 2:
        raise ParameterError(
            "tuning needs at least two images, because some synthetic images mix two of them."
        )
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
    with runner.running() as module:
        for name, batches in synthetic_sets(
            chosen, preprocessing, seed, batch_size, settings.synthetic
        ):
            scores_of = id_scores if name == _ID else ood_scores
            for pixels in batches:
                inputs = preprocessing.inputs(pixels, torch.device(device))
                columns = grid_scores(
                    module, inputs, preprocessing, learned, settings, forward=forward
                )
                for point, values in columns.items():
                    scores_of[point].append(values)
                on_images(len(pixels))
    grid = tuple(
        Setting(
            *point,
            fpr_at_tpr(np.concatenate(values), np.concatenate(ood_scores[point])),
            settings.direction(*point[:2]),
        )
        for point, values in id_scores.items()
    )
    data = {
        **chosen.manifest(),
        "skipped": [asdict(bad) for bad in chosen.skipped],
        "seed": seed,
        "synthetic": list(settings.synthetic),
        "runtime": choice.runtime,
    }
    return Tuning(model_hash, features, grid, data)


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
    """Return the scores of a batch of normalised inputs at every setting.

    One backward pass per direction and one forward pass per direction and epsilon serve all
    settings. `forward` runs the forward passes, by default the module.
    """
    wanted = _wanted(settings, tuple(mahalanobis))
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


def _wanted(
    settings: TuneSettings, aggregates: Sequence[str]
) -> dict[tuple[str, float], list[tuple[str, str]]]:
    """Return the methods and aggregates to score, by direction and epsilon of the step."""
    wanted = defaultdict(list)
    for aggregate in aggregates:
        for method in ("odin", "mahalanobis"):
            direction = settings.direction(method, aggregate)
            for epsilon in settings.odin.epsilons if method == "odin" else MAHALANOBIS_EPSILONS:
                wanted[direction, epsilon].append((method, aggregate))
    return wanted


def synthetic_sets(
    split: Split,
    preprocessing: Preprocessing,
    seed: int,
    batch_size: int,
    names: Sequence[str],
) -> Iterator[tuple[str, Iterator[torch.Tensor]]]:
    """Give the images, then each synthetic set made from them, as pixels from 0 to 1."""
    reader = Reader(split, preprocessing)
    batches = in_batches(len(split), batch_size)
    yield _ID, (torch.from_numpy(pixels).float() / 255 for pixels in reader.batches(batches))
    for number, name in enumerate(names):
        corrupted = CorruptedReader(reader, name, (seed, number)).batches(batches)
        yield name, map(torch.from_numpy, corrupted)
