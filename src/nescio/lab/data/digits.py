"""Scenes of handwritten digits, made from the data that ships with scikit-learn.

A scene shows one to four digits on a two by two grid. Its labels say which of the digits 0 to 6 it
contains. Scenes that contain only 7, 8 and 9 are out-of-distribution: as in the paper, only the
meaning differs. Patches of scikit-learn's two photographs, in grey, and smooth noise are further
from the data. (The noise differs from that of `CORRUPTIONS`, which ODIN and Mahalanobis are tuned
on.)

The scenes were fixed before any detector was run on them.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio._io.files import temporary_in
from nescio.errors import DatasetError, require
from nescio.lab.data.own import load_table
from nescio.lab.data.split import Split, check_split

LABEL_DIGITS = (0, 1, 2, 3, 4, 5, 6)
UNSEEN_DIGITS = (7, 8, 9)
LABELLED = ("train", "val", "test")
SPLITS = (*LABELLED, "unseen", "photos", "noise")
N_SCENES = {**dict.fromkeys(SPLITS, 2000), "train": 6000}

_LIST = "scenes.csv"
_SEED = 0
_CELL = 16  # height and width of a digit, in pixels
_GRID = 2  # cells per side of a scene
_SIDE = _CELL * _GRID
_BACKGROUND = 0.05  # standard deviation of the noise behind the digits
_IMAGE_SHARES = (0.6, 0.8)  # of the images of digits 0 to 6: train up to 60 %, val up to 80 %
_PATCH_SIDES = (32, 129)
_NOISE_SCALES = (1.0, 4.0)  # pixels, of the smoothing

Pixels = NDArray[np.float64]  # from 0 to 1


def load_digits(root: str | Path, split: str, *, skip_bad: bool = False) -> Split:
    """Index one split of the scenes; all scenes are made at first use, in a few seconds.

    Train, val and test share no image of a digit.

    Parameters
    ----------
    root : path
        The folder that contains the scenes, or the folder to create for them.
    split : {"train", "val", "test", "unseen", "photos", "noise"}
        The last three are out-of-distribution.
    """
    check_split("digits", split, SPLITS)
    root = Path(root)
    if not (root / _LIST).exists():
        _make(root)
    scenes = replace(load_table(root / _LIST, split), dataset="digits")
    return scenes if split in LABELLED else replace(scenes, labels=None, label_names=None)


def _make(root: Path) -> None:
    """Write all scenes to a new folder; nothing is left behind if it fails."""
    image_module = require("PIL.Image", "torch")
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise DatasetError(
            f"{root} contains something other than digit scenes. Name a folder that is empty or "
            "does not exist; the scenes will be made there."
        )
    parent = root.resolve().parent
    parent.mkdir(parents=True, exist_ok=True)
    try:
        with temporary_in(parent, is_folder=True) as temporary:
            _write_scenes(temporary, image_module)
            if root.exists():
                root.rmdir()  # it is empty
            os.rename(temporary, root.resolve())
    except OSError as error:
        raise DatasetError(f"cannot write digit scenes to {root}: {error.strerror}.") from error


def _write_scenes(folder: Path, image_module: Any) -> None:
    with (folder / _LIST).open("w", encoding="utf-8", newline="") as stream:
        rows = csv.writer(stream, lineterminator="\n")
        rows.writerow(["path", "labels", "split"])
        for split, scenes in _all_scenes(image_module):
            (folder / split).mkdir()
            for number, (pixels, digits) in enumerate(scenes):
                file = f"{split}/{number:05d}.png"
                grey = np.round(255 * pixels.clip(0, 1)).astype(np.uint8)
                # Without compression, so that all versions of Pillow write the same size.
                image_module.fromarray(grey).save(folder / file, compress_level=0)
                names = [f"digit {digit}" for digit in digits]
                rows.writerow([file, ";".join(names), split])


Scenes = Iterator[tuple[Pixels, list[int]]]  # a scene and the digits that are labels


def _all_scenes(image_module: Any) -> Iterator[tuple[str, Scenes]]:
    from sklearn.datasets import load_digits, load_sample_images

    data = load_digits()
    size = (_CELL, _CELL)
    images = np.stack([
        np.asarray(image_module.fromarray(image.astype(np.float32)).resize(size), np.float64) / 16
        for image in data.images
    ])  # fmt: skip
    rng = np.random.default_rng(_SEED)
    pool = rng.permutation(np.flatnonzero(np.isin(data.target, LABEL_DIGITS)))
    bounds = [round(share * len(pool)) for share in _IMAGE_SHARES]
    pools = dict(zip(LABELLED, np.split(pool, bounds), strict=True))
    pools["unseen"] = np.flatnonzero(np.isin(data.target, UNSEEN_DIGITS))
    for split, pool in pools.items():
        yield split, _compose(images[pool], data.target[pool], N_SCENES[split], rng)
    photos = [image_module.fromarray(photo).convert("L") for photo in load_sample_images().images]
    yield "photos", _patches(photos, N_SCENES["photos"], rng)
    yield "noise", _smooth_noise(N_SCENES["noise"], rng)


def _compose(
    images: Pixels, digits: NDArray[np.int64], n_scenes: int, rng: np.random.Generator
) -> Scenes:
    cells = [(_CELL * row, _CELL * column) for row in range(_GRID) for column in range(_GRID)]
    for _ in range(n_scenes):
        scene = rng.normal(0.0, _BACKGROUND, (_SIDE, _SIDE))
        places = rng.permutation(len(cells))[: rng.integers(1, len(cells) + 1)]
        choices = rng.integers(0, len(images), len(places))
        for place, choice in zip(places, choices, strict=True):
            top, left = cells[place]
            scene[top : top + _CELL, left : left + _CELL] += images[choice]
        shown = {int(digit) for digit in digits[choices]}
        yield scene, sorted(shown & set(LABEL_DIGITS))


def _patches(photos: list[Any], n_scenes: int, rng: np.random.Generator) -> Scenes:
    """Yield squares of random size and position."""
    for _ in range(n_scenes):
        photo = photos[rng.integers(len(photos))]
        side = int(rng.integers(*_PATCH_SIDES))
        left = int(rng.integers(photo.width - side + 1))
        top = int(rng.integers(photo.height - side + 1))
        patch = photo.resize((_SIDE, _SIDE), box=(left, top, left + side, top + side))
        yield np.asarray(patch, np.float64) / 255, []


def _smooth_noise(n_scenes: int, rng: np.random.Generator) -> Scenes:
    """Yield blurred noise, scaled from black to white."""
    from scipy.ndimage import gaussian_filter

    for _ in range(n_scenes):
        noise = gaussian_filter(rng.normal(size=(_SIDE, _SIDE)), rng.uniform(*_NOISE_SCALES))
        yield (noise - noise.min()) / np.ptp(noise), []
