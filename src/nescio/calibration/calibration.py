"""Thresholds on scores, one for all samples or one per group, and the guarantees that hold.

All guarantees follow from one fact: if n calibration scores and a new score are exchangeable, the
rank of the new score among them is uniformly distributed. If the threshold is the r-th smallest
calibration score,

- a new in-distribution sample is kept with probability at least 1 - r / (n + 1), and
- the share of in-distribution samples kept in the long run follows the distribution
  1 - Beta(r, n + 1 - r), for any continuous distribution of the scores.

If scores are tied with the threshold, the share that is kept can be higher than these formulas say,
but not lower.

Scores that are equal up to rounding count as tied (`TIE_TOLERANCE`): a new score is compared with
the limits of the calibration scores. A limit keeps more than the score itself would, so the
guarantees hold. Decision 0019 in docs/adr says why.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nescio._charts.histogram import Batch, score_chart
from nescio._charts.results import Result, View
from nescio._charts.svg import Markup
from nescio._io.files import as_groups
from nescio._validation import Array, BoolArray, checked_scores, checked_share, n_equal, to_numpy
from nescio.errors import (
    GroupWarning,
    InputError,
    MissingInputError,
    ParameterError,
    ShapeError,
    TiedScoresWarning,
    TooFewSamplesError,
    counted,
    listed,
    nearest,
    warn,
)

Scores = NDArray[np.float64]

# Relative to the score or, for scores close to 0, to the median size of the calibration scores.
# float32 rounds by up to 2 ** -24. The sums and products of a score were measured to add up to
# 2 ** -21, with and without the wide registers of a processor; decision 0019 names the exceptions.
TIE_TOLERANCE = 2.0**-18


def tie_limits(scores: Scores) -> Scores:
    """Return the smallest number that counts as tied with each score; infinities stay.

    Ascending scores have ascending limits.
    """
    finite = np.isfinite(scores)
    sizes = np.abs(scores[finite])
    limits = scores.astype(np.float64)
    if len(sizes):
        limits[finite] -= TIE_TOLERANCE * np.maximum(sizes, np.median(sizes))
    return limits


def conformal_rank(n_samples: int, tpr: float, confidence: float | None = None) -> int:
    """Return the rank r of the calibration score to use as the threshold.

    Without `confidence`, this is the largest r with 1 - r / (n + 1) >= tpr, so that a new
    in-distribution sample is kept with probability at least `tpr`. With `confidence`, it is the
    largest r for which the share kept in the long run is at least `tpr` with this confidence, over
    random draws of the calibration data. The rank is 0 if there are too few samples.

    Examples
    --------
    >>> conformal_rank(100, 0.95)
    5
    >>> conformal_rank(100, 0.95, confidence=0.99)
    1
    """
    if confidence is None:
        return math.floor((n_samples + 1) * (1 - tpr) + 1e-9)
    from scipy.special import betainc

    def falls_short(rank: int) -> bool:
        return bool(betainc(rank, n_samples + 1 - rank, 1 - tpr) < confidence - 1e-12)

    return bisect.bisect_left(range(1, n_samples + 1), True, key=falls_short)


def required_samples(tpr: float, confidence: float | None = None) -> int:
    """Return the smallest number of calibration samples with which `tpr` can be guaranteed.

    Examples
    --------
    >>> required_samples(0.95), required_samples(0.95, confidence=0.99)
    (19, 90)
    """
    tpr = checked_share("tpr", tpr)
    if confidence is None:
        return math.ceil(1 / (1 - tpr) - 1 - 1e-9)
    confidence = checked_share("confidence", confidence)
    return math.ceil(math.log(1 - confidence) / math.log(tpr) - 1e-9)


@dataclass(frozen=True, eq=False, repr=False)
class Threshold:
    """A threshold on scores, with the ascending calibration scores that determine it.

    It is the limit of the `rank`-th smallest of them, counted from 1: see `conformal_rank`.
    """

    scores: Scores
    tpr: float
    confidence: float | None
    rank: int

    @classmethod
    def from_scores(
        cls,
        scores: Array,
        *,
        tpr: float = 0.95,
        confidence: float | None = None,
        group: str | None = None,
    ) -> Threshold:
        """Choose the threshold from the scores of held-out in-distribution data.

        Errors and warnings mention `group` if it is given.

        Examples
        --------
        >>> threshold = Threshold.from_scores(np.arange(199.0), tpr=0.95)
        >>> round(threshold.value, 2), threshold.p_values([-1.0, 9.0, 500.0])
        (9.0, array([0.005, 0.055, 1.   ]))
        """
        tpr = checked_share("tpr", tpr)
        if confidence is not None:
            confidence = checked_share("confidence", confidence)
        ordered = np.sort(checked_scores(scores))
        where = "" if group is None else f"group {group!r}: "
        rank = conformal_rank(len(ordered), tpr, confidence)
        if rank == 0:
            raise TooFewSamplesError(
                f"{where}{guarantee_text(tpr, confidence)} needs at least "
                f"{required_samples(tpr, confidence):,} calibration samples, got {len(ordered):,}."
            )
        if not np.isfinite(ordered[rank - 1]):
            bad = int(np.count_nonzero(~np.isfinite(ordered)))
            raise InputError(
                f"{where}{bad:,} of {len(ordered):,} rows have no finite score, but with "
                f"tpr={tpr:g} only a share of {1 - tpr:.3g} can fall below the threshold. Fix or "
                "remove these rows first."
            )
        threshold = cls(ordered, tpr, confidence, rank)
        threshold._warn_of_ties(where)
        return threshold

    def _warn_of_ties(self, where: str) -> None:
        """Warn if many calibration scores, or all of them, equal the threshold."""
        below, tied = self.below_and_tied()
        score = self.scores[self.rank - 1]
        # Two scores, or one in a hundred, may be as close as the tolerance by chance.
        if tied <= max(2, 0.01 * self.n_samples):
            return
        if tied == np.count_nonzero(np.isfinite(self.scores)):
            text = (
                f"{where}all {tied:,} calibration scores are {score:g}, so the score cannot "
                "tell samples apart. Check the outputs of the model, or choose another detector."
            )
        else:
            text = (
                f"{where}{tied:,} of {self.n_samples:,} calibration scores equal the threshold "
                f"{score:g}. A sample with this score is kept, so a share of "
                f"{1 - below / self.n_samples:.3g} of the calibration samples is kept instead of "
                f"{self.tpr:g}, and fewer out-of-distribution samples are flagged."
            )
        warn(text, TiedScoresWarning)

    def __post_init__(self) -> None:
        if self.scores.ndim != 1 or not 1 <= self.rank <= len(self.scores):
            raise InputError(
                f"rank must lie between 1 and the number of calibration scores, got rank "
                f"{self.rank} for scores of shape {self.scores.shape}."
            )
        ascending = (self.scores[1:] >= self.scores[:-1]).all()
        if not ascending or not np.isfinite(self.scores[self.rank - 1]):
            raise InputError(
                "calibration scores must be in ascending order, and the threshold must be finite."
            )

    def __repr__(self) -> str:
        promise = guarantee_text(self.tpr, self.confidence)
        return f"Threshold({self.value:.5g}, {promise}, {self.n_samples:,} scores)"

    @property
    def value(self) -> float:
        """The threshold: a sample is in-distribution if its score is at least this value."""
        return float(self.limits[self.rank - 1])

    @functools.cached_property
    def limits(self) -> Scores:
        """The limit of each calibration score: a score at or above it counts as at least it."""
        return tie_limits(self.scores)

    @functools.cached_property
    def _counter(self) -> Counter:
        return Counter(self.limits)

    @property
    def n_samples(self) -> int:
        """The number of calibration scores."""
        return len(self.scores)

    def p_values(self, scores: Any) -> Scores:
        """Return conformal p-values: (1 + number of calibration scores <= score) / (n + 1).

        Calibration scores that are tied with the score count, up to the tie tolerance. For an
        in-distribution sample, P(p <= a) <= a. Without `confidence`, a sample is flagged exactly
        when its p-value is at most 1 - tpr (apart from the rounding of 1 - tpr).
        """
        below = self._counter.at_or_below(np.asarray(scores, dtype=np.float64))
        return np.asarray((below + 1.0) / (self.n_samples + 1.0))

    def tpr_interval(self, confidence: float = 0.99) -> tuple[float, float]:
        """Return the interval of the share of in-distribution samples kept in the long run.

        The interval contains the true share with this confidence. It is exact for continuous
        scores, because an order statistic follows a Beta distribution. If scores are tied with the
        threshold, all of them are kept: the upper end is then that of an interval for the share of
        the calibration scores that is kept (Clopper-Pearson).
        """
        from scipy.special import betaincinv

        tail = (1 - checked_share("confidence", confidence)) / 2
        n, rank = self.n_samples, self.lowest_rank
        low = 1 - float(betaincinv(self.rank, n + 1 - self.rank, 1 - tail))
        return low, 1 - float(betaincinv(rank, n + 1 - rank, tail)) if rank else 1.0

    @property
    def lowest_rank(self) -> int:
        """The lowest rank that the threshold may count as: below `rank` if scores are tied with it.

        They are all kept. The share flagged has no exact distribution then, but it lies between
        those of the two ranks.
        """
        below, tied = self.below_and_tied()
        return self.rank if tied == 1 else below

    def below_and_tied(self) -> tuple[int, int]:
        """Return how many calibration scores lie below the threshold, and how many equal it."""
        below = int(np.searchsorted(self.scores, self.value, side="left"))
        upto = int(np.searchsorted(self.limits, self.scores[self.rank - 1], side="right"))
        return below, upto - below

    def statement(self, confidence: float = 0.99) -> str:
        """Return the guarantee as a sentence."""
        low, high = self.tpr_interval(confidence)
        return (
            f"With {self.n_samples:,} calibration samples, the true TPR lies in "
            f"[{low:.4f}, {high:.4f}] with {confidence * 100:g} % confidence."
        )


def guarantee_text(tpr: float, confidence: float | None) -> str:
    """Return the requested guarantee as text for a message."""
    return f"tpr={tpr:g}" + ("" if confidence is None else f" with confidence {confidence:g}")


# --- counting scores at or below new ones ---

_FEWEST_NEW = 256  # for fewer new numbers, a binary search is as fast
_CELLS_PER_NUMBER = 4
_MOST_CELLS = 1 << 20
_BEYOND = 0.0005  # the share of the numbers below the first cell, and of those above the last one
_STEPS = (4, 2, 1)  # they count up to 7 numbers of a cell
_LARGEST_PLACE = 2.0**53  # larger numbers are no index on every processor


class Counter:
    """Counts the numbers at or below new ones: `np.searchsorted`, but 5 to 9 times faster.

    The branches of a binary search surprise the processor. Here one multiplication finds the cell
    of a new number, a table says how many numbers lie in lower cells, and three steps for all new
    numbers at once count those in the same cell. The numbers are ascending, without NaN.
    """

    def __init__(self, ordered: Scores) -> None:
        self._ordered = ordered

    def at_or_below(self, values: Scores) -> NDArray[np.intp]:
        """Return how many numbers are at or below each value; for NaN, all of them."""
        table = self._table if values.ndim == 1 and len(values) >= _FEWEST_NEW else None
        places = None if table is None else _places(values, table.scale, table.shift)
        # Without a table, and for values that are NaN, inf or too large for an index:
        if table is None or places is None or not np.maximum.reduce(places) < _LARGEST_PLACE:
            return self._ordered.searchsorted(values, "right")
        count = table.starts.take(places.astype(np.intp), mode="clip")
        full = np.flatnonzero(count < 0)
        count[full] = 0
        for step in _STEPS:
            # Numbers of the next cells are larger than the value, so a step never goes too far.
            count += step * (table.padded[step - 1 :].take(count) <= values)
        count[full] = self._ordered.searchsorted(values[full], "right")
        return count

    @functools.cached_property
    def _table(self) -> _Table | None:
        """Equal cells that divide the range of the numbers; None if all of them are tied."""
        finite = self._ordered[np.isfinite(self._ordered)]
        if not len(finite):
            return None
        beyond = int(_BEYOND * len(finite))
        n_cells = min(_CELLS_PER_NUMBER * len(finite), _MOST_CELLS)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            scale = n_cells / (finite[-1 - beyond] - finite[beyond])
            shift = 1.0 - scale * finite[beyond]
        if not (0 < scale < np.inf and np.isfinite(shift)):
            return None
        # Cells 0 and n + 1 are for what lies beyond the others.
        cells = np.minimum(_places(self._ordered, scale, shift), n_cells + 1).astype(np.intp)
        members = np.bincount(cells, minlength=n_cells + 2)
        starts = np.where(members > sum(_STEPS), -1, np.cumsum(members) - members)
        padded = np.append(self._ordered, np.full(sum(_STEPS) + 1, np.inf))
        return _Table(scale, shift, starts, padded)


class _Table(NamedTuple):
    scale: float
    shift: float
    starts: NDArray[np.intp]  # how many numbers lie in lower cells; -1 for full cells
    padded: Scores


def _places(values: Scores, scale: float, shift: float) -> Scores:
    """Return the cell of each value, with a fraction; 0 for what lies below the first one.

    Every operation keeps the order of the values, also where it rounds.
    """
    with np.errstate(over="ignore"):
        places: Scores = values * scale
        places += shift
    return np.maximum(places, 0.0, out=places)


# --- calibration by group ---

LABEL_COUNT = "label_count"
TOP_LABEL = "top_label"
CUSTOM = "custom"
ALL = "all"
"""All samples together: without groups, and for groups that have no threshold of their own."""

# What the groups of each kind are called in sentences.
_KINDS = {LABEL_COUNT: "predicted labels", TOP_LABEL: "most likely label", CUSTOM: "group"}

# Label counts, or labels, are merged into groups until each can expect this many samples. With
# fewer samples a threshold is valid, but the share that it keeps varies by several per cent.
MIN_GROUP_SIZE = 100
_HINTED = 5  # unknown groups that are compared with the known ones
_PILOT_SHARE = 5  # one sample in five is used to choose the groups


@dataclass(frozen=True, eq=False, repr=False)
class Calibration(Result):
    """One threshold for all samples, or one threshold per group of samples.

    Attributes
    ----------
    thresholds : mapping of group name to Threshold
        The threshold of each group. Without groups there is a single entry, named "all". With
        group names of the caller, "all" is the last entry: the threshold of all samples together,
        for groups that have none of their own.
    by : "label_count", "top_label", "custom" or None
        How samples are grouped: by the number of labels that the model predicts, by how frequent
        the most likely label is, by group names that the caller passes, or not at all.
    edges : tuple of int
        For groups by label count: the smallest count of each group, in ascending order. By top
        label: the smallest rank of each group.
    ranks : tuple of int
        For groups by top label: the rank of each label, 0 for the most frequent one.
    column : str or None
        For group names of the caller: the column of the table that they were read from, if known.
    """

    index_column = "group"

    thresholds: Mapping[str, Threshold]
    by: str | None = None
    edges: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    column: str | None = None

    def __post_init__(self) -> None:
        by_logits = self.by in (LABEL_COUNT, TOP_LABEL)
        edges_fit = self.edges[:1] == (0,) if by_logits else self.edges == ()
        ascending = list(self.edges) == sorted(set(self.edges))
        ranked = list(range(len(self.ranks))) == sorted(self.ranks)
        ranks_fit = ranked and bool(self.ranks) == (self.by == TOP_LABEL)
        kinds_fit = self.by is None or self.by in _KINDS
        if not (kinds_fit and edges_fit and ascending and ranks_fit):
            raise InputError(
                f"invalid combination of groups: by={self.by!r}, edges={self.edges} and "
                f"{len(self.ranks)} ranks."
            )
        names = [name for name in self.thresholds if name != ALL and self.by == CUSTOM] + [ALL]
        names = _edge_names(self.by, self.edges) if by_logits else names
        if list(self.thresholds) != names:
            raise InputError(
                f"thresholds must be given for the groups {names}, got {list(self.thresholds)}."
            )

    @classmethod
    def from_scores(
        cls,
        scores: Array,
        *,
        tpr: float = 0.95,
        confidence: float | None = None,
        groups: Any = None,
        why_few: str = "",
    ) -> Calibration:
        """Calibrate on the scores of held-out data.

        `groups` gives the group name of each sample; without it, there is one threshold. Groups
        with too few samples get none of their own: the threshold of all samples holds for them, and
        a warning has `why_few`.
        """
        scores = checked_scores(scores)
        if groups is None:
            return cls({ALL: Threshold.from_scores(scores, tpr=tpr, confidence=confidence)})
        names = calibration_groups(groups, len(scores))
        needed = required_samples(tpr, confidence)
        sizes = dict(zip(*np.unique(names, return_counts=True), strict=True))
        small = [str(name) for name, size in sizes.items() if size < needed]
        if len(small) == len(sizes):
            raise TooFewSamplesError(
                f"{guarantee_text(tpr, confidence)} needs at least {needed:,} samples in a group, "
                f"but the largest has {max(sizes.values()):,}. Calibrate without groups, or with "
                "larger ones."
            )
        if small:
            warn(
                f"too few samples in {counted(len(small), 'group')}: {listed(small)} "
                f"({guarantee_text(tpr, confidence)} needs {needed:,} in each).{why_few} The "
                "threshold of all samples together holds there, and promises nothing for a group.",
                GroupWarning,
            )
        large = [str(name) for name, size in sizes.items() if size >= needed]
        by_group = _threshold_by_group(large, scores, names, tpr=tpr, confidence=confidence)
        rank = conformal_rank(len(scores), tpr, confidence)
        together = Threshold(np.sort(scores), tpr, confidence, rank)
        return cls({**by_group, ALL: together}, by=CUSTOM)

    @classmethod
    def from_logits(
        cls,
        scores: Array,
        logits: Array,
        by: str,
        *,
        tpr: float = 0.95,
        confidence: float | None = None,
    ) -> Calibration:
        """Calibrate by the number of labels that the model predicts, or by its most likely label.

        The share `tpr` is then kept among the samples of each group. With a single threshold, most
        false alarms would be samples without a predicted label, or with a rare one.

        Neighbouring counts, or labels of similar frequency, are merged until each group has enough
        samples. A fifth of the samples, drawn with a fixed seed, determines the groups. Only the
        other samples determine the thresholds: the guarantee would not hold if the same samples
        determined both.
        """
        scores = checked_scores(scores)
        needed = required_samples(tpr, confidence)
        pilot = np.random.default_rng(0).permutation(len(scores)) < len(scores) // _PILOT_SHARE
        what = by.replace("_", " ")
        if np.count_nonzero(~pilot) < needed:
            in_all = math.ceil(needed * _PILOT_SHARE / (_PILOT_SHARE - 1)) - 1
            raise TooFewSamplesError(
                f"calibrating by {what} with {guarantee_text(tpr, confidence)} needs at least "
                f"{in_all:,} samples (a fifth of them determines the groups), got {len(scores):,}."
            )
        counts, ranks = group_counts(logits, by), np.empty(0, np.intp)
        if by == TOP_LABEL:
            frequency = np.bincount(counts[pilot], minlength=logits.shape[1])
            ranks = np.argsort(np.argsort(-frequency, kind="stable"))
            counts = ranks[counts]
        enough = max(2 * needed, MIN_GROUP_SIZE) / (_PILOT_SHARE - 1)
        edges = _merge_counts(counts[pilot], enough)
        if len(edges) == 1:
            warn(
                f"{len(scores):,} samples are too few to calibrate by {what}: all samples "
                f"share one threshold. A group needs about {math.ceil(enough * _PILOT_SHARE):,} "
                "samples, and only one group has as many.",
                GroupWarning,
            )
        groups = _edge_names(by, edges)
        names = _names_of_counts(groups, edges, counts[~pilot])
        options = {"tpr": tpr, "confidence": confidence}
        by_group = _threshold_by_group(groups, scores[~pilot], names, **options)
        return cls(by_group, by=by, edges=edges, ranks=tuple(ranks.tolist()))

    @property
    def first(self) -> Threshold:
        """The threshold of the first group, or of all samples."""
        return next(iter(self.thresholds.values()))

    @property
    def threshold_values(self) -> dict[str, float]:
        """The threshold of each group as a number."""
        return {name: threshold.value for name, threshold in self.thresholds.items()}

    @property
    def scores(self) -> Scores:
        """The calibration scores of all groups."""
        if ALL in self.thresholds:
            return self.thresholds[ALL].scores
        return np.concatenate([threshold.scores for threshold in self.thresholds.values()])

    @property
    def n_samples(self) -> int:
        """The number of calibration scores in all groups together."""
        return len(self.scores)

    def group_names(
        self, n_samples: int, *, groups: Any = None, logits: Array | None = None
    ) -> NDArray[np.str_] | None:
        """Return the group of each sample whose threshold holds, or None without groups.

        It is "all" for the names of groups that have no threshold of their own, with a warning.
        """
        if self.by != CUSTOM and groups is not None:
            how = "without groups"
            if self.by is not None:
                how = f"by {self.by.replace('_', ' ')} and finds them itself"
            raise ParameterError(
                f"groups were passed, but the detector was calibrated {how}. Do not pass groups "
                "(--group-column)."
            )
        if self.by is None:
            return None
        if self.by != CUSTOM:
            if logits is None:
                raise MissingInputError(
                    f"the detector was calibrated by {self.by.replace('_', ' ')}, which needs the "
                    "logits. Pass Outputs with logits."
                )
            counts = group_counts(logits, self.by)
            counts = np.array(self.ranks)[counts] if self.ranks else counts
            return _names_of_counts(list(self.thresholds), self.edges, counts)
        if groups is None:
            raise MissingInputError(
                "the detector was calibrated by group: pass groups=... (--group-column "
                f"{self.column or 'NAME'}), with one of {listed(list(self.thresholds)[:-1])} per "
                "sample."
            )
        names = checked_groups(groups, n_samples)
        if text := self.without_threshold(names):
            warn(text, GroupWarning)
            names = np.where(np.isin(names, list(self.thresholds)), names, ALL)
        return names

    def without_threshold(self, names: NDArray[np.str_]) -> str:
        """Say which of the user's groups have no threshold of their own; "" if all have one."""
        own = list(self.thresholds)[:-1]
        unknown = sorted(set(names.tolist()) - set(self.thresholds))
        if not unknown:
            return ""
        rows = np.isin(names, unknown)
        n_rows = f"{'all ' if rows.all() else ''}{counted(int(rows.sum()), 'row')}"
        # Of several names that are near, none is meant: cam5 is no typing error for cam3 or cam4.
        alike = ((name, nearest(name, own, 1), nearest(name, own, 2)) for name in unknown[:_HINTED])
        hints = (f"{one[:-1]} by {name!r}?" for name, one, two in alike if one and one == two)
        which = listed([name or "(no name)" for name in unknown])
        return (
            f"no threshold was calibrated for {counted(len(unknown), 'group')}: {which}, with "
            f"{n_rows}; calibrated are {listed(own)}.{next(hints, '')} The threshold of all "
            "samples together holds there, and promises nothing for a group."
        )

    def check_any_group(self, names: Iterable[str] | None) -> None:
        """Raise if no row is in a calibrated group of the user; the names are of `group_names`."""
        if self.by == CUSTOM and names is not None and set(names) == {ALL}:
            raise InputError(
                f"no row is in a group that was calibrated: {listed(list(self.thresholds)[:-1])}. "
                f"Is it the wrong column? Theirs was --group-column {self.column or 'NAME'}."
            )

    def threshold_of(self, groups: NDArray[np.str_] | None) -> float | Scores:
        """Return the threshold of each sample, or one number if `groups` is None."""
        if groups is None:
            return self.thresholds[ALL].value
        values = self.threshold_values
        return np.array([values[name] for name in groups.tolist()], dtype=np.float64)

    def p_values(self, scores: Scores, groups: NDArray[np.str_] | None) -> Scores:
        """Return conformal p-values, computed within the group of each sample."""
        if groups is None:
            return self.thresholds[ALL].p_values(scores)
        p_values = np.empty(len(scores))
        for name, threshold in self.thresholds.items():
            members = groups == name
            p_values[members] = threshold.p_values(scores[members])
        return p_values

    def known(self, scores: Scores) -> str:
        """Say that inputs seem to be those of the calibration: many scores are exactly equal.

        Empty if they do not.
        """
        n = n_equal(scores, self.scores[np.isfinite(self.scores)])
        if not n:
            return ""
        return (
            f"{n:,} of {len(scores):,} scores are exactly those of calibration inputs. If "
            "these are the same inputs, pass others: compared with themselves, nothing can change."
        )

    def columns(self) -> dict[str, Any]:
        """Return one row per group: threshold, tpr, confidence, n_samples, and the true TPR.

        The true TPR, the share kept in the long run, lies between tpr_low and tpr_high with 99 %
        confidence.
        """
        thresholds = self.thresholds.values()
        low, high = zip(*(threshold.tpr_interval() for threshold in thresholds), strict=True)
        return {
            "group": list(self.thresholds),
            "threshold": [threshold.value for threshold in thresholds],
            "tpr": [threshold.tpr for threshold in thresholds],
            "confidence": [threshold.confidence for threshold in thresholds],
            "n_samples": [threshold.n_samples for threshold in thresholds],
            "tpr_low": list(low),
            "tpr_high": list(high),
        }

    def facts(self) -> dict[str, Any]:
        """Return the settings, and the threshold of each group, as plain data."""
        return {
            "n_samples": self.n_samples,
            "tpr": self.first.tpr,
            "confidence": self.first.confidence,
            "by": self.by,
            "column": self.column,
            "threshold": self.threshold_values,
        }

    def summary(self) -> str:
        """Return one line: what is promised, for how many groups and with how many samples."""
        first = self.first
        promise = guarantee_text(first.tpr, first.confidence)
        of = f"{self.n_samples:,} samples"
        if self.by is None:
            return f"threshold {first.value:.5g}, {promise}, {of}"
        n_groups = len(self.thresholds) - (ALL in self.thresholds)
        how = "" if self.by == CUSTOM else f" by {self.by}"
        return f"{counted(n_groups, 'group')}{how}, {promise}, {of}"

    def chart(self, batch: Batch | None = None) -> Markup:
        """Draw the calibration scores with the thresholds, and the scores of a batch on them."""
        return score_chart(self.scores, list(self.threshold_values.values()), batch)

    def _view(self) -> View:
        title = f"Calibration({self.summary()})"
        if self.by is None:
            return View(title, text=self.statement(), charts=lambda: [self.chart()])
        columns = self.columns()
        intervals = zip(columns["tpr_low"], columns["tpr_high"], strict=True)
        table = {
            "group": columns["group"],
            "threshold": [f"{value:.5g}" for value in columns["threshold"]],
            "samples": [f"{n_samples:,}" for n_samples in columns["n_samples"]],
            "true TPR, 99 %": [f"{low:.4f} to {high:.4f}" for low, high in intervals],
        }
        return View(title, table=table, charts=lambda: [self.chart()])

    def statement(self, confidence: float = 0.99) -> str:
        """Return the guarantee as text, with one sentence (and line) per group."""
        if self.by is None:
            return self.first.statement(confidence)
        return "\n".join(
            f"{self.described(name)}: {threshold.statement(confidence)}"
            for name, threshold in self.thresholds.items()
        )

    def described(self, group: str) -> str:
        """Return the name of a group with what it is, for a sentence."""
        return "any other group" if group == ALL else f"{_KINDS[self.by or CUSTOM]} {group}"


