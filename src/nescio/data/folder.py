"""Any folder of class folders, or of images alone."""

from __future__ import annotations

from pathlib import Path

from nescio.data.layout import (
    HOW_TO,
    find_folder,
    images_under,
    is_image,
    refuse_split,
    split_of_classes,
)
from nescio.data.split import BadFile, Split
from nescio.errors import DatasetError


def load_folder(root: str | Path, split: str = "", *, skip_bad: bool = False) -> Split:
    """A folder of class folders: each image has one label, the folder it is in.

    Folders within a class folder belong to the class. Folders without an image are no classes.
    Images are told by the ending of their names; hidden and other files are left out. Classes and
    files are in alphabetical order. If there are images and no class folders, it is one set
    without labels. The data set's name is the folder's own.

    Parameters
    ----------
    root : path
        The folder.
    split : ""
        A folder is one part; name it by its path.
    skip_bad : bool, default False
        Go on without images that lie beside class folders; `Split.skipped` has them.
    """
    refuse_split("folder", split)
    root = find_folder("the folder of images", Path(root))
    name = root.resolve().name or "folder"
    loose = sorted(path.name for path in root.iterdir() if is_image(path.name) and path.is_file())
    files_of_class = class_folders(root)
    if not files_of_class:
        if not loose:
            raise DatasetError(f"{root} holds neither images nor folders of images. {HOW_TO}")
        return Split(name, "", root, tuple(loose), labels=None, label_names=None)
    if loose and not skip_bad:
        raise DatasetError(
            f"{root / loose[0]} lies beside class folders, so it is of no class ({len(loose):,} "
            "images are). Move it into one, or pass skip_bad=True (--skip-bad) to go on without."
        )
    skipped = tuple(BadFile(file, "in no class folder") for file in loose)
    return split_of_classes(name, "", root, files_of_class, skipped=skipped)


def class_folders(root: Path) -> dict[str, list[str]]:
    """The images of every folder in `root` that has some, relative to `root`."""
    folders = sorted(
        path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")
    )
    images = {folder.name: images_under(folder) for folder in folders}
    return {name: [f"{name}/{file}" for file in files] for name, files in images.items() if files}
