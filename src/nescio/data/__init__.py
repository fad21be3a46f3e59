"""Data sets of images: which there are and what they show, without opening any of them.

Every loader gives a `Split` from the folder that the official download unpacks to. A data set is
named by a short text, `KIND@SPLIT:PATH`:

>>> parse_spec("coco@val:/data/coco")
Spec(kind='coco', split='val', path='/data/coco')
>>> split_spec("coco:/data/coco", "train")
'coco@train:/data/coco'

`load` reads it, `nescio data list` prints the kinds there are. See docs/how-to/datasets.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from nescio.data import coco, digits, imagenet22k, nus_wide, voc
from nescio.data.check import Finding, ProtocolReport, check_protocol
from nescio.data.coco import load_coco
from nescio.data.corrupt import CORRUPTIONS, corrupt
from nescio.data.digits import load_digits
from nescio.data.folder import load_folder
from nescio.data.imagenet22k import COCO_VOC_CLASSES, NUS_WIDE_CLASSES, load_imagenet22k
from nescio.data.images import IMAGE_SUFFIXES, content_hash, read_image
from nescio.data.layout import check_split
from nescio.data.nus_wide import load_nus_wide
from nescio.data.split import BadFile, Split
from nescio.data.table import load_table
from nescio.data.textures import load_textures
from nescio.data.voc import load_voc
from nescio.errors import ParameterError

__all__ = [
    "COCO_VOC_CLASSES",
    "CORRUPTIONS",
    "DATASETS",
    "IMAGE_SUFFIXES",
    "NUS_WIDE_CLASSES",
    "BadFile",
    "DataSource",
    "Finding",
    "ProtocolReport",
    "Spec",
    "Split",
    "check_protocol",
    "content_hash",
    "corrupt",
    "load",
    "load_coco",
    "load_digits",
    "load_folder",
    "load_imagenet22k",
    "load_nus_wide",
    "load_table",
    "load_textures",
    "load_voc",
    "parse_spec",
    "read_image",
    "split_spec",
]


class Loader(Protocol):
    """What every loader can be called with."""

    def __call__(self, root: Path, split: str, /, *, skip_bad: bool) -> Split: ...


@dataclass(frozen=True)
class DataSource:
    """A kind of data set that can be loaded by name.

    Attributes
    ----------
    name : str
        What specs call it.
    load : callable
        `load(root, split, skip_bad=...)` gives a `Split`.
    splits : tuple of str, or None
        The parts it has; empty if it is only one, None if the data itself names them.
    what : str
        What it is, in one line.
    root_help : str
        What the path leads to.
    """

    name: str
    load: Loader
    splits: tuple[str, ...] | None
    what: str
    root_help: str

    def check_split(self, split: str) -> None:
        """Raise if there is no such part; the empty text stands for a set that is only one."""
        if self.splits is None or (not self.splits and not split):
            return
        if not self.splits:
            raise ParameterError(f"{self.name} has no splits, got {split!r}. Leave out the @.")
        if not split:
            raise ParameterError(
                f"{self.name} needs a split: {self.name}@SPLIT:PATH with one of "
                f"{', '.join(self.splits)}."
            )
        check_split(self.name, split, self.splits)


DATASETS: dict[str, DataSource] = {
    source.name: source
    for source in (
        DataSource(
            "coco",
            load_coco,
            coco.SPLITS,
            "MS-COCO 2014, 80 labels",
            "holds annotations/, train2014/, val2014/, test2014/",
        ),
        DataSource(
            "voc",
            load_voc,
            voc.SPLITS,
            "PASCAL-VOC 2012, 20 labels",
            "VOC2012, or a folder that holds it or VOCdevkit/VOC2012",
        ),
        DataSource(
            "nus-wide",
            load_nus_wide,
            nus_wide.SPLITS,
            "NUS-WIDE, 81 labels",
            "holds Groundtruth/, ImageList/, Flickr/",
        ),
        DataSource(
            "imagenet22k",
            load_imagenet22k,
            imagenet22k.SPLITS,
            "20 classes of ImageNet-22K, out of the distribution of the sets named",
            "holds a folder for each WordNet id or class name",
        ),
        DataSource(
            "textures",
            load_textures,
            (),
            "Describable Textures Dataset (DTD), 47 classes",
            "dtd, which holds images/, or the folder that holds dtd",
        ),
        DataSource(
            "folder",
            load_folder,
            (),
            "any images, by class folder or without labels",
            "holds class folders, or images alone",
        ),
        DataSource(
            "table",
            load_table,
            None,
            "your own multi-label set: paths and labels",
            "a .csv or .parquet file",
        ),
        DataSource(
            "digits",
            load_digits,
            digits.SPLITS,
            "scenes of handwritten digits, made at first use from scikit-learn's own data",
            "a folder for them, which need not be there yet",
        ),
    )
}
"""Every kind of data set, by the name that specs call it."""


@dataclass(frozen=True)
class Spec:
    """A data set named by `KIND@SPLIT:PATH`; the split may be empty."""

    kind: str
    split: str
    path: str

    def __str__(self) -> str:
        return f"{self.kind}@{self.split}:{self.path}" if self.split else f"{self.kind}:{self.path}"


def parse_spec(spec: str) -> Spec:
    """The parts of `KIND:PATH` or `KIND@SPLIT:PATH`; the kind must be one of `DATASETS`.

    Whether the kind has such a split, or needs one, is for `load` to say.
    """
    head, colon, path = spec.partition(":")
    kind, at, split = head.partition("@")
    if not colon or not path or (at and not split):
        raise ParameterError(
            f"cannot read the data set {spec!r}: expected KIND:PATH or KIND@SPLIT:PATH, such as "
            f"coco@val:/data/coco. KIND is one of {', '.join(DATASETS)}."
        )
    if kind not in DATASETS:
        raise ParameterError(
            f"there is no kind of data set {kind!r} (in {spec!r}). Choose from: "
            f"{', '.join(DATASETS)}. Any folder of images is folder:PATH."
        )
    return Spec(kind, split, path)


def split_spec(spec: str, split: str) -> str:
    """The same data set's other part: `split` takes the place of the spec's own, if any."""
    changed = replace(parse_spec(spec), split=split)
    DATASETS[changed.kind].check_split(split)
    return str(changed)


def load(spec: str, *, split: str | None = None, skip_bad: bool = False) -> Split:
    """Index a data set by its spec.

    Parameters
    ----------
    spec : str
        `KIND:PATH` or `KIND@SPLIT:PATH`, such as "textures:/data/dtd" or "coco@val:/data/coco".
        A `~` at the start of the path is your home folder.
    split : str, optional
        Takes the place of the spec's own split.
    skip_bad : bool, default False
        Go on without files that cannot be used; `Split.skipped` has them.
    """
    wanted = parse_spec(spec if split is None else split_spec(spec, split))
    source = DATASETS[wanted.kind]
    source.check_split(wanted.split)
    return source.load(Path(wanted.path).expanduser(), wanted.split, skip_bad=skip_bad)
