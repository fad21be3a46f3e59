"""The decision table of docs/how-to/which-detector.md, from the committed results.

    python benchmarks/detection/which_detector.py

Numbers are FPR95, as the mean over seeds and over the sets of a row. A row recommends the detector
with the lowest mean over `chosen_on`, of all detectors that were measured on all of these sets and
need no more than the row has. These are the sets of the row, or more of the same kind, where the
row alone has few. "Best in hindsight" is the detector with the lowest mean over the row's own sets.
"""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from dataclasses import dataclass
from statistics import mean

from claims import DEFAULT, FAR, ON_LOGITS, RESULTS, UNGUARDED, Results, read_results
from nescio.detectors import DETECTORS, build_detector, parse_detector

Sets = tuple[tuple[str, str], ...]  # what the model was trained on, and what it was shown

LOGITS = frozenset({"logits"})
FEATURES = LOGITS | {"features"}
LABELS = FEATURES | {"labels"}


def against(trained: str, *oods: str) -> Sets:
    """Return sets of one model."""
    return tuple((trained, ood) for ood in oods)


DIGITS_FAR = against("digits", "photos", "noise")
DIGITS = against("digits", "unseen digits") + DIGITS_FAR
LEFT_OUT = against("coco70", "left out")
COCO = FAR + LEFT_OUT
FAR_TEXT = against("packages", "docstrings", "german", "licences") + against(
    "docstrings", "german", "licences", "packages"
)
NEAR_TEXT = against("packages", "topics") + against("docstrings", "topics")
WORDS = against("packages", "words") + against("docstrings", "words")
BROKEN = ("columns", "independent", "noise", "units")
FAR_TABLES = against("patients", *BROKEN) + against("flights", *BROKEN)
NEAR_TABLES = against("patients", "group") + against("flights", "airlines", "season")
PREPARED = ("sensors", "counts", "digits table")  # the problems of tables.py
FAR_PREPARED = tuple(
    (problem, ood) for problem in PREPARED for ood in ("units", "shifted", "columns", "independent")
)
NEAR_PREPARED = tuple((problem, "group") for problem in PREPARED)
FEW_LABELS = DIGITS + FAR_TABLES + NEAR_TABLES + FAR_PREPARED + NEAR_PREPARED
MANY_LABELS = COCO + FAR_TEXT + NEAR_TEXT + WORDS


@dataclass(frozen=True)
class Row:
    """What a reader has, what to use, and the sets on which it was measured."""

    have: str
    reads: frozenset[str]
    use: str
    compared: tuple[str, ...]
    sets: Sets
    where: str
    more: Sets = ()

    @property
    def chosen_on(self) -> Sets:
        """The sets whose mean decides."""
        return self.sets + self.more

    def text(self, results: Results) -> str:
        """Return the row: the FPR95 of the detector, of the best in hindsight, and of others."""
        means = means_of(results, self.sets, self.reads)
        best = min(means, key=lambda name: means[name])
        rest = ", ".join(f"{shown(name)}: {means[name]:.1f}" for name in self.compared)
        same = f"{means[best]:.1f}" == f"{means[self.use]:.1f}"
        hindsight = "the same" if same else f"{shown(best)}: {means[best]:.1f}"
        n_sets = f"{len(self.sets)} sets" if len(self.sets) > 1 else "one set"
        return (
            f"| {self.have} | {shown(self.use)}: **{means[self.use]:.1f}** | {hindsight} | {rest}"
            f" | {self.where}: {n_sets} |"
        )


def shown(name: str) -> str:
    """Return a detector as the table names it."""
    return "the default" if name in (DEFAULT, ON_LOGITS) else f"`{name}`"


def means_of(results: Results, sets: Sets, reads: frozenset[str]) -> dict[str, float]:
    """Return the mean over sets of every detector that was measured on all, by name."""
    names = set.intersection(*(set(results[key]) for key in sets))
    return {
        name: mean(mean(results[key][name].values()) for key in sets)
        for name in sorted(names)
        if inputs_of(name) <= reads
    }


