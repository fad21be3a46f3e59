"""The charts of the page, drawn as SVG with the drawing code of all charts.

The colours are CSS classes of the page.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nescio._charts.histogram import HistogramChart
from nescio._charts.svg import Chart, Scale, Tick, percent, short
from nescio.service.engine import Engine

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


def traffic_charts(engine: Engine, snapshot: Mapping[str, Any], width: int) -> dict[str, str]:
    """Draw recent scores and the share flagged; nothing if there is no traffic yet."""
    if not snapshot["recent"]["score"]:
        return {}
    return {
        "scores": _recent_scores(engine, snapshot["recent"], width),
        "flagged": _flagged_shares(snapshot["flagged"]["chunks"], width),
    }


def _recent_scores(engine: Engine, recent: Mapping[str, Any], width: int) -> str:
    """Draw one dot per input in the order of arrival, and a cross if it was flagged."""
    scores = np.array([np.nan if score is None else score for score in recent["score"]])
    inside = np.array(recent["in_distribution"])
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
        x_ticks=_clock_ticks(recent["time"]),
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


def _flagged_shares(chunks: Sequence[Mapping[str, Any]], width: int) -> str:
    """Draw the share flagged in each chunk of inputs over the expected band."""
    largest = max(chunk["n"] for chunk in chunks)
    # The latest chunk is left out until it is half full: any share is expected of a few inputs.
    shown = [chunk for chunk in chunks if 2 * chunk["n"] >= largest]
    share, low, high = (
        np.array([chunk[key] for chunk in shown]) for key in ("share", "low", "high")
    )
    outside = (share < low) | (share > high)
    top = min(1.0, 1.1 * max(0.1, *share, *high))
    chart = PageChart(
        Scale(0.0, sum(chunk["n"] for chunk in chunks)),
        Scale(-0.04 * top, top),  # room for the dots at 0
        name=f"Share flagged in {len(shown)} chunks, {outside.sum()} of them outside the band.",
        width=width,
        height=150,
        x_ticks=[],
        y_ticks=Scale(0.0, top, write=lambda value: f"{percent(value)} %").ticks(3),
    )
    ends = np.cumsum([0, *(chunk["n"] for chunk in shown)])
    middles = (ends[1:] + ends[:-1]) / 2
    chart.band(np.repeat(ends, 2)[1:-1], np.repeat(low, 2), np.repeat(high, 2), "band in")
    chart.line(middles, share, "plain")
    for x, value, is_outside in zip(middles, share, outside, strict=True):
        if is_outside:
            chart.diamond(x, value, "point out")
        else:
            chart.dot(x, value, "point in")
    return str(chart.draw())


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

    def diamond(self, x: float, y: float, css: str) -> None:
        """Draw a diamond."""
        across, down = self._points(x, y)
        self.marks.append(
            f'<path class="dot {css}" d="M{across:.1f} {down - 6:.1f}l6 6l-6 6l-6 -6Z"/>'
        )
