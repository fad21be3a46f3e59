"""The monitor: it takes the verdicts of a stream block by block and keeps only counts."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio._charts.results import Result, View
from nescio._io.tensors import FileKind
from nescio._validation import Array, BoolArray, checked_share, checked_whole
from nescio.calibration.calibration import ALL, Calibration, checked_groups
from nescio.detectors.base import Detector, require_calibration
from nescio.detectors.verdicts import Assessment
from nescio.errors import InputError, MissingInputError, ParameterError, ShapeError
from nescio.monitor.martingale import Bag, Change, ChangeFinder, Floats, Martingale, Place, Trace
from nescio.monitor.report import CARD_WIDTH, group_sentence, headline, monitor_figures, summary
from nescio.monitor.windows import ControlChart, Difference, Window, find_difference

Codes = NDArray[np.intp]

_KIND = FileKind("nescio.monitor", "saved monitor")
# The attributes that a file holds: arrays as tensors, and numbers and texts as metadata.
_STORED = (
    *("fingerprint", "alpha", "window", "counted_files", "acknowledged"),
    *("alarm_at", "log10_martingale", "max_log10_martingale"),
    *("chart.n_samples", "chart.flagged", "chart.n_windows", "chart.n_outside"),
    *("chart.open", "chart.open_flagged", "martingale.n_samples", "martingale.log_stakes"),
    *("finder.gains", "trace.step", "trace.values"),
)
_KEPT_ALARMS = 100  # that were acknowledged, or groups that had changed
_CLOSE = 1e-6  # how close p * (n + 1) must be to a whole number
_CHUNK = 4_096  # samples at once, so that memory does not grow with the size of a block


class Monitor(Result):
    """Watch whether a stream still looks like the calibration data of a detector.

    Print it to read what has changed, since when, what to do, and the evidence. A monitor is not
    thread-safe: call `update` from one thread at a time.

    Parameters
    ----------
    detector : Detector
        A detector after `calibrate`.
    alpha : float
        While the stream looks like the calibration data, the probability that the martingale ever
        raises an alarm is at most this.
    window : int
        Number of inputs in a window of the control chart; at least 10.
    seed : int
        Seed of the random numbers that break ties.

    Attributes
    ----------
    alarm_at : int or None
        Number of inputs after which the martingale reached 1 / alpha; None if it has not.
    log10_martingale : float
        The evidence of a change, as a power of ten; the alarm is raised at -log10(alpha).
    max_log10_martingale : float
        The largest value of `log10_martingale` so far.
    change : Change or None
        What has changed, among all inputs, and since when, as estimated at the alarm; None without
        an alarm.
    acknowledged : list of dict
        The latest 100 changes that `acknowledge` has recorded.

    Examples
    --------
    >>> import nescio as ns
    >>> rng = np.random.default_rng(0)
    >>> detector = ns.JointEnergy().calibrate(rng.normal(-2, 3, (1000, 20)))
    >>> monitor = Monitor(detector)
    >>> monitor.update(detector.assess(rng.normal(-2, 3, (500, 20))))
    >>> monitor.alarm
    False
    >>> monitor.update(detector.assess(rng.normal(-5, 3, (500, 20))))
    >>> monitor.alarm
    True
    """

    def __init__(
        self, detector: Any, *, alpha: float = 0.01, window: int = 500, seed: int = 0
    ) -> None:
        detector = getattr(detector, "wrapped_", detector)  # of a nescio.WithVerdict
        detector = getattr(detector, "detector", detector)  # of a wrapped model
        require_calibration(detector)
        self.alpha = checked_share("alpha", alpha)
        self.window = checked_whole("window", window, minimum=10)
        self.calibration = detector.calibration_
        self.thresholds = list(self.calibration.thresholds.values())
        self.fingerprint = self._fingerprint(detector)
        self.generator = np.random.default_rng(checked_whole("seed", seed, minimum=0))
        self.counted_files: list[str] = []  # hashes: `nescio monitor` counts no file twice
        self.acknowledged: list[dict[str, Any]] = []
        self.reset()

    def acknowledge(self, note: str = "") -> dict[str, Any]:
        """Record that a change was dealt with, and start again; the calibration stays the same.

        What is recorded is returned: time, alarm (in words, or the changed groups), alarm_at and
        change (of an alarm), and the note, which says who has dealt with it, and how.
        """
        if not self.changed:
            raise InputError("there is no alarm and no changed group to acknowledge.")
        record = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "alarm": f"{headline(self)} {group_sentence(self)}".strip(),
            "alarm_at": self.alarm_at,
            "change": self.change and asdict(self.change),
            "note": note,
        }
        self.acknowledged = [*self.acknowledged, record][-_KEPT_ALARMS:]
        self.reset()
        return record

    def reset(self) -> None:
        """Start again, at a time that does not depend on the stream (or `alpha` does not hold)."""
        self.alarm_at: int | None = None
        self._noticed: Change | None = None
        self.log10_martingale = 0.0
        self.max_log10_martingale = 0.0
        self.trace = Trace()
        self.martingale = Martingale()
        self.finder = ChangeFinder()
        self.bags = [Bag(threshold.scores) for threshold in self.thresholds]
        self.chart = ControlChart(self.thresholds, self.window)

    def _fingerprint(self, detector: Detector) -> str:
        """Return a hash of everything that the stream is compared with."""
        digest = hashlib.sha256(repr((detector.name, detector.label_names_)).encode())
        for name, threshold in self.calibration.thresholds.items():
            digest.update(f"{name}:{threshold.rank}:{threshold.n_samples};".encode())
            digest.update(np.ascontiguousarray(threshold.scores, np.float64).data)
        return digest.hexdigest()

    # --- the stream ---

    def update(self, assessment: Assessment, *, times: Sequence[Any] | None = None) -> None:
        """Add the verdicts on the next inputs of the stream.

        The result does not depend on how the inputs are split into calls, except for rounding. If
        an error is raised, the monitor has not changed.

        Parameters
        ----------
        assessment : Assessment or Prediction
            Result of the `assess` method of the detector, or of a wrapped model. An input counts as
            flagged if its score is below the threshold, also if the verdicts were made with `fdr`.
        times : sequence of length n_samples, optional
            The time of each input, in any form that can be shown as text. The report names the
            time since which the stream has changed. It names the id too, if the assessment has
            ids.
        """
        assessment = getattr(assessment, "assessment", assessment)
        scores, codes = checked_assessment(self.calibration, assessment)
        times = None if times is None else list(times)  # a pandas Series is indexed by its labels
        if times is not None and len(times) != len(scores):
            raise ShapeError(
                f"times must have one entry per assessed input, {len(scores):,}, got "
                f"{len(times):,}."
            )
        n_before = self.n_samples

        def place(position: int) -> Place:
            known, row = (assessment.ids, times), position - n_before
            return Place(position + 1, *(None if c is None else str(c[row]) or None for c in known))

        for start in range(0, len(scores), _CHUNK):
            rows = slice(start, start + _CHUNK)
            self.chart.add(codes[rows], self._bet(scores[rows], codes[rows], place))

    def _bet(self, scores: Floats, codes: Codes, place: Callable[[int], Place]) -> BoolArray:
        """Let the martingale bet on some inputs; return which of them are flagged."""
        uniform = self.generator.random(len(scores))
        p_values, flagged = np.empty(len(scores)), np.empty(len(scores), np.bool_)
        for code, (bag, threshold) in enumerate(zip(self.bags, self.thresholds, strict=True)):
            rows = codes == code
            p_values[rows] = bag.add(scores[rows], uniform[rows])
            flagged[rows] = scores[rows] < threshold.value
        gains = self.martingale.gains(p_values)
        evidence = self.martingale.add(gains) / math.log(10.0)
        if self.alarm_at is None:
            crossed = np.flatnonzero(evidence >= -math.log10(self.alpha))
            n = int(crossed[0]) + 1 if len(crossed) else len(scores)
            self.finder.add(gains[:, :n], lambda column: place(self.n_samples + column))
            if len(crossed):
                self.alarm_at = self.n_samples + n
                self._noticed = self.finder.likeliest()
        self.log10_martingale = float(evidence[-1])
        self.max_log10_martingale = max(self.max_log10_martingale, float(evidence.max()))
        self.trace.add(self.n_samples, evidence)
        return flagged

    # --- the result ---

    @property
    def n_samples(self) -> int:
        """Number of inputs since the last reset."""
        return self.chart.n_samples

    @property
    def flagged(self) -> int:
        """Number of inputs since the last reset whose score is below the threshold."""
        return self.chart.flagged

    @property
    def expected_share(self) -> float:
        """The share of the inputs so far that was expected to score below the threshold.

        Without inputs, the share of those in the calibration data.
        """
        sizes = [threshold.n_samples for threshold in self.thresholds]
        if self.n_samples:
            sizes = [bag.total - n for bag, n in zip(self.bags, sizes, strict=True)]
        shares = [threshold.rank / (threshold.n_samples + 1) for threshold in self.thresholds]
        return float(np.average(shares, weights=sizes))

    @property
    def alarm(self) -> bool:
        """Whether the martingale has reached 1 / alpha since the last reset."""
        return self.alarm_at is not None

    @property
    def change(self) -> Change | None:
        """What has changed, whatever the order of the inputs, and since when; None without alarm.

        If the inputs since the change are few among all, the kind is that seen at the alarm.
        """
        if self._noticed is None or (whole := self.difference) is None:
            return self._noticed
        return replace(self._noticed, kind=whole.kind)

    @property
    def difference(self) -> Difference | None:
        """How all inputs differ from the calibration data, in any order; None if by chance."""
        return find_difference(self.bags)

    @property
    def changed_groups(self) -> dict[str, Difference]:
        """The calibrated groups whose inputs differ from their calibration, the worst first."""
        bags = dict(zip(self.calibration.thresholds, self.bags, strict=True))
        bags.pop(ALL, None)  # of groups that were not calibrated: nothing is promised
        found = {name: find_difference([bag], len(bags)) for name, bag in bags.items()}
        changed = {name: difference for name, difference in found.items() if difference}
        return dict(sorted(changed.items(), key=lambda item: -item[1].size))

    @property
    def changed(self) -> bool:
        """Whether there is an alarm or a changed group, which `acknowledge` deals with."""
        return self.alarm or bool(self.changed_groups)

    @property
    def n_nonfinite(self) -> dict[str, int]:
        """The number of inputs with NaN or infinity, by group, the largest first."""
        seen = [int(bag.counts[1] - bag.calibration[1]) for bag in self.bags]
        pairs = zip(seen, self.calibration.thresholds, strict=True)
        return {name: n for n, name in sorted(pairs, key=lambda pair: -pair[0]) if n}

    @property
    def windows(self) -> list[Window]:
        """The latest 1,000 full windows, and the one that is not full yet, if it has inputs."""
        newest = self.chart.open_window()
        return [*self.chart.windows, *([] if newest is None else [newest])]

    def columns(self) -> dict[str, Any]:
        """Return one row per window: start, n, flagged, low, high, share, outside and is_open.

        `low` and `high` are the numbers of flagged inputs at the ends of the expected band.
        """
        windows = self.windows
        names = ("start", "n", "flagged", "low", "high", "share", "outside")
        columns = {name: [getattr(window, name) for window in windows] for name in names}
        return columns | {"is_open": [window.n < self.window for window in windows]}

    def summary(self) -> str:
        """Return a few lines: what has changed and since when, what to do, and the evidence."""
        return summary(self)

    __str__ = summary

    def _view(self) -> View:
        title, _, text = self.summary().partition("\n")
        figures = partial(monitor_figures, self, CARD_WIDTH) if self.n_samples else list
        return View(title, text, charts=lambda: [drawn for *_, drawn in figures()])

    def as_dict(self) -> dict[str, Any]:
        """Return everything that is known about the stream so far, for JSON."""
        chart, newest = self.chart, self.chart.open_window()
        names = ["n_samples", "flagged", "expected_share", "alpha", "alarm", "alarm_at", "changed"]
        names += ["log10_martingale", "max_log10_martingale"]
        return {
            "summary": self.summary(),
            **{name: getattr(self, name) for name in names},
            "change": self.change and asdict(self.change),
            "changed_groups": {name: each.kind for name, each in self.changed_groups.items()},
            "n_nonfinite": self.n_nonfinite,
            "trace": self.trace.points(),
            "windows": [asdict(window) for window in chart.windows],
            "open_window": newest and asdict(newest),
            "n_windows": chart.n_windows,
            "n_outside": chart.n_outside,
            "acknowledged": self.acknowledged,
        }

    # --- the state in a file ---

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the state to one safetensors file, atomically; replace a file only with `force`."""
        state = {name: attrgetter(name)(self) for name in _STORED}
        tensors: dict[str, Array] = {
            name: state.pop(name) for name in [*state] if isinstance(state[name], np.ndarray)
        }
        tensors |= {f"bags.{code}": bag.counts for code, bag in enumerate(self.bags)}
        windows = [astuple(window) for window in self.chart.windows]
        tensors["windows"] = np.array(windows, np.int64).reshape(-1, 5)
        state["generator"] = self.generator.bit_generator.state
        state["change"] = self._noticed and asdict(self._noticed)
        state["starts"] = [asdict(start) for start in self.finder.starts]
        _KIND.write(path, tensors, state, force=force)

    @classmethod
    def load(cls, path: str | Path, detector: Detector) -> Monitor:
        """Continue exactly where a saved monitor stopped.

        `detector` is the one that the monitor was made for; any other is rejected.
        """
        tensors, state = _KIND.read(path, copy=True)
        monitor = cls(detector, alpha=state["alpha"], window=state["window"])
        if state["fingerprint"] != monitor.fingerprint:
            raise InputError(
                f"{path} is the state of a monitor for another detector, or for an earlier "
                "calibration of this one. Start a new state file."
            )
        for name in _STORED:
            owner, _, attribute = name.rpartition(".")
            value = state[name] if name in state else tensors[name].copy()  # a file is read-only
            setattr(getattr(monitor, owner) if owner else monitor, attribute, value)
        for code, bag in enumerate(monitor.bags):
            bag.counts = tensors[f"bags.{code}"].copy()
        monitor.chart.windows.extend(Window(*row) for row in tensors["windows"].tolist())
        monitor.generator.bit_generator.state = state["generator"]
        monitor.finder.starts = [Place(**start) for start in state["starts"]]
        if state["change"] is not None:
            monitor._noticed = Change(state["change"]["kind"], Place(**state["change"]["since"]))
        return monitor


