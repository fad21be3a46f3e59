"""The Describable Textures Dataset (DTD), as its archive unpacks."""

from __future__ import annotations

from pathlib import Path

from nescio.errors import DatasetError
from nescio.lab.data.folder import class_folders
from nescio.lab.data.split import HOW_TO, Split, check_split, find_folder, split_of_classes


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
