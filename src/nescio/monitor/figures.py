"""The report of a monitor as pictures: one HTML page or one SVG file, complete in itself."""

from __future__ import annotations

import math
import re
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nescio._io.files import check_target, replacing
from nescio.errors import ParameterError
from nescio.monitor.report import MonitorReport
from nescio.report.svg import (
    Chart,
    Markup,
    Scale,
    Tick,
    percent_ticks,
    power_of_ten,
    relabelled,
)

__all__ = ["check_plot_target", "write_plot"]

_WIDTH, _HEIGHT = 760, 280
_ROW = 26
_MOST_LABELS = 20
_STYLE = """
:root { color-scheme: light dark; --paper: light-dark(#fdfdfc, #14171a);
  --ink: light-dark(#1c2126, #e6e8ea); --soft: light-dark(#5a646e, #a3adb7);
  --hair: light-dark(#e2e5e3, #2c3238); --good: light-dark(#00736c, #43cdbf);
  --bad: light-dark(#b3441e, #ff9a6b); }
body { margin: 0 auto; max-width: 800px; padding: 1.5rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .2rem; }
p { color: var(--soft); margin: .2rem 0 .6rem; }
pre { white-space: pre-wrap; font: inherit; }
svg { max-width: 100%; } .paper { fill: var(--paper); }
.chart text, .head { font: 12px system-ui, sans-serif; fill: var(--soft); }
.head { font-size: 15px; font-weight: 600; fill: var(--ink); }
.chart .mid { text-anchor: middle; } .chart .note, .chart .name { fill: var(--ink); }
.grid { stroke: var(--hair); fill: none; } .axis { stroke: var(--soft); fill: none; }
.rule { stroke: var(--ink); stroke-dasharray: 5 4; fill: none; }
.line { fill: none; stroke: var(--good); stroke-width: 1.8; }
.area { fill: var(--good); fill-opacity: .15; }
.dot, .bar { fill: var(--good); } .out { fill: var(--bad); } .usual { fill: var(--soft); }
"""


class _Figure(NamedTuple):
    title: str
    text: str
    drawing: Markup
    height: int


def check_plot_target(path: str | Path, *, force: bool) -> None:
    """Raise before any work is done if no picture can be written there."""
    if Path(path).suffix.lower() not in (".html", ".svg"):
        raise ParameterError(f"cannot write {path}: the name must end in .html or .svg.")
    check_target(path, force=force)


def write_plot(report: MonitorReport, path: str | Path, *, force: bool = False) -> None:
    """Write the pictures as an .html page or an .svg file, atomically."""
    check_plot_target(path, force=force)
    figures = _figures(report)
    page = _page(report, figures) if Path(path).suffix.lower() == ".html" else _picture(figures)
    with replacing(path, force=force) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _figures(report: MonitorReport) -> list[_Figure]:
    found = [_evidence(report)]
    if report.windows:
        found.append(_flagged(report))
    if report.labels:
        found.append(_labels(report))
    return found


def _inputs(first: int, last: int) -> Scale:
    """A scale of the inputs' numbers, with room for the last one's text."""
    return Scale(first, last + 0.04 * (last - first))


def _counted(scale: Scale) -> list[Tick]:
    return relabelled(scale.ticks(), lambda value: f"{value:,.0f}")


def _evidence(report: MonitorReport) -> _Figure:
    """The martingale over time."""
    line = -math.log10(report.alpha)
    at, values = [0, *(at for at, _ in report.trace)], [0.0, *(v for _, v in report.trace)]
    low, high = min(values), max(line, report.max_log10_martingale)
    scale = Scale(math.floor(low), math.ceil(high + 0.2))
    whole = [tick for tick in scale.ticks() if tick[0] == round(tick[0])]
    inputs = _inputs(0, max(1, report.n_samples))
    chart = Chart(
        inputs,
        scale,
        name="evidence against an unchanged stream, over time",
        width=_WIDTH,
        height=_HEIGHT,
        x_label="inputs",
        x_ticks=_counted(inputs),
        y_label="martingale",
        y_ticks=relabelled(whole, lambda value: power_of_ten(round(value))),
    )
    chart.line(at, values, "evidence")
    chart.rule(y=line, text=f"alarm at {1 / report.alpha:,.4g}")
    if report.alarm_at is not None:
        chart.rule(x=report.alarm_at, text=f"alarm, input {report.alarm_at:,}")
    text = (
        "The capital of a gambler who bets that the stream has changed. Without a change it "
        f"reaches the dashed line with a probability of at most {report.alpha:g}, ever."
    )
    return _Figure("Evidence of a change", text, chart.draw(), _HEIGHT)


