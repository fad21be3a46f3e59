"""The whole job on data that ships with scikit-learn: scenes of handwritten digits.

Each scene shows one to four digits on a two by two grid. A multi-label network learns which of the
digits 0 to 6 a scene holds; scenes of the digits 7, 8 and 9, which it never saw, are the
out-of-distribution data. The scenes and the network were fixed before any detector was run on
them, and no setting was chosen by its result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio.outputs import Outputs
from nescio.version import __version__

KNOWN_DIGITS = (0, 1, 2, 3, 4, 5, 6)
HELD_OUT_DIGITS = (7, 8, 9)
_CELL = 8  # pixels a side of a digit
_GRID = 2  # cells a side of a scene
_HIDDEN = (256, 64)
_EPOCHS = 40
_SCENES = {"train": 6000, "val": 2000, "test": 2000, "held-out digits": 2000}
_IMAGE_SHARES = (0.6, 0.8)  # of the known digits' images: train up to here, val up to there

Pixels = NDArray[np.float64]


@dataclass(frozen=True)
class DigitScenes:
    """Outputs of a network trained on scenes of known digits."""

    train: Outputs
    val: Outputs
    test: Outputs
    held_out: Outputs


def digit_scenes(seed: int = 0) -> DigitScenes:
    """Compose the scenes, train the network and give its outputs on each split.

    No digit image is shared between splits.
    """
    from sklearn.datasets import load_digits

    rng = np.random.default_rng(seed)
    data = load_digits()
    images, digits = data.images / 16.0, data.target
    known = rng.permutation(np.flatnonzero(np.isin(digits, KNOWN_DIGITS)))
    bounds = [round(share * len(known)) for share in _IMAGE_SHARES]
    pools = dict(zip(_SCENES, np.split(known, bounds), strict=False))
    pools["held-out digits"] = np.flatnonzero(np.isin(digits, HELD_OUT_DIGITS))
    scenes = {
        split: _compose(images[pool], digits[pool], _SCENES[split], rng)
        for split, pool in pools.items()
    }
    model = _train(*scenes["train"], seed)
    outputs = {
        split: _outputs(model, pixels, labels, split, seed)
        for split, (pixels, labels) in scenes.items()
    }
    train, val, test, held_out = (outputs[split] for split in _SCENES)
    return DigitScenes(train, val, test, held_out)


def _compose(
    images: Pixels, digits: NDArray[np.int64], n_scenes: int, rng: np.random.Generator
) -> tuple[Pixels, NDArray[np.uint8]]:
    """Scenes of shape (n_scenes, n_pixels), and which known digits each one holds."""
    side = _CELL * _GRID
    scenes = rng.normal(0.0, 0.05, (n_scenes, side, side))
    labels = np.zeros((n_scenes, len(KNOWN_DIGITS)), dtype=np.uint8)
    cells = [(_CELL * row, _CELL * column) for row in range(_GRID) for column in range(_GRID)]
    for i in range(n_scenes):
        places = rng.permutation(len(cells))[: rng.integers(1, len(cells) + 1)]
        for place, choice in zip(places, rng.integers(0, len(images), len(places)), strict=True):
            top, left = cells[place]
            scenes[i, top : top + _CELL, left : left + _CELL] += images[choice]
            if digits[choice] in KNOWN_DIGITS:
                labels[i, KNOWN_DIGITS.index(digits[choice])] = 1
    return scenes.reshape(n_scenes, -1), labels


def _train(pixels: Pixels, labels: NDArray[np.uint8], seed: int) -> Any:
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    model = MLPClassifier(_HIDDEN, max_iter=_EPOCHS, alpha=1e-3, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the number of epochs is a choice
        return model.fit(pixels, labels)


def _outputs(
    model: Any, pixels: Pixels, labels: NDArray[np.uint8], split: str, seed: int
) -> Outputs:
    """Logits and penultimate features, which scikit-learn's network does not give by itself."""
    features = pixels
    for weights, bias in zip(model.coefs_[:-1], model.intercepts_[:-1], strict=True):
        features = np.maximum(features @ weights + bias, 0.0)
    logits = features @ model.coefs_[-1] + model.intercepts_[-1]
    return Outputs(
        logits.astype(np.float32),
        features=features.astype(np.float32),
        labels=labels,
        label_names=[f"digit {digit}" for digit in KNOWN_DIGITS],
        manifest={
            "dataset": "digit scenes",
            "split": split,
            "seed": seed,
            "model": f"MLP {'-'.join(map(str, _HIDDEN))}",
            "nescio_version": __version__,
        },
    )


Measured = dict[str, dict[str, list[float]]]


def run(
    seeds: int, on_step: Callable[[str], object] = lambda step: None
) -> tuple[DigitScenes, Measured, list[float]]:
    """Evaluate every detector on each seed's scenes.

    Returns the first seed's outputs, each detector's FPR95, AUROC and AUPR over seeds, and the
    networks' validation mAP over seeds.
    """
    from nescio.comparison import compare
    from nescio.detectors import DETECTORS
    from nescio.metrics import mean_average_precision

    measured: Measured = {}
    precisions = []
    first: DigitScenes | None = None
    for seed in range(seeds):
        on_step(f"seed {seed}: training")
        scenes = digit_scenes(seed)
        first = first or scenes
        precisions.append(mean_average_precision(scenes.val.labels, scenes.val.logits))
        on_step(f"seed {seed}: evaluating")
        detectors = {name: detector() for name, detector in DETECTORS.items()}
        found = compare(
            detectors,
            scenes.test,
            {"held-out digits": scenes.held_out},
            train=scenes.train,
            n_bootstrap=0,
        )
        for name, result in found.results["held-out digits"].items():
            values = measured.setdefault(name, {"fpr": [], "auroc": [], "aupr": []})
            for measure, over_seeds in values.items():
                over_seeds.append(getattr(result, measure).value)
    assert first is not None, "at least one seed"
    return first, measured, precisions
