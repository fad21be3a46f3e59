"""The result of a monitor as figures: one HTML page or one SVG file without external files."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nescio._charts.style import chart_style
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
from nescio._io.files import check_target, replacing
from nescio.errors import ParameterError
from nescio.monitor import MonitorReport
from nescio.report.plain import plain_page

_WIDTH, _HEIGHT = 760, 280
_LABEL_BARS = BarRows(width=_WIDTH, row=20, start=200, longest=410, n_characters=28)
_MOST_LABELS = 20
_PICTURE_STYLE = """
.paper { fill: var(--paper); } .head { font: 600 15px var(--sans); fill: var(--ink); }
"""


class _MonitorFigure(NamedTuple):
    title: str
    text: str
    drawing: Markup
    height: int


def check_plot_target(path: str | Path, *, force: bool) -> None:
    """Raise if no plot can be written to this path."""
    if Path(path).suffix.lower() not in (".html", ".svg"):
        raise ParameterError(f"cannot write {path}: the name must end in .html or .svg.")
    check_target(path, force=force)


def draw_monitor(report: MonitorReport, path: str | Path, *, force: bool = False) -> None:
    """Write the figures of a monitor as an .html page or an .svg file, atomically.

    Parameters
    ----------
    report : MonitorReport
        Result of `Monitor.report`.
    path : str or Path
        The file to write. Its name must end in .html or .svg.
    force : bool
        Whether to replace an existing file.
    """
    check_plot_target(path, force=force)
    figures = []
    if report.windows or report.open_window:
        figures.append(_flagged(report))
    if report.label_drifts:
        figures.append(_label_drifts(report))
    figures.append(_evidence(report))
    page = _page(report, figures) if Path(path).suffix.lower() == ".html" else _picture(figures)
    with replacing(path, force=force) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _chart(first: int, last: int, y: Scale, **options: object) -> Chart:
    """Return an empty chart over the stream; the axis leaves room for the text at its end."""
    x = Scale(first, last + 0.04 * (last - first))
    ticks = relabelled(x.ticks(), lambda value: f"{value:,.0f}")
    return Chart(x, y, width=_WIDTH, height=_HEIGHT, x_label="inputs", x_ticks=ticks, **options)  # type: ignore[arg-type]


def _evidence(report: MonitorReport) -> _MonitorFigure:
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
    return _MonitorFigure("Evidence of a change", text, chart.draw(), _HEIGHT)


def _flagged(report: MonitorReport) -> _MonitorFigure:
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
        name="Flagged share of each window, with the expected band",
        y_label="flagged, %",
        y_ticks=percent_ticks(scale),
    )
    edges = [(window.start, end) for window, end in zip(windows, ends, strict=True)]
    chart.band(np.ravel(edges), np.repeat(low, 2), np.repeat(high, 2), "in")
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
    return _MonitorFigure("Flagged share", text, chart.draw(), _HEIGHT)


def _label_drifts(report: MonitorReport) -> _MonitorFigure:
    """Draw how often the labels that drift fire, now and in the calibration data."""
    worst = sorted(report.label_drifts or (), key=lambda drift: drift.p_value)[:_MOST_LABELS]
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
    drawing = _LABEL_BARS.draw(rows, name=name, css="chart")
    text = (
        "The bar is the share of the latest inputs for which the label fires. The mark is its "
        "share in the calibration data."
    )
    return _MonitorFigure(
        "Labels that fire more or less often", text, drawing, _LABEL_BARS.row * len(rows)
    )


def _page(report: MonitorReport, figures: list[_MonitorFigure]) -> str:
    return plain_page(
        "nescio monitor",
        "Does the stream still look like the calibration data?",
        report.summary(),
        [(figure.title, figure.text, figure.drawing) for figure in figures],
    )


def _picture(figures: list[_MonitorFigure]) -> str:
    top, parts = 0, []
    for figure in figures:
        parts.append(f'<text class="head" x="14" y="{top + 22}">{escape(figure.title)}</text>')
        placed = f'<svg x="0" y="{top + 32}" width="{_WIDTH}" height="{figure.height}" '
        parts.append(placed + figure.drawing.removeprefix("<svg "))
        top += figure.height + 44
    style = escape(chart_style() + _PICTURE_STYLE)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{top}" '
        f'viewBox="0 0 {_WIDTH} {top}"><style>{style}</style>'
        f'<rect class="paper" width="100%" height="100%"/>{"".join(parts)}</svg>\n'
    )