def inputs_of(name: str) -> set[str]:
    """Return what a detector learns from and scores from; "removed" if nescio has it no more.

    The default without its guard is measured to show what the guard costs; nobody should use it.
    """
    if parse_detector(name)[0] not in DETECTORS or name == UNGUARDED:
        return {"removed"}
    detector = build_detector(name.replace("k=mean_labels", "k=1"))
    return {*detector.learns_from, *detector.scores_from}


@functools.cache
def all_results() -> Results:
    """Return the results of claims.py, and those of tables.py on prepared columns."""
    result = read_results()
    cells: dict[tuple, list[float]] = defaultdict(list)
    for text in (RESULTS / "tables.jsonl").read_text("utf-8").splitlines():
        line = json.loads(text)
        problem = "digits table" if line["problem"] == "digits" else line["problem"]
        for detector, by_ood in line["fpr"].items():
            features, _, name = detector.partition(": ")
            if features in ("table", "logits"):
                for ood, value in by_ood.items():
                    cells[problem, ood, name, line["seed"]].append(100 * value)
    for (problem, ood, name, seed), values in cells.items():  # the mean over models
        result[problem, ood][name][seed] = mean(values)
    return result


ROWS = (
    Row(
        "logits, up to 20 labels",
        LOGITS,
        ON_LOGITS,
        ("joint_energy", "max_logit"),
        DIGITS + FAR_TABLES + NEAR_TABLES,
        "digit scenes, patients, flights",
    ),
    Row(
        "logits of images, more than 20 labels",
        LOGITS,
        "top_k_joint_energy(k=20)",
        (ON_LOGITS, "joint_energy", "max_logit"),
        COCO,
        "COCO-70",
        more=MANY_LABELS[len(COCO) :],
    ),
    Row(
        "images, features and labels; you do not know what to expect",
        LABELS,
        "combined",
        ("label_neighbours", "joint_energy"),
        COCO + DIGITS,
        "COCO-70, digit scenes",
    ),
    Row(
        "images, features and labels; another kind of image will come",
        LABELS,
        "label_neighbours",
        ("combined", "joint_energy"),
        FAR + DIGITS_FAR,
        "textures, objects, photos, noise",
    ),
    Row(
        "images, features without labels; another kind of image will come",
        FEATURES,
        "knn",
        ("vim", "joint_energy"),
        FAR + DIGITS_FAR,
        "textures, objects, photos, noise",
    ),
    Row(
        "images, features and labels; unknown things in familiar scenes",
        LABELS,
        "combined",
        ("joint_energy", "knn"),
        LEFT_OUT,
        "left-out labels",
        more=against("digits", "unseen digits"),
    ),
    Row(
        "texts; other languages, other kinds of text",
        LABELS,
        "mahalanobis(normalise=true)",
        ("knn", "label_neighbours", "combined"),
        FAR_TEXT,
        "German, licences, another kind",
    ),
    Row(
        "texts; new topics",
        LABELS,
        "label_neighbours",
        ("combined", "joint_energy"),
        NEAR_TEXT,
        "held-out topics",
    ),
    Row(
        "a table, prepared by `TableFeatures`; broken columns, other units",
        LABELS,
        "label_neighbours",
        ("knn", "combined"),
        FAR_PREPARED,
        "three tables",
        more=NEAR_PREPARED,
    ),
    Row(
        "a table, prepared by `TableFeatures`; a new group of the same kind",
        LABELS,
        "label_neighbours",
        ("combined", "joint_energy"),
        NEAR_PREPARED,
        "three tables",
        more=FAR_PREPARED,
    ),
    Row(
        "a table, only standardised",
        LABELS,
        "combined",
        ("vim", "knn"),
        FAR_TABLES + NEAR_TABLES,
        "patients, flights",
    ),
)


def table() -> str:
    """Return the table as Markdown."""
    results = all_results()
    heads = "| You have | Use: FPR95 ↓ | Best in hindsight | Others | Measured on |"
    return "\n".join([heads, "|---|---|---|---|---|", *(row.text(results) for row in ROWS)])


if __name__ == "__main__":
    print(table())
