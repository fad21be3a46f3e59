"""Calibration: one threshold for all inputs or one for each group, and false alarms in a batch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio._validation import Array, BoolArray, checked_share
from nescio.calibration.thresholds import (
    Scores,
    Threshold,
    asked,
    checked_scores,
    conformal_rank,
    empirical_threshold,
    required_samples,
)
from nescio.errors import (
    InputError,
    MissingInputError,
    ParameterError,
    ShapeError,
    SingleGroupWarning,
    TooFewSamplesError,
    warn,
)

__all__ = [
    "Calibration",
    "Scores",
    "Threshold",
    "benjamini_hochberg",
    "conformal_rank",
    "empirical_threshold",
    "required_samples",
]

LABEL_COUNT = "label_count"
CUSTOM = "custom"
_ALL = "all"

# Groups by label count are merged until each can expect this many samples: with fewer, a threshold
# is valid but the share it really keeps scatters by several per cent.
MIN_GROUP_SIZE = 100
_PILOT_SHARE = 5  # one sample in five chooses the groups


@dataclass(frozen=True, eq=False)
class Calibration:
    """One threshold for all inputs, or one for each group of inputs.

    Attributes
    ----------
    thresholds : mapping of group name to Threshold
        A single entry where the inputs were not grouped.
    by : "label_count", "custom" or None
        How inputs are told apart: by how many labels the model predicts, by group names that the
        caller passes, or not at all.
    edges : tuple of int
        By label count: the smallest count of each group, ascending.
    """

    thresholds: Mapping[str, Threshold]
    by: str | None = None
    edges: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        by_count = self.by == LABEL_COUNT
        edges_fit = self.edges[:1] == (0,) if by_count else self.edges == ()
        ascending = list(self.edges) == sorted(set(self.edges))
        if self.by not in (None, LABEL_COUNT, CUSTOM) or not edges_fit or not ascending:
            raise InputError(f"groups cannot be by {self.by!r} with edges {self.edges}.")
        names = [_ALL] if self.by is None else list(self.thresholds)
        names = _count_names(self.edges).tolist() if by_count else names
        if not names or list(self.thresholds) != names:
            raise InputError(f"thresholds are of {list(self.thresholds)}, expected {names}.")

    @classmethod
    def from_scores(
        cls,
        scores: Array,
        *,
        tpr: float = 0.95,
        confidence: float | None = None,
        groups: Any = None,
    ) -> Calibration:
        """Calibrate on held-out scores; `groups` names the group of each sample.

        Examples
        --------
        >>> calibration = Calibration.from_scores(
        ...     np.arange(200.0), tpr=0.9, groups=["day"] * 100 + ["night"] * 100
        ... )
        >>> calibration.taus
        {'day': 9.0, 'night': 109.0}
        """
        scores = checked_scores(scores)
        if groups is None:
            threshold = Threshold.from_scores(scores, tpr=tpr, confidence=confidence)
            return cls({_ALL: threshold})
        names = _checked_groups(groups, len(scores))
        return cls(_threshold_by_group(scores, names, tpr, confidence), by=CUSTOM)

    @classmethod
    def by_label_count(
        cls,
        scores: Array,
        label_counts: Array,
        *,
        tpr: float = 0.95,
        confidence: float | None = None,
    ) -> Calibration:
        """Calibrate by how many labels the model predicts, so that each count keeps its share.

        With one threshold for all, most false alarms fall on inputs with no predicted label.
        Neighbouring counts are merged until each group has enough samples. A fifth of the samples,
        drawn with a fixed seed, decides which; the thresholds come from the others only: groups
        chosen on the samples that also set the thresholds would void the guarantee.
        """
        scores, counts = checked_scores(scores), np.asarray(label_counts)
        if counts.shape != scores.shape:
            raise ShapeError(f"expected {len(scores)} label counts, got shape {counts.shape}.")
        needed = required_samples(tpr, confidence)
        pilot = np.random.default_rng(0).permutation(len(scores)) < len(scores) // _PILOT_SHARE
        if np.count_nonzero(~pilot) < needed:
            in_all = math.ceil(needed * _PILOT_SHARE / (_PILOT_SHARE - 1)) - 1
            raise TooFewSamplesError(
                f"by label count, {asked(tpr, confidence)} needs at least {in_all:,} samples "
                f"(a fifth of them choose the groups), got {len(scores):,}."
            )
        enough = max(2 * needed, MIN_GROUP_SIZE) / (_PILOT_SHARE - 1)
        edges = _merge_counts(counts[pilot], enough)
        if len(edges) == 1:
            warn(
                f"{len(scores):,} samples do not suffice to tell label counts apart: there is one "
                "threshold for all.",
                SingleGroupWarning,
            )
        names = _count_names(edges)[_place(edges, counts[~pilot])]
        thresholds = _threshold_by_group(scores[~pilot], names, tpr, confidence)
        ordered = {name: thresholds[name] for name in _count_names(edges).tolist()}
        return cls(ordered, by=LABEL_COUNT, edges=edges)

    @property
    def taus(self) -> dict[str, float]:
        """The threshold of each group."""
        return {name: threshold.tau for name, threshold in self.thresholds.items()}

    @property
    def n_samples(self) -> int:
        """How many calibration scores there are, in all groups."""
        return sum(threshold.n_samples for threshold in self.thresholds.values())

    def group_names(
        self, n_samples: int, *, groups: Any = None, label_counts: Array | None = None
    ) -> NDArray[np.str_] | None:
        """The group of each sample, or None where inputs are not grouped."""
        if self.by is None:
            if groups is not None:
                raise ParameterError(
                    "groups were passed, but the detector was calibrated without groups."
                )
            return None
        if self.by == LABEL_COUNT:
            if groups is not None:
                raise ParameterError("groups were passed, but the detector groups by label count.")
            if label_counts is None:
                raise MissingInputError(
                    "calibrated by label count: this needs the logits. Pass Outputs that have them."
                )
            return _count_names(self.edges)[_place(self.edges, label_counts)]
        if groups is None:
            raise MissingInputError(
                f"calibrated by group: pass groups, one of {_listed(self.thresholds)} per sample."
            )
        names = _checked_groups(groups, n_samples)
        unknown = sorted(set(names.tolist()) - set(self.thresholds))
        if unknown:
            raise InputError(
                f"no threshold for group {unknown[0]!r}: calibrated on {_listed(self.thresholds)}."
            )
        return names

    def tau_of(self, groups: NDArray[np.str_] | None) -> float | Scores:
        """The threshold of each sample (one number where inputs are not grouped)."""
        if groups is None:
            return self.thresholds[_ALL].tau
        taus = self.taus
        return np.array([taus[name] for name in groups.tolist()], dtype=np.float64)

    def p_values(self, scores: Scores, groups: NDArray[np.str_] | None) -> Scores:
        """Conformal p-values, each within the sample's own group."""
        if groups is None:
            return self.thresholds[_ALL].p_values(scores)
        result = np.empty(len(scores))
        for name, threshold in self.thresholds.items():
            members = groups == name
            result[members] = threshold.p_values(scores[members])
        return result

    def statement(self, confidence: float = 0.99) -> str:
        """The guarantee in a sentence, a line for each group."""
        if self.by is None:
            return self.thresholds[_ALL].statement(confidence)
        what = "predicted labels" if self.by == LABEL_COUNT else "group"
        return "\n".join(
            f"{what} {name}: {threshold.statement(confidence)}"
            for name, threshold in self.thresholds.items()
        )


