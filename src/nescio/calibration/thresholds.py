"""A threshold on scores, p-values, and what can be promised about them.

Everything here rests on one fact: if n calibration scores and a new one are exchangeable, the new
one's rank among them is uniform. With the r-th smallest calibration score as the threshold tau,

- a new in-distribution input is kept with probability at least 1 - r / (n + 1), and
- the share of in-distribution inputs kept in the long run is distributed as
  1 - Beta(r, n + 1 - r), whatever the distribution of the scores.

If scores tie, more is kept than these say, never less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio._validation import Array, checked_share, to_numpy
from nescio.errors import InputError, ShapeError, TiedScoresWarning, TooFewSamplesError, warn

Scores = NDArray[np.float64]

_TIES_ALLOWED = 0.01  # the share of calibration scores that may equal tau without a warning


def empirical_threshold(scores: Array, tpr: float = 0.95) -> float:
    """The largest tau with at least a share `tpr` of these scores at or above it.

    It says nothing of new data; see `Threshold` for that.

    Examples
    --------
    >>> empirical_threshold(np.arange(100.0), tpr=0.95)
    5.0
    """
    tpr = checked_share("tpr", tpr)
    ordered = np.sort(checked_scores(scores))
    # 1e-9: n * (1 - tpr) is meant to be whole when it is so on paper.
    tau = float(ordered[math.floor(len(ordered) * (1 - tpr) + 1e-9)])
    if not math.isfinite(tau):
        raise _without_score(ordered, tpr)
    return tau


def conformal_rank(n_samples: int, tpr: float, confidence: float | None = None) -> int:
    """The rank r of the calibration score to use as threshold; 0 if there are too few samples.

    Without `confidence`: the largest r with 1 - r / (n + 1) >= tpr, so that a new in-distribution
    input is kept with probability at least `tpr`. With it: the largest r for which the long-run
    share kept is at least `tpr` with that confidence over the draw of the calibration data.
    """
    if confidence is None:
        return math.floor((n_samples + 1) * (1 - tpr) + 1e-9)
    from scipy.special import betainc

    low, high = 0, n_samples + 1  # rank low is sure enough, rank high is not
    while high - low > 1:
        rank = (low + high) // 2
        if betainc(rank, n_samples + 1 - rank, 1 - tpr) >= confidence - 1e-12:
            low = rank
        else:
            high = rank
    return low


def required_samples(tpr: float, confidence: float | None = None) -> int:
    """The fewest calibration samples with which `tpr` can be promised.

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


@dataclass(frozen=True, eq=False)
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
        cls,
        scores: Array,
        *,
        tpr: float = 0.95,
        confidence: float | None = None,
        group: str | None = None,
    ) -> Threshold:
        """Choose tau on held-out in-distribution scores; `group` is named in what goes wrong.

        Examples
        --------
        >>> threshold = Threshold.from_scores(np.arange(199.0), tpr=0.95)
        >>> threshold.tau, threshold.p_values([-1.0, 9.0, 500.0])
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
                f"{where}{asked(tpr, confidence)} needs at least "
                f"{required_samples(tpr, confidence):,} calibration samples, got {len(ordered):,}."
            )
        if not np.isfinite(ordered[rank - 1]):
            raise _without_score(ordered, tpr, where)
        threshold = cls(ordered, tpr, confidence, rank)
        tied = int(np.count_nonzero(ordered == threshold.tau))
        if tied > max(1, _TIES_ALLOWED * len(ordered)):
            warn(
                f"{where}{tied:,} of {len(ordered):,} calibration scores equal the threshold "
                f"{threshold.tau:g}. More is kept than stated, and less can be flagged.",
                TiedScoresWarning,
            )
        return threshold

    def __post_init__(self) -> None:
        if self.scores.ndim != 1 or not 1 <= self.rank <= len(self.scores):
            raise InputError(f"rank {self.rank} does not fit {self.scores.shape} scores.")
        ascending = (self.scores[1:] >= self.scores[:-1]).all()
        if not ascending or not np.isfinite(self.tau):
            raise InputError("calibration scores must ascend, and tau must be finite.")

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

        tail = (1 - checked_share("confidence", confidence)) / 2
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


def asked(tpr: float, confidence: float | None) -> str:
    """What was asked of a threshold, for messages."""
    return f"tpr={tpr:g}" + ("" if confidence is None else f" with confidence {confidence:g}")


def _without_score(ordered: Scores, tpr: float, where: str = "") -> InputError:
    bad = int(np.count_nonzero(~np.isfinite(ordered)))
    return InputError(
        f"{where}{bad:,} of {len(ordered):,} rows have no finite score; that is more than the "
        f"{1 - tpr:.3g} that may fall below the threshold. Clean the data first."
    )


def checked_scores(scores: Any, name: str = "scores") -> Scores:
    """Scores as a float64 array of one dimension, without NaN."""
    values = to_numpy(scores).astype(np.float64, copy=False)
    if values.ndim != 1 or not len(values):
        raise ShapeError(f"{name} must have shape (n_samples,) with a sample, got {values.shape}.")
    if np.isnan(values).any():
        first = int(np.flatnonzero(np.isnan(values))[0])
        raise InputError(f"{name} hold NaN, first at index {first}.")
    return values
