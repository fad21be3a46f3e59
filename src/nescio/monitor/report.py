"""What a monitor has to say: in Python, as JSON and in a few lines of text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nescio.monitor.chart import Window
from nescio.monitor.labels import LabelDrift

_SHOWN_LABELS = 10


@dataclass(frozen=True)
class MonitorReport:
    """The state of a stream.

    Attributes
    ----------
    n_samples, flagged : int
        Inputs, and how many of them scored below tau.
    alpha : float
        The probability of a false alarm.
    coverage : float
        The probability that a window lies within its band.
    alarm : bool
        Whether the martingale has reached 1 / alpha.
    alarm_at : int or None
        After how many inputs it did.
    log10_martingale, max_log10_martingale : float
        The evidence now, and the most that there has been.
    trace : tuple of (int, float)
        How many inputs there were, and the evidence then; thinned.
    windows : tuple of Window
        The latest 1,000 full windows.
    open_window : Window or None
        The one that is not full.
    n_windows, n_outside : int
        Full windows since the start, and how many lie outside their band.
    labels : tuple of LabelDrift or None
        The labels that drift; None where they are not watched, as it is not known how often they
        fired in the calibration data.
    n_label_tests : int
        How often the labels were tested: in every window, and in several together.
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
    labels: tuple[LabelDrift, ...] | None
    n_label_tests: int

    @property
    def any_alarm(self) -> bool:
        """Whether the martingale or a label has raised an alarm."""
        return self.alarm or bool(self.labels)

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        open_window = self.open_window
        return {
            "n_samples": self.n_samples,
            "flagged": self.flagged,
            "alpha": self.alpha,
            "coverage": self.coverage,
            "alarm": self.alarm,
            "alarm_at": self.alarm_at,
            "log10_martingale": self.log10_martingale,
            "max_log10_martingale": self.max_log10_martingale,
            "trace": [list(point) for point in self.trace],
            "windows": [window.as_dict() for window in self.windows],
            "open_window": None if open_window is None else open_window.as_dict(),
            "n_windows": self.n_windows,
            "n_outside": self.n_outside,
            "labels": None if self.labels is None else [label.as_dict() for label in self.labels],
            "n_label_tests": self.n_label_tests,
        }

    def summary(self) -> str:
        """A few lines of text."""
        return "\n".join([self._stream(), self._evidence(), self._chart(), *self._drift()])

    def __str__(self) -> str:
        return self.summary()

    def _stream(self) -> str:
        share = f" ({self.flagged / self.n_samples:.2%})" if self.n_samples else ""
        return f"{_plural(self.n_samples, 'input')}, {self.flagged:,} flagged{share}"

    def _evidence(self) -> str:
        now, most = self.log10_martingale, self.max_log10_martingale
        evidence = f"the martingale stands at {_power(now)}, at most it was {_power(most)}"
        if self.alarm_at is None:
            return f"no alarm: {evidence}; alarm at {1 / self.alpha:,.4g}"
        return (
            f"ALARM after {_plural(self.alarm_at, 'input')}: {evidence}. Without a change it would "
            f"have reached {1 / self.alpha:,.4g} with a probability of at most {self.alpha:g}"
        )

    def _chart(self) -> str:
        if not self.n_windows:
            return "flagged share: no full window yet"
        last = self.windows[-1]
        return (
            f"flagged share: {self.n_outside:,} of {self.n_windows:,} windows outside the "
            f"{self.coverage * 100:.4g} % band; the latest {last.share:.1%}, "
            f"expected {last.low / last.n:.1%} to {last.high / last.n:.1%}"
        )

    def _drift(self) -> list[str]:
        if self.labels is None:
            return ["labels: not watched, not known how often they fired in the calibration data"]
        if not self.n_label_tests:
            return ["labels: no full window with logits yet"]
        if not self.labels:
            return [f"labels: no drift in {_plural(self.n_label_tests, 'test')}"]
        worst = sorted(self.labels, key=lambda drift: drift.p_value)
        lines = [
            f"  {drift.label}: fires for {drift.rate:.2%} of {drift.n_inputs:,}, in the "
            f"calibration data for {drift.calibration_rate:.2%} (corrected p = {drift.p_value:.2g})"
            for drift in worst[:_SHOWN_LABELS]
        ]
        if len(worst) > _SHOWN_LABELS:
            lines.append(f"  and {len(worst) - _SHOWN_LABELS:,} more")
        return [f"labels: ALARM, {len(worst):,} {'drifts' if len(worst) == 1 else 'drift'}", *lines]


def _power(exponent: float) -> str:
    """A power of ten to one decimal of its exponent, without needless zeros."""
    written = f"{exponent:.1f}".removesuffix(".0")
    return "1" if written in ("0", "-0") else f"10^{written}"


def _plural(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"
