"""Settings of ODIN and Mahalanobis, chosen on the paper's synthetic validation sets.

No out-of-distribution data is used: in-distribution validation images are compared with Gaussian
and uniform noise and with three corruptions of those images. The setting of the lowest FPR95 over
all five sets is chosen.
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
from nescio.data.corrupt import CORRUPTIONS, corrupt
from nescio.data.preprocessing import Preprocessing
from nescio.data.split import Split
from nescio.detectors import Mahalanobis
from nescio.errors import ParameterError
from nescio.metrics import fpr_at_tpr
from nescio.networks.checkpoint import Checkpoint
from nescio.outputs import Outputs
from nescio.runners.checkpoints import CheckpointRunner
from nescio.runners.images import ImageBatch, Reader, in_batches
from nescio.runners.perturb import AGGREGATES, Setting, Tuning, find_directions, step

TEMPERATURES = (1.0, 10.0, 100.0, 1000.0)
ODIN_EPSILONS = tuple(round(0.0002 * step, 4) for step in range(21))
MAHALANOBIS_EPSILONS = (0.0, 0.0005, 0.001, 0.0014, 0.002, 0.005)

TUNING_VERSION = 1
"""Raise it if the same network, images and settings give another choice than before."""

_ID = "in-distribution"


def tune(
    checkpoint: Checkpoint,
    split: Split,
    train: Outputs,
    *,
    features: str = "pooled",
    aggregates: Sequence[str] = AGGREGATES,
    n_images: int = 1000,
    seed: int = 0,
    device: torch.device | str = "cpu",
    batch_size: int = 16,
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
    features : str
        The features that Mahalanobis reads.
    aggregates : sequence of {"max", "sum"}
    n_images : int
        The maximum number of images of the split, and of each synthetic set.
    seed : int
        Decides the choice of images and the synthetic sets.
    on_images : callable
        Called with the number of images just done, out of six times those chosen.
    """
    model_hash = checkpoint.content_hash()
    _check_same_network(train, model_hash, features)
    runner = CheckpointRunner(checkpoint, features=features, device=device)
    chosen = split.sample(n_images, seed)
    if len(chosen) < 2:
        raise ParameterError(
            "tuning needs at least two images, because some synthetic images mix two of them."
        )
    learned = {name: Mahalanobis(aggregate=name).fit(train) for name in aggregates}
    preprocessing = checkpoint.preprocessing
    id_scores: dict[Point, list[NDArray[np.float64]]] = defaultdict(list)
    ood_scores: dict[Point, list[NDArray[np.float64]]] = defaultdict(list)
    with runner.running() as module:
        for name, batches in synthetic_sets(chosen, preprocessing, seed, batch_size):
            found = id_scores if name == _ID else ood_scores
            for pixels in batches:
                inputs = preprocessing.inputs(pixels, torch.device(device))
                for point, values in grid_scores(module, inputs, preprocessing, learned).items():
                    found[point].append(values)
                on_images(len(pixels))
    settings = tuple(
        Setting(*point, fpr_at_tpr(np.concatenate(values), np.concatenate(ood_scores[point])))
        for point, values in id_scores.items()
    )
    data = {
        **chosen.manifest(),
        "skipped": [asdict(bad) for bad in chosen.skipped],
        "seed": seed,
        "synthetic": list(CORRUPTIONS),
    }
    return Tuning(model_hash, features, settings, data)


def _check_same_network(outputs: Outputs, model_hash: str, features: str) -> None:
    """Raise unless the outputs were extracted from this network."""
    theirs = outputs.manifest.get("model_hash")
    if theirs != model_hash:
        raise ParameterError(
            "the training outputs were not extracted from this network "
            f"({str(theirs)[:12]}, not {model_hash[:12]}). Extract them again: nescio extract."
        )
    if outputs.manifest.get("features") != features:
        raise ParameterError(
            f"the training outputs have {outputs.manifest.get('features')} features, "
            f"not {features}."
        )


Point = tuple[str, str, float, float | None]  # method, aggregate, epsilon, temperature


def grid_scores(
    module: nn.Module,
    inputs: torch.Tensor,
    preprocessing: Preprocessing,
    mahalanobis: Mapping[str, Mahalanobis],
) -> dict[Point, NDArray[np.float64]]:
    """Return the scores of a batch of normalised inputs at every setting.

    One backward pass per aggregate and one forward pass per epsilon serve all settings.
    """
    found = find_directions(module, inputs, preprocessing, tuple(mahalanobis))
    columns: dict[Point, NDArray[np.float64]] = {}
    for aggregate, detector in mahalanobis.items():
        score = scores.max_prob if aggregate == "max" else scores.sum_prob
        for epsilon in sorted({*ODIN_EPSILONS, *MAHALANOBIS_EPSILONS}):
            outputs = step(module, inputs, found, aggregate, epsilon)
            if epsilon in ODIN_EPSILONS:
                logits = outputs.logits.cpu().double().numpy()
                for temperature in TEMPERATURES:
                    columns["odin", aggregate, epsilon, temperature] = score(logits / temperature)
            if epsilon in MAHALANOBIS_EPSILONS:
                point = ("mahalanobis", aggregate, epsilon, None)
                columns[point] = detector.score_samples(outputs.features)
    return columns


def synthetic_sets(
    split: Split, preprocessing: Preprocessing, seed: int, batch_size: int
) -> Iterator[tuple[str, Iterator[torch.Tensor]]]:
    """Give the images, then each synthetic set made from them, as pixels from 0 to 1."""
    reader = Reader(split, preprocessing)
    yield _ID, (_scaled(batch) for batch in _read(reader, range(len(split)), batch_size))
    # The partner of each image is the next one in a random circle, never the image itself.
    circle = np.random.default_rng(seed).permutation(len(split))
    partner_of = np.empty(len(split), np.intp)
    partner_of[circle] = np.roll(circle, -1)
    for number, name in enumerate(CORRUPTIONS):
        yield name, _corrupted(name, reader, partner_of, (seed, number), batch_size)


def _scaled(batch: ImageBatch) -> torch.Tensor:
    return torch.from_numpy(batch.pixels).float() / 255


def _read(reader: Reader, indices: Sequence[int], batch_size: int) -> Iterator[ImageBatch]:
    return reader.batches(
        [indices[i] for i in batch] for batch in in_batches(len(indices), batch_size)
    )


def _corrupted(
    name: str,
    reader: Reader,
    partner_of: NDArray[np.intp],
    seed: tuple[int, int],
    batch_size: int,
) -> Iterator[torch.Tensor]:
    colours = {"mean": reader.preprocessing.mean, "std": reader.preprocessing.std}
    images = _read(reader, range(len(partner_of)), batch_size)
    partners = _read(reader, partner_of.tolist(), batch_size)
    for batch, others in zip(images, partners, strict=True):
        made = []
        rows = zip(_scaled(batch).numpy(), _scaled(others).numpy(), batch.indices, strict=True)
        for image, other, index in rows:
            rng = np.random.default_rng((*seed, index))
            made.append(corrupt(name, image[None], other[None], rng, **colours))
        yield torch.from_numpy(np.concatenate(made).astype(np.float32, copy=False))
