"""The result of a monitor: in Python, as JSON and as a few lines of text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from nescio._charts.text import cut
from nescio._io.tabular import Tabular
from nescio.monitor.change import Change
from nescio.monitor.chart import Window
from nescio.monitor.drift import LabelDrift

_SHOWN_LABELS = 10
_CHANGES = {  # Change.kind in words
    "lower": "score lower than the calibration data",
    "some lower": "are mostly as before, but some score much lower than the calibration data",
    "higher": "score higher than the calibration data",
    "some higher": "are mostly as before, but some score much higher than the calibration data",
    "more extreme": "score very low or very high more often than the calibration data",
    "less extreme": "score very low or very high less often than the calibration data",
}
_ADVICE = (
    "What to do: look at these inputs. If something is broken (a sensor, the preprocessing, the "
    "model), repair it. If they are what the model should work on, calibrate a new detector on "
    "data like them."
)
_FEW = 30  # inputs; with fewer, a change can hardly be seen


@dataclass(frozen=True, repr=False)
class MonitorReport(Tabular):
    """The state of a stream.

    Attributes
    ----------
    n_samples, flagged : int
        Number of inputs, and how many of them scored below the threshold.
    expected_share : float
        The share that was expected to score below it.
    alpha : float
        The probability of a false alarm.
    coverage : float
        The probability that a window lies within its band.
    alarm : bool
        Whether the martingale has reached 1 / alpha.
    alarm_at : int or None
        Number of inputs after which it did.
    change : Change or None
        An estimate of what has changed and since when, made at the alarm.
    log10_martingale, max_log10_martingale : float
        The evidence of a change now, and its largest value so far.
    trace : tuple of (int, float)
        Number of inputs and the evidence after them, for some points in time.
    windows : tuple of Window
        The latest 1,000 full windows.
    open_window : Window or None
        The window that is not full yet.
    n_windows, n_outside : int
        Number of full windows since the start, and how many lie outside their band.
    label_drifts : tuple of LabelDrift or None
        The labels that drift. None if labels are not watched, because it is not known how often
        they fired in the calibration data.
    open_label_drifts : tuple of LabelDrift
        The labels that seem to drift in the window that is not full yet. They raise no alarm.
    n_label_tests : int
        Number of tests of the labels: of every window, and of several windows together.
    """

    n_samples: int
    flagged: int
    expected_share: float
    alpha: float
    coverage: float
    alarm: bool
    alarm_at: int | None
    change: Change | None
    log10_martingale: float
    max_log10_martingale: float
    trace: tuple[tuple[int, float], ...]
    windows: tuple[Window, ...]
    open_window: Window | None
    n_windows: int
    n_outside: int
    label_drifts: tuple[LabelDrift, ...] | None
    open_label_drifts: tuple[LabelDrift, ...]
    n_label_tests: int

    @property
    def any_alarm(self) -> bool:
        """Whether the martingale or a label has raised an alarm."""
        return self.alarm or bool(self.label_drifts)

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for JSON, with `summary` as text."""
        return (
            {"summary": self.summary()}
            | asdict(self)
            | {
                "windows": [window.as_dict() for window in self.windows],
                "open_window": None if self.open_window is None else self.open_window.as_dict(),
            }
        )

    def columns(self) -> dict[str, Any]:
        """Return one row per window: start, n, flagged, low, high, share, outside and is_open.

        `low` and `high` are the numbers of flagged inputs at the ends of the expected band.
        """
        opened = [] if self.open_window is None else [self.open_window]
        windows = [*self.windows, *opened]
        names = ("start", "n", "flagged", "low", "high", "share", "outside")
        columns = {name: [getattr(window, name) for window in windows] for name in names}
        return columns | {"is_open": [window is self.open_window for window in windows]}

    def __repr__(self) -> str:
        found = [self._flagged(), *self._windows()] if self.n_samples else []
        return "\n".join([cut(self.headline(), 300), *found])  # ids may be long

    def _repr_html_(self) -> str:
        from nescio.monitor.showing import monitor_card

        return monitor_card(self)

    def plot(self, ax: Any = None, **options: Any) -> Any:
        """Draw the share flagged in each window; see `MonitorDisplay`."""
        from nescio.displays import MonitorDisplay

        return MonitorDisplay.from_report(self, ax=ax, **options)

    def headline(self) -> str:
        """Return one sentence: whether something has changed, what, and since when."""
        if not self.n_samples:
            return "No inputs yet."
        if self.alarm_at is not None:
            return f"ALARM: {self._change()}"
        if self.label_drifts:
            labels = _plural(len(self.label_drifts), "label fires", "labels fire")
            return (
                f"ALARM: {labels} more or less often than in the calibration data. No change of "
                "the scores was found."
            )
        newest = (*self.windows[-1:], self.open_window)
        if self.open_label_drifts or any(window and window.outside for window in newest):
            inputs = _plural(self.n_samples, "input")
            return f"No alarm so far in {inputs}, but the newest ones may differ (see below)."
        if self.n_samples < _FEW:
            inputs = _plural(self.n_samples, "input")
            return f"No alarm so far: {inputs}, too few to tell whether the data has changed."
        return f"No alarm: the {self.n_samples:,} inputs look like the calibration data."

    def _change(self) -> str:
        noticed = f"This was noticed at input {self.alarm_at:,} of {self.n_samples:,}."
        if self.change is None:  # the state file is of a version that did not look for it
            return f"the scores of the inputs have changed since the calibration. {noticed}"
        return (
            f"since about {self.change.since}, the inputs {_CHANGES[self.change.kind]}. {noticed}"
        )

    def summary(self) -> str:
        """Return a few lines: what has changed and since when, what to do, and the evidence."""
        if not self.n_samples:
            return self.headline()
        advice = [_ADVICE] if self.any_alarm else []
        found = [self._flagged(), *self._windows(), *self._labels(), self._evidence()]
        return "\n".join([self.headline(), *advice, *found])

    def __str__(self) -> str:
        return self.summary()

    def _flagged(self) -> str:
        share = self.flagged / self.n_samples
        return (
            f"Flagged as out-of-distribution: {self.flagged:,} of {self.n_samples:,} "
            f"({share:.2%}); about {self.expected_share:.2%} is expected."
        )

    def _windows(self) -> list[str]:
        lines = []
        if self.windows:
            lines.append(f"  latest full window, {_window(self.windows[-1])}")
        if self.open_window is not None:
            lines.append(f"  newest inputs, window incomplete, {_window(self.open_window)}")
        if self.n_outside:
            lines.append(
                f"  {self.n_outside:,} of {_plural(self.n_windows, 'full window')} outside the "
                f"expected range"
            )
        return lines

    def _labels(self) -> list[str]:
        if self.label_drifts is None:
            return [
                "Labels: not watched, because it is not known how often they fired in the "
                "calibration data."
            ]
        lines = self._drifts()
        seen = {drift.label for drift in self.label_drifts}
        new = [drift for drift in self.open_label_drifts if drift.label not in seen]
        if new:
            lines.append(
                "Labels that seem to have changed in the incomplete window, which is not tested "
                "yet:"
            )
            lines += _listed(new)
        return lines

    def _drifts(self) -> list[str]:
        if not self.n_label_tests:
            return [
                "Labels: not tested yet. This needs the logits of a full window (--outputs on the "
                "command line)."
            ]
        if not self.label_drifts:
            return ["Labels: they fire as often as in the calibration data."]
        size = self.windows[-1].n
        labels = _plural(len(self.label_drifts), "label fires", "labels fire")
        lines = _listed(
            self.label_drifts,
            lambda drift: f"; noticed at input {(drift.first_window + 1) * size:,}",
        )
        return [f"Labels: {labels} more or less often than in the calibration data.", *lines]

    def _evidence(self) -> str:
        now, most = self.log10_martingale, self.max_log10_martingale
        limit = f"{1 / self.alpha:,.4g}"
        return (
            f"Evidence for a change of the scores: {_odds(now)} to 1 now, {_odds(most)} to 1 at "
            "its strongest. "
            f"An alarm is raised at {limit} to 1; without a change, it is ever raised with a "
            f"probability of at most {self.alpha:g}."
        )


