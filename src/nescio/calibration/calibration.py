"""Calibration with one threshold or one per group, false alarms in a batch, and firing labels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from nescio._charts.histogram import Batch, score_chart
from nescio._charts.results import Result, View
from nescio._charts.svg import Markup
from nescio._validation import Array, BoolArray, checked_share
from nescio.calibration.thresholds import (
    Scores,
    Threshold,
    checked_scores,
    guarantee_text,
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

LABEL_COUNT = "label_count"
CUSTOM = "custom"
_ALL = "all"

# Label counts are merged into groups until each group can expect this many samples. With fewer
# samples a threshold is valid, but the share that it keeps varies by several per cent.
MIN_GROUP_SIZE = 100
_PILOT_SHARE = 5  # one sample in five is used to choose the groups


@dataclass(frozen=True, eq=False, repr=False)
class Calibration(Result):
    """One threshold for all samples, or one threshold per group of samples.

    Attributes
    ----------
    thresholds : mapping of group name to Threshold
        The threshold of each group. Without groups there is a single entry, named "all".
    by : "label_count", "custom" or None
        How samples are grouped: by the number of labels that the model predicts, by group names
        that the caller passes, or not at all.
    edges : tuple of int
        For groups by label count: the smallest count of each group, in ascending order.
    """

    index_column = "group"

    thresholds: Mapping[str, Threshold]
    by: str | None = None
    edges: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        by_count = self.by == LABEL_COUNT
        edges_fit = self.edges[:1] == (0,) if by_count else self.edges == ()
        ascending = list(self.edges) == sorted(set(self.edges))
        if self.by not in (None, LABEL_COUNT, CUSTOM) or not edges_fit or not ascending:
            raise InputError(
                f"invalid combination of groups: by={self.by!r} and edges={self.edges}."
            )
        names = [_ALL] if self.by is None else list(self.thresholds)
        names = _count_names(self.edges).tolist() if by_count else names
        if not names or list(self.thresholds) != names:
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
    ) -> Calibration:
        """Calibrate on the scores of held-out data.

        `groups` gives the group name of each sample; without it, there is one threshold.

        Examples
        --------
        >>> calibration = Calibration.from_scores(
        ...     np.arange(200.0), tpr=0.9, groups=["day"] * 100 + ["night"] * 100
        ... )
        >>> {name: round(value, 2) for name, value in calibration.threshold_values.items()}
        {'day': 9.0, 'night': 109.0}
        """
        scores = checked_scores(scores)
        if groups is None:
            threshold = Threshold.from_scores(scores, tpr=tpr, confidence=confidence)
            return cls({_ALL: threshold})
        names = checked_groups(groups, len(scores))
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
        """Calibrate by the number of labels that the model predicts.

        The share `tpr` is then kept among the samples of each group. With a single threshold, most
        false alarms would be samples without a predicted label.

        Neighbouring counts are merged until each group has enough samples. A fifth of the samples,
        drawn with a fixed seed, determines the groups. Only the other samples determine the
        thresholds: the guarantee would not hold if the same samples determined both.
        """
        scores, counts = checked_scores(scores), np.asarray(label_counts)
        if counts.shape != scores.shape:
            raise ShapeError(
                f"label_counts must have one count per score, shape ({len(scores)},), "
                f"got {counts.shape}."
            )
        needed = required_samples(tpr, confidence)
        pilot = np.random.default_rng(0).permutation(len(scores)) < len(scores) // _PILOT_SHARE
        if np.count_nonzero(~pilot) < needed:
            in_all = math.ceil(needed * _PILOT_SHARE / (_PILOT_SHARE - 1)) - 1
            raise TooFewSamplesError(
                f"calibrating by label count with {guarantee_text(tpr, confidence)} needs at least "
                f"{in_all:,} samples (a fifth of them determines the groups), got {len(scores):,}."
            )
        enough = max(2 * needed, MIN_GROUP_SIZE) / (_PILOT_SHARE - 1)
        edges = _merge_counts(counts[pilot], enough)
        if len(edges) == 1:
            warn(
                f"{len(scores):,} samples are too few to calibrate by label count: all samples "
                f"share one threshold. A group needs about {math.ceil(enough * _PILOT_SHARE):,} "
                "samples, and only one group has as many.",
                SingleGroupWarning,
            )
        names = _count_names(edges)[_place(edges, counts[~pilot])]
        thresholds = _threshold_by_group(scores[~pilot], names, tpr, confidence)
        ordered = {name: thresholds[name] for name in _count_names(edges).tolist()}
        return cls(ordered, by=LABEL_COUNT, edges=edges)

    @property
    def threshold_values(self) -> dict[str, float]:
        """The threshold of each group as a number."""
        return {name: threshold.value for name, threshold in self.thresholds.items()}

    @property
    def scores(self) -> Scores:
        """The calibration scores of all groups."""
        return np.concatenate([threshold.scores for threshold in self.thresholds.values()])

    @property
    def n_samples(self) -> int:
        """The number of calibration scores in all groups together."""
        return sum(threshold.n_samples for threshold in self.thresholds.values())

    def group_names(
        self, n_samples: int, *, groups: Any = None, label_counts: Array | None = None
    ) -> NDArray[np.str_] | None:
        """Return the group name of each sample, or None if samples are not grouped."""
        if self.by != CUSTOM and groups is not None:
            how = "without groups" if self.by is None else "by label count and finds them itself"
            raise ParameterError(
                f"groups were passed, but the detector was calibrated {how}. Do not pass groups."
            )
        if self.by is None:
            return None
        if self.by == LABEL_COUNT:
            if label_counts is None:
                raise MissingInputError(
                    "the detector was calibrated by label count, which needs the logits. Pass "
                    "Outputs with logits."
                )
            return _count_names(self.edges)[_place(self.edges, label_counts)]
        if groups is None:
            raise MissingInputError(
                "the detector was calibrated by group: pass groups, with one of "
                f"{', '.join(map(repr, self.thresholds))} per sample."
            )
        names = checked_groups(groups, n_samples)
        unknown = sorted(set(names.tolist()) - set(self.thresholds))
        if unknown:
            raise InputError(
                f"no threshold for group {unknown[0]!r}: the detector was calibrated on the groups "
                f"{', '.join(map(repr, self.thresholds))}."
            )
        return names

    def threshold_of(self, groups: NDArray[np.str_] | None) -> float | Scores:
        """Return the threshold of each sample, or one number if `groups` is None."""
        if groups is None:
            return self.thresholds[_ALL].value
        values = self.threshold_values
        return np.array([values[name] for name in groups.tolist()], dtype=np.float64)

    def p_values(self, scores: Scores, groups: NDArray[np.str_] | None) -> Scores:
        """Return conformal p-values, computed within the group of each sample."""
        if groups is None:
            return self.thresholds[_ALL].p_values(scores)
        result = np.empty(len(scores))
        for name, threshold in self.thresholds.items():
            members = groups == name
            result[members] = threshold.p_values(scores[members])
        return result

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
        first = next(iter(self.thresholds.values()))
        return {
            "n_samples": self.n_samples,
            "tpr": first.tpr,
            "confidence": first.confidence,
            "by": self.by,
            "threshold": self.threshold_values,
        }

    def summary(self) -> str:
        """Return one line: what is promised, for how many groups and with how many samples."""
        first = next(iter(self.thresholds.values()))
        promise = guarantee_text(first.tpr, first.confidence)
        of = f"{self.n_samples:,} samples"
        if self.by is None:
            return f"threshold {first.value:.5g}, {promise}, {of}"
        groups = "group" if len(self.thresholds) == 1 else "groups"
        how = "" if self.by == CUSTOM else f" by {self.by}"
        return f"{len(self.thresholds):,} {groups}{how}, {promise}, {of}"

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

    def plot(self, ax: Any = None, **options: Any) -> Any:
        """Draw the histogram of the calibration scores; see `ScoreHistogramDisplay`."""
        from nescio.displays import ScoreHistogramDisplay

        return ScoreHistogramDisplay.from_calibration(self, ax=ax, **options)

    def statement(self, confidence: float = 0.99) -> str:
        """Return the guarantee as text, with one sentence (and line) per group."""
        if self.by is None:
            return self.thresholds[_ALL].statement(confidence)
        what = "predicted labels" if self.by == LABEL_COUNT else "group"
        return "\n".join(
            f"{what} {name}: {threshold.statement(confidence)}"
            for name, threshold in self.thresholds.items()
        )


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
    fdr = checked_share("fdr", fdr)
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
    scores: Scores, names: NDArray[np.str_], tpr: float, confidence: float | None
) -> dict[str, Threshold]:
    return {
        name: Threshold.from_scores(
            scores[names == name], tpr=tpr, confidence=confidence, group=name
        )
        for name in np.unique(names).tolist()
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


def _place(edges: tuple[int, ...], label_counts: Array) -> NDArray[np.intp]:
    return np.searchsorted(edges, label_counts, side="right") - 1


def _count_names(edges: tuple[int, ...]) -> NDArray[np.str_]:
    """Return names such as 0, 1-2 and 3+ for the groups that start at these counts."""
    closed = [
        str(low) if low == high - 1 else f"{low}-{high - 1}"
        for low, high in itertools.pairwise(edges)
    ]
    return np.array([*closed, f"{edges[-1]}+"])


def checked_groups(groups: Any, n_samples: int) -> NDArray[np.str_]:
    """Return the group name of each sample; raise unless there is one for each.

    Examples
    --------
    >>> checked_groups(["day", "night"], 2).tolist()
    ['day', 'night']
    """
    names = np.asarray(groups)
    if names.shape != (n_samples,):
        raise ShapeError(
            f"groups must have one name per sample, shape ({n_samples},), got {names.shape}."
        )
    return names.astype(np.str_)


@dataclass(frozen=True, eq=False)
class Firing:
    """The number of samples for which each label fires: those with a logit above 0.

    A masked label (-inf) does not fire.

    Attributes
    ----------
    counts : array of int of shape (n_labels,)
        For each label, the number of samples whose logit is above 0.
    n_samples : int
        The number of samples counted. Samples with NaN or +inf are not counted.
    """

    counts: NDArray[np.int64]
    n_samples: int

    @classmethod
    def from_logits(cls, logits: Array) -> Self:
        """Count the labels that fire.

        Examples
        --------
        >>> firing = Firing.from_logits(np.array([[1.0, -2.0], [3.0, 0.5], [np.nan, 1.0]]))
        >>> firing.counts.tolist(), firing.n_samples
        ([2, 1], 2)
        """
        logits = logits[(logits < np.inf).all(1)]
        return cls((logits > 0).sum(0), len(logits))

    @classmethod
    def from_arrays(cls, counts: Array, n_samples: Array) -> Self:
        """Return what a file keeps; raise a `ValueError` if the counts cannot be counts."""
        whole = counts.dtype.kind in "iu" and n_samples.dtype.kind in "iu"
        if not whole or counts.ndim != 1 or not counts.size or n_samples.shape != (1,):
            raise ValueError("its counts of firing labels are not valid")
        if counts.min() < 0 or counts.max() > n_samples[0]:
            raise ValueError("its counts of firing labels exceed the number of samples")
        return cls(counts.astype(np.int64), int(n_samples[0]))

    def joined(self, other: Firing) -> Firing:
        """Return the counts of both sets of samples together."""
        return Firing(self.counts + other.counts, self.n_samples + other.n_samples)

    @property
    def n_labels(self) -> int:
        """The number of labels."""
        return len(self.counts)
