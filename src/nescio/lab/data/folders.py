"""Folders of class folders: any folder, the Describable Textures Dataset, and ImageNet-22K."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from nescio.errors import DatasetError
from nescio.lab.data.split import HOW_TO, BadFile, Split, check_split, find_folder
from nescio.models.images import IMAGE_SUFFIXES


def load_folder(root: str | Path, split: str = "", *, skip_bad: bool = False) -> Split:
    """Index a folder of class folders: each image has one label, the name of its class folder.

    Folders inside a class folder belong to the class. A folder without images is not a class.
    Images are recognised by their suffix; hidden files and other files are ignored. Classes and
    files are in alphabetical order. If there are images but no class folders, the split has no
    labels. The name of the data set is the name of the folder.

    Parameters
    ----------
    root : path
        The folder.
    split : ""
        Must be empty: a folder has no splits.
    skip_bad : bool, default False
        Continue without images that are beside the class folders, and list them in
        `Split.skipped`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("anchor", "lobster"):
    ...         (Path(folder) / name).mkdir()
    ...         (Path(folder) / name / "1.jpg").touch()  # images are not opened
    ...     split = load_folder(folder)
    >>> split.files, split.label_names
    (('anchor/1.jpg', 'lobster/1.jpg'), ('anchor', 'lobster'))
    """
    check_split("folder", split, ())
    root = find_folder("the folder of images", Path(root))
    name = root.resolve().name or "folder"
    loose = sorted(path.name for path in root.iterdir() if is_image(path.name) and path.is_file())
    files_of_class = class_folders(root)
    if not files_of_class:
        if not loose:
            raise DatasetError(f"{root} contains neither images nor folders of images. {HOW_TO}")
        return Split(name, "", root, tuple(loose), labels=None, label_names=None)
    if loose and not skip_bad:
        raise DatasetError(
            f"{root / loose[0]} is beside the class folders, so it has no class ({len(loose):,} "
            "such images). Move it into a class folder, or pass skip_bad=True to "
            "continue without it."
        )
    skipped = tuple(BadFile(file, "in no class folder") for file in loose)
    return split_of_classes(name, "", root, files_of_class, skipped=skipped)


def load_textures(root: str | Path, split: str = "", *, skip_bad: bool = False) -> Split:
    """Index all 5,640 images (47 classes) of the Describable Textures Dataset, as the paper does.

    Parameters
    ----------
    root : path
        The folder `dtd`, which contains `images/<class>/*.jpg`, or the folder that contains `dtd`.
    split : ""
        Must be empty: the official lists of train, val and test are not used.
    skip_bad : bool, default False
        Has no effect; every loader takes it.
    """
    check_split("textures", split, ())
    root = Path(root)
    images = find_folder("Textures (DTD)", root / "images", root / "dtd" / "images")
    files_of_class = class_folders(images)
    if not files_of_class:
        raise DatasetError(f"{images} contains no folders of images. {HOW_TO}")
    return split_of_classes("textures", "", images, files_of_class)


def class_folders(root: Path) -> dict[str, list[str]]:
    """Return the images of every folder in `root` that has any, relative to `root`."""
    folders = sorted(
        path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")
    )
    images = {folder.name: images_under(folder) for folder in folders}
    return {name: [f"{name}/{file}" for file in files] for name, files in images.items() if files}


def images_under(folder: Path) -> list[str]:
    """Return all images below a folder, sorted and relative to it; hidden files are ignored."""
    images = []
    for where, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        inside = Path(where).relative_to(folder)
        images += [(inside / name).as_posix() for name in files if is_image(name)]
    return sorted(images)


def is_image(name: str) -> bool:
    """Whether a file name has the suffix of an image; hidden files do not count."""
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def split_of_classes(
    dataset: str,
    name: str,
    root: Path,
    files_of_class: Mapping[str, Sequence[str]],
    *,
    skipped: tuple[BadFile, ...] = (),
    notes: Mapping[str, str] | None = None,
) -> Split:
    """Return a split in which each image has one label: its class."""
    counts = [len(files) for files in files_of_class.values()]
    of_image = np.repeat(np.arange(len(counts)), counts)
    return Split(
        dataset=dataset,
        name=name,
        root=root,
        files=tuple(file for files in files_of_class.values() for file in files),
        labels=np.eye(len(counts), dtype=np.uint8)[of_image],
        label_names=tuple(files_of_class),
        skipped=skipped,
        notes=notes or {},
    )


# --- ImageNet-22K ---------------------------------------------------------------------------------

COCO_VOC_CLASSES = {
    "dolphin": "n02069412",
    "deer": "n02431122",
    "bat": "n02139199",
    "rhino": "n02392434",
    "raccoon": "n02508213",
    "octopus": "n01970164",
    "giant clam": "n01959492",
    "leech": "n01937909",
    "venus flytrap": "n12782915",
    "cherry tree": "n12641413",
    "Japanese cherry": "n12649317",
    "redwood": "n12285512",
    "sunflower": "n11978713",
    "croissant": "n07691650",
    "stick cinnamon": "n07814390",
    "cotton": "n12176953",
    "rice": "n12126084",
    "sugar cane": "n12132956",
    "bamboo": "n12147226",
    "turmeric": "n12356395",
}
"""Classes that MS-COCO and PASCAL-VOC do not have: name to WordNet id, as published."""

NUS_WIDE_CLASSES = {
    "asterism": "n09208496",
    "battery": "n02810471",
    "cave": "n09238926",
    "cylinder": "n03156279",
    "delta": "n09264803",
    "fabric": "n03309808",
    "filament": "n03336575",
    "fire bell": "n03344305",
    "hornet nest": "n09475044",
    "kazoo": "n03609397",
    "lichen": "n12987056",
    "naval equipment": "n03811847",
    "newspaper": "n03822171",
    "paperclip": "n03886762",
    "pythium": "n12982468",
    "satellite": "n04137444",
    "thumb": "n04430896",
    "x-ray tube": "n04609811",
    "yeast": "n13025647",
    "zither": "n04615226",
}
"""Classes that NUS-WIDE does not have: name to WordNet id, found by WordNet 3.0 names."""

CLASS_LISTS = {"coco-voc": COCO_VOC_CLASSES, "nus-wide": NUS_WIDE_CLASSES}
IMAGENET22K_SPLITS = tuple(CLASS_LISTS)

_NOTES = {
    "coco-voc": "the published id of redwood, n12285512, is red alder in WordNet",
    "nus-wide": "the ids are not published; they were found by WordNet 3.0 names",
}


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
    for name, wordnet_id in CLASS_LISTS[split].items():
        folder = _class_folder(root, name, wordnet_id)
        files = [f"{folder}/{file}" for file in images_under(root / folder)]
        if files:
            files_of_class[name] = files
            continue
        reason = f"class {name} ({wordnet_id}): there are no images in {root / folder}"
        if not skip_bad:
            raise DatasetError(f"ImageNet-22K, {reason}. {HOW_TO}")
        skipped.append(BadFile(wordnet_id, reason))
    return split_of_classes(
        "imagenet22k",
        split,
        root,
        files_of_class,
        skipped=tuple(skipped),
        notes={"class_ids": _NOTES[split]},
    )


def _class_folder(root: Path, name: str, wordnet_id: str) -> str:
    """Return the name of a class's folder; the WordNet id if there is no folder."""
    names = (wordnet_id, name, name.replace(" ", "_"))
    return next((folder for folder in names if (root / folder).is_dir()), wordnet_id)
