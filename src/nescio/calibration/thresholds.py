"""Thresholds on scores, p-values, and the guarantees that hold for them.

All guarantees follow from one fact: if n calibration scores and a new score are exchangeable, the
rank of the new score among them is uniformly distributed. If the threshold is the r-th smallest
calibration score,

- a new in-distribution sample is kept with probability at least 1 - r / (n + 1), and
- the share of in-distribution samples kept in the long run follows the distribution
  1 - Beta(r, n + 1 - r), for any continuous distribution of the scores.

If scores are tied with the threshold, the share that is kept can be higher than these formulas say,
but not lower.

Scores that are equal up to rounding count as tied: the same sample may get a score that differs in
its last bits on another machine, in another batch or in an exported graph. So a new score is
compared with the limits of the calibration scores, which lie below them by `TIE_TOLERANCE`. A limit
keeps more than the score itself would, so the guarantees hold. Decision 0019 in docs/adr says why.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nescio._validation import Array, checked_share, to_numpy
from nescio.errors import InputError, ShapeError, TiedScoresWarning, TooFewSamplesError, warn

Scores = NDArray[np.float64]

# The share of calibration scores that may equal the threshold without a warning.
_TIES_ALLOWED = 0.01

# Relative to the score or, for scores close to 0, to the median size of the calibration scores.
# float32 rounds by up to 2 ** -24. The sums and products of a score were measured to add up to
# 2 ** -21, with and without the wide registers of a processor; decision 0019 names the exceptions.
TIE_TOLERANCE = 2.0**-18


def tie_limits(scores: Scores) -> Scores:
    """Return the smallest number that counts as tied with each score; infinities stay.

    Ascending scores have ascending limits.

    Examples
    --------
    >>> tie_limits(np.array([-np.inf, 2.0, 4.0])) < [0.0, 1.9999999, 3.9999999]
    array([ True,  True,  True])
    """
    finite = np.isfinite(scores)
    sizes = np.abs(scores[finite])
    limits = scores.astype(np.float64)
    if len(sizes):
        limits[finite] -= TIE_TOLERANCE * np.maximum(sizes, np.median(sizes))
    return limits


def empirical_threshold(scores: Array, tpr: float = 0.95) -> float:
    """Return the largest threshold that keeps at least the share `tpr` of these scores.

    This threshold has no guarantee for new data, and it is one of these scores: the same score with
    other last bits may fall below it. Use `Threshold` if you need more.

    Examples
    --------
    >>> empirical_threshold(np.arange(100.0), tpr=0.95)
    5.0
    """
    tpr = checked_share("tpr", tpr)
    ordered = np.sort(checked_scores(scores))
    # 1e-9 corrects rounding: 10 * (1 - 0.9) must count as 1, although it is 0.9999999999999998.
    threshold = float(ordered[math.floor(len(ordered) * (1 - tpr) + 1e-9)])
    if not math.isfinite(threshold):
        raise _too_many_non_finite(ordered, tpr)
    return threshold


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

    # Bisection: rank `low` reaches the confidence, rank `high` does not.
    low, high = 0, n_samples + 1
    while high - low > 1:
        rank = (low + high) // 2
        if betainc(rank, n_samples + 1 - rank, 1 - tpr) >= confidence - 1e-12:
            low = rank
        else:
            high = rank
    return low


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
    """A threshold on scores, together with the calibration scores that determine it.

    Attributes
    ----------
    scores : array of shape (n_samples,)
        The calibration scores in ascending order.
    tpr : float
        The share of in-distribution data to keep.
    confidence : float or None
        If None, a new in-distribution sample is kept with probability at least `tpr`. Otherwise the
        share kept in the long run is at least `tpr` with this confidence.
    rank : int
        The threshold is the limit of the rank-th smallest calibration score, counted from 1.

    Examples
    --------
    >>> import nescio as ns
    >>> logits = np.random.default_rng(0).normal(-2, 3, (100, 20))
    >>> threshold = ns.JointEnergy().calibrate(logits).calibration_.thresholds["all"]
    >>> threshold.rank, threshold.tpr
    (5, 0.95)
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
            raise _too_many_non_finite(ordered, tpr, where)
        threshold = cls(ordered, tpr, confidence, rank)
        threshold._warn_of_ties(where)
        return threshold

    def _warn_of_ties(self, where: str) -> None:
        """Warn if many calibration scores, or all of them, equal the threshold."""
        below, tied = self.below_and_tied()
        score = self.scores[self.rank - 1]
        # Two scores may be as close as the tolerance by chance.
        if tied <= max(2, _TIES_ALLOWED * self.n_samples):
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

    @functools.cached_property
    def _p_values(self) -> Scores:
        """The p-value of a score by how many limits lie at or below it."""
        return (np.arange(self.n_samples + 1, dtype=np.float64) + 1.0) / (self.n_samples + 1.0)

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
        return self._p_values.take(below)

    def tpr_interval(self, confidence: float = 0.99) -> tuple[float, float]:
        """Return the interval of the share of in-distribution samples kept in the long run.

        The interval contains the true share with this confidence. It is exact for continuous
        scores, because an order statistic follows a Beta distribution. If scores are tied with the
        threshold, all of them are kept: the upper end is then that of an interval for the share of
        the calibration scores that is kept (Clopper-Pearson).
        """
        from scipy.special import betaincinv

        tail = (1 - checked_share("confidence", confidence)) / 2
        n, (below, tied) = self.n_samples, self.below_and_tied()
        rank = self.rank if tied == 1 else below  # of the upper end
        low = 1 - float(betaincinv(self.rank, n + 1 - self.rank, 1 - tail))
        return low, 1 - float(betaincinv(rank, n + 1 - rank, tail)) if rank else 1.0

    def below_and_tied(self) -> tuple[int, int]:
        """Return how many calibration scores lie below the threshold, and how many equal it."""
        below = int(np.searchsorted(self.scores, self.value, side="left"))
        upto = int(np.searchsorted(self.limits, self.scores[self.rank - 1], side="right"))
        return below, upto - below

    def statement(self, confidence: float = 0.99) -> str:
        """Return the guarantee as a sentence.

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


def guarantee_text(tpr: float, confidence: float | None) -> str:
    """Return the requested guarantee as text for a message."""
    return f"tpr={tpr:g}" + ("" if confidence is None else f" with confidence {confidence:g}")


def _too_many_non_finite(ordered: Scores, tpr: float, where: str = "") -> InputError:
    bad = int(np.count_nonzero(~np.isfinite(ordered)))
    return InputError(
        f"{where}{bad:,} of {len(ordered):,} rows have no finite score, but with tpr={tpr:g} only "
        f"a share of {1 - tpr:.3g} can fall below the threshold. Fix or remove these rows first."
    )


def checked_scores(scores: Any, name: str = "scores") -> Scores:
    """Return scores as a one-dimensional float64 array; raise if there are none or some are NaN.

    Examples
    --------
    >>> checked_scores([1, 2])
    array([1., 2.])
    """
    values = to_numpy(scores).astype(np.float64, copy=False)
    if values.ndim != 1 or not len(values):
        raise ShapeError(
            f"{name} must have shape (n_samples,) with at least one sample, got {values.shape}."
        )
    if np.isnan(values).any():
        first = int(np.flatnonzero(np.isnan(values))[0])
        raise InputError(f"{name} must not contain NaN, but the value at index {first} is NaN.")
    return values


# --- counting scores at or below new ones ---

_FEWEST_NEW = 256  # for fewer new numbers, a binary search is as fast
_CELLS_PER_NUMBER = 4
_MOST_CELLS = 1 << 20
_BEYOND = 0.0005  # the share of the numbers below the first cell, and of those above the last one
_STEPS = (4, 2, 1)  # they count up to 7 numbers of a cell
_LARGEST_PLACE = 2.0**53  # larger numbers are no index on every processor


class Counter:
    """Counts the numbers at or below new ones: `np.searchsorted`, but 5 to 9 times faster.

    A binary search among thousands of numbers takes a dozen steps for each new number, and half of
    them surprise the processor's branch prediction. Here one multiplication finds the cell of a new
    number, a table says how many numbers lie in lower cells, and three steps for all new numbers at
    once count those in the same cell. The numbers are ascending, without NaN.

    Examples
    --------
    >>> Counter(np.array([1.0, 2.0, 2.0, 5.0])).at_or_below(np.array([0.0, 2.0, 9.0]))
    array([0, 3, 4])
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

    Every operation keeps the order of the values, also where it rounds. So values in different
    cells are in the order of their cells.
    """
    with np.errstate(over="ignore"):
        places: Scores = values * scale
        places += shift
    return np.maximum(places, 0.0, out=places)


# --- p-values as a continuous function of the score, for scores that are made of p-values ---


def tail_scale(reference: Scores) -> float:
    """Return the scale of the lower tail: how far the lowest tenth lies below the next score."""
    lowest = max(1, len(reference) // 10)
    scale = reference[min(lowest, len(reference) - 1)] - reference[:lowest].mean()
    return float(scale or reference[-1] - reference[0] or 1.0)


def continuous_p_values(reference: Scores, scores: Scores, limits: Scores | None = None) -> Scores:
    """Return p-values of scores against n ascending reference scores, as a continuous function.

    At the i-th smallest reference score it is i / (n + 1), and it is linear between them. So
    P(p <= i / (n + 1)) = i / (n + 1) for i < n and a new score from the same distribution, as for
    the conformal p-value, which is larger by at most 1 / (n + 1). At and above the largest
    reference score it is n / (n + 1). Below the smallest one it falls as 1 / (n + 1) / (1 + gap /
    scale), so that scores keep their order however low they are; `tail_scale` is the scale.

    A score from the limit of a reference score on (`tie_limits`, by default the score itself)
    counts as at least that score. So rounding does not move a score across tied reference scores.

    Examples
    --------
    >>> continuous_p_values(np.array([0.0, 1.0, 3.0]), np.array([-1.0, 0.0, 2.0, 9.0]))
    array([0.125, 0.25 , 0.625, 0.75 ])
    """
    n = len(reference)
    scores = np.minimum(scores, reference[-1])
    tied = reference if limits is None else limits
    below = np.searchsorted(tied, scores, side="right")  # or equal
    lower, upper = reference[np.maximum(below - 1, 0)], reference[np.minimum(below, n - 1)]
    between = np.maximum(scores - lower, 0.0) / np.where(upper > lower, upper - lower, 1.0)
    gaps = np.maximum(reference[0] - scores, 0.0) / tail_scale(reference)
    return np.where(below == 0, 1 / (1 + gaps), below + between) / (n + 1)
