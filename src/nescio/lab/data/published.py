"""The data sets of the paper, as their archives unpack.

COCO, VOC and NUS-WIDE have several labels per image. Textures and ImageNet-22K, which are
out-of-distribution for them, have class folders.
"""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio.errors import DatasetError
from nescio.lab.data.own import class_folders, images_under, split_of_classes
from nescio.lab.data.split import (
    HOW_TO,
    BadFile,
    Split,
    check_split,
    checked_presence,
    find_folder,
    names_in,
)

HALVES_SEED = 2021
"""Of the halves of a list that nescio makes itself."""

# --- MS-COCO --------------------------------------------------------------------------------------

_COCO = "MS-COCO"
_COCO_ANNOTATIONS = {"train": "instances_train", "val": "instances_val", "test": "image_info_test"}
COCO_SPLITS = tuple(_COCO_ANNOTATIONS)


def load_coco(root: str | Path, split: str, *, year: int = 2014, skip_bad: bool = False) -> Split:
    """Index MS-COCO.

    The labels are the categories of the annotation file, in the order of their ids: 80 in the
    official file, fewer in a smaller one. An image has a label if at least one object is annotated
    with it, either a single object or a crowd. Images without any annotation are kept with no
    label, because they belong to the official split.

    Parameters
    ----------
    root : path
        The folder that contains `annotations/`, `train2014/`, `val2014/` and `test2014/`.
    split : {"train", "val", "test"}
        The labels of "test" are not published, so its `labels` are None.
    year : {2014, 2017}
        The paper has 2014. The two split the same labelled images differently.
    """
    check_split("coco", split, COCO_SPLITS)
    root = Path(root)
    file = root / "annotations" / f"{_COCO_ANNOTATIONS[split]}{year}.json"
    find_folder(_COCO, file.parent)
    files, names, annotations = _parse_coco(file)
    labels = np.zeros((len(files), len(names)), np.uint8)
    row = {image: number for number, image in enumerate(files)}
    column = {category: number for number, category in enumerate(names)}
    for image, category in annotations:
        if image not in row or category not in column:
            what = f"category {category}" if image in row else f"image {image}"
            raise DatasetError(f"{file}: an annotation refers to {what}, which is not in the file.")
        labels[row[image], column[category]] = 1
    folder = find_folder(f"{_COCO} {split} images", root / f"{split}{year}")
    indexed = Split(
        dataset="coco" if year == 2014 else f"coco{year}",
        name=split,
        root=root,
        files=tuple(f"{folder.name}/{name}" for name in files.values()),
        labels=None if split == "test" else labels,
        label_names=tuple(names.values()),
    )
    return checked_presence(indexed, skip_bad=skip_bad)


def _parse_coco(file: Path) -> tuple[dict[int, str], dict[int, str], list[tuple[int, int]]]:
    """Return files by image id, names by category id, and the two ids of each annotation."""
    text = read_text(_COCO, file)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{file} is damaged: it is not JSON ({error}).") from error
    # image_info files have no annotations.
    content = {"annotations": [], **content} if isinstance(content, dict) else {}
    images = _coco_pairs(file, content, "images", "id", "file_name", str)
    categories = _coco_pairs(file, content, "categories", "id", "name", str)
    annotations = _coco_pairs(file, content, "annotations", "image_id", "category_id", int)
    files, names = dict(images), dict(categories)
    if len(files) != len(images) or len(set(names.values())) != len(categories):
        raise DatasetError(f"{file}: two images or categories have the same id or name.")
    return files, dict(sorted(names.items())), annotations


def _coco_pairs(
    file: Path, content: dict[str, Any], key: str, first: str, second: str, kind: type
) -> list[tuple[int, Any]]:
    """Return two fields of each entry of a list; the first is a whole number."""
    entries = content.get(key)
    if not isinstance(entries, list):
        raise DatasetError(f"{file} is not an MS-COCO annotation file: it has no list {key!r}.")
    pairs = []
    for number, entry in enumerate(entries):
        fields = entry if isinstance(entry, dict) else {}
        identifier, value = fields.get(first), fields.get(second)
        if not (isinstance(identifier, int) and isinstance(value, kind)):
            raise DatasetError(
                f"{file}: entry {number} of {key!r} must have {first!r} and {second!r}, got "
                f"{str(entry)[:80]}"
            )
        pairs.append((identifier, value))
    return pairs


# --- PASCAL-VOC 2012 ------------------------------------------------------------------------------

VOC_SPLITS = ("train", "val", "trainval", "test")
VOC_TRAINVAL_SPLITS = ("train", "val", "test")
VOC_LABELS = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip

