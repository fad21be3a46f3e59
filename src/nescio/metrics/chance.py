"""Results that are worse than chance: which they are, and what the usual causes are."""

from __future__ import annotations

from collections.abc import Sequence

_NEARLY_ALL = 0.8  # of the detectors: then the data is the likely cause, and not the detectors
_SIGN = "(a higher score must mean more in-distribution)"

WORSE = (
    "Worse than chance: OOD samples tend to have higher scores than ID samples. Usual causes: the "
    f"ID and the OOD data are swapped, the logits or the scores have the wrong sign {_SIGN}, or "
    "the detector fails on this data."
)
UNSURE = (
    "No better than chance: the AUROC is below 50, but by no more than chance explains in a "
    "sample of this size."
)


def points_at_data(n_worse: int, n_detectors: int) -> bool:
    """Whether so many detectors are worse than chance that the data is the likely cause."""
    return n_worse > 0 and n_worse >= _NEARLY_ALL * n_detectors


def chance_note(worse: Sequence[str], unsure: Sequence[str], n_detectors: int) -> str:
    """Return a sentence about the detectors that are worse than chance on one OOD set.

    Parameters
    ----------
    worse : sequence of str
        The detectors that are clearly worse than chance.
    unsure : sequence of str
        The other detectors with an AUROC below 50 %.
    n_detectors : int
        The number of all detectors.
    """
    if n_detectors > 1 and points_at_data(len(worse), n_detectors):
        who = "all" if len(worse) == n_detectors else f"{len(worse)} of"
        return (
            f"Worse than chance (AUROC below 50): {who} {n_detectors} detectors. The likely cause: "
            f"the ID and the OOD data are swapped, or the logits have the wrong sign {_SIGN}."
        )
    notes = []
    if worse and n_detectors == 1:
        notes.append(WORSE)
    elif worse:
        fail, their = ("It fails", "its") if len(worse) == 1 else ("They fail", "their")
        notes.append(
            f"Worse than chance (AUROC below 50): {', '.join(worse)}. {fail} on this data, or "
            f"{their} scores have the wrong sign {_SIGN}."
        )
    if unsure:
        notes.append(
            f"No better than chance: {', '.join(unsure)} (AUROC below 50, but by no more than "
            "chance explains in a sample of this size)."
        )
    return " ".join(notes)
