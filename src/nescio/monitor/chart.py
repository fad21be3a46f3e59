"""The control chart: how many inputs of each window are flagged, and how many are expected."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from nescio.calibration import Threshold

Floats = NDArray[np.float64]

KEPT_WINDOWS = 1_000


class ChartSegment(NamedTuple):
    """The inputs of a window that share a threshold.

    The share flagged in the long run lies between those of two ranks among the calibration scores.
    """

    n: int  # inputs
    low: int  # number of scores below the threshold if several tie with it, otherwise `high`
    high: int  # rank of the threshold
    n_calibration: int  # calibration scores

    @classmethod
    def of(cls, threshold: Threshold) -> ChartSegment:
        """Return a segment without inputs for a threshold."""
        rank, (below, tied) = threshold.rank, threshold.below_and_tied()
        # Scores that tie with the threshold are not flagged. The share flagged has no exact
        # distribution then, but it lies between those of two ranks.
        return cls(0, rank if tied == 1 else below, rank, threshold.n_samples)


@dataclass(frozen=True)
class Window:
    """A stretch of the stream.

    Attributes
    ----------
    start, n : int
        Position of the first input, counted from 0, and number of inputs.
    flagged : int
        Number of flagged inputs.
    low, high : int
        The smallest and the largest number of flagged inputs within the band.
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

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for JSON, with the band as shares."""
        band = {"low": self.low / self.n, "high": self.high / self.n}
        return asdict(self) | {"share": self.share} | band | {"outside": self.outside}


class ControlChart:
    """The windows of a stream. Only the latest 1,000 full windows are kept."""

    def __init__(self, segments: Mapping[str, ChartSegment], window: int, coverage: float) -> None:
        self._segments, self.window, self.coverage = dict(segments), window, coverage
        self.clear()

    def clear(self) -> None:
        """Remove everything that came from the stream."""
        self.n_samples = self.flagged = 0  # so far
        self.windows: deque[Window] = deque(maxlen=KEPT_WINDOWS)  # the latest full windows
        self.n_windows = self.n_outside = 0  # full windows so far, and those outside their band
        self._open_next()

    def _open_next(self) -> None:
        self.open = dict.fromkeys(self._segments, 0)  # inputs of each group in the open window
        self.open_flagged = 0

    @property
    def room(self) -> int:
        """How many inputs the open window still takes; at least 1."""
        return self.window - sum(self.open.values())

    def add(self, n_of: Mapping[str, int], flagged: int) -> bool:
        """Add inputs to the open window, counted by group; return whether it is full now."""
        for name, n in n_of.items():
            self.open[name] += n
        self.n_samples += sum(n_of.values())
        self.open_flagged += flagged
        self.flagged += flagged
        full = self.open_window() if self.room == 0 else None
        if full is None:
            return False
        self.windows.append(full)
        self.n_windows += 1
        self.n_outside += full.outside
        self._open_next()
        return True

    def open_window(self) -> Window | None:
        """Return the window that is not full yet, or None if it is empty."""
        n = sum(self.open.values())
        if not n:
            return None
        return Window(self.n_samples - n, n, self.open_flagged, *self.band(self.open))

    def band(self, n_of: Mapping[str, int]) -> tuple[int, int]:
        """Return the smallest and the largest number expected to be flagged, by group sizes."""
        segments = (self._segments[name]._replace(n=n) for name, n in n_of.items() if n)
        return band(tuple(segments), self.coverage)


@lru_cache(maxsize=4096)
def band(segments: tuple[ChartSegment, ...], coverage: float) -> tuple[int, int]:
    """Return bounds on the number of flagged inputs that hold with at least this probability.

    Within a segment the number is beta-binomial. The rank of the threshold among the calibration
    scores gives the long-run share a Beta distribution, so the band allows for chance in the
    calibration data too. Segments have separate calibration data and are independent, so the
    distribution of their sum is a convolution.

    Examples
    --------
    >>> band((ChartSegment(500, 50, 50, 1000),), 0.9973)
    (10, 45)
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
    if len(segments) == 1:
        return np.cumsum(_beta_binomial(*segments[0]))
    size = sum(n for n, _, _ in segments) + 1
    product = np.ones(size // 2 + 1, np.complex128)
    for segment in segments:
        product *= np.fft.rfft(_beta_binomial(*segment), size)
    return np.cumsum(np.maximum(np.fft.irfft(product, size), 0.0))


def _beta_binomial(n: int, rank: int, n_calibration: int) -> Floats:
    """Return P(k of n scores lie below the calibration score of this rank) for k = 0, ..., n."""
    from scipy.stats import betabinom

    k = np.arange(n + 1)
    if rank == 0:
        return np.asarray(k == 0, np.float64)
    return np.asarray(betabinom.pmf(k, n, rank, n_calibration + 1 - rank))