_VOC = "PASCAL-VOC 2012"


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
    """
    check_split("voc", split, VOC_SPLITS)
    folders = (Path(root), Path(root) / "VOCdevkit" / "VOC2012", Path(root) / "VOC2012")
    lists = find_folder(_VOC, *(folder / "ImageSets" / "Main" for folder in folders))
    folder = lists.parents[1]
    if split == "test" and not (lists / "test.txt").is_file():
        raise DatasetError(
            f"{_VOC} test not found: no file {lists / 'test.txt'}. The test images need a "
            "registration. The benchmark voc-trainval (nescio bench voc-trainval) and the data set "
            f"voc-trainval do without them. {HOW_TO}"
        )
    images = read_lines(f"{_VOC} {split}", lists / f"{split}.txt")
    find_folder(f"{_VOC} images", folder / "JPEGImages")
    labels = None
    if split != "test":
        files = [lists / f"{name}_{split}.txt" for name in VOC_LABELS]
        values = ((path, _voc_values(path, images)) for path in files)
        labels = labels_from_lists(values, positive={"1", "0"}, negative={"-1"})  # 0 is difficult
    indexed = Split(
        dataset="voc",
        name=split,
        root=folder,
        files=tuple(f"JPEGImages/{image}.jpg" for image in images),
        labels=labels,
        label_names=VOC_LABELS,
    )
    return checked_presence(indexed, skip_bad=skip_bad)


def load_voc_trainval(root: str | Path, split: str, *, skip_bad: bool = False) -> Split:
    """Index PASCAL-VOC 2012 without its test images, which need a registration.

    "train" is the official list. The official val list is shuffled with
    `numpy.random.default_rng(HALVES_SEED)` and halved: "val" is the first half and "test" the
    second. The paper has other images, so the results cannot be compared with its numbers.

    The folder is that of `load_voc`.
    """
    check_split("voc-trainval", split, VOC_TRAINVAL_SPLITS)
    if split == "train":
        return replace(load_voc(root, "train", skip_bad=skip_bad), dataset="voc-trainval")
    whole = load_voc(root, "val", skip_bad=skip_bad)
    # All images of the list are halved, so that an image is in the same half for everyone.
    every = sorted({*whole.files, *(bad.file for bad in whole.skipped)})
    rng = np.random.default_rng(HALVES_SEED)
    rows = half(np.arange(len(every)), rng, first=split == "val")
    mine = {every[row] for row in rows}
    return replace(
        whole.subset([index for index, file in enumerate(whole.files) if file in mine]),
        dataset="voc-trainval",
        name=split,
        skipped=tuple(bad for bad in whole.skipped if bad.file in mine),
        notes={"halves_seed": HALVES_SEED},
    )


def _voc_values(path: Path, images: list[str]) -> list[str]:
    """Return the second column of a label's list; the first must be the images of the split."""
    rows = [line.split() for line in read_lines(_VOC, path)]
    for number, (row, image) in enumerate(itertools.zip_longest(rows, images), 1):
        if row is None or len(row) != 2 or row[0] != image:
            raise DatasetError(
                f"{path}, line {number}: expected the image {image} of the split's list and 1, 0 "
                f"or -1, got {' '.join(row or ())!r}. {HOW_TO}"
            )
    return [value for _, value in rows]


# --- NUS-WIDE -------------------------------------------------------------------------------------

NUS_WIDE_SPLITS = ("train", "val", "test", "authors-val", "authors-test")
NUS_AUTHORS_SEED = 999
NUS_AUTHORS_LIST = "nus_wide_test_imglist.txt"

_NUS = "NUS-WIDE"
# Line 78,372 of the official Labels_lake_Train.txt. It is not a label, so it is read as 0.
_NUS_SLIP = "-1130179"