def _window(window: Window) -> str:
    first, last = window.start + 1, window.start + window.n
    expected = f"expected {window.low / window.n:.1%} to {window.high / window.n:.1%}"
    verdict = ""
    if window.outside:
        verdict = (
            ", MORE than expected" if window.flagged > window.high else ", FEWER than expected"
        )
    return f"inputs {first:,} to {last:,}: {window.share:.1%} flagged, {expected}{verdict}"


def _listed(
    drifts: Iterable[LabelDrift], more: Callable[[LabelDrift], str] = lambda drift: ""
) -> list[str]:
    """Return one line per label, the clearest drift first."""
    worst = sorted(drifts, key=lambda drift: drift.p_value)
    lines = [
        f"  {drift.label}: {'more' if drift.rate > drift.calibration_rate else 'less'} often, for "
        f"{drift.rate:.2%} of the latest {drift.n_inputs:,} inputs, {drift.calibration_rate:.2%} "
        f"in the calibration data{more(drift)}"
        for drift in worst[:_SHOWN_LABELS]
    ]
    if len(worst) > _SHOWN_LABELS:
        lines.append(f"  and {len(worst) - _SHOWN_LABELS:,} more")
    return lines


def _odds(exponent: float) -> str:
    """Write a power of ten as a number, or as a whole power if it is large.

    Examples
    --------
    >>> [_odds(exponent) for exponent in (-9.0, -1.1, 0.5, 2.0, 53.8)]
    ['less than 0.01', '0.079', '3.2', '100', 'about 10^54']
    """
    if exponent < -2:
        return "less than 0.01"
    if exponent >= 6:
        return f"about 10^{exponent:.0f}"
    return f"{10**exponent:,.2g}" if exponent < 1 else f"{10**exponent:,.0f}"


def _plural(n: int, one: str, many: str | None = None) -> str:
    return f"{n:,} {one if n == 1 else many or one + 's'}"
