"""The ImageNet-22K classes that the paper uses as out-of-distribution data."""

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
    split_of_classes,
)

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
SPLITS = tuple(CLASS_LISTS)

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
    check_split("imagenet22k", split, SPLITS)
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
