"""Image data sets: which images they have and which labels, without opening any image.

Every loader returns a `Split`, from the folder that the official download unpacks to. `load` finds
the loader by the address of a data set, such as `coco@val:/data/coco`. `nescio data list` prints
the kinds of data sets. See docs/how-to/datasets.md.
"""

from __future__ import annotations

from nescio.lab.data.address import DATASETS, DataAddress, DataSource, load, parse_address
from nescio.lab.data.check import (
    Finding,
    ProtocolReport,
    check_protocol,
    find_damaged,
    without_damaged,
)
from nescio.lab.data.coco import load_coco
from nescio.lab.data.corrupt import CORRUPTIONS, SYNTHETIC_SETS, corrupt
from nescio.lab.data.digits import load_digits
from nescio.lab.data.folder import load_folder, load_textures
from nescio.lab.data.imagenet22k import COCO_VOC_CLASSES, NUS_WIDE_CLASSES, load_imagenet22k
from nescio.lab.data.nus_wide import load_nus_wide
from nescio.lab.data.split import BadFile, Split
from nescio.lab.data.table import load_table
from nescio.lab.data.voc import load_voc, load_voc_trainval

__all__ = [
    "COCO_VOC_CLASSES",
    "CORRUPTIONS",
    "DATASETS",
    "NUS_WIDE_CLASSES",
    "SYNTHETIC_SETS",
    "BadFile",
    "DataAddress",
    "DataSource",
    "Finding",
    "ProtocolReport",
    "Split",
    "check_protocol",
    "corrupt",
    "find_damaged",
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
    "without_damaged",
]
