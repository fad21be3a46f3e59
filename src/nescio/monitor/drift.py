"""Label drift: labels that fire more or less often than they did in the calibration data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio.calibration import Firing
from nescio.monitor.betting import share_at

Floats = NDArray[np.float64]

_MAX_LEVEL = 6  # up to 64 windows are tested together
_WORTH_A_TEST = 2.5  # standard deviations; a count closer to its expectation gets p = 1


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

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for JSON."""
        return asdict(self)


def two_sided(window: Firing, calibration: Firing) -> Floats:
    """Return the p-value of Fisher's exact test for each label, two-sided.

    It is twice the smaller tail of the hypergeometric distribution. Labels within 2.5 standard
    deviations of their expectation get 1, which is never too small.

    Examples
    --------
    >>> window, calibration = Firing(np.array([9, 1]), 10), Firing(np.array([10, 10]), 100)
    >>> two_sided(window, calibration).round(8).tolist()
    [3.6e-07, 1.0]
    """
    from scipy.stats import hypergeom

    n, total = window.n_samples, window.n_samples + calibration.n_samples
    result = np.ones(len(window.counts))
    fired = window.counts + calibration.counts
    mean = n * fired / total
    variance = mean * (1 - fired / total) * (total - n) / (total - 1)
    chosen = np.flatnonzero(np.abs(window.counts - mean) > _WORTH_A_TEST * np.sqrt(variance))
    seen, fired = window.counts[chosen], fired[chosen]
    above = hypergeom.sf(seen - 1, total, fired, n)
    below = hypergeom.cdf(seen, total, fired, n)
    result[chosen] = np.minimum(1.0, 2.0 * np.minimum(above, below))
    return result


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
    result = np.empty(n)
    result[order] = ascending
    return result


class DriftWatch:
    """A test of every label in every window.

    The probability that it ever raises a false alarm is at most alpha. A small drift does not show
    in one window, so pairs of windows are tested together too, pairs of pairs, and so on up to 64
    windows.
    """

    def __init__(self, calibration: Firing, names: tuple[str, ...], alpha: float) -> None:
        self.calibration, self.names, self.alpha = calibration, names, alpha
        self.clear()

    def clear(self) -> None:
        """Remove everything that came from the stream."""
        self.n_tests = 0  # each test covers all labels
        self.found: dict[int, LabelDrift] = {}  # the labels that drift, by column
        self.waiting: dict[int, Firing] = {}  # blocks of 2**level windows that wait for another
        self._open_next()

    def _open_next(self) -> None:
        self.open = Firing(np.zeros_like(self.calibration.counts), 0)

    def add(self, logits: NDArray[Any]) -> None:
        """Count the labels that fire in the open window."""
        self.open = self.open.joined(Firing.from_logits(logits))

    def close(self, window: int) -> None:
        """Test the open window, which has this number, and open the next one."""
        block, level = self.open, 0
        self._open_next()
        if not block.n_samples:
            return
        self._test(block, window)
        while level < _MAX_LEVEL and level in self.waiting:
            block, level = self.waiting.pop(level).joined(block), level + 1
            self._test(block, window)
        if level < _MAX_LEVEL:
            self.waiting[level] = block

    def _test(self, block: Firing, window: int) -> None:
        self.n_tests += 1
        for at, drift in self._drifts(block, window).items():
            known = self.found.get(at)
            if known is None:
                self.found[at] = drift
            elif known.last_window < window or drift.p_value < known.p_value:
                self.found[at] = replace(drift, first_window=known.first_window)

    def _drifts(self, block: Firing, window: int) -> dict[int, LabelDrift]:
        """Return the labels whose rate in this block differs, by column."""
        # The n-th test may spend only a share of alpha, which falls with n.
        corrected = holm(two_sided(block, self.calibration)) / share_at(max(1, self.n_tests))
        return {
            at: LabelDrift(
                label=self.names[at],
                rate=int(block.counts[at]) / block.n_samples,
                calibration_rate=int(self.calibration.counts[at]) / self.calibration.n_samples,
                n_inputs=block.n_samples,
                p_value=float(corrected[at]),
                first_window=window,
                last_window=window,
            )
            for at in np.flatnonzero(corrected <= self.alpha).tolist()
        }

    def glimpse(self, window: int) -> tuple[LabelDrift, ...]:
        """Return the labels that seem to drift in the open window, which has this number.

        This is no alarm: only tests of full windows bound the probability of a false one.
        """
        if not self.open.n_samples:
            return ()
        return tuple(self._drifts(self.open, window).values())
