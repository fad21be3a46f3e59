"""PASCAL-VOC 2012, as its archives unpack."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np

from nescio.errors import DatasetError
from nescio.lab.data.split import (
    HOW_TO,
    Split,
    check_split,
    checked_presence,
    find_folder,
    half,
    labels_from_lists,
    read_lines,
)

SPLITS = ("train", "val", "trainval", "test")
TRAINVAL_SPLITS = ("train", "val", "test")
HALVES_SEED = 2021
LABEL_NAMES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip

_WHAT = "PASCAL-VOC 2012"
_WITHOUT_TEST = (
    "The test images of VOC 2012 need a registration. The benchmark voc-trainval (nescio bench "
    "voc-trainval) and the data set voc-trainval do without them."
)
_PRESENT, _ONLY_DIFFICULT, _ABSENT = "1", "0", "-1"


def load_voc(root: str | Path, split: str, *, skip_bad: bool = False) -> Split:
    """Index PASCAL-VOC 2012, with its 20 labels in the official order.

    An image has a label even if every object of it is marked as difficult to recognise. VOC's
    detection benchmark ignores these objects, but the photograph shows them, and the paper counts
    22,531 images (train 5,717, val 5,823, test 10,991), so it drops none: otherwise, some of them
    would have no label.

    Parameters
    ----------
    root : path
        The folder `VOC2012`, or a folder that contains `VOC2012` or `VOCdevkit/VOC2012`.
    split : {"train", "val", "trainval", "test"}
        The labels of "test" are not published, so its `labels` are None.
    skip_bad : bool, default False
        Continue without images that are missing, and list them in `Split.skipped`.
    """
    check_split("voc", split, SPLITS)
    folder = _find_voc(Path(root))
    lists = folder / "ImageSets" / "Main"
    if split == "test" and not (lists / "test.txt").is_file():
        raise DatasetError(
            f"{_WHAT} test not found: no file {lists / 'test.txt'}. {_WITHOUT_TEST} {HOW_TO}"
        )
    images = read_lines(f"{_WHAT} {split}", lists / f"{split}.txt")
    find_folder(f"{_WHAT} images", folder / "JPEGImages")
    labels = None
    if split != "test":
        files = [lists / f"{name}_{split}.txt" for name in LABEL_NAMES]
        labels = labels_from_lists(
            ((path, _read_values(path, images)) for path in files),
            positive={_PRESENT, _ONLY_DIFFICULT},
            negative={_ABSENT},
        )
    indexed = Split(
        dataset="voc",
        name=split,
        root=folder,
        files=tuple(f"JPEGImages/{image}.jpg" for image in images),
        labels=labels,
        label_names=LABEL_NAMES,
    )
    return checked_presence(indexed, skip_bad=skip_bad)


def load_voc_trainval(root: str | Path, split: str, *, skip_bad: bool = False) -> Split:
    """Index PASCAL-VOC 2012 without its test images, which need a registration.

    "train" is the official list. The official val list is shuffled with
    `numpy.random.default_rng(HALVES_SEED)` and halved: "val" is the first half and "test" the
    second. The paper has other images, so the results cannot be compared with its numbers.

    Parameters
    ----------
    root, skip_bad
        As for `load_voc`.
    split : {"train", "val", "test"}
    """
    check_split("voc-trainval", split, TRAINVAL_SPLITS)
    if split == "train":
        return replace(load_voc(root, "train", skip_bad=skip_bad), dataset="voc-trainval")
    whole = load_voc(root, "val", skip_bad=skip_bad)
    # All images of the list are halved, so that an image is in the same half for everyone.
    every = sorted({*whole.files, *(bad.file for bad in whole.skipped)})
    rows = half(np.arange(len(every)), HALVES_SEED, first=split == "val")
    mine = {every[row] for row in rows}
    return replace(
        whole.subset([index for index, file in enumerate(whole.files) if file in mine]),
        dataset="voc-trainval",
        name=split,
        skipped=tuple(bad for bad in whole.skipped if bad.file in mine),
        notes={"halves_seed": HALVES_SEED},
    )


def _find_voc(root: Path) -> Path:
    candidates = (root, root / "VOCdevkit" / "VOC2012", root / "VOC2012")
    lists = find_folder(_WHAT, *(folder / "ImageSets" / "Main" for folder in candidates))
    return lists.parents[1]


def _read_values(path: Path, images: list[str]) -> list[str]:
    """Return the second column of a label's list; the first must be the images of the split."""
    rows = [line.split() for line in read_lines(_WHAT, path)]
    for number, (row, image) in enumerate(itertools.zip_longest(rows, images), 1):
        if row is None or len(row) != 2 or row[0] != image:
            raise DatasetError(
                f"{path}, line {number}: expected the image {image} of the split's list and 1, 0 "
                f"or -1, got {' '.join(row or ())!r}. {HOW_TO}"
            )
    return [value for _, value in rows]
