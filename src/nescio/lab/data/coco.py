"""MS-COCO 2014, as its archives unpack."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio.errors import DatasetError
from nescio.lab.data.split import Split, check_split, checked_presence, find_folder, read_text

SPLITS = ("train", "val", "test")
_ANNOTATIONS = {
    "train": "annotations/instances_train2014.json",
    "val": "annotations/instances_val2014.json",
    "test": "annotations/image_info_test2014.json",
}


def load_coco(root: str | Path, split: str, *, skip_bad: bool = False) -> Split:
    """Index MS-COCO 2014.

    The labels are the categories of the annotation file, in the order of their ids: 80 in the
    official file, fewer in a smaller one. An image has a label if at least one object is annotated
    with it, either a single object or a crowd. Images without any annotation are kept with no
    label, because they belong to the official split; `nescio data check` counts them.

    Parameters
    ----------
    root : path
        The folder that contains `annotations/`, `train2014/`, `val2014/` and `test2014/`.
    split : {"train", "val", "test"}
        The labels of "test" are not published, so its `labels` are None.
    skip_bad : bool, default False
        Continue without images that are missing, and list them in `Split.skipped`.
    """
    check_split("coco", split, SPLITS)
    root = Path(root)
    file = root / _ANNOTATIONS[split]
    find_folder("MS-COCO 2014", file.parent)
    files, names, annotations = _parse(file)
    folder = find_folder(f"MS-COCO 2014 {split} images", root / f"{split}2014")
    indexed = Split(
        dataset="coco",
        name=split,
        root=root,
        files=tuple(f"{folder.name}/{name}" for name in files.values()),
        labels=None if split == "test" else _multi_hot(file, files, names, annotations),
        label_names=tuple(names.values()),
    )
    return checked_presence(indexed, skip_bad=skip_bad)


def _parse(file: Path) -> tuple[dict[int, str], dict[int, str], list[tuple[int, int]]]:
    """Return files by image id, names by category id, and the two ids of each annotation."""
    try:
        content = json.loads(read_text("MS-COCO 2014", file))
    except (ValueError, RecursionError) as error:
        raise DatasetError(
            f"{file} is damaged: it is not JSON ({error}). Unpack it again."
        ) from error
    files = dict(_pairs(file, content, "images", "id", "file_name"))
    names = dict(sorted(_pairs(file, content, "categories", "id", "name")))
    n_images, n_names = len(content["images"]), len(content["categories"])
    if len(files) != n_images or len(set(names.values())) != n_names:
        raise DatasetError(f"{file}: two images or categories have the same id or name.")
    return files, names, list(_pairs(file, content, "annotations", "image_id", "category_id"))


def _pairs(
    file: Path, content: Mapping[str, Any], key: str, first: str, second: str
) -> Iterator[tuple[int, Any]]:
    """Yield two fields of every entry under a key of the annotation file."""
    entries = content.get(key) if isinstance(content, dict) else None
    if entries is None and key == "annotations":  # image_info files have none
        entries = []
    if not isinstance(entries, list):
        raise DatasetError(f"{file} is not an MS-COCO annotation file: it has no list {key!r}.")
    kind = str if second in ("file_name", "name") else int
    for number, entry in enumerate(entries):
        try:
            pair = entry[first], entry[second]
        except (KeyError, TypeError, IndexError):
            pair = (None, None)
        if not (isinstance(pair[0], int) and isinstance(pair[1], kind)):
            raise DatasetError(
                f"{file}: entry {number} of {key!r} must have {first!r} (a whole number) and "
                f"{second!r}, got {str(entry)[:80]}"
            )
        yield pair


def _multi_hot(
    file: Path,
    files: Iterable[int],
    names: Iterable[int],
    annotations: Iterable[tuple[int, int]],
) -> NDArray[np.uint8]:
    row = {image: index for index, image in enumerate(files)}
    column = {category: index for index, category in enumerate(names)}
    labels = np.zeros((len(row), len(column)), dtype=np.uint8)
    for image, category in annotations:
        if image not in row or category not in column:
            unknown = f"category {category}" if image in row else f"image {image}"
            raise DatasetError(
                f"{file}: an annotation refers to {unknown}, which is not in the file."
            )
        labels[row[image], column[category]] = 1
    return labels
