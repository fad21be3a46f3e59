"""From in-distribution scores to a threshold, p-values and what can be promised about them.

Everything here rests on one fact: if n calibration scores and a new one are exchangeable, the new
one's rank among them is uniform. With the r-th smallest calibration score as the threshold tau,

- a new in-distribution input is kept with probability at least 1 - r / (n + 1), and
- the share of in-distribution inputs kept in the long run is distributed as
  1 - Beta(r, n + 1 - r), whatever the distribution of the scores.

If scores tie, more is kept than these say, never less.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio.arrays import Array, BoolArray
from nescio.errors import (
    InputError,
    MissingInputError,
    ParameterError,
    ShapeError,
    TooFewSamplesError,
)

Scores = NDArray[np.float64]

LABEL_COUNT = "label_count"
CUSTOM = "custom"
_ALL = "all"

# Groups by label count are merged until each has this many samples: with fewer, a threshold is
# valid but the share it really keeps scatters by several per cent.
MIN_GROUP_SIZE = 100


def empirical_threshold(scores: Array, tpr: float = 0.95) -> float:
    """The largest tau with at least a share `tpr` of these scores at or above it.

    It says nothing of new data; see `Threshold` for that.

    Examples
    --------
    >>> empirical_threshold(np.arange(100.0), tpr=0.95)
    5.0
    """
    tpr = _checked_share("tpr", tpr)
    ordered = np.sort(_checked_scores(scores))
    # 1e-9: n * (1 - tpr) is meant to be whole when it is so on paper.
    return float(ordered[math.floor(len(ordered) * (1 - tpr) + 1e-9)])


def conformal_rank(n_samples: int, tpr: float, confidence: float | None = None) -> int:
    """The rank r of the calibration score to use as threshold; 0 if there are too few samples.

    Without `confidence`: the largest r with 1 - r / (n + 1) >= tpr, so that a new in-distribution
    input is kept with probability at least `tpr`. With it: the largest r for which the long-run
    share kept is at least `tpr` with that confidence over the draw of the calibration data.
    """
    if confidence is None:
        return math.floor((n_samples + 1) * (1 - tpr) + 1e-9)
    from scipy.special import betainc

    ranks = np.arange(1, math.floor(n_samples * (1 - tpr)) + 2)
    ranks = ranks[ranks <= n_samples]
    return int(np.count_nonzero(betainc(ranks, n_samples + 1 - ranks, 1 - tpr) >= confidence))


def required_samples(tpr: float, confidence: float | None = None) -> int:
    """The fewest calibration samples with which `tpr` can be promised.

    Examples
    --------
    >>> required_samples(0.95), required_samples(0.95, confidence=0.99)
    (19, 90)
    """
    tpr = _checked_share("tpr", tpr)
    if confidence is None:
        return math.ceil(1 / (1 - tpr) - 1 - 1e-9)
    confidence = _checked_share("confidence", confidence)
    return math.ceil(math.log(1 - confidence) / math.log(tpr) - 1e-9)


@dataclass(frozen=True)
class Threshold:
    """A threshold on scores, with the calibration scores behind it.

    Attributes
    ----------
    scores : array of shape (n_samples,)
        The calibration scores, ascending.
    tpr : float
        The share of in-distribution data that is to be kept.
    confidence : float or None
        None: a new in-distribution input is kept with probability at least `tpr`. Otherwise the
        long-run share kept is at least `tpr` with this confidence.
    rank : int
        tau is the rank-th smallest calibration score.
    """

    scores: Scores
    tpr: float
    confidence: float | None
    rank: int

    @classmethod
    def from_scores(
        cls, scores: Array, *, tpr: float = 0.95, confidence: float | None = None
    ) -> Threshold:
        """Choose tau on held-out in-distribution scores.

        Examples
        --------
        >>> threshold = Threshold.from_scores(np.arange(199.0), tpr=0.95)
        >>> threshold.tau, threshold.p_values([-1.0, 9.0, 500.0])
        (9.0, array([0.005, 0.055, 1.   ]))
        """
        tpr = _checked_share("tpr", tpr)
        if confidence is not None:
            confidence = _checked_share("confidence", confidence)
        ordered = np.sort(_checked_scores(scores))
        rank = conformal_rank(len(ordered), tpr, confidence)
        if rank == 0:
            surety = "" if confidence is None else f" with confidence {confidence:g}"
            raise TooFewSamplesError(
                f"tpr={tpr:g}{surety} needs at least {required_samples(tpr, confidence):,} "
                f"calibration samples, got {len(ordered):,}."
            )
        if not np.isfinite(ordered[rank - 1]):
            bad = int(np.count_nonzero(np.isneginf(ordered)))
            raise InputError(
                f"{bad:,} of {len(ordered):,} calibration rows have no finite score; that is more "
                f"than the {1 - tpr:.3g} that may fall below the threshold. Clean the data first."
            )
        return cls(ordered, tpr, confidence, rank)

    @property
    def tau(self) -> float:
        """In-distribution if the score is at least this."""
        return float(self.scores[self.rank - 1])

    @property
    def n_samples(self) -> int:
        """How many calibration scores there are."""
        return len(self.scores)

    def p_values(self, scores: Any) -> Scores:
        """Conformal p-values: (1 + number of calibration scores at or below) / (n + 1).

        For an in-distribution input, P(p <= a) <= a. Without `confidence`, an input is flagged
        exactly when its p-value is at most 1 - tpr (up to how 1 - tpr is rounded).
        """
        below = np.searchsorted(self.scores, np.asarray(scores, dtype=np.float64), side="right")
        return (below.astype(np.float64) + 1.0) / (self.n_samples + 1.0)

    def tpr_interval(self, confidence: float = 0.99) -> tuple[float, float]:
        """Where the long-run share of in-distribution inputs kept lies, with this confidence.

        Exact for continuous scores, from the Beta distribution of an order statistic. With ties
        at tau the share kept may be above the interval, never below.
        """
        from scipy.special import betaincinv

        tail = (1 - _checked_share("confidence", confidence)) / 2
        r, s = self.rank, self.n_samples + 1 - self.rank
        return 1 - float(betaincinv(r, s, 1 - tail)), 1 - float(betaincinv(r, s, tail))

    def statement(self, confidence: float = 0.99) -> str:
        """The guarantee in a sentence.

        Examples
        --------
        >>> print(Threshold.from_scores(np.arange(1000.0)).statement())
        With 1,000 calibration samples, the true TPR lies in [0.9307, 0.9661] with 99 % confidence.
        """
        low, high = self.tpr_interval(confidence)
        return (
            f"With {self.n_samples:,} calibration samples, the true TPR lies in "
            f"[{low:.4f}, {high:.4f}] with {confidence * 100:g} % confidence."
        )


@dataclass(frozen=True)
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
        scores = _checked_scores(scores)
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
        Neighbouring counts are merged until each group has enough samples.
        """
        scores = _checked_scores(scores)
        enough = max(required_samples(tpr, confidence), MIN_GROUP_SIZE)
        edges = _merge_counts(np.asarray(label_counts), enough)
        names = _count_names(edges)[_place(edges, label_counts)]
        thresholds = _threshold_by_group(scores, names, tpr, confidence)
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
    (Bates et al., 2023).

    Examples
    --------
    >>> benjamini_hochberg([0.001, 0.9, 0.02, 0.04], fdr=0.05)
    array([ True, False,  True, False])
    """
    fdr = _checked_share("fdr", fdr)
    values = np.asarray(p_values, dtype=np.float64)
    if values.ndim != 1:
        raise ShapeError(f"p_values must have one dimension, got shape {values.shape}.")
    n = len(values)
    ordered = np.sort(values)
    passing = np.flatnonzero(ordered <= fdr * np.arange(1, n + 1) / n)
    if not passing.size:
        return np.zeros(n, dtype=np.bool_)
    flagged: BoolArray = values <= ordered[passing[-1]]
    return flagged


def _threshold_by_group(
    scores: Scores, names: NDArray[np.str_], tpr: float, confidence: float | None
) -> dict[str, Threshold]:
    thresholds = {}
    for name in np.unique(names).tolist():
        try:
            thresholds[name] = Threshold.from_scores(
                scores[names == name], tpr=tpr, confidence=confidence
            )
        except (TooFewSamplesError, InputError) as error:
            raise type(error)(f"group {name!r}: {error}") from error
    return thresholds


def _merge_counts(counts: Array, enough: int) -> tuple[int, ...]:
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


def _checked_scores(scores: Array) -> Scores:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise ShapeError(f"scores must have shape (n_samples,), got {values.shape}.")
    if np.isnan(values).any():
        raise InputError(f"scores hold NaN, first at {int(np.flatnonzero(np.isnan(values))[0])}.")
    return values


def _checked_share(name: str, value: float) -> float:
    """A number strictly between 0 and 1."""
    if not 0 < value < 1:
        raise ParameterError(f"{name} must lie between 0 and 1 (exclusive), got {value!r}.")
    return float(value)
