"""The monitor: it takes the verdicts on a stream, block by block, and keeps counts only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from nescio._validation import (
    BoolArray,
    check_matrix,
    checked_share,
    checked_whole,
    to_float,
    to_numpy,
)
from nescio.errors import ShapeError
from nescio.monitor.betting import Martingale
from nescio.monitor.chart import Chart
from nescio.monitor.labels import LabelWatch
from nescio.monitor.ranks import Bag
from nescio.monitor.references import Floats, Groups, References, fingerprint
from nescio.monitor.report import MonitorReport
from nescio.monitor.trace import Trace

if TYPE_CHECKING:
    from nescio.calibration import Firing
    from nescio.detectors import Detector
    from nescio.detectors.assessment import Assessment

THREE_SIGMA = 0.9973
_CHUNK = 4_096  # samples at once, so that memory does not grow with the size of a block


class Monitor:
    """Is the stream still the one that the detector was calibrated on?

    Made by `Monitor.for_detector`. Not thread-safe: call `update` from one thread at a time.

    Attributes
    ----------
    alpha : float
        While the stream is as it was calibrated on, the probability that the martingale ever
        raises an alarm is at most this; and the same for an alarm about a label.
    window : int
        Inputs in a window of the control chart and of the label tests.
    alarm_at : int or None
        How many inputs there were when the martingale reached 1 / alpha.
    log10_martingale : float
        The evidence against an unchanged stream, as a power of ten; alarm at -log10(alpha).
    max_log10_martingale : float
        The most that there has been.
    last_file : str or None
        A hash of the last file that `nescio monitor` counted, which must not be counted twice.
    """

    def __init__(
        self,
        references: References,
        *,
        alpha: float = 0.01,
        window: int = 500,
        seed: int = 0,
        coverage: float = THREE_SIGMA,
        firing: Firing | None = None,
        label_names: tuple[str, ...] | None = None,
        fingerprint: str = "",
    ) -> None:
        self.alpha = checked_share("alpha", alpha)
        self.window = checked_whole("window", window, minimum=10)
        self.seed = checked_whole("seed", seed, minimum=0)
        self.coverage = checked_share("coverage", coverage)
        self.references, self.fingerprint = references, fingerprint
        groups = references.by_group.items()
        self.bags = {name: Bag(reference.scores) for name, reference in groups}
        self.martingale = Martingale()
        parts = {name: reference.part(0) for name, reference in groups}
        self.chart = Chart(parts, self.window, self.coverage)
        self.labels: LabelWatch | None = None
        if firing is not None and firing.n_samples:
            names = label_names or tuple(f"label {at}" for at in range(firing.n_labels))
            self.labels = LabelWatch(firing, names, self.alpha)
        self.generator = np.random.Generator(np.random.PCG64(self.seed))
        self.last_file: str | None = None
        self.reset()

    @classmethod
    def for_detector(
        cls,
        detector: Detector,
        *,
        alpha: float = 0.01,
        window: int = 500,
        seed: int = 0,
        coverage: float = THREE_SIGMA,
    ) -> Self:
        """A monitor of what a calibrated detector assesses.

        Parameters
        ----------
        detector : Detector
            After `calibrate`.
        alpha : float
            The probability of a false alarm, ever.
        window : int
            Inputs in a window, at least 10.
        seed : int
            Of the random numbers that break ties.
        coverage : float
            The probability that a window lies within the band of the control chart.
        """
        from nescio.detectors import NotCalibratedError

        if not hasattr(detector, "calibration_"):
            raise NotCalibratedError(
                f"{type(detector).__name__} is not calibrated: a stream is compared with the "
                "calibration data. Call calibrate(held_out) first."
            )
        firing: Firing | None = detector.profile_.firing
        names = detector.label_names_
        return cls(
            References.of(detector),
            alpha=alpha,
            window=window,
            seed=seed,
            coverage=coverage,
            firing=firing,
            label_names=names if firing and names and len(names) == firing.n_labels else None,
            fingerprint=fingerprint(detector),
        )

    @classmethod
    def from_p_values(
        cls,
        n_calibration: int | Mapping[str, int],
        *,
        rank: int | Mapping[str, int],
        alpha: float = 0.01,
        window: int = 500,
        seed: int = 0,
        coverage: float = THREE_SIGMA,
    ) -> Self:
        """A monitor for p-values whose calibration scores are not at hand.

        Valid if no scores tie. `for_detector` is valid with ties too, and watches the labels.

        Parameters
        ----------
        n_calibration : int or mapping of group to int
            How many calibration scores the p-values were made with.
        rank : int or mapping of group to int
            The rank of tau among them: floor((n + 1) * (1 - tpr)), if without a confidence.
        alpha, window, seed, coverage
            As for `for_detector`.
        """
        return cls(
            References.of_sizes(n_calibration, rank),
            alpha=alpha,
            window=window,
            seed=seed,
            coverage=coverage,
        )

    def reset(self) -> None:
        """Start again, after an alarm has been dealt with; the calibration stays.

        The promise of `alpha` holds anew after a reset at a time fixed in advance. It does not
        after one that an alarm prompted: a false alarm is likelier where the calibration sample
        happens to be unlucky, and the same sample is used again. After a false alarm, calibrate
        anew on other data.
        """
        self.alarm_at: int | None = None
        self.log10_martingale = 0.0
        self.max_log10_martingale = 0.0
        self.trace = Trace()
        self.martingale.clear()
        self.chart.clear()
        for bag in self.bags.values():
            bag.clear()
        if self.labels is not None:
            self.labels.clear()

    # --- the stream ---

    def update(self, assessment: Assessment, logits: Any = None) -> None:
        """Take the verdicts on the next inputs of the stream.

        The same inputs in one call or in many give the same result, to rounding. What is refused
        with an error has changed nothing.

        Parameters
        ----------
        assessment : Assessment
            What the detector's `assess` gave. Flagged is what scores below tau, also where the
            verdicts are by `fdr`.
        logits : array of shape (n_samples, n_labels), optional
            For drift of labels. Without effect if the detector does not know how often they fired
            (`watches_labels`).
        """
        scores, groups = self.references.checked(assessment)
        matrix = self._checked_logits(logits, len(scores))
        for start in range(0, len(scores), _CHUNK):
            rows = slice(start, start + _CHUNK)
            part = None if groups is None else groups[rows]
            flagged = self._bet(scores[rows], part)
            self._fill_windows(flagged, part, None if matrix is None else matrix[rows])

    def _checked_logits(self, logits: Any, n_samples: int) -> NDArray[Any] | None:
        if logits is None or self.labels is None:
            return None
        matrix = to_float(to_numpy(logits))
        check_matrix(matrix)
        expected = (n_samples, self.labels.calibration.n_labels)
        if matrix.shape != expected:
            raise ShapeError(
                f"logits must have a row for each assessed input and a column for each label, "
                f"shape {expected}, got {matrix.shape}."
            )
        return matrix

    def _bet(self, scores: Floats, groups: Groups) -> BoolArray:
        """Let the martingale bet on some inputs; gives which of them are flagged."""
        uniform = self.generator.random(len(scores))
        p_values, flagged = np.empty(len(scores)), np.empty(len(scores), np.bool_)
        for name, rows in self.references.members(groups, len(scores)):
            p_values[rows] = self.bags[name].add(scores[rows], uniform[rows])
            flagged[rows] = scores[rows] < self.references.by_group[name].tau
        evidence = self.martingale.add(p_values) / math.log(10.0)
        if self.alarm_at is None:
            crossed = np.flatnonzero(evidence >= -math.log10(self.alpha))
            self.alarm_at = self.n_samples + int(crossed[0]) + 1 if len(crossed) else None
        self.log10_martingale = float(evidence[-1])
        self.max_log10_martingale = max(self.max_log10_martingale, float(evidence.max()))
        self.trace.add(self.n_samples, evidence)
        return flagged

    def _fill_windows(
        self, flagged: BoolArray, groups: Groups, logits: NDArray[Any] | None
    ) -> None:
        start = 0
        while start < len(flagged):
            rows = slice(start, min(len(flagged), start + self.chart.room))
            n = rows.stop - start
            part = None if groups is None else groups[rows]
            n_of = {
                name: n if isinstance(members, slice) else int(np.count_nonzero(members))
                for name, members in self.references.members(part, n)
            }
            if self.labels is not None and logits is not None:
                self.labels.add(logits[rows])
            full = self.chart.add(n_of, int(np.count_nonzero(flagged[rows])))
            if full and self.labels is not None:
                self.labels.close(self.chart.n_windows - 1)
            start = rows.stop

    # --- what came of it ---

    @property
    def n_samples(self) -> int:
        """Inputs since the last reset."""
        return self.chart.n_samples

    @property
    def flagged(self) -> int:
        """How many of them scored below tau."""
        return self.chart.flagged

    @property
    def alarm(self) -> bool:
        """Whether the martingale has reached 1 / alpha since the last reset."""
        return self.alarm_at is not None

    @property
    def label_alarm(self) -> bool:
        """Whether a label has been found to drift since the last reset."""
        return self.labels is not None and bool(self.labels.found)

    @property
    def watches_labels(self) -> bool:
        """Whether it is known how often each label fired in the calibration data."""
        return self.labels is not None

    def flagged_band(self, n: int) -> tuple[float, float]:
        """Between which shares of n inputs are expected to be flagged, while nothing has changed.

        By group, the n inputs are taken to be spread over the groups as the calibration data and
        the stream so far are together.
        """
        n = checked_whole("n", n, minimum=1)
        totals = [bag.total for bag in self.bags.values()]
        ends = np.rint(n * np.cumsum(totals) / sum(totals)).astype(np.int64)
        n_of = zip(self.bags, np.diff(ends, prepend=0).tolist(), strict=True)
        low, high = self.chart.band(dict(n_of))
        return low / n, high / n

    def report(self) -> MonitorReport:
        """What there is to say of the stream so far."""
        chart, watch = self.chart, self.labels
        return MonitorReport(
            n_samples=self.n_samples,
            flagged=self.flagged,
            alpha=self.alpha,
            coverage=self.coverage,
            alarm=self.alarm,
            alarm_at=self.alarm_at,
            log10_martingale=self.log10_martingale,
            max_log10_martingale=self.max_log10_martingale,
            trace=self.trace.points(),
            windows=tuple(chart.windows),
            open_window=chart.open_window(),
            n_windows=chart.n_windows,
            n_outside=chart.n_outside,
            labels=None if watch is None else tuple(watch.found[at] for at in sorted(watch.found)),
            n_label_tests=0 if watch is None else watch.n_tests,
        )

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the state as one safetensors file, atomically; an existing one with `force`."""
        from nescio.monitor.state import save

        save(self, path, force=force)

    @classmethod
    def load(cls, path: str | Path, detector: Detector | None = None) -> Monitor:
        """Go on where a saved monitor stopped, exactly.

        Parameters
        ----------
        path : str or Path
        detector : Detector or None
            The one that the monitor was made for; another is refused. None for a monitor made by
            `from_p_values`.
        """
        from nescio.monitor.state import load

        return load(path, detector)
