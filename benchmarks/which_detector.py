"""The decision table of docs/how-to/which-detector.md, from the committed results.

    python benchmarks/which_detector.py

Each row compares the FPR95 of what it recommends with what one would take otherwise, as the mean
over seeds and over the named sets.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean

from claims import FAR, Results, read_results

NEAR_IMAGES = (("coco70", "left out"),)
DIGITS = (("digits", "unseen digits"),)
FAR_TEXT = tuple(
    (trained, ood)
    for trained, others in (
        ("packages", ("docstrings", "german", "licences")),
        ("docstrings", ("german", "licences", "packages")),
    )
    for ood in others
)
NEAR_TEXT = (("packages", "topics"), ("docstrings", "topics"))
FAR_TABLES = tuple(
    (trained, ood)
    for trained in ("patients", "flights")
    for ood in ("columns", "independent", "noise", "units")
)
NEAR_TABLES = (("patients", "group"), ("flights", "airlines"), ("flights", "season"))
TOP_20 = "top_k_joint_energy(k=20)"


@dataclass(frozen=True)
class Row:
    """What a reader has, what to use, and the sets on which it is compared with others."""

    have: str
    use: str
    others: tuple[str, ...]
    sets: tuple[tuple[str, str], ...]
    where: str

    def text(self, results: Results) -> str:
        """Return the row: the FPR95 of the detector and of the others."""
        values = {
            name: mean(mean(results[key][name].values()) for key in self.sets)
            for name in (self.use, *self.others)
        }
        others = ", ".join(f"`{name}`: {values[name]:.1f}" for name in self.others)
        return (
            f"| {self.have} | `{self.use}` | **{values[self.use]:.1f}**; {others} | {self.where} |"
        )


ROWS = (
    Row("logits, up to 20 labels", "joint_energy", ("max_logit",), FAR, "textures and objects"),
    Row("logits, more than 20 labels", TOP_20, ("joint_energy",), FAR, "textures and objects"),
    Row(
        "logits; unknown things look like several labels at once",
        "max_logit",
        ("joint_energy",),
        DIGITS,
        "unseen digits",
    ),
    Row(
        "features and labels, no idea what will come",
        "combined",
        ("joint_energy", "label_neighbours"),
        FAR + NEAR_IMAGES,
        "textures, objects, left-out labels",
    ),
    Row(
        "features and labels; another kind of image will come",
        "label_neighbours",
        ("combined", "joint_energy"),
        FAR,
        "textures and objects",
    ),
    Row(
        "features without labels; another kind of image will come",
        "knn",
        ("joint_energy", "vim"),
        FAR,
        "textures and objects",
    ),
    Row(
        "features and labels; unknown things in familiar scenes",
        "linear_probe",
        ("combined", "joint_energy", "knn"),
        NEAR_IMAGES,
        "left-out labels",
    ),
    Row(
        "text: other languages, other kinds of text",
        "knn",
        ("label_neighbours", "combined", "joint_energy"),
        FAR_TEXT,
        "six sets of texts",
    ),
    Row(
        "text: new topics",
        "label_neighbours",
        ("combined", "joint_energy", "knn"),
        NEAR_TEXT,
        "held-out topics",
    ),
    Row(
        "a table: broken columns, other units, noise",
        "knn",
        ("label_neighbours", "combined", "joint_energy"),
        FAR_TABLES,
        "eight sets of rows",
    ),
    Row(
        "a table: a new group of the same kind",
        "knn",
        ("combined", "joint_energy"),
        NEAR_TABLES,
        "groups, airlines, seasons",
    ),
)


def table() -> str:
    """Return the table as Markdown."""
    results = read_results()
    head = "| You have | Use | FPR95 of it, and of others ↓ | Measured on |\n|---|---|---|---|"
    return "\n".join([head, *(row.text(results) for row in ROWS)])


if __name__ == "__main__":
    print(table())