def benjamini_hochberg(p_values: Any, fdr: float = 0.05) -> BoolArray:
    """Return which samples of a batch to flag so that the false discovery rate is at most `fdr`.

    The false discovery rate is the expected share of false alarms among the flagged samples, over
    random draws of the calibration data and of the batch. Conformal p-values that share their
    calibration data are dependent, but in a way that the procedure allows (Bates et al., 2023).
    This was proved for a single calibration set, not for thresholds by group.

    Examples
    --------
    >>> benjamini_hochberg([0.001, 0.9, 0.02, 0.04], fdr=0.05)
    array([ True, False,  True, False])
    """
    values = np.asarray(p_values, dtype=np.float64)
    if values.ndim != 1:
        raise ShapeError(f"p_values must have one dimension, got shape {values.shape}.")
    flagged: BoolArray = values <= fdr_limit(*np.unique(values, return_counts=True), fdr)
    return flagged


def fdr_limit(values: Array, counts: Array, fdr: float) -> float:
    """Return the largest p-value that Benjamini-Hochberg flags; -inf if it flags none.

    `values` are the distinct p-values of the batch in ascending order, and `counts` how often each
    of them occurs: few numbers, however large a batch is.
    """
    upto = np.cumsum(counts)
    # 1e-12 corrects rounding: a p-value that equals its limit exactly must count as below it.
    line = checked_share("fdr", fdr) * upto / max(1, upto[-1:].sum()) * (1 + 1e-12)
    passing = np.flatnonzero(values <= line)
    return float(values[passing[-1]]) if passing.size else -math.inf


