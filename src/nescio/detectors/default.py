"""The detector to take if the user names none: the best that the given data allows."""

from __future__ import annotations

from typing import NamedTuple

from nescio.detectors.base import Detector
from nescio.detectors.combined import DEFAULT_PARTS, Combined
from nescio.detectors.label_scores import JointEnergy
from nescio.outputs import Outputs

AUTO = "auto"
"""In place of a detector's name: `default_detector` chooses."""

MIN_HELD_OUT = 400  # half of them make the p-values of the parts: a step of half a per cent


class Default(NamedTuple):
    """A detector, not fitted yet, and the sentence that says why it was chosen."""

    detector: Detector
    reason: str


def default_detector(
    train: Outputs | None = None,
    held_out: Outputs | None = None,
    *,
    tpr: float = 0.95,
    nonfinite: str = "raise",
) -> Default:
    """Return the combination of a logit score and a feature distance if it can be learned.

    Otherwise it is joint energy, which needs nothing but logits.

    Parameters
    ----------
    train : Outputs, optional
        The training outputs, which the combination learns from.
    held_out : Outputs, optional
        The data to calibrate on, if it is already there.
    tpr, nonfinite
        As for every detector.

    Examples
    --------
    >>> default_detector().detector
    JointEnergy()
    """
    few = train is not None and train.n_labels <= 5  # then the five largest are all labels
    parts = ("joint_energy", *DEFAULT_PARTS[1:]) if few else DEFAULT_PARTS
    combined = Combined(parts, tpr=tpr, nonfinite=nonfinite)
    if obstacle := _obstacle(combined, train, held_out):
        return Default(
            JointEnergy(tpr=tpr, nonfinite=nonfinite),
            "Chosen: joint energy, which reads the logits alone. A combination with features "
            f"separates better, but {obstacle}.",
        )
    return Default(
        combined,
        f"Chosen: a combination of {'joint energy' if few else 'the five largest label energies'} "
        "and the distance of the features to the training data (relative Mahalanobis).",
    )


def _obstacle(combined: Combined, train: Outputs | None, held_out: Outputs | None) -> str:
    """Return why the combination cannot be made of this data; nothing if it can."""
    if train is None:
        return "it needs training outputs (--train, fit) with features and labels"
    for what, outputs, names in (
        ("training outputs", train, combined.learns_from),
        ("held-out outputs", held_out, combined.scores_from),
    ):
        absent = [name for name in names if outputs is not None and outputs.get(name) is None]
        if absent:
            return f"the {what} have no {' and no '.join(absent)}"
    if held_out is not None and len(held_out) < MIN_HELD_OUT:
        return f"it needs {MIN_HELD_OUT} held-out samples, and there are {len(held_out):,}"
    return ""
