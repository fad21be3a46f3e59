"""The charts of the page, drawn as SVG with the drawing code of all charts.

The colours are CSS classes of the page.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from nescio._charts.histogram import HistogramChart
from nescio._charts.svg import Chart, Scale, Tick, short
from nescio.monitor.report import Figure
from nescio.service.openapi import ChartOf, RecentInputs, TrafficReport
from nescio.service.service import Engine

_SMALL_SAMPLE = 100  # fewer points than this are drawn larger


def score_chart(engine: Engine, score: float, group: str, width: int) -> str:
    """Draw a score and the threshold on the histogram of a group's calibration scores."""
    histogram, threshold = engine.histograms[group], engine.calibration.threshold_values[group]
    low, high = histogram.edges[[0, -1]]
    chart = HistogramChart(
        histogram,
        [threshold],
        name=f"Histogram of the calibration scores from {short(low)} to {short(high)}, "
        f"threshold {short(threshold)}, this input {short(score)}.",
        width=width,
    )
    chart.marker(score, "out" if score < threshold else "in", f"this input {short(score)}")
    return chart.draw().replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)


def traffic_charts(
    engine: Engine, report: TrafficReport, figures: Sequence[Figure], width: int
) -> list[ChartOf]:
    """Draw recent scores, before the figures of the monitor; nothing if there is no traffic yet."""
    n_recent = len(report.recent.score)
    if not n_recent:
        return []
    text = f"of the latest {n_recent:,} of {report.n_watched:,} inputs, oldest first"
    return [
        ChartOf("Scores", text, _recent_scores(engine, report.recent, width)),
        *(ChartOf(*map(str, figure)) for figure in figures),
    ]


def _recent_scores(engine: Engine, recent: RecentInputs, width: int) -> str:
    """Draw one dot per input in the order of arrival, and a cross if it was flagged."""
    scores = np.array(recent.score, dtype=np.float64)
    inside = np.array(recent.in_distribution)
    thresholds = list(engine.calibration.threshold_values.values())
    # The range of the calibration scores, extended by at most its width to each side.
    edges = engine.histograms[None].edges
    low, high, room = edges[0], edges[-1], edges[-1] - edges[0]
    finite = scores[np.isfinite(scores)]
    low = max(finite.min(initial=low), low - room)
    high = min(finite.max(initial=high), high + room)
    n, n_flagged = len(scores), int(np.count_nonzero(~inside))
    chart = PageChart(
        Scale(-0.5 - n / 100, n - 0.5 + n / 100),
        Scale(low - 0.03 * (high - low), high + 0.03 * (high - low)),
        name=f"Scores of the latest {n} inputs, {n_flagged} of them flagged.",
        width=width,
        height=240,
        x_label="time of arrival, UTC",
        x_ticks=_clock_ticks(recent.time),
        y_ticks=Scale(low, high).ticks(4),
    )
    rows = np.arange(n)
    shown = np.nan_to_num(np.clip(scores, low, high), nan=low)
    size = " few" if n < _SMALL_SAMPLE else ""
    chart.dots(rows[inside], shown[inside], f"dots in{size}")
    chart.crosses(rows[~inside], shown[~inside], "crosses out")
    for threshold in thresholds:
        text = f"threshold {short(threshold)}" if len(thresholds) == 1 else ""
        chart.rule(y=min(max(threshold, low), high), text=text)
    return str(chart.draw())


def _clock_ticks(times: Sequence[float]) -> list[Tick]:
    """Return three times of arrival as ticks."""
    n = len(times)
    rows = sorted({n // 12, n // 2, n - 1 - n // 12})
    return [(row, time.strftime("%H:%M:%S", time.gmtime(times[row]))) for row in rows]


class PageChart(Chart):
    """A chart with the marks that only the page uses."""

    def dots(self, x: Any, y: Any, css: str) -> None:
        """Draw many dots as one path."""
        path = "".join(f"M{a:.1f} {b:.1f}h0" for a, b in zip(*self._points(x, y), strict=True))
        self.marks.append(f'<path class="{css}" d="{path}"/>')

    def crosses(self, x: Any, y: Any, css: str) -> None:
        """Draw many crosses as one path."""
        points = list(zip(*self._points(x, y), strict=True))
        path = "".join(f"M{a - 3:.1f} {b - 3:.1f}l6 6m0 -6l-6 6" for a, b in points)
        self.marks.append(f'<path class="{css}" data-n="{len(points)}" d="{path}"/>')
