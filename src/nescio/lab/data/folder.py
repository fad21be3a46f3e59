"""Folders of class folders: any folder, and the Describable Textures Dataset (DTD)."""

from __future__ import annotations

from pathlib import Path

from nescio.errors import DatasetError
from nescio.lab.data.split import (
    HOW_TO,
    BadFile,
    Split,
    check_split,
    find_folder,
    images_under,
    is_image,
    split_of_classes,
)


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