def benjamini_hochberg(p_values: Any, fdr: float = 0.05) -> BoolArray:
    """Which of a batch to flag so that at most a share `fdr` of the flagged are false alarms.

    The bound holds in expectation over the draw of calibration data and batch; conformal p-values
    that share their calibration data depend on each other in the way the procedure allows
    (Bates et al., 2023). That was shown for one calibration set, not for thresholds by group.

    Examples
    --------
    >>> benjamini_hochberg([0.001, 0.9, 0.02, 0.04], fdr=0.05)
    array([ True, False,  True, False])
    """
    fdr = checked_share("fdr", fdr)
    values = np.asarray(p_values, dtype=np.float64)
    if values.ndim != 1:
        raise ShapeError(f"p_values must have one dimension, got shape {values.shape}.")
    n = len(values)
    ordered = np.sort(values)
    # 1e-12: p-values are fractions, and meant to meet the line where they do so on paper.
    line = fdr * np.arange(1, n + 1) / n * (1 + 1e-12)
    passing = np.flatnonzero(ordered <= line)
    if not passing.size:
        return np.zeros(n, dtype=np.bool_)
    flagged: BoolArray = values <= ordered[passing[-1]]
    return flagged


def _threshold_by_group(
    scores: Scores, names: NDArray[np.str_], tpr: float, confidence: float | None
) -> dict[str, Threshold]:
    return {
        name: Threshold.from_scores(
            scores[names == name], tpr=tpr, confidence=confidence, group=name
        )
        for name in np.unique(names).tolist()
    }


def _merge_counts(counts: Array, enough: float) -> tuple[int, ...]:
    """Lower edges of the groups: each closed as soon as it has enough samples."""
    edges = [0]
    size = 0
    for count, members in zip(*np.unique(counts, return_counts=True), strict=True):
        if size >= enough:
            edges.append(int(count))
            size = 0
        size += int(members)
    if size < enough and len(edges) > 1:
        edges.pop()
    return tuple(edges)


def _place(edges: tuple[int, ...], label_counts: Array) -> NDArray[np.intp]:
    return np.searchsorted(edges, label_counts, side="right") - 1


def _count_names(edges: tuple[int, ...]) -> NDArray[np.str_]:
    """Names such as 0, 1-2, 3+ for the groups that start at these counts."""
    closed = [
        str(low) if low == high - 1 else f"{low}-{high - 1}"
        for low, high in itertools.pairwise(edges)
    ]
    return np.array([*closed, f"{edges[-1]}+"])


def _listed(thresholds: Mapping[str, Threshold]) -> str:
    return ", ".join(map(repr, thresholds))


def _checked_groups(groups: Any, n_samples: int) -> NDArray[np.str_]:
    names = np.asarray(groups)
    if names.shape != (n_samples,):
        raise ShapeError(
            f"groups must name one group per sample, shape ({n_samples},), got {names.shape}."
        )
    return names.astype(np.str_)
