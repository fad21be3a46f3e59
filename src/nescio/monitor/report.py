"""The result of a monitor: in Python, as JSON, as a few lines of text and as figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nescio._charts.results import Result, View
from nescio._charts.svg import (
    BarRow,
    BarRows,
    Chart,
    Markup,
    Scale,
    percent,
    power_of_ten,
)
from nescio.monitor.martingale import Change
from nescio.monitor.windows import COVERAGE, LabelDrift, Window

_PAGE_WIDTH, _CARD_WIDTH = 760, 440  # of the figures, in pixels
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
class MonitorReport(Result):
    """The state of a stream.

    Attributes
    ----------
    n_samples, flagged : int
        Number of inputs, and how many of them scored below the threshold.
    expected_share : float
        The share that was expected to score below it.
    alpha : float
        The probability of a false alarm.
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
    n_label_tests : int
        Number of tests of the labels: of every window, and of several windows together.
    """

    n_samples: int
    flagged: int
    expected_share: float
    alpha: float
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
                "open_window": self.open_window and self.open_window.as_dict(),
            }
        )

    def columns(self) -> dict[str, Any]:
        """Return one row per window: start, n, flagged, low, high, share, outside and is_open.

        `low` and `high` are the numbers of flagged inputs at the ends of the expected band.
        """
        windows = self.all_windows()
        names = ("start", "n", "flagged", "low", "high", "share", "outside")
        columns = {name: [getattr(window, name) for window in windows] for name in names}
        return columns | {"is_open": [window is self.open_window for window in windows]}

    def all_windows(self) -> list[Window]:
        """Return the full windows and the open one."""
        return [*self.windows, *([] if self.open_window is None else [self.open_window])]

    def _view(self) -> View:
        if not self.n_samples:
            return View(self.headline())
        labels = "not watched"
        if self.label_drifts is not None:
            labels = f"{len(self.label_drifts):,}" if self.n_label_tests else "not tested yet"
        rows = {
            "inputs": f"{self.n_samples:,}",
            "flagged": f"{self.flagged:,} ({self.flagged / self.n_samples:.2%})",
            "expected": f"{self.expected_share:.2%}",
            "windows outside the band": f"{self.n_outside:,} of {self.n_windows:,}",
            "labels that drift": labels,
        }
        return View(
            self.headline(),
            table={"monitor": list(rows), "": list(rows.values())},
            charts=lambda: [drawing for *_, drawing in monitor_figures(self, _CARD_WIDTH)],
        )

    def plot(self, ax: Any = None, **options: Any) -> Any:
        """Draw the share flagged in each window; see `MonitorDisplay`."""
        from nescio.displays import MonitorDisplay

        return MonitorDisplay.from_report(self, ax=ax, **options)

    def headline(self) -> str:
        """Return one sentence: whether something has changed, what, and since when."""
        if not self.n_samples:
            return "No inputs yet."
        if self.change is not None:
            return (
                f"ALARM: since about {self.change.since}, the inputs {_CHANGES[self.change.kind]}. "
                f"This was noticed at input {self.alarm_at:,} of {self.n_samples:,}."
            )
        if self.label_drifts:
            labels = _plural(len(self.label_drifts), "label fires", "labels fire")
            return (
                f"ALARM: {labels} more or less often than in the calibration data. No change of "
                "the scores was found."
            )
        if any(window and window.outside for window in (*self.windows[-1:], self.open_window)):
            inputs = _plural(self.n_samples, "input")
            return f"No alarm so far in {inputs}, but the newest ones may differ (see below)."
        if self.n_samples < _FEW:
            inputs = _plural(self.n_samples, "input")
            return f"No alarm so far: {inputs}, too few to tell whether the data has changed."
        return f"No alarm: the {self.n_samples:,} inputs look like the calibration data."

    def summary(self) -> str:
        """Return a few lines: what has changed and since when, what to do, and the evidence."""
        if not self.n_samples:
            return self.headline()
        lines = [self.headline()]
        if self.any_alarm:
            lines.append(_ADVICE)
        lines.append(
            f"Flagged as out-of-distribution: {self.flagged:,} of {self.n_samples:,} "
            f"({self.flagged / self.n_samples:.2%}); about {self.expected_share:.2%} is expected."
        )
        if self.windows:
            lines.append(f"  latest full window, {_window(self.windows[-1])}")
        if self.open_window is not None:
            lines.append(f"  newest inputs, window incomplete, {_window(self.open_window)}")
        if self.n_outside:
            lines.append(
                f"  {self.n_outside:,} of {_plural(self.n_windows, 'full window')} outside the "
                f"expected range"
            )
        lines += self._labels()
        now, most = _odds(self.log10_martingale), _odds(self.max_log10_martingale)
        lines.append(
            f"Evidence for a change of the scores: {now} to 1 now, {most} to 1 at its strongest. "
            f"An alarm is raised at {1 / self.alpha:,.4g} to 1; without a change, it is ever "
            f"raised with a probability of at most {self.alpha:g}."
        )
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.summary()

    def _labels(self) -> list[str]:
        drifts = self.label_drifts
        if drifts is None:
            return [
                "Labels: not watched, because it is not known how often they fired in the "
                "calibration data."
            ]
        if not self.n_label_tests:
            return [
                "Labels: not tested yet. This needs the logits of a full window (--outputs on the "
                "command line)."
            ]
        if not drifts:
            return ["Labels: they fire as often as in the calibration data."]
        labels = _plural(len(drifts), "label fires", "labels fire")
        lines = [f"Labels: {labels} more or less often than in the calibration data."]
        for drift in _clearest(drifts):
            how = "more" if drift.rate > drift.calibration_rate else "less"
            noticed = (drift.first_window + 1) * self.windows[-1].n
            lines.append(
                f"  {drift.label}: {how} often, for {drift.rate:.2%} of the latest "
                f"{drift.n_inputs:,} inputs, {drift.calibration_rate:.2%} in the calibration data; "
                f"noticed at input {noticed:,}"
            )
        if len(drifts) > _SHOWN_LABELS:
            lines.append(f"  and {len(drifts) - _SHOWN_LABELS:,} more")
        return lines


def _window(window: Window) -> str:
    first, last = window.start + 1, window.start + window.n
    expected = f"expected {window.low / window.n:.1%} to {window.high / window.n:.1%}"
    verdict = ""
    if window.outside:
        verdict = f", {'MORE' if window.flagged > window.high else 'FEWER'} than expected"
    return f"inputs {first:,} to {last:,}: {window.share:.1%} flagged, {expected}{verdict}"


def _clearest(drifts: Sequence[LabelDrift]) -> list[LabelDrift]:
    return sorted(drifts, key=lambda drift: drift.p_value)[:_SHOWN_LABELS]


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


# --- figures --------------------------------------------------------------------------------------


Figure = tuple[str, str, Markup]  # its title, what it shows, and the drawing


def monitor_figures(report: MonitorReport, width: int = _PAGE_WIDTH) -> list[Figure]:
    """Draw the share flagged, the labels that drift and the evidence of a change, if known."""
    figures = []
    if report.windows or report.open_window:
        figures.append(_flagged(report, width))
    if report.label_drifts:
        figures.append(_label_drifts(report, width))
    return [*figures, _evidence(report, width)]


def _chart(first: int, last: int, y: Scale, width: int, **options: Any) -> Chart:
    """Return an empty chart over the stream; the axis leaves room for the text at its end."""
    x = Scale(first, last + 0.04 * (last - first), write=lambda value: f"{value:,.0f}")
    options |= {"width": width, "height": 138 + 3 * width // 16}
    return Chart(x, y, x_label="inputs", x_ticks=x.ticks(max(2, width // 150)), **options)


def _evidence(report: MonitorReport, width: int) -> Figure:
    """Draw the martingale over time."""
    line = -math.log10(report.alpha)
    inputs, values = zip((0, 0.0), *report.trace, strict=True)
    low, high = min(values), max(line, report.max_log10_martingale)
    ends = math.floor(low), math.ceil(high + 0.2)
    scale = Scale(*ends, write=lambda value: power_of_ten(round(value)))
    chart = _chart(
        0,
        max(1, report.n_samples),
        scale,
        width,
        name="Evidence of a change over time",
        y_label="evidence (to 1)",
        y_ticks=[tick for tick in scale.ticks() if tick[0] == round(tick[0])],
    )
    chart.line(inputs, values, "accent")
    chart.rule(y=line, text=f"alarm at {1 / report.alpha:,.4g}")
    if report.alarm_at is not None:
        chart.rule(x=report.alarm_at, text=f"alarm after {report.alarm_at:,} inputs")
    text = (
        "How strongly the scores speak for a change. The alarm is raised at the dashed line. If "
        "nothing has changed, it is ever reached with a probability of at most "
        f"{report.alpha:g}."
    )
    return ("Evidence of a change", text, chart.draw())


def _flagged(report: MonitorReport, width: int) -> Figure:
    """Draw the control chart."""
    windows = report.all_windows()
    columns = {name: np.array(column) for name, column in report.columns().items()}
    low, high = (columns[side] / columns["n"] for side in ("low", "high"))
    edges = np.stack([columns["start"], columns["start"] + columns["n"]], axis=1)
    top = float(max(high.max(), columns["share"].max())) * 1.08 or 1.0
    chart = _chart(
        windows[0].start,
        int(edges[-1, 1]),
        Scale(0.0, top, write=percent),
        width,
        name="Flagged share of each window, with the expected band",
        y_label="flagged, %",
    )
    chart.band(edges.ravel(), np.repeat(low, 2), np.repeat(high, 2), "band in")
    for window in windows:
        last = window.start + window.n
        tip = f"inputs {window.start + 1:,} to {last:,}: {window.flagged:,} flagged"
        tip += " (window incomplete)" if window is report.open_window else ""
        css = "out" if window.outside else "in"
        chart.dot(window.start + window.n / 2, window.share, css, tip=tip, radius=2.5)
    since = 0 if report.change is None else report.change.since.at
    if since > windows[0].start:
        chart.rule(x=since, text=f"changed at about input {since:,}")
    newest = windows[-1]
    incomplete = f"The last window is incomplete: it has {newest.n:,} inputs. "
    text = (
        "The share of inputs that are flagged as out-of-distribution. One point per window"
        + (f" of {windows[0].n:,} inputs. " if report.windows else ". ")
        + (incomplete if newest is report.open_window else "")
        + f"{report.n_outside:,} of {report.n_windows:,} full windows lie outside the shaded "
        f"band. If nothing has changed, a window lies within it with a probability of "
        f"{COVERAGE * 100:.4g} %."
    )
    return ("Flagged share", text, chart.draw())


def _label_drifts(report: MonitorReport, width: int) -> Figure:
    """Draw how often the labels that drift fire, now and in the calibration data."""
    rows = [
        BarRow(
            drift.label,
            drift.rate,
            f"{drift.rate:.2%}, was {drift.calibration_rate:.2%}",
            drift.label,
            "out",
            drift.calibration_rate,
        )
        for drift in _clearest(report.label_drifts or ())
    ]
    bars = BarRows(
        width, row=20, start=width // 4, longest=2 * width // 5, n_characters=width // 28
    )
    text = (
        "The bar is the share of the latest inputs for which the label fires. The mark is its "
        "share in the calibration data."
    )
    drawing = bars.draw(rows, name="How often the labels that drift fire", css="chart")
    return ("Labels that fire more or less often", text, drawing)
