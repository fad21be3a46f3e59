"""PASCAL-VOC 2012, as its archives unpack."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nescio.data.layout import (
    HOW_TO,
    UNPACK_OR_SKIP,
    check_split,
    checked_presence,
    find_folder,
    read_lines,
)
from nescio.data.split import BadFile, Split
from nescio.errors import DatasetError, ParameterError

SPLITS = ("train", "val", "trainval", "test")
LABEL_NAMES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip
DIFFICULT = ("positive", "negative")

_WHAT = "PASCAL-VOC 2012"
_PRESENT, _ONLY_DIFFICULT, _ABSENT = "1", "0", "-1"


def load_voc(
    root: str | Path, split: str, *, difficult: str = "positive", skip_bad: bool = False
) -> Split:
    """PASCAL-VOC 2012, with its 20 labels in the official order.

    Parameters
    ----------
    root : path
        The folder `VOC2012`, or one that holds it or `VOCdevkit/VOC2012`.
    split : {"train", "val", "trainval", "test"}
        The labels of "test" are not published, so its `labels` are None.
    difficult : {"positive", "negative"}, default "positive"
        What a label is for an image in which every object of it is marked difficult to recognise.
        VOC's detection benchmark leaves these objects out of account; a whole image can only have
        the label or not. Positive, because the photograph does show the object, and because the
        paper counts 22,531 images (train 5,717, val 5,823, test 10,991), so that it drops none:
        with "negative" some of these would have no label at all.
    skip_bad : bool, default False
        Go on without images that are missing or have a label that is none of 1, 0 and -1;
        `Split.skipped` has them.
    """
    check_split("voc", split, SPLITS)
    if difficult not in DIFFICULT:
        raise ParameterError(f"difficult must be one of {', '.join(DIFFICULT)}, got {difficult!r}.")
    folder = _find_voc(Path(root))
    lists = folder / "ImageSets" / "Main"
    images = read_lines(f"{_WHAT} {split}", lists / f"{split}.txt")
    find_folder(f"{_WHAT} images", folder / "JPEGImages")
    labels, wrong = None, dict[int, str]()
    good = list(range(len(images)))
    if split != "test":
        labels, wrong = _read_labels(lists, split, images, difficult, skip_bad=skip_bad)
        good = [row for row in good if row not in wrong]
        labels = labels[good]
    indexed = Split(
        dataset="voc",
        name=split,
        root=folder,
        files=tuple(_file_of(images[row]) for row in good),
        labels=labels,
        label_names=LABEL_NAMES,
        skipped=tuple(BadFile(_file_of(images[row]), why) for row, why in wrong.items()),
        notes={} if labels is None else {"difficult": difficult},
    )
    return checked_presence(indexed, skip_bad=skip_bad)


def _find_voc(root: Path) -> Path:
    candidates = (root, root / "VOCdevkit" / "VOC2012", root / "VOC2012")
    lists = find_folder(_WHAT, *(folder / "ImageSets" / "Main" for folder in candidates))
    return lists.parents[1]


def _file_of(image: str) -> str:
    return f"JPEGImages/{image}.jpg"


def _read_labels(
    lists: Path, split: str, images: list[str], difficult: str, *, skip_bad: bool
) -> tuple[NDArray[np.uint8], dict[int, str]]:
    """The labels of the images, and what is wrong with those of some rows."""
    positive = {_PRESENT, _ONLY_DIFFICULT} if difficult == "positive" else {_PRESENT}
    labels = np.zeros((len(images), len(LABEL_NAMES)), dtype=np.uint8)
    wrong: dict[int, str] = {}
    for column, name in enumerate(LABEL_NAMES):
        path = lists / f"{name}_{split}.txt"
        for row, value in enumerate(_read_values(path, images)):
            labels[row, column] = value in positive
            if value in (_PRESENT, _ONLY_DIFFICULT, _ABSENT):
                continue
            reason = f"{path}, line {row + 1}: {value!r} is none of 1, 0 and -1"
            if not skip_bad:
                raise DatasetError(f"{reason}. {UNPACK_OR_SKIP}")
            wrong.setdefault(row, reason)
    return labels, wrong


def _read_values(path: Path, images: list[str]) -> list[str]:
    """The second column of a class's list, whose first must be the images of the split."""
    rows = [line.split() for line in read_lines(_WHAT, path)]
    for number, row in enumerate(rows, 1):
        if len(row) != 2:
            raise DatasetError(
                f"{path}, line {number}: expected an image and 1, 0 or -1, got {' '.join(row)!r}."
            )
        if number > len(images) or row[0] != images[number - 1]:
            raise DatasetError(
                f"{path}, line {number}: image {row[0]} is not the one of that line in the list "
                f"of all images of the split. {HOW_TO}"
            )
    if len(rows) < len(images):
        raise DatasetError(f"{path} has {len(rows):,} lines, and the split {len(images):,} images.")
    return [value for _, value in rows]
