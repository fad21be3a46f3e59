"""NUS-WIDE, from the official lists and label files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nescio.errors import DatasetError
from nescio.lab.data.split import (
    HOW_TO,
    Split,
    check_split,
    checked_presence,
    find_folder,
    half,
    labels_from_lists,
    names_in,
    read_lines,
)

SPLITS = ("train", "val", "test", "authors-val", "authors-test")
HALVES_SEED = 2021
AUTHORS_SEED = 999
AUTHORS_LIST = "nus_wide_test_imglist.txt"

_WHAT = "NUS-WIDE"
_OFFICIAL_PART = {name: "Train" if name == "train" else "Test" for name in SPLITS}
_IMAGE_FOLDERS = ("Flickr", "images")
# Line 78,372 of the official Labels_lake_Train.txt. It is not a label, so it is read as 0.
_KNOWN_SLIP = "-1130179"


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
        Continue without images that are missing, and list them in `Split.skipped`. Different copies
        of NUS-WIDE lack different images.
    """
    check_split("nus-wide", split, SPLITS)
    root = Path(root)
    part = _OFFICIAL_PART[split]
    truth = find_folder(f"{_WHAT} labels", root / "Groundtruth" / "TrainTestLabels")
    image_list = root / "ImageList" / f"{part}Imagelist.txt"
    listed = [_relative(line) for line in read_lines(f"{_WHAT} image list", image_list)]
    image_root, images = _find_images(root, listed)
    concepts = tuple(read_lines(_WHAT, root / "ConceptsList" / "Concepts81.txt"))
    labels = labels_from_lists(
        _read_values(truth, part, concepts, len(images)),
        positive={"1"},
        negative={"0", _KNOWN_SLIP},
    )
    chosen = np.flatnonzero(labels.any(axis=1))
    notes = {}
    if split.startswith("authors-"):
        chosen, notes = _authors_half(root, images, chosen, split), {"halves_seed": AUTHORS_SEED}
    elif split != "train":
        chosen = half(chosen, HALVES_SEED, first=split == "val")
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


def _relative(line: str) -> str:
    """Return a path of the image lists, relative to the folder Flickr and with forward slashes."""
    return re.sub(r"^(.*/)?flickr/", "", line.replace("\\", "/"), flags=re.IGNORECASE)


def _authors_half(
    root: Path, images: list[str], rows: NDArray[np.intp], split: str
) -> NDArray[np.intp]:
    """Return the rows of a half as the authors' loader shuffles their list, with a fixed seed."""
    path = root / AUTHORS_LIST
    if not path.is_file():
        raise DatasetError(
            f"the authors' halves of {_WHAT} need the authors' list of test images: no file "
            f"{path}. Copy it from datasets/nus-wide of their repository, "
            "deeplearning-wisc/multi-label-ood, or choose other halves: nus_wide_halves = "
            f'"nescio" in the benchmark\'s file. {HOW_TO}'
        )
    listed = read_lines(_WHAT, path)
    # File names are unique, and in a copy with all images in one folder they are all there is.
    row_of = {Path(images[row]).name: row for row in rows}
    names = [Path(_relative(line.split()[0])).name for line in listed]
    ordered = np.array([row_of[name] for name in names if name in row_of], dtype=np.intp)
    if not len(ordered):
        raise DatasetError(f"{path} names no image of the official Test list. {HOW_TO}")
    shuffled = np.random.RandomState(AUTHORS_SEED).permutation(ordered)
    middle = len(ordered) // 2
    return np.sort(shuffled[:middle] if split == "authors-val" else shuffled[middle:])


def _read_values(
    truth: Path, part: str, concepts: tuple[str, ...], n_images: int
) -> Iterator[tuple[Path, list[str]]]:
    """Yield the file of each concept and its values, one per image."""
    for concept in concepts:
        path = truth / f"Labels_{concept}_{part}.txt"
        lines = read_lines(f"{_WHAT} concept {concept!r}", path)
        if len(lines) != n_images:
            raise DatasetError(
                f"{path} has {len(lines):,} lines, but the list of images has {n_images:,}."
            )
        yield path, lines


def _find_images(root: Path, listed: list[str]) -> tuple[Path, list[str]]:
    """Return the folder of the images and the paths in it: as listed, or without their folders."""
    flat = [image.rpartition("/")[2] for image in listed]
    candidates = [root / name for name in _IMAGE_FOLDERS]
    for folder in (*candidates, root):
        names = names_in(folder)
        if any(image.partition("/")[0] in names for image in listed):
            return folder, listed
        if any(image in names for image in flat):
            if len(set(flat)) < len(flat):
                raise DatasetError(
                    f"{folder} has images without the folders of the list, but some images in "
                    f"different folders have the same name. Unpack the folders too. {HOW_TO}"
                )
            return folder, flat
    return find_folder(f"{_WHAT} images", *candidates), listed
