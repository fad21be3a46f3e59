"""Windows of the stream: the flagged share on a control chart, and labels that drift."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nescio.calibration import LabelFrequencies
from nescio.monitor.martingale import Counts, Floats, share_at

if TYPE_CHECKING:
    from nescio.calibration import Threshold

KEPT_WINDOWS = 1_000
COVERAGE = 0.9973  # the probability that a window lies within its band: three standard deviations
_ROWS = 7  # of `DriftWatch`: up to 64 windows are tested together
_WORTH_A_TEST = 2.5  # standard deviations; a count closer to its expectation gets p = 1

# --- the flagged share ----------------------------------------------------------------------------


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
        return cls(0, threshold.lowest_rank, threshold.rank, threshold.n_samples)


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

    def __init__(self, thresholds: Iterable[Threshold], window: int) -> None:
        self._segments = [ChartSegment.of(threshold) for threshold in thresholds]
        self.window = window
        self.n_samples = self.flagged = 0  # so far
        self.windows: deque[Window] = deque(maxlen=KEPT_WINDOWS)  # the latest full windows
        self.n_windows = self.n_outside = 0  # full windows so far, and those outside their band
        self.open: Counts = np.zeros(len(self._segments), np.int64)  # inputs by group, in the
        self.open_flagged = 0  # open window

    @property
    def room(self) -> int:
        """How many inputs the open window still takes; at least 1."""
        return self.window - int(self.open.sum())

    def add(self, sizes: Counts, flagged: int) -> bool:
        """Add inputs to the open window, counted by group; return whether it is full now."""
        self.open += sizes
        self.n_samples += int(sizes.sum())
        self.open_flagged += flagged
        self.flagged += flagged
        full = self.open_window() if self.room == 0 else None
        if full is None:
            return False
        self.windows.append(full)
        self.n_windows += 1
        self.n_outside += full.outside
        self.open[:] = self.open_flagged = 0
        return True

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

    Examples
    --------
    >>> band((ChartSegment(500, 50, 50, 1000),))
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
    return np.cumsum(reduce(np.convolve, [_beta_binomial(*segment) for segment in segments]))


def _beta_binomial(n: int, rank: int, n_calibration: int) -> Floats:
    """Return P(k of n scores lie below the calibration score of this rank) for k = 0, ..., n."""
    from scipy.stats import betabinom

    k = np.arange(n + 1)
    if rank == 0:
        return np.asarray(k == 0, np.float64)
    return np.asarray(betabinom.pmf(k, n, rank, n_calibration + 1 - rank))


# --- labels ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelDrift:
    """A label that fires at a different rate than in the calibration data.

    Attributes
    ----------
    label : str
        Name of the label.
    rate, calibration_rate : float
        The share of inputs for which it fires: in the latest inputs that show the drift, and in the
        calibration data.
    n_inputs : int
        Number of the latest inputs that show the drift: one window, or several together.
    p_value : float
        p-value of these inputs, corrected for the number of labels and of tests. Compare it with
        alpha.
    first_window, last_window : int
        The windows after which the drift was first and last seen, counted from 0.
    """

    label: str
    rate: float
    calibration_rate: float
    n_inputs: int
    p_value: float
    first_window: int
    last_window: int


def two_sided(window: LabelFrequencies, calibration: LabelFrequencies) -> Floats:
    """Return the p-value of Fisher's exact test for each label, two-sided.

    It is twice the smaller tail of the hypergeometric distribution. Labels within 2.5 standard
    deviations of their expectation get 1, which is never too small.

    Examples
    --------
    >>> window = LabelFrequencies(np.array([9, 1]), 10)
    >>> calibration = LabelFrequencies(np.array([10, 10]), 100)
    >>> two_sided(window, calibration).round(8).tolist()
    [3.6e-07, 1.0]
    """
    from scipy.stats import hypergeom

    n, total = window.n_samples, window.n_samples + calibration.n_samples
    p_values = np.ones(len(window.counts))
    fired = window.counts + calibration.counts
    mean = n * fired / total
    variance = mean * (1 - fired / total) * (total - n) / (total - 1)
    chosen = np.flatnonzero(np.abs(window.counts - mean) > _WORTH_A_TEST * np.sqrt(variance))
    seen, fired = window.counts[chosen], fired[chosen]
    above = hypergeom.sf(seen - 1, total, fired, n)
    below = hypergeom.cdf(seen, total, fired, n)
    p_values[chosen] = np.minimum(1.0, 2.0 * np.minimum(above, below))
    return p_values


def holm(p_values: Floats) -> Floats:
    """Return p-values corrected for their number by the procedure of Holm.

    If all hypotheses hold, any of them is at or below alpha with probability at most alpha.

    Examples
    --------
    >>> holm(np.array([0.01, 0.5, 0.02])).tolist()
    [0.03, 0.5, 0.04]
    """
    n = len(p_values)
    order = np.argsort(p_values, kind="stable")
    ascending = np.minimum(1.0, np.maximum.accumulate(p_values[order] * np.arange(n, 0, -1)))
    corrected = np.empty(n)
    corrected[order] = ascending
    return corrected


class DriftWatch:
    """A test of every label in every window.

    The probability that it ever raises a false alarm is at most alpha. A small drift does not show
    in one window, so pairs of windows are tested together too, pairs of pairs, and so on up to 64
    windows.
    """

    def __init__(self, calibration: LabelFrequencies, names: tuple[str, ...], alpha: float) -> None:
        self.calibration, self.names, self.alpha = calibration, names, alpha
        self.n_tests = 0  # each test covers all labels
        self.drifts: dict[str, LabelDrift] = {}  # by label
        # How often each label fired, and in how many inputs. Row 0: in the open window. Row k: in
        # 2**(k - 1) windows that wait for as many others.
        self.counts = np.zeros((_ROWS, calibration.n_labels), np.int64)
        self.sizes = np.zeros(_ROWS, np.int64)

    def add(self, logits: NDArray[Any]) -> None:
        """Count the labels that fire in the open window."""
        firing = LabelFrequencies.from_logits(logits)
        self.counts[0] += firing.counts
        self.sizes[0] += firing.n_samples

    def close(self, window: int) -> None:
        """Test the open window, which has this number, and open the next one."""
        block = self._take(0)
        if not block.n_samples:
            return
        self._test(block, window)
        for row in range(1, _ROWS):
            if not self.sizes[row]:
                self.counts[row], self.sizes[row] = block.counts, block.n_samples
                return
            block = self._take(row).joined(block)
            self._test(block, window)

    def _take(self, row: int) -> LabelFrequencies:
        block = LabelFrequencies(self.counts[row].copy(), int(self.sizes[row]))
        self.counts[row] = self.sizes[row] = 0
        return block

    def _test(self, block: LabelFrequencies, window: int) -> None:
        self.n_tests += 1
        # The n-th test may spend only a share of alpha, which falls with n.
        corrected = holm(two_sided(block, self.calibration)) / share_at(self.n_tests)
        for column in np.flatnonzero(corrected <= self.alpha).tolist():
            label, p_value = self.names[column], float(corrected[column])
            earlier = self.drifts.get(label)
            if earlier and earlier.last_window == window and earlier.p_value <= p_value:
                continue
            self.drifts[label] = LabelDrift(
                label=label,
                rate=int(block.counts[column]) / block.n_samples,
                calibration_rate=int(self.calibration.counts[column]) / self.calibration.n_samples,
                n_inputs=block.n_samples,
                p_value=p_value,
                first_window=earlier.first_window if earlier else window,
                last_window=window,
            )
