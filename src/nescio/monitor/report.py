"""The result of a monitor: in Python, as JSON and as a few lines of text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from nescio.monitor.chart import Window
from nescio.monitor.drift import LabelDrift

_SHOWN_LABELS = 10


@dataclass(frozen=True)
class MonitorReport:
    """The state of a stream.

    Attributes
    ----------
    n_samples, flagged : int
        Number of inputs, and how many of them scored below the threshold.
    alpha : float
        The probability of a false alarm.
    coverage : float
        The probability that a window lies within its band.
    alarm : bool
        Whether the martingale has reached 1 / alpha.
    alarm_at : int or None
        Number of inputs after which it did.
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
    n_label_tests : int
        Number of tests of the labels: of every window, and of several windows together.
    """

    n_samples: int
    flagged: int
    alpha: float
    coverage: float
    alarm: bool
    alarm_at: int | None
    log10_martingale: float
    max_log10_martingale: float
    trace: tuple[tuple[int, float], ...]
    windows: tuple[Window, ...]
    open_window: Window | None
    n_windows: int
    n_outside: int
    label_drifts: tuple[LabelDrift, ...] | None
    n_label_tests: int

    @property
    def any_alarm(self) -> bool:
        """Whether the martingale or a label has raised an alarm."""
        return self.alarm or bool(self.label_drifts)

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for JSON."""
        return asdict(self) | {
            "windows": [window.as_dict() for window in self.windows],
            "open_window": None if self.open_window is None else self.open_window.as_dict(),
        }

    def summary(self) -> str:
        """Return a few lines of text."""
        return "\n".join([self._stream(), self._evidence(), self._chart(), *self._drift()])

    def __str__(self) -> str:
        return self.summary()

    def _stream(self) -> str:
        share = f" ({self.flagged / self.n_samples:.2%})" if self.n_samples else ""
        return f"{_plural(self.n_samples, 'input')}, {self.flagged:,} flagged{share}"

    def _evidence(self) -> str:
        now, most = self.log10_martingale, self.max_log10_martingale
        martingale = f"the martingale is {_power(now)} now and was at most {_power(most)}"
        limit = f"{1 / self.alpha:,.4g}"
        if self.alarm_at is None:
            return f"no alarm: {martingale}; an alarm is raised at {limit}"
        return (
            f"ALARM after {_plural(self.alarm_at, 'input')}: the scores have changed since the "
            f"calibration; {martingale}. Without a change it would reach {limit} with a "
            f"probability of at most {self.alpha:g}"
        )

    def _chart(self) -> str:
        if not self.n_windows:
            return "flagged share: no full window yet"
        last = self.windows[-1]
        return (
            f"flagged share: {self.n_outside:,} of {self.n_windows:,} windows outside the "
            f"{self.coverage * 100:.4g} % band; latest window {last.share:.1%}, "
            f"expected {last.low / last.n:.1%} to {last.high / last.n:.1%}"
        )

    def _drift(self) -> list[str]:
        if self.label_drifts is None:
            return [
                "labels: not watched, because it is not known how often they fired in the "
                "calibration data"
            ]
        if not self.n_label_tests:
            return ["labels: no full window with logits yet"]
        if not self.label_drifts:
            return [f"labels: no drift in {_plural(self.n_label_tests, 'test')}"]
        worst = sorted(self.label_drifts, key=lambda drift: drift.p_value)
        lines = [
            f"  {drift.label}: fires for {drift.rate:.2%} of the latest {drift.n_inputs:,} inputs, "
            f"{drift.calibration_rate:.2%} in the calibration data (corrected p = "
            f"{drift.p_value:.2g})"
            for drift in worst[:_SHOWN_LABELS]
        ]
        if len(worst) > _SHOWN_LABELS:
            lines.append(f"  and {len(worst) - _SHOWN_LABELS:,} more")
        verb = "fires" if len(worst) == 1 else "fire"
        labels = _plural(len(worst), "label")
        return [f"labels: ALARM, {labels} {verb} more or less often than before", *lines]


def _power(exponent: float) -> str:
    """Write a power of ten with one decimal of its exponent, without trailing zeros."""
    written = f"{exponent:.1f}".removesuffix(".0")
    return "1" if written in ("0", "-0") else f"10^{written}"


def _plural(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"