def _flagged(report: MonitorReport) -> _Figure:
    """The control chart."""
    windows = report.windows
    ends = [window.start + window.n for window in windows]
    low, high = (np.array([getattr(w, side) / w.n for w in windows]) for side in ("low", "high"))
    shares = np.array([window.share for window in windows])
    scale = Scale(0.0, float(max(high.max(), shares.max())) * 1.08 or 1.0)
    inputs = _inputs(windows[0].start, ends[-1])
    chart = Chart(
        inputs,
        scale,
        name="flagged share by window, with the expected band",
        width=_WIDTH,
        height=_HEIGHT,
        x_label="inputs",
        x_ticks=_counted(inputs),
        y_label="flagged, per cent",
        y_ticks=percent_ticks(scale),
    )
    chart.band(
        np.array([(window.start, end) for window, end in zip(windows, ends, strict=True)]).ravel(),
        np.repeat(low, 2),
        np.repeat(high, 2),
        "expected",
    )
    for window, end in zip(windows, ends, strict=True):
        tip = f"inputs {window.start + 1:,} to {end:,}: {window.flagged:,} flagged"
        css = "out" if window.outside else "within"
        chart.dot(window.start + window.n / 2, window.share, css, tip=tip, radius=2.5)
    text = (
        f"Windows of {windows[-1].n:,} inputs; {report.n_outside:,} of {report.n_windows:,} lie "
        f"outside the band, which holds {report.coverage * 100:.4g} % of them without a change."
    )
    return _Figure("Flagged share", text, chart.draw(), _HEIGHT)


def _labels(report: MonitorReport) -> _Figure:
    """The rates of the labels that drift: now, and in the calibration data."""
    drifting = sorted(report.labels or (), key=lambda drift: drift.p_value)[:_MOST_LABELS]
    most = max(max(drift.rate, drift.calibration_rate) for drift in drifting) or 1.0
    left, room = 200, _WIDTH - 350
    rows = []
    for at, drift in enumerate(drifting):
        top = at * _ROW + 4
        now, usual = (room * rate / most for rate in (drift.rate, drift.calibration_rate))
        name = drift.label if len(drift.label) <= 26 else drift.label[:25] + "…"
        rows.append(
            f'<text class="name" x="{left - 8}" y="{top + 13}" text-anchor="end">{escape(name)}'
            f"<title>{escape(drift.label)}</title></text>"
            f'<rect class="bar out" x="{left}" y="{top}" width="{now:.1f}" height="9"/>'
            f'<rect class="bar usual" x="{left}" y="{top + 9}" width="{usual:.1f}" height="9"/>'
            f'<text x="{left + max(now, usual) + 6:.1f}" y="{top + 13}">{drift.rate:.2%}, '
            f"was {drift.calibration_rate:.2%}</text>"
        )
    height = _ROW * len(drifting) + 8
    drawing = Markup(
        f'<svg class="chart" role="img" viewBox="0 0 {_WIDTH} {height}" '
        f'aria-label="rates of the labels that drift">{"".join(rows)}</svg>'
    )
    text = (
        "How often they fire in the latest inputs that show the drift (upper bar), and in the "
        "calibration data (lower bar)."
    )
    return _Figure("Labels that drift", text, drawing, height)


def _page(report: MonitorReport, figures: list[_Figure]) -> str:
    parts = "\n".join(
        f"<section><h2>{escape(figure.title)}</h2><p>{escape(figure.text)}</p>"
        f"{figure.drawing}</section>"
        for figure in figures
    )
    # A line may break after a hyphen, but not after a minus: 1e-22 stays in one piece.
    summary = re.sub(r"(?<=[e^])-(?=\d)", "\N{MINUS SIGN}", report.summary())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>nescio monitor</title><style>{_STYLE}</style></head><body>"
        f"<h1>Is the stream still the one calibrated on?</h1>"
        f"<pre>{escape(summary)}</pre>\n{parts}\n</body></html>\n"
    )


def _picture(figures: list[_Figure]) -> str:
    top, parts = 0, []
    for figure in figures:
        parts.append(f'<text class="head" x="14" y="{top + 22}">{escape(figure.title)}</text>')
        placed = f'<svg x="0" y="{top + 32}" width="{_WIDTH}" height="{figure.height}" '
        parts.append(placed + figure.drawing.removeprefix("<svg "))
        top += figure.height + 44
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{top}" '
        f'viewBox="0 0 {_WIDTH} {top}"><style>{escape(_STYLE)}</style>'
        f'<rect class="paper" width="100%" height="100%"/>{"".join(parts)}</svg>\n'
    )