def load_nus_wide(root: str | Path, split: str, *, skip_bad: bool = False) -> Split:
    """Index NUS-WIDE, with its 81 concepts as labels.

    Images without any label are dropped. The official Test list is shuffled with
    `numpy.random.default_rng(HALVES_SEED)` and halved: "val" is the first half and "test" the
    second. This is done before missing images are skipped, so that an image is in the same half
    for everyone.

    "authors-val" and "authors-test" are the halves of the authors' code. They depend on the order
    of the authors' own list of test images, so this list must be in the folder too.

    Parameters
    ----------
    root : path
        The folder that contains `Groundtruth/TrainTestLabels/`, `ImageList/` and `ConceptsList/`,
        as the official archives unpack. The images are in `Flickr/`, in `images/` or in the
        folder itself, in the folders of the list or all in one folder. For the authors' halves,
        it also contains `nus_wide_test_imglist.txt`, from datasets/nus-wide of their repository.
    split : {"train", "val", "test", "authors-val", "authors-test"}
        The official Train list, or one half of the Test list.
    skip_bad : bool, default False
        Different copies of NUS-WIDE lack different images.
    """
    check_split("nus-wide", split, NUS_WIDE_SPLITS)
    root = Path(root)
    part = "Train" if split == "train" else "Test"
    truth = find_folder(f"{_NUS} labels", root / "Groundtruth" / "TrainTestLabels")
    image_list = root / "ImageList" / f"{part}Imagelist.txt"
    listed = [_nus_path(line) for line in read_lines(f"{_NUS} image list", image_list)]
    image_root, images = _find_nus_images(root, listed)
    concepts = tuple(read_lines(_NUS, root / "ConceptsList" / "Concepts81.txt"))
    values = _nus_values(truth, part, concepts, len(images))
    labels = labels_from_lists(values, positive={"1"}, negative={"0", _NUS_SLIP})
    chosen = np.flatnonzero(labels.any(axis=1))
    notes = {}
    if split.startswith("authors-"):
        chosen = _nus_authors_half(root, images, chosen, first=split == "authors-val")
        notes = {"halves_seed": NUS_AUTHORS_SEED}
    elif split != "train":
        chosen = half(chosen, np.random.default_rng(HALVES_SEED), first=split == "val")
        notes = {"halves_seed": HALVES_SEED}
    indexed = Split(
        dataset="nus-wide",
        name=split,
        root=image_root,
        files=tuple(images[row] for row in chosen),
        labels=labels[chosen],
        label_names=concepts,
        notes=notes,
    )
    return checked_presence(indexed, skip_bad=skip_bad)


def _nus_path(line: str) -> str:
    """Return a path of the image lists, relative to the folder Flickr and with forward slashes."""
    return re.sub(r"^(.*/)?flickr/", "", line.replace("\\", "/"), flags=re.IGNORECASE)


def _nus_authors_half(
    root: Path, images: list[str], rows: NDArray[np.intp], *, first: bool
) -> NDArray[np.intp]:
    """Return the rows of a half as the authors' loader shuffles their list, with a fixed seed."""
    path = root / NUS_AUTHORS_LIST
    if not path.is_file():
        raise DatasetError(
            f"the authors' halves of {_NUS} need their list of test images: no file {path}. Copy "
            "it from datasets/nus-wide of deeplearning-wisc/multi-label-ood, or choose other "
            f'halves: nus_wide_halves = "nescio" in the benchmark\'s file. {HOW_TO}'
        )
    # File names are unique, and in a copy with all images in one folder they are all there is.
    row_of = {Path(images[row]).name: row for row in rows}
    names = [Path(_nus_path(line.split()[0])).name for line in read_lines(_NUS, path)]
    ordered = np.array([row_of[name] for name in names if name in row_of], dtype=np.intp)
    if not len(ordered):
        raise DatasetError(f"{path} names no image of the official Test list. {HOW_TO}")
    return half(ordered, np.random.RandomState(NUS_AUTHORS_SEED), first=first)


def _nus_values(
    truth: Path, part: str, concepts: tuple[str, ...], n_images: int
) -> Iterator[tuple[Path, list[str]]]:
    """Yield the file of each concept and its values, one per image."""
    for concept in concepts:
        path = truth / f"Labels_{concept}_{part}.txt"
        lines = read_lines(f"{_NUS} concept {concept!r}", path)
        if len(lines) != n_images:
            raise DatasetError(
                f"{path} has {len(lines):,} lines, but the list of images has {n_images:,}."
            )
        yield path, lines


def _find_nus_images(root: Path, listed: list[str]) -> tuple[Path, list[str]]:
    """Return the folder of the images and the paths in it: as listed, or without their folders."""
    flat = [image.rpartition("/")[2] for image in listed]
    candidates = [root / "Flickr", root / "images"]
    for folder in (*candidates, root):
        names = names_in(folder)
        if any(image.partition("/")[0] in names for image in listed):
            return folder, listed
        if any(image in names for image in flat):
            if len(set(flat)) < len(flat):
                raise DatasetError(
                    f"{folder} lacks the folders of the list, but some images in different folders "
                    f"have the same name. Unpack the folders too. {HOW_TO}"
                )
            return folder, flat
    return find_folder(f"{_NUS} images", *candidates), listed


