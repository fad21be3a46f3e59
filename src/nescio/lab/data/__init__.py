"""Image data sets: which images they have and which labels, without opening any image.

Every loader returns a `Split`, from the folder that the official download unpacks to. `load` finds
the loader by the address of a data set: `KIND:PATH`, or `KIND@SPLIT:PATH` for one part of it, such
as `coco@val:/data/coco`. `nescio datasets` prints the kinds. See docs/how-to/datasets.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from nescio.errors import ParameterError
from nescio.lab.data.corruptions import CORRUPTIONS, SYNTHETIC_SETS
from nescio.lab.data.digits import SPLITS as DIGITS_SPLITS, load_digits
from nescio.lab.data.own import load_folder, load_table
from nescio.lab.data.published import (
    COCO_SPLITS,
    IMAGENET22K_SPLITS,
    NUS_WIDE_SPLITS,
    VOC_SPLITS,
    VOC_TRAINVAL_SPLITS,
    imagenet22k_classes,
    load_coco,
    load_imagenet22k,
    load_nus_wide,
    load_textures,
    load_voc,
    load_voc_trainval,
)
from nescio.lab.data.split import BadFile, Split, check_split, find_damaged

__all__ = [
    "CORRUPTIONS",
    "DATASETS",
    "SYNTHETIC_SETS",
    "BadFile",
    "DataAddress",
    "DataSource",
    "Split",
    "find_damaged",
    "imagenet22k_classes",
    "load",
    "load_coco",
    "load_digits",
    "load_folder",
    "load_imagenet22k",
    "load_nus_wide",
    "load_table",
    "load_textures",
    "load_voc",
    "load_voc_trainval",
    "parse_address",
]


@dataclass(frozen=True)
class DataSource:
    """A kind of data set."""

    load: Callable[..., Split]  # `load(root, split, skip_bad=...)`
    splits: tuple[str, ...] | None  # empty if it has none, None if the data itself names them
    what: str  # what it is, in one line
    root_help: str  # what the path of an address points to


DATASETS = {
    "coco": DataSource(
        load_coco,
        COCO_SPLITS,
        "MS-COCO 2014, 80 labels",
        "contains annotations/, train2014/, val2014/, test2014/",
    ),
    "coco2017": DataSource(
        partial(load_coco, year=2017),
        COCO_SPLITS,
        "MS-COCO 2017: other splits of the labelled images of 2014, 80 labels",
        "contains annotations/, train2017/, val2017/, test2017/",
    ),
    "voc": DataSource(
        load_voc,
        VOC_SPLITS,
        "PASCAL-VOC 2012, 20 labels",
        "VOC2012, or a folder that contains VOC2012 or VOCdevkit/VOC2012",
    ),
    "voc-trainval": DataSource(
        load_voc_trainval,
        VOC_TRAINVAL_SPLITS,
        "PASCAL-VOC 2012 without its test images: val and test are the halves of its val",
        "as for voc",
    ),
    "nus-wide": DataSource(
        load_nus_wide,
        NUS_WIDE_SPLITS,
        "NUS-WIDE, 81 labels",
        "contains Groundtruth/, ImageList/, ConceptsList/, Flickr/",
    ),
    "imagenet22k": DataSource(
        load_imagenet22k,
        IMAGENET22K_SPLITS,
        "20 classes of ImageNet-22K, out-of-distribution for the sets named by the split",
        "contains one folder per WordNet id or class name",
    ),
    "textures": DataSource(
        load_textures,
        (),
        "Describable Textures Dataset (DTD), 47 classes",
        "dtd, which contains images/, or the folder that contains dtd",
    ),
    "folder": DataSource(
        load_folder,
        (),
        "any images, in class folders or without labels",
        "contains class folders, or only images",
    ),
    "table": DataSource(
        load_table,
        None,
        "your own multi-label set: a table of paths and labels",
        "a .csv or .parquet file",
    ),
    "digits": DataSource(
        load_digits,
        DIGITS_SPLITS,
        "scenes of handwritten digits, made at first use from scikit-learn's own data",
        "a folder for the scenes, which need not exist yet",
    ),
}
"""Every kind of data set, by the KIND of its addresses."""


@dataclass(frozen=True)
class DataAddress:
    """The parts of `KIND@SPLIT:PATH`; the split may be empty."""

    kind: str
    split: str
    path: str

    def __str__(self) -> str:
        return f"{self.kind}@{self.split}:{self.path}" if self.split else f"{self.kind}:{self.path}"

    def with_split(self, split: str) -> DataAddress:
        """Return the address of another split of the same data set; raise if it has no such."""
        splits = DATASETS[self.kind].splits
        if splits is not None:
            check_split(self.kind, split, splits)
        return replace(self, split=split)


def parse_address(text: str) -> DataAddress:
    """Return the parts of `KIND:PATH` or `KIND@SPLIT:PATH`; the kind must be one of `DATASETS`.

    `load` checks whether the kind has such a split, or needs one.

    Examples
    --------
    >>> parse_address("coco@val:/data/coco")
    DataAddress(kind='coco', split='val', path='/data/coco')
    >>> str(parse_address("coco:/data/coco").with_split("train"))
    'coco@train:/data/coco'
    """
    head, colon, path = text.partition(":")
    kind, sign, split = head.partition("@")
    if not colon or not path or (sign and not split):
        raise ParameterError(
            f"cannot read the data address {text!r}: expected KIND:PATH or KIND@SPLIT:PATH, such "
            f"as coco@val:/data/coco. KIND is one of {', '.join(DATASETS)}."
        )
    if kind not in DATASETS:
        raise ParameterError(
            f"there is no kind of data set {kind!r} (in {text!r}). Choose from: "
            f"{', '.join(DATASETS)}. Any folder of images is folder:PATH."
        )
    return DataAddress(kind, split, path)


def load(address: str, *, split: str | None = None, skip_bad: bool = False) -> Split:
    """Index the images of a data set, without opening any of them.

    Parameters
    ----------
    address : str
        `KIND:PATH` or `KIND@SPLIT:PATH`, such as "textures:/data/dtd" or "coco@val:/data/coco".
        A `~` at the start of the path is your home folder.
    split : str, optional
        Replaces the split of the address.
    skip_bad : bool, default False
        Continue without files that cannot be used, and list them in `Split.skipped`.
    """
    parsed = parse_address(address)
    wanted = parsed.with_split(parsed.split if split is None else split)
    path = Path(wanted.path).expanduser()
    return DATASETS[wanted.kind].load(path, wanted.split, skip_bad=skip_bad)
