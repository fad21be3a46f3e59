"""The numbers of the paper's eight tables (Wang et al., NeurIPS 2021), as data.

The numbers are kept as printed. Some of them are unusual, besides those of `_REMARKS`:

- ODIN equals MaxLogit for MS-COCO and NUS-WIDE in Table 1, and for PASCAL-VOC and NUS-WIDE in
  Tables 4 and 6. This is expected if tuning chose no perturbation.
- In Table 8, NUS-WIDE has a worse FPR95 for the top 60 labels (49.03) than for the top 40 and for
  all (48.98). PASCAL-VOC has 20 labels, so it has "-" for 40 and 60.
- Table 3 prints in-distribution sets as rows and methods as columns; here it is as the others.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from nescio._validation import checked_choice


@dataclass(frozen=True)
class PaperCell:
    """One number of a table, or the text in its place."""

    row: str  # the method, as printed
    aggregation: str  # "sum" in the tables with a column for it, otherwise empty
    detector: str  # the same method in nescio, with parameters; empty if the paper has "N/A"
    id: str  # the in-distribution set
    ood: str
    measure: str  # "fpr" (at a TPR of 95 %), "auroc" or "aupr"
    text: str  # as printed: a number in per cent, "N/A" or "-"

    @property
    def value(self) -> float | None:
        """The number in per cent; None if there is none."""
        return None if self.text in ("N/A", "-") else float(self.text)


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper."""

    key: str  # a short name: "main", "ablation", "max-sum", ...
    number: str  # such as "Table 1"
    caption: str  # what the table shows, not in the paper's words
    cells: tuple[PaperCell, ...]  # row by row, with the measures of one set next to each other
    remark: str = ""  # on its numbers


_CAPTIONS = {
    "main": "JointEnergy and baselines; DenseNet-121, OOD data from ImageNet",
    "ablation": "Sums over labels in place of maxima; DenseNet-121, OOD data from ImageNet",
    "max-sum": "Maximum and sum of the labels' energies, AUROC; DenseNet-121, ImageNet",
    "resnet": "JointEnergy and baselines; ResNet-101, OOD data from ImageNet",
    "resnet-ablation": "Sums over labels in place of maxima; ResNet-101, OOD data from ImageNet",
    "texture": "JointEnergy and baselines; ResNet-101, OOD data from Textures",
    "texture-ablation": "Sums over labels in place of maxima; ResNet-101, OOD data from Textures",
    "topk": "JointEnergy of the k largest logits; DenseNet-121, OOD data from ImageNet",
}
"""In the paper's order: the first is Table 1."""

_REMARKS = {
    **dict.fromkeys(
        ("main", "resnet", "texture"), "ExpJointEnergy is commented out in the paper's source."
    ),
    "texture-ablation": "The paper's Logit, Prob and ODIN for MS-COCO and PASCAL-VOC are those of "
    "its Table 5, which is about another OOD set: probably a slip. An AUPR of 73.25 (Logit) does "
    "not fit its Table 6, where the nearly random Isolation Forest has 90.45.",
}


PAPER_MAPS = {
    "densenet121": {"MS-COCO": 0.7383, "PASCAL-VOC": 0.8751, "NUS-WIDE": 0.6022},
    "resnet101": {"MS-COCO": 0.7277, "PASCAL-VOC": 0.8773, "NUS-WIDE": 0.6147},
}
"""The mAP of the paper's networks by network and ID set; the split is not stated."""


PAPER_OOD_SIZES = {
    ("MS-COCO", "ImageNet"): 20_000,
    ("PASCAL-VOC", "ImageNet"): 20_000,
    ("NUS-WIDE", "ImageNet"): 9_300,
    **{(name, "Textures"): 5_640 for name in ("MS-COCO", "PASCAL-VOC", "NUS-WIDE")},
}
"""About how many images an OOD set has for an ID set.

The paper does not state it: the AUPR of its nearly random rows is the share of ID images.
"""


def size_remark(id_name: str, ood: str, n_images: int) -> str:
    """Return a remark if an OOD set is a fifth larger or smaller than the paper's; else empty."""
    theirs = PAPER_OOD_SIZES.get((id_name, ood), n_images)
    if abs(n_images - theirs) <= theirs / 5:
        return ""
    return (
        f"{ood} has {n_images:,} images for {id_name}, but the paper's numbers imply about "
        f"{theirs:,}. AUPR depends on this number: do not compare AUPR."
    )


@cache
def paper_tables() -> dict[str, PaperTable]:
    """Return the paper's tables by their key, in the paper's order.

    Examples
    --------
    >>> table = paper_tables()["topk"]
    >>> table.number, len(table.cells)
    ('Table 8', 63)
    """
    cells: dict[str, list[PaperCell]] = {key: [] for key in _CAPTIONS}
    text = (files(__package__) / "paper.csv").read_text("utf-8")
    for line in csv.DictReader(text.splitlines()):
        cells[line.pop("table")].append(PaperCell(text=line.pop("value"), **line))
    return {
        key: PaperTable(key, f"Table {number}", caption, tuple(cells[key]), _REMARKS.get(key, ""))
        for number, (key, caption) in enumerate(_CAPTIONS.items(), start=1)
    }


def find_paper_table(key: str) -> PaperTable:
    """Return a table by its key."""
    return paper_tables()[checked_choice("a table of the paper", key, tuple(_CAPTIONS))]
