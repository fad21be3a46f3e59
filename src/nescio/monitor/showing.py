"""The figures of a monitor's report, and how a notebook shows it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nescio._charts.cards import card, short_table
from nescio._charts.svg import (
    BarRow,
    BarRows,
    Chart,
    Markup,
    Scale,
    percent_ticks,
    power_of_ten,
    relabelled,
)

if TYPE_CHECKING:
    from nescio.monitor.report import MonitorReport


class Size(NamedTuple):
    """The size of the figures, in pixels, and how many labels are drawn."""

    width: int
    height: int
    bars: BarRows
    n_labels: int


PAGE = Size(760, 280, BarRows(width=760, row=20, start=200, longest=410, n_characters=28), 20)
CARD = Size(440, 220, BarRows(width=440, row=20, start=130, longest=170, n_characters=17), 8)


class MonitorFigure(NamedTuple):
    """One figure with its title and what it shows."""

    title: str
    text: str
    drawing: Markup
    height: int


def monitor_figures(report: MonitorReport, size: Size = PAGE) -> list[MonitorFigure]:
    """Draw the share flagged, the labels that drift and the evidence of a change, if known."""
    figures = []
    if report.windows or report.open_window:
        figures.append(_flagged(report, size))
    if report.label_drifts:
        figures.append(_label_drifts(report, size))
    return [*figures, _evidence(report, size)]


def monitor_card(report: MonitorReport) -> str:
    """Return the headline, the numbers and the figures."""
    if not report.n_samples:
        return card(report.headline())
    rows = [
        ("inputs", f"{report.n_samples:,}"),
        ("flagged", f"{report.flagged:,} ({report.flagged / report.n_samples:.2%})"),
        ("expected", f"{report.expected_share:.2%}"),
        ("windows outside the band", f"{report.n_outside:,} of {report.n_windows:,}"),
        ("labels that drift", _n_drifts(report)),
    ]
    drawings = [figure.drawing for figure in monitor_figures(report, CARD)]
    return card(report.headline(), short_table(("monitor", ""), rows), *drawings)


def _n_drifts(report: MonitorReport) -> str:
    if report.label_drifts is None:
        return "not watched"
    return f"{len(report.label_drifts):,}" if report.n_label_tests else "not tested yet"


def _chart(first: int, last: int, y: Scale, size: Size, **options: object) -> Chart:
    """Return an empty chart over the stream; the axis leaves room for the text at its end."""
    x = Scale(first, last + 0.04 * (last - first))
    ticks = relabelled(x.ticks(max(2, size.width // 150)), lambda value: f"{value:,.0f}")
    shape: dict[str, Any] = {"width": size.width, "height": size.height, **options}
    return Chart(x, y, x_label="inputs", x_ticks=ticks, **shape)


def _evidence(report: MonitorReport, size: Size) -> MonitorFigure:
    """Draw the martingale over time."""
    line = -math.log10(report.alpha)
    at, values = [0, *(at for at, _ in report.trace)], [0.0, *(v for _, v in report.trace)]
    low, high = min(values), max(line, report.max_log10_martingale)
    scale = Scale(math.floor(low), math.ceil(high + 0.2))
    whole = [tick for tick in scale.ticks() if tick[0] == round(tick[0])]
    chart = _chart(
        0,
        max(1, report.n_samples),
        scale,
        size,
        name="Evidence of a change over time",
        y_label="evidence (to 1)",
        y_ticks=relabelled(whole, lambda value: power_of_ten(round(value))),
    )
    chart.line(at, values, "accent")
    chart.rule(y=line, text=f"alarm at {1 / report.alpha:,.4g}")
    if report.alarm_at is not None:
        chart.rule(x=report.alarm_at, text=f"alarm after {report.alarm_at:,} inputs")
    text = (
        "How strongly the scores speak for a change. The alarm is raised at the dashed line. If "
        "nothing has changed, it is ever reached with a probability of at most "
        f"{report.alpha:g}."
    )
    return MonitorFigure("Evidence of a change", text, chart.draw(), size.height)


def _flagged(report: MonitorReport, size: Size) -> MonitorFigure:
    """Draw the control chart."""
    windows = [*report.windows, *([report.open_window] if report.open_window else [])]
    ends = [window.start + window.n for window in windows]
    low, high = (np.array([getattr(w, side) / w.n for w in windows]) for side in ("low", "high"))
    shares = np.array([window.share for window in windows])
    scale = Scale(0.0, float(max(high.max(), shares.max())) * 1.08 or 1.0)
    chart = _chart(
        windows[0].start,
        ends[-1],
        scale,
        size,
        name="Flagged share of each window, with the expected band",
        y_label="flagged, %",
        y_ticks=percent_ticks(scale),
    )
    edges = [(window.start, end) for window, end in zip(windows, ends, strict=True)]
    chart.band(np.ravel(edges), np.repeat(low, 2), np.repeat(high, 2), "band in")
    for window, end in zip(windows, ends, strict=True):
        tip = f"inputs {window.start + 1:,} to {end:,}: {window.flagged:,} flagged"
        tip += " (window incomplete)" if window is report.open_window else ""
        css = "out" if window.outside else "in"
        chart.dot(window.start + window.n / 2, window.share, css, tip=tip, radius=2.5)
    since = 0 if report.change is None else report.change.since.at
    if since > windows[0].start:
        chart.rule(x=since, text=f"changed at about input {since:,}")
    last = windows[-1]
    incomplete = f"The last window is incomplete: it has {last.n:,} inputs. "
    text = (
        "The share of inputs that are flagged as out-of-distribution. One point per window"
        + (f" of {windows[0].n:,} inputs. " if report.windows else ". ")
        + (incomplete if last is report.open_window else "")
        + f"{report.n_outside:,} of {report.n_windows:,} full windows lie outside the shaded "
        "band. If nothing has changed, a window lies within it with a probability of "
        f"{report.coverage * 100:.4g} %."
    )
    return MonitorFigure("Flagged share", text, chart.draw(), size.height)


def _label_drifts(report: MonitorReport, size: Size) -> MonitorFigure:
    """Draw how often the labels that drift fire, now and in the calibration data."""
    worst = sorted(report.label_drifts or (), key=lambda drift: drift.p_value)[: size.n_labels]
    rows = [
        BarRow(
            drift.label,
            drift.rate,
            f"{drift.rate:.2%}, was {drift.calibration_rate:.2%}",
            drift.label,
            "out",
            drift.calibration_rate,
        )
        for drift in worst
    ]
    name = "How often the labels that drift fire"
    drawing = size.bars.draw(rows, name=name, css="chart")
    text = (
        "The bar is the share of the latest inputs for which the label fires. The mark is its "
        "share in the calibration data."
    )
    return MonitorFigure(
        "Labels that fire more or less often", text, drawing, size.bars.row * len(rows)
    )
