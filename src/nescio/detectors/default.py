"""The detector to take if the user names none: the best that the given data allows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nescio.detectors.base import Detector
from nescio.detectors.combined import Combined
from nescio.detectors.label_scores import JointEnergy, TopKJointEnergy
from nescio.detectors.neighbours import NearestNeighbours
from nescio.errors import DefaultDetectorWarning, warn
from nescio.outputs import Outputs

AUTO = "auto"
"""In place of a detector's name: `default_detector` chooses."""

MOST_LABELS = 20
"""With more labels, those that are surely absent add up to noise that hides the others."""

MOST_FEATURES = 4_096
"""With more, such as the words of a vocabulary, learning takes minutes and much memory."""

MIN_HELD_OUT = 400  # half of them make the p-values of the parts: a step of half a per cent


class Default(NamedTuple):
    """A detector, not fitted yet, and the sentence that says why it was chosen."""

    detector: Detector
    reason: str


def default_detector(
    train: Outputs | None = None,
    held_out: Outputs | None = None,
    *,
    of_table: bool = False,
    has_learned: bool = False,
    tpr: float = 0.95,
    nonfinite: str = "raise",
) -> Default:
    """Return the combination of logits and features if it can be learned.

    Otherwise it is the joint energy of the 20 largest labels, which needs nothing but logits, with
    a warning if there are features that could not be used. For the columns of a table, it is the
    distance to training samples. The documentation says why: docs/explanation/the-default.md.

    Parameters
    ----------
    train : Outputs, optional
        The training outputs, which the combination learns from.
    held_out : Outputs, optional
        The data to calibrate on, if it is already there.
    of_table : bool
        Whether the features are the columns of a table, instead of a layer of a network.
    has_learned : bool
        Whether a combination has learned already, from training outputs that are not passed again.
    tpr, nonfinite
        As for every detector.

    Examples
    --------
    >>> default_detector().detector
    JointEnergy()
    """
    if of_table:
        return Default(
            NearestNeighbours(tpr=tpr, nonfinite=nonfinite),
            "Chosen: knn, the distance to training samples in the columns of the table.",
        )
    combined = Combined(tpr=tpr, nonfinite=nonfinite)
    lacking = _lacking(combined, train, held_out)
    # Training outputs are needed before enough held-out samples are.
    needs_training = "" if has_learned else lacking
    obstacle = needs_training or _obstacle(train, held_out) or lacking
    if not obstacle:
        return Default(
            combined,
            "Chosen: joint energy, the similarity to training samples with the same labels, and a "
            "linear probe of the features, combined.",
        )
    logits = held_out or train
    many = logits is not None and logits.n_labels > MOST_LABELS
    alone: Detector = (
        TopKJointEnergy(MOST_LABELS, tpr=tpr, nonfinite=nonfinite)
        if many
        else JointEnergy(tpr=tpr, nonfinite=nonfinite)
    )
    which = f" of the {MOST_LABELS} largest labels" if many else ""
    reason = (
        f"Chosen: joint energy{which}, which reads the logits alone. A combination with features "
        f"separates better, but {obstacle}."
    )
    has_features = has_learned or (train is not None and train.features is not None)
    if has_features and obstacle != lacking:
        warn(reason, DefaultDetectorWarning)
    return Default(alone, reason)


def _lacking(combined: Combined, train: Outputs | None, held_out: Outputs | None) -> str:
    """Return what the combination reads and the data does not have; nothing if all is there."""
    if train is None:
        return "it needs training outputs (--train, fit) with features and labels"
    for what, outputs, names in (
        ("training outputs", train, combined.learns_from),
        ("held-out outputs", held_out, combined.scores_from),
    ):
        absent = [name for name in names if outputs is not None and outputs.get(name) is None]
        if absent:
            return f"the {what} have no {' and no '.join(absent)}"
    return ""


def _obstacle(train: Outputs | None, held_out: Outputs | None) -> str:
    """Return why the combination should not learn from this data; nothing if it may."""
    if held_out is not None and len(held_out) < MIN_HELD_OUT:
        return f"it needs {MIN_HELD_OUT} held-out samples, and there are {len(held_out):,}"
    if train is None or train.features is None or train.labels is None:
        return ""
    if train.features.shape[1] > MOST_FEATURES:
        return (
            f"there are {train.features.shape[1]:,} features, and {MOST_FEATURES:,} is its limit: "
            "reduce them first, such as by PCA"
        )
    n_odd = _n_odd_labels(train)
    if n_odd > train.n_labels / 3:
        return (
            f"the training labels do not fit the logits: {n_odd} of {train.n_labels} labels have "
            "no higher logits where they are present. Check the order of rows and labels"
        )
    return ""


def _n_odd_labels(train: Outputs) -> int:
    """Return how many labels have logits that are not higher where the label is present."""
    labels = np.asarray(train.labels, dtype=np.float64)
    logits = np.nan_to_num(np.asarray(train.logits, dtype=np.float64), posinf=0.0, neginf=0.0)
    present, absent = labels.sum(0), (1 - labels).sum(0)
    higher = (labels * logits).sum(0) / np.maximum(present, 1)
    lower = ((1 - labels) * logits).sum(0) / np.maximum(absent, 1)
    return int(np.count_nonzero((present > 0) & (absent > 0) & (higher <= lower)))
