"""Settings of ODIN and Mahalanobis, chosen on the paper's synthetic validation sets.

No out-of-distribution data is seen: in-distribution validation images stand against Gaussian and
uniform noise and three corruptions of those images, and the setting of the lowest FPR95 over all
five is taken.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from nescio import scores
from nescio._io.files import existing_file, replacing
from nescio._io.kinds import FileKind
from nescio.data.corrupt import CORRUPTIONS, corrupt
from nescio.data.preprocessing import Preprocessing
from nescio.data.split import Split
from nescio.detectors import Mahalanobis
from nescio.errors import FileFormatError, ParameterError
from nescio.metrics import fpr_at_tpr
from nescio.networks.checkpoint import Checkpoint
from nescio.networks.network import prepared
from nescio.outputs import Outputs
from nescio.runners.images import Reader, in_batches
from nescio.training.perturb import (
    AGGREGATES,
    MAHALANOBIS_EPSILONS,
    ODIN_EPSILONS,
    TEMPERATURES,
    find_directions,
    step,
)

_KIND = FileKind("nescio.tuning", "file written by nescio tune")
_ID = "in-distribution"


@dataclass(frozen=True)
class Setting:
    """One point of the grid, and how well it did.

    Attributes
    ----------
    method : {"odin", "mahalanobis"}
    aggregate : {"max", "sum"}
    epsilon : float
        The size of the perturbation, on the scale of pixels from 0 to 1.
    temperature : float or None
        ODIN's only.
    fpr95 : float
        Over all five synthetic sets.
    """

    method: str
    aggregate: str
    epsilon: float
    temperature: float | None
    fpr95: float


@dataclass(frozen=True)
class Tuning:
    """What `tune` found.

    Attributes
    ----------
    model_hash : str
        Of the network that it holds for.
    features : str
        Those that Mahalanobis reads.
    grid : tuple of Setting
        Every setting that was tried.
    data : mapping
        The validation images it was chosen on.
    """

    model_hash: str
    features: str
    grid: tuple[Setting, ...]
    data: Mapping[str, Any]

    @property
    def best(self) -> tuple[Setting, ...]:
        """The setting of the lowest FPR95 for each method and aggregate.

        Of several that are equally good, the one of the smallest step and temperature.
        """
        found: dict[tuple[str, str], Setting] = {}
        order = sorted(self.grid, key=lambda s: (s.fpr95, s.epsilon, s.temperature or 0.0))
        for setting in order:
            found.setdefault((setting.method, setting.aggregate), setting)
        return tuple(found[key] for key in sorted(found))

    @property
    def aggregates(self) -> tuple[str, ...]:
        """The aggregates that it has settings for."""
        return tuple(sorted({setting.aggregate for setting in self.grid}))

    def chosen(self) -> list[dict[str, Any]]:
        """The best settings as plain data."""
        return [asdict(setting) for setting in self.best]

    def check_model(self, model_hash: str, features: str) -> None:
        """Raise unless the settings were chosen for this network and these features."""
        if model_hash != self.model_hash:
            raise ParameterError(
                f"the settings were tuned for another network ({self.model_hash[:12]}, not "
                f"{model_hash[:12]}). Tune this one: nescio tune."
            )
        if features != self.features:
            raise ParameterError(
                f"the settings were tuned on {self.features} features, not {features}."
            )

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write one JSON file, atomically."""
        content = {**_KIND.header(), **asdict(self), "best": self.chosen()}
        with replacing(path, force=force) as temporary:
            temporary.write_text(json.dumps(content, indent=1) + "\n", "utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Tuning:
        """Read what `save` wrote."""
        path = existing_file(path)
        try:
            content = json.loads(path.read_text("utf-8"))
            _KIND.check(content, path)
            grid = tuple(Setting(**setting) for setting in content["grid"])
            return cls(content["model_hash"], content["features"], grid, content["data"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise FileFormatError(f"{path} is not a {_KIND.what}.") from error


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
        Of the training data, by the same network: Mahalanobis learns from its features.
    features, aggregates
    n_images : int
        At most so many images of the split, and as many of each synthetic set.
    seed : int
        Of the choice of images and of the synthetic sets.
    on_images : callable
        Called with the number of images just done, of six times those chosen.
    """
    model_hash = checkpoint.content_hash()
    check_same_network(train, model_hash, features)
    network = prepared(checkpoint.network, device)
    chosen = split.sample(n_images, seed)
    if len(chosen) < 2:
        raise ParameterError("tuning needs two images at least; the means are of pairs.")
    learned = {name: Mahalanobis(aggregate=name).fit(train) for name in aggregates}
    grid = Grid(network, checkpoint.preprocessing, features, learned)
    found = {
        name: grid.scores(batches, torch.device(device), on_images)
        for name, batches in synthetic_sets(chosen, checkpoint.preprocessing, seed, batch_size)
    }
    id_scores = found.pop(_ID)
    ood_scores = np.concatenate(list(found.values()))  # (n_images, n_settings)
    settings = tuple(
        Setting(*point, fpr95=fpr_at_tpr(id_scores[:, at], ood_scores[:, at]))
        for at, point in enumerate(grid.points)
    )
    data = {
        **chosen.manifest(),
        "skipped": [asdict(bad) for bad in chosen.skipped],
        "seed": seed,
        "synthetic": list(CORRUPTIONS),
    }
    return Tuning(model_hash, features, settings, data)


def check_same_network(outputs: Outputs, model_hash: str, features: str) -> None:
    """Raise unless the outputs were extracted from this network."""
    theirs = outputs.manifest.get("model_hash")
    if theirs != model_hash:
        raise ParameterError(
            "the training outputs were not extracted from this network "
            f"({str(theirs)[:12]}, not {model_hash[:12]}). Extract them again: nescio extract."
        )
    if outputs.manifest.get("features") != features:
        raise ParameterError(
            f"the training outputs hold {outputs.manifest.get('features')} features, "
            f"not {features}."
        )


Point = tuple[str, str, float, float | None]  # method, aggregate, epsilon, temperature


class Grid:
    """Scores of every setting for a batch: one backward pass an aggregate, one forward an epsilon.

    Parameters
    ----------
    network : Module
        In eval mode.
    preprocessing : Preprocessing
    features : str
    mahalanobis : mapping of aggregate to fitted Mahalanobis
    """

    def __init__(
        self,
        network: nn.Module,
        preprocessing: Preprocessing,
        features: str,
        mahalanobis: Mapping[str, Mahalanobis],
    ) -> None:
        self.network = network
        self.preprocessing = preprocessing
        self.features = features
        self.mahalanobis = mahalanobis
        self.points: list[Point] = []
        for aggregate in mahalanobis:
            for epsilon in self.epsilons():
                if epsilon in ODIN_EPSILONS:
                    self.points += [("odin", aggregate, epsilon, T) for T in TEMPERATURES]
                if epsilon in MAHALANOBIS_EPSILONS:
                    self.points.append(("mahalanobis", aggregate, epsilon, None))

    @staticmethod
    def epsilons() -> list[float]:
        """Every step that ODIN or Mahalanobis tries: they share the forward passes."""
        return sorted({*ODIN_EPSILONS, *MAHALANOBIS_EPSILONS})

    def scores(
        self,
        batches: Iterator[torch.Tensor],
        device: torch.device,
        on_images: Callable[[int], object] = lambda count: None,
    ) -> NDArray[np.float64]:
        """Scores of shape (n_images, n_settings); pixels come in on the scale from 0 to 1."""
        rows = []
        for pixels in batches:
            rows.append(self.batch_scores(self.preprocessing.inputs(pixels, device)))
            on_images(len(pixels))
        return np.concatenate(rows)

    def batch_scores(self, inputs: torch.Tensor) -> NDArray[np.float64]:
        """Scores of one batch of normalised inputs, a column for each of `points`."""
        found = find_directions(self.network, inputs, self.preprocessing, tuple(self.mahalanobis))
        columns = []
        for aggregate, detector in self.mahalanobis.items():
            score = scores.max_prob if aggregate == "max" else scores.sum_prob
            for epsilon in self.epsilons():
                outputs = step(self.network, inputs, found, aggregate, epsilon)
                if epsilon in ODIN_EPSILONS:
                    logits = outputs.logits.cpu().double().numpy()
                    columns += [score(logits / temperature) for temperature in TEMPERATURES]
                if epsilon in MAHALANOBIS_EPSILONS:
                    columns.append(detector.score_samples(getattr(outputs, self.features)))
        return np.stack(columns, axis=1)


def synthetic_sets(
    split: Split, preprocessing: Preprocessing, seed: int, batch_size: int
) -> Iterator[tuple[str, Iterator[torch.Tensor]]]:
    """The images themselves, then each synthetic set made from them, as pixels from 0 to 1."""
    reader = Reader(split, preprocessing)
    yield (
        _ID,
        (batch.pixels.float() / 255 for batch in _read(reader, range(len(split)), batch_size)),
    )
    # Everyone's partner is the next one in a random circle, never oneself.
    circle = np.random.default_rng(seed).permutation(len(split))
    partner_of = np.empty(len(split), np.intp)
    partner_of[circle] = np.roll(circle, -1)
    for number, name in enumerate(CORRUPTIONS):
        yield name, _corrupted(name, reader, partner_of, (seed, number), batch_size)


def _read(reader: Reader, indices: Sequence[int], batch_size: int) -> Iterator[Any]:
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
    preprocessing = reader.preprocessing
    images = _read(reader, range(len(partner_of)), batch_size)
    partners = _read(reader, partner_of.tolist(), batch_size)
    for batch, others in zip(images, partners, strict=True):
        made = [
            corrupt(
                name,
                image[None],
                other[None],
                np.random.default_rng((*seed, index)),
                mean=preprocessing.mean,
                std=preprocessing.std,
            )
            for image, other, index in zip(
                batch.pixels.float().numpy() / 255,
                others.pixels.float().numpy() / 255,
                batch.indices.tolist(),
                strict=True,
            )
        ]
        yield torch.from_numpy(np.concatenate(made).astype(np.float32, copy=False))
