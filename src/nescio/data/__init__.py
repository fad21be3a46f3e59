"""Image data sets: which images they have and which labels, without opening any image.

Every loader returns a `Split`, from the folder that the official download unpacks to. `load` finds
the loader by the address of a data set, such as `coco@val:/data/coco`. `nescio data list` prints
the kinds of data sets. See docs/how-to/datasets.md.
"""

from __future__ import annotations

from nescio.data.address import DATASETS, DataAddress, DataSource, load, parse_address
from nescio.data.check import Finding, ProtocolReport, check_protocol
from nescio.data.coco import load_coco
from nescio.data.corrupt import CORRUPTIONS, SYNTHETIC_SETS, corrupt
from nescio.data.damage import find_damaged
from nescio.data.digits import load_digits
from nescio.data.folder import load_folder
from nescio.data.imagenet22k import COCO_VOC_CLASSES, NUS_WIDE_CLASSES, load_imagenet22k
from nescio.data.images import IMAGE_SUFFIXES, check_image, content_hash, read_image
from nescio.data.nus_wide import load_nus_wide
from nescio.data.split import BadFile, Split
from nescio.data.table import load_table
from nescio.data.textures import load_textures
from nescio.data.voc import load_voc, load_voc_trainval

__all__ = [
    "COCO_VOC_CLASSES",
    "CORRUPTIONS",
    "DATASETS",
    "IMAGE_SUFFIXES",
    "NUS_WIDE_CLASSES",
    "SYNTHETIC_SETS",
    "BadFile",
    "DataAddress",
    "DataSource",
    "Finding",
    "ProtocolReport",
    "Split",
    "check_image",
    "check_protocol",
    "content_hash",
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
    "read_image",
]