def _threshold_by_group(
    groups: list[str], scores: Scores, names: Array, **options: Any
) -> dict[str, Threshold]:
    return {
        group: Threshold.from_scores(scores[names == group], group=group, **options)
        for group in groups
    }


def _merge_counts(counts: Array, enough: float) -> tuple[int, ...]:
    """Return the smallest count of each group; a group ends as soon as it has enough samples."""
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


def _edge_names(by: str | None, edges: tuple[int, ...]) -> list[str]:
    """Return names for the groups that start at these counts or ranks: 0, 1-2 and 3+.

    The rank of the most frequent label is 0 inside, and 1 in names.
    """
    first, prefix = (1, "rank ") if by == TOP_LABEL else (0, "")
    starts = [edge + first for edge in edges]
    closed = [
        f"{prefix}{low}" if low == high - 1 else f"{prefix}{low}-{high - 1}"
        for low, high in itertools.pairwise(starts)
    ]
    return [*closed, f"{prefix}{starts[-1]}+"]


def _names_of_counts(names: list[str], edges: tuple[int, ...], counts: Array) -> NDArray[np.str_]:
    """Return the name of the group of each sample."""
    return np.array(names)[np.searchsorted(edges, counts, side="right") - 1]


def group_counts(logits: Array, by: str | None) -> Array:
    """Return what samples are grouped by: the number of predicted labels, or the likeliest one."""
    if by == LABEL_COUNT:
        return np.asarray((logits > 0).sum(1))
    return np.asarray(np.nan_to_num(logits, nan=-np.inf).argmax(axis=1))


def calibration_groups(groups: Any, n_samples: int) -> NDArray[np.str_]:
    """Return the group name of each calibration sample; raise if one is missing or reserved."""
    names = checked_groups(groups, n_samples)
    if (names == ALL).any():
        raise InputError(
            f"a group is named {ALL!r}, which stands for all samples together. Rename it."
        )
    if (names == "").any():
        row = int(np.argmax(names == ""))
        raise InputError(f"row {row} has no group. Fill in its group, or leave the row out.")
    return names


def checked_groups(groups: Any, n_samples: int) -> NDArray[np.str_]:
    """Return the group name of each sample, empty if it is missing; raise if the number differs."""
    names = to_numpy(groups)
    if names.shape != (n_samples,):
        raise ShapeError(
            f"groups must have one name per sample, shape ({n_samples},), got {names.shape}."
        )
    return as_groups(names)
