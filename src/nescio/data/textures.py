"""The Describable Textures Dataset (DTD), as its archive unpacks."""

from __future__ import annotations

from pathlib import Path

from nescio.data.folder import class_folders
from nescio.data.layout import HOW_TO, find_folder, refuse_split, split_of_classes
from nescio.data.split import Split
from nescio.errors import DatasetError


def load_textures(root: str | Path, split: str = "", *, skip_bad: bool = False) -> Split:
    """All images of the Describable Textures Dataset, as the paper uses it: 5,640 of 47 classes.

    Parameters
    ----------
    root : path
        The folder `dtd`, which holds `images/<class>/*.jpg`, or the one that holds `dtd`.
    split : ""
        The official lists of train, val and test are not used.
    skip_bad : bool, default False
        Taken for the sake of a common signature: every image is found by looking.
    """
    refuse_split("textures", split)
    root = Path(root)
    images = find_folder("Textures (DTD)", root / "images", root / "dtd" / "images")
    files_of_class = class_folders(images)
    if not files_of_class:
        raise DatasetError(f"{images} holds no folders of images. {HOW_TO}")
    return split_of_classes("textures", "", images, files_of_class)
