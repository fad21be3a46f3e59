"""Windows of the stream: the flagged share on a control chart."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nescio._validation import BoolArray
from nescio.monitor.martingale import Counts, Floats

if TYPE_CHECKING:
    from nescio.calibration import Threshold

KEPT_WINDOWS = 1_000
COVERAGE = 0.9973  # the probability that a window lies within its band: three standard deviations


class ChartSegment(NamedTuple):
    """The inputs of a window that share a threshold.

    The share flagged in the long run lies between those of two ranks among the calibration scores.
    """

    n: int  # inputs
    low: int  # number of scores below the threshold if several tie with it, otherwise `high`
    high: int  # rank of the threshold
    n_calibration: int  # calibration scores


@dataclass(frozen=True)
class Window:
    """A stretch of `n` inputs of the stream; `start` is the first one, counted from 0.

    `low` and `high` are the smallest and the largest number of flagged inputs within the band.
    """

    start: int
    n: int
    flagged: int
    low: int
    high: int

    @property
    def share(self) -> float:
        """The flagged share."""
        return self.flagged / self.n

    @property
    def outside(self) -> bool:
        """Whether the flagged share lies outside the band."""
        return not self.low <= self.flagged <= self.high


class ControlChart:
    """The windows of a stream. Only the latest 1,000 full windows are kept."""

    def __init__(self, thresholds: Iterable[Threshold], window: int) -> None:
        self._segments = [
            ChartSegment(0, group.lowest_rank, group.rank, group.n_samples) for group in thresholds
        ]
        self.window = window
        self.n_samples = self.flagged = 0  # so far
        self.windows: deque[Window] = deque(maxlen=KEPT_WINDOWS)  # the latest full windows
        self.n_windows = self.n_outside = 0  # full windows so far, and those outside their band
        self.open: Counts = np.zeros(len(self._segments), np.int64)  # inputs by group, in the
        self.open_flagged = 0  # open window

    def add(self, codes: NDArray[np.intp], flagged: BoolArray) -> None:
        """Add inputs by the number of their group, and close each window that becomes full."""
        while len(codes):
            room = self.window - int(self.open.sum())
            n_flagged = int(np.count_nonzero(flagged[:room]))
            self.open += np.bincount(codes[:room], minlength=len(self.open))
            self.n_samples += len(codes[:room])
            self.open_flagged += n_flagged
            self.flagged += n_flagged
            full = self.open_window() if len(codes) >= room else None
            codes, flagged = codes[room:], flagged[room:]
            if full is not None:
                self.windows.append(full)
                self.n_windows += 1
                self.n_outside += full.outside
                self.open[:] = self.open_flagged = 0

    def open_window(self) -> Window | None:
        """Return the window that is not full yet, or None if it is empty."""
        n = int(self.open.sum())
        if not n:
            return None
        pairs = zip(self._segments, self.open.tolist(), strict=True)
        ends = band(tuple(segment._replace(n=size) for segment, size in pairs if size))
        return Window(self.n_samples - n, n, self.open_flagged, *ends)


@lru_cache(maxsize=4096)
def band(segments: tuple[ChartSegment, ...], coverage: float = COVERAGE) -> tuple[int, int]:
    """Return bounds on the number of flagged inputs that hold with at least this probability.

    Within a segment the number is beta-binomial. The rank of the threshold among the calibration
    scores gives the long-run share a Beta distribution, so the band allows for chance in the
    calibration data too. Segments have separate calibration data and are independent, so the
    distribution of their sum is a convolution.
    """
    tail = (1.0 - coverage) / 2.0
    lowest = _cumulated([(part.n, part.low, part.n_calibration) for part in segments])
    highest = _cumulated([(part.n, part.high, part.n_calibration) for part in segments])
    # 1e-12: rounding must not keep a sum of probabilities below a tail that it equals on paper.
    low = int(np.searchsorted(lowest, tail * (1 + 1e-12), side="right"))
    high = int(np.searchsorted(highest, (1.0 - tail) - 1e-12, side="left"))
    return low, min(high, len(highest) - 1)


def _cumulated(segments: Sequence[tuple[int, int, int]]) -> Floats:
    """Return P(X <= k) for the total number X of flagged inputs in all segments."""
    return np.cumsum(reduce(np.convolve, [_beta_binomial(*segment) for segment in segments]))


def _beta_binomial(n: int, rank: int, n_calibration: int) -> Floats:
    """Return P(k of n scores lie below the calibration score of this rank) for k = 0, ..., n."""
    from scipy.stats import betabinom

    k = np.arange(n + 1)
    if rank == 0:
        return np.asarray(k == 0, np.float64)
    return np.asarray(betabinom.pmf(k, n, rank, n_calibration + 1 - rank))