# --- Textures and ImageNet-22K --------------------------------------------------------------------


def load_textures(root: str | Path, split: str = "", *, skip_bad: bool = False) -> Split:
    """Index all 5,640 images (47 classes) of the Describable Textures Dataset, as the paper does.

    Parameters
    ----------
    root : path
        The folder `dtd`, which contains `images/<class>/*.jpg`, or the folder that contains `dtd`.
    """
    check_split("textures", split, ())
    root = Path(root)
    images = find_folder("Textures (DTD)", root / "images", root / "dtd" / "images")
    files_of_class = class_folders(images)
    if not files_of_class:
        raise DatasetError(f"{images} contains no folders of images. {HOW_TO}")
    return split_of_classes("textures", "", images, files_of_class)


IMAGENET22K_SPLITS = ("coco-voc", "nus-wide")

_NOTES = {
    "coco-voc": "the published id of redwood, n12285512, is red alder in WordNet",
    "nus-wide": "the ids are not published; they were found by WordNet 3.0 names",
}


@cache
def imagenet22k_classes() -> dict[str, dict[str, str]]:
    """Return the WordNet id of each class, by its name, for each of `IMAGENET22K_SPLITS`."""
    return tomllib.loads((files(__package__) / "imagenet22k.toml").read_text("utf-8"))


def load_imagenet22k(root: str | Path, split: str, *, skip_bad: bool = False) -> Split:
    """Index twenty classes of ImageNet-22K: the paper's list for the in-distribution set.

    The labels are the class names, one per image. `Split.notes` has what to know about the ids.

    Parameters
    ----------
    root : path
        The folder that contains one folder per class, named by the WordNet id, as ImageNet's own
        archives are, or by the class name, with spaces or underscores.
    split : {"coco-voc", "nus-wide"}
        The list of classes.
    skip_bad : bool, default False
        Continue without classes whose folder is missing or empty, and list them in
        `Split.skipped`.
    """
    check_split("imagenet22k", split, IMAGENET22K_SPLITS)
    root = find_folder("ImageNet-22K", Path(root))
    files_of_class = {}
    skipped = []
    for name, wordnet_id in imagenet22k_classes()[split].items():
        folders = (wordnet_id, name, name.replace(" ", "_"))
        folder = next((folder for folder in folders if (root / folder).is_dir()), wordnet_id)
        images = [f"{folder}/{file}" for file in images_under(root / folder)]
        if images:
            files_of_class[name] = images
            continue
        reason = f"class {name} ({wordnet_id}): there are no images in {root / folder}"
        if not skip_bad:
            raise DatasetError(f"ImageNet-22K, {reason}. {HOW_TO}")
        skipped.append(BadFile(wordnet_id, reason))
    indexed = split_of_classes("imagenet22k", split, root, files_of_class)
    return replace(indexed, skipped=tuple(skipped), notes={"class_ids": _NOTES[split]})


# --- text files -----------------------------------------------------------------------------------


def read_text(what: str, path: Path) -> str:
    """Return the content of one of a data set's text files."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise DatasetError(f"{what} not found: no file {path}. {HOW_TO}") from error
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path} is damaged: it is not a text file in UTF-8.") from error
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror}.") from error


def read_lines(what: str, path: Path) -> list[str]:
    """Return the lines of a list; only the end of the file may have empty lines."""
    lines = [line.strip() for line in read_text(what, path).rstrip().splitlines()]
    if not lines:
        raise DatasetError(f"{path} is damaged: it is empty.")
    if "" in lines:
        raise DatasetError(f"{path}, line {lines.index('') + 1}: the line is empty.")
    return lines


def labels_from_lists(
    lists: Iterable[tuple[Path, Sequence[str]]], *, positive: set[str], negative: set[str]
) -> NDArray[np.uint8]:
    """Return multi-hot labels from one list per label: its file, and one value per image."""
    columns = []
    for path, values in lists:
        for number, value in enumerate(values, 1):
            if value not in positive and value not in negative:
                raise DatasetError(
                    f"{path}, line {number}: invalid label value {value!r}. Unpack the files again."
                )
        columns.append([value in positive for value in values])
    return np.array(columns, np.uint8).T


def half(
    rows: NDArray[np.intp], rng: np.random.Generator | np.random.RandomState, *, first: bool
) -> NDArray[np.intp]:
    """Return a random half of some rows, in their original order; the second is the larger."""
    shuffled = rng.permutation(rows)
    middle = len(rows) // 2
    return np.sort(shuffled[:middle] if first else shuffled[middle:])