def resume(
    detector: Detector, path: Path | None, *, alpha: float | None = None, window: int | None = None
) -> Monitor:
    """Return the monitor saved at `path`, or a new one if there is no such file.

    `alpha` and `window` must match those of the saved monitor, unless they are None.
    """
    options = {"alpha": alpha, "window": window}
    settings: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    if path is None or not path.exists():
        return Monitor(detector, **settings)
    monitor = Monitor.load(path, detector)
    for name, value in settings.items():
        if value != getattr(monitor, name):
            raise ParameterError(
                f"{path} was started with --{name} {getattr(monitor, name):g}, which cannot be "
                f"changed to {value:g}. Pass --{name} {getattr(monitor, name):g}, or another file."
            )
    return monitor


def checked_assessment(calibration: Calibration, assessment: Assessment) -> tuple[Floats, Codes]:
    """Return the scores and the number of the threshold of each; raise if they do not fit."""
    if not hasattr(assessment, "p_values"):
        raise InputError(
            f"verdicts were expected, got a {type(assessment).__name__}.",
            "Pass what detector.assess(outputs) or wrapped.assess(inputs) returns.",
        )
    scores = np.asarray(assessment.scores, np.float64)
    p_values = np.asarray(assessment.p_values, np.float64)
    groups, codes = None, np.zeros(len(scores), np.intp)
    if calibration.by is not None:
        if assessment.groups is None:
            raise MissingInputError(
                "the detector is calibrated by group, but the verdicts have no groups. Score the "
                "inputs again with this detector and groups=... (--group-column)."
            )
        groups = checked_groups(assessment.groups, len(scores))
        number = {name: code for code, name in enumerate(calibration.thresholds)}
        if unknown := sorted(set(groups.tolist()) - set(number)):
            raise InputError(
                f"the detector is not calibrated for group {unknown[0]!r}, only for {[*number]}."
            )
        codes = np.array([number[name] for name in groups.tolist()], np.intp)
    n = np.array([threshold.n_samples for threshold in calibration.thresholds.values()])[codes]
    fits = np.abs(p_values - calibration.p_values(scores, groups)) * (n + 1) < _CLOSE
    fits &= ~np.isnan(scores)  # NaN would sort last and so have p = 1
    if not fits.all():
        row = int(np.argmin(fits))
        raise InputError(
            f"a p-value of {p_values[row]:g} does not match its score and these {n[row]:,} "
            "calibration scores. Was the assessment made by another detector, or were its numbers "
            "rounded?"
        )
    return scores, codes
