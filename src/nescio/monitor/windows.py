"""What chance explains: of the flagged share, on a control chart, and of all scores together."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nescio._validation import BoolArray
from nescio.monitor.martingale import Bag, Counts, Floats

if TYPE_CHECKING:
    from nescio.calibration import Threshold

KEPT_WINDOWS = 1_000
COVERAGE = 0.9973  # the probability that a window lies within its band: three standard deviations
_MOST = 20_000  # inputs of a band: more make it hardly narrower
_LEVELS = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)  # shares of the calibration scores
_CONSTANT = 0.9  # the share of the inputs with the same score


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
    total = sum(part.n for part in segments)
    if total > 2 * _MOST:
        fewer = tuple(part._replace(n=-(-part.n * _MOST // total)) for part in segments)
        low, high = band(fewer, coverage)
        ratio = total / sum(part.n for part in fewer)
        return math.floor(low * ratio), math.ceil((high + 1) * ratio)
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


# --- all scores, whatever their order ---


class Difference(NamedTuple):
    """How inputs differ from the calibration data, and by how large a share of them."""

    kind: str  # as `Change.kind`
    size: float


def find_difference(bags: Iterable[Bag], n_tests: int = 1) -> Difference | None:
    """Return how the inputs in some bags differ from their calibration; None if chance explains it.

    The number of inputs below calibration scores of a few ranks has a band, like that of the
    flagged ones, and so has the number with NaN. All bands of `n_tests` such comparisons hold
    together with the probability of one window.
    """
    coverage = 1 - (1 - COVERAGE) / (n_tests * (1 + len(_LEVELS)))
    cells = [
        (bag.calibration, bag.counts - bag.calibration)
        for bag in bags
        if bag.total > bag.calibration.sum()
    ]
    seen = [(known[2:], new[2:]) for known, new in cells if new[2:].any()]
    signs, size, n = [], 0.0, sum(int(new.sum()) for _, new in seen)
    for level in _LEVELS if seen else ():
        parts, below, upto = zip(*(_counted(*each, level) for each in seen), strict=True)
        low, high = band(parts, coverage)
        signs.append((sum(below) > high) - (sum(upto) < low))
        size = max(size, sum(below) / n - level, level - sum(upto) / n)
    if not any(signs):
        n_nan = sum(int(new[1]) for _, new in cells)
        limits = [(new.sum(), known[1] + 1, known[1] + 1, known.sum()) for known, new in cells]
        parts = tuple(ChartSegment(*map(int, limit)) for limit in limits)
        if not n_nan or n_nan <= band(parts, coverage)[1]:
            return None
        return Difference("unusable", n_nan / sum(part.n for part in parts))
    # Of each group, the inputs in the fullest cell that has two ends, but for the first of them.
    same = sum(max(0, new[1:-1].max() - 1) for _, new in seen)
    return Difference("constant" if same >= _CONSTANT * n else _kind(signs), size)


def _kind(signs: Sequence[int]) -> str:
    """Name a difference by its levels: 1 if too many inputs are below one, -1 if too few."""
    start, end = np.flatnonzero(signs)[[0, -1]].tolist()
    if signs[start] != signs[end]:
        return "more extreme" if signs[start] > 0 else "less extreme"
    side = "lower" if signs[start] > 0 else "higher"
    if end > 1 and start < len(_LEVELS) - 2:
        return side
    in_low_tail = end <= 1
    return f"some {side}" if in_low_tail == (side == "lower") else "less extreme"


def _counted(known: Counts, new: Counts, level: float) -> tuple[ChartSegment, int, int]:
    """Return how many inputs are below, and at or below, the calibration score of a level.

    Cells with an odd number are those of calibration scores.
    """
    upto, new_upto = np.cumsum(known), np.cumsum(new)
    wanted = max(1, round(level * upto[-1]))
    cell = 1 + 2 * int(np.searchsorted(upto[1::2], wanted))
    rank = max(wanted, int(upto[cell - 1]) + 1)
    segment = ChartSegment(int(new_upto[-1]), rank, rank, int(upto[-1]))
    return segment, int(new_upto[cell - 1]), int(new_upto[cell])
