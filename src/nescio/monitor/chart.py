"""How many inputs of a window are flagged, and how many are to be expected."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

KEPT_WINDOWS = 1_000


class Part(NamedTuple):
    """The inputs of a window that share a threshold.

    Attributes
    ----------
    n : int
        How many.
    low, high : int
        Ranks of tau among the calibration scores: those below it, if several tie with it, and its
        own. The share flagged in the long run lies between the two.
    n_calibration : int
    """

    n: int
    low: int
    high: int
    n_calibration: int


@dataclass(frozen=True)
class Window:
    """A stretch of the stream.

    Attributes
    ----------
    start, n : int
        The number of its first input, counted from 0, and how many it has.
    flagged : int
    low, high : int
        The fewest and the most flagged inputs within the band.
    """

    start: int
    n: int
    flagged: int
    low: int
    high: int

    @property
    def share(self) -> float:
        """The share that is flagged."""
        return self.flagged / self.n

    @property
    def outside(self) -> bool:
        """Whether it lies outside the band."""
        return not self.low <= self.flagged <= self.high

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it, the band in shares."""
        band = {"low": self.low / self.n, "high": self.high / self.n}
        return asdict(self) | {"share": self.share} | band | {"outside": self.outside}


class Chart:
    """The windows of a stream; of those that are full, the latest 1,000 are kept.

    Attributes
    ----------
    n_samples, flagged : int
        Inputs so far, and how many of them were flagged.
    windows : deque of Window
        The latest full ones.
    n_windows, n_outside : int
        All full ones, and how many of them lay outside their band.
    open : dict of group to int
        How many inputs of each group are in the window that is not full.
    open_flagged : int
    """

    def __init__(self, parts: Mapping[str, Part], window: int, coverage: float) -> None:
        self._parts, self.window, self.coverage = dict(parts), window, coverage
        self.clear()

    def clear(self) -> None:
        """Forget the stream."""
        self.n_samples = self.flagged = 0
        self.windows: deque[Window] = deque(maxlen=KEPT_WINDOWS)
        self.n_windows = self.n_outside = 0
        self._open_next()

    def _open_next(self) -> None:
        self.open = dict.fromkeys(self._parts, 0)
        self.open_flagged = 0

    @property
    def room(self) -> int:
        """How many inputs the open window lacks; at least 1."""
        return self.window - sum(self.open.values())

    def add(self, n_of: Mapping[str, int], flagged: int) -> bool:
        """Add inputs, counted by group, for which there is room; gives whether that fills it."""
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
        """The window that is not full; None if nothing is in it."""
        n = sum(self.open.values())
        if not n:
            return None
        return Window(self.n_samples - n, n, self.open_flagged, *self.band(self.open))

    def band(self, n_of: Mapping[str, int]) -> tuple[int, int]:
        """The fewest and the most to be flagged, of so many inputs of each group."""
        parts = (self._parts[name]._replace(n=n) for name, n in n_of.items() if n)
        return band(tuple(parts), self.coverage)


@lru_cache(maxsize=4096)
def band(parts: tuple[Part, ...], coverage: float) -> tuple[int, int]:
    """The fewest and the most inputs to be flagged, with this probability at least.

    Within a part the number is beta-binomial: tau's rank among the calibration scores gives the
    long-run share a Beta distribution, so the band allows for the calibration data's own luck. The
    parts have their own calibration data and are independent: their sum is a convolution.

    Examples
    --------
    >>> band((Part(500, 50, 50, 1000),), 0.9973)
    (10, 45)
    """
    tail = (1.0 - coverage) / 2.0
    lowest = _cumulated(tuple((part.n, part.low, part.n_calibration) for part in parts))
    highest = _cumulated(tuple((part.n, part.high, part.n_calibration) for part in parts))
    # 1e-12: sums of probabilities are meant to reach a tail that they reach on paper.
    low = int(np.searchsorted(lowest, tail * (1 + 1e-12), side="right"))
    high = int(np.searchsorted(highest, (1.0 - tail) - 1e-12, side="left"))
    return low, min(high, len(highest) - 1)


def _cumulated(parts: tuple[tuple[int, int, int], ...]) -> Floats:
    """P(X <= k) for the sum X of what is flagged in each part."""
    if len(parts) == 1:
        return np.cumsum(_beta_binomial(*parts[0]))
    size = sum(n for n, _, _ in parts) + 1
    product = np.ones(size // 2 + 1, np.complex128)
    for part in parts:
        product *= np.fft.rfft(_beta_binomial(*part), size)
    return np.cumsum(np.maximum(np.fft.irfft(product, size), 0.0))


def _beta_binomial(n: int, rank: int, n_calibration: int) -> Floats:
    """How likely 0, 1, ..., n scores below the rank-th smallest of the calibration scores are."""
    from scipy.special import betaln, gammaln

    k = np.arange(n + 1)
    if rank == 0:
        return np.asarray(k == 0, np.float64)
    a, b = float(rank), float(n_calibration + 1 - rank)
    ways = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    return np.asarray(np.exp(ways + betaln(k + a, n - k + b) - betaln(a, b)))
