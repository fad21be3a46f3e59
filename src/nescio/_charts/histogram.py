"""Scores on a histogram of the calibration scores, with the threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nescio._charts.svg import Chart, Scale, Values, short

_BINS = 60
_MOST = (0.01, 0.99)  # of other scores, which should be seen
_MARGIN = 0.02  # of the range, beyond the other scores
_SKEWED = 8  # times as large as a usual score is another, on a logarithmic axis
FEW = 30  # so many scores are drawn one by one


@dataclass(frozen=True)
class Histogram:
    """How many scores lie in each bin.

    Scores beyond the range are counted in the outermost bins; `lower` and `higher` say how many
    there are. The bins are equally wide, on a logarithmic axis if `log`.
    """

    edges: Values
    counts: Values
    lower: int
    higher: int
    log: bool = False

    @classmethod
    def of(
        cls, scores: Values, thresholds: Sequence[float], others: Sequence[Values] = ()
    ) -> Histogram:
        """Count the scores that are finite, in a range that shows the thresholds if it can.

        The range is extended by at most its width to each side, to show most of the other scores.
        """
        scores = scores[np.isfinite(scores)]
        sign = _skew(scores, thresholds)
        values = _forward(scores, sign)
        low, high = _range(values, _forward(np.array(thresholds), sign).tolist())
        ends, width = [low, high], high - low
        for other in others:
            finite = other[np.isfinite(other)]
            usable = finite if sign == 0 else finite[sign * finite > 0]
            if len(usable):
                first, last = np.quantile(_forward(usable, sign), _MOST)
                ends += [first - _MARGIN * width, last + _MARGIN * width]
        low, high = max(min(ends), low - width), min(max(ends), high + width)
        counts, edges = np.histogram(np.clip(values, low, high), bins=_BINS, range=(low, high))
        lower, higher = (int(np.count_nonzero(one)) for one in (values < low, values > high))
        edges = edges if sign == 0 else sign * 10.0 ** (sign * edges)
        return cls(edges, counts.astype(np.float64), lower, higher, log=sign != 0)

    def beyond(self, scores: Values) -> tuple[int, int]:
        """Return how many scores lie below and above the range, among these."""
        low, high = self.edges[0], self.edges[-1]
        return int(np.count_nonzero(~(scores >= low))), int(np.count_nonzero(scores > high))

    def shares(self, scores: Values) -> Values:
        """Return the share of other scores in each bin, those beyond the range in the last ones."""
        counts, _ = np.histogram(self.scale.within(scores), bins=self.edges)
        return counts / max(1, len(scores))

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for JSON."""
        return {
            "edges": self.edges.tolist(),
            "counts": self.counts.astype(int).tolist(),
            "lower": self.lower,
            "higher": self.higher,
        }

    @property
    def scale(self) -> Scale:
        """The axis of the scores."""
        return Scale(float(self.edges[0]), float(self.edges[-1]), log=self.log)

    def steps(self, heights: Values) -> tuple[Values, Values]:
        """Return the outline of bars of these heights."""
        return np.repeat(self.edges, 2)[1:-1], np.repeat(heights, 2)


def _skew(scores: Values, thresholds: Sequence[float]) -> int:
    """Return the sign of scores of one sign and of very different sizes; 0 for others.

    Energies are such scores, and sums of logarithms of p-values. On a linear axis, all but the
    largest ones would fall into a few bins.
    """
    every = [float(scores.min()), float(scores.max()), *thresholds]
    sign = 1 if min(every) > 0 else -1 if max(every) < 0 else 0
    low, middle, high = np.quantile(np.abs(scores), (0.01, 0.5, 0.99))
    span = middle / low if sign > 0 else high / middle if sign < 0 else 0.0
    return sign if span > _SKEWED else 0


def _forward(values: Values, sign: int) -> Values:
    """Return values on the axis: as they are, or their logarithms."""
    return values if sign == 0 else sign * np.log10(sign * values)


def _range(scores: Values, thresholds: list[float]) -> tuple[float, float]:
    """Return a range that shows almost all scores, but no outlier at the cost of all others."""
    low, first, third, high = np.quantile(scores, (0.0025, 0.25, 0.75, 0.9975))
    if first < third:  # else most scores are equal, and every other one would be an outlier
        # Tukey's outer fences: three interquartile ranges beyond the quartiles.
        low, high = first - 3 * (third - first), third + 3 * (third - first)
        thresholds = [value for value in thresholds if low <= value <= high]
        low, high = max(low, scores.min()), min(high, scores.max())
    low, high = min([low, *thresholds]), max([high, *thresholds])
    return (low, high) if low < high else (low - 0.5, high + 0.5)


class Batch(NamedTuple):
    """New scores, and which of them are flagged."""

    scores: Values
    flagged: NDArray[np.bool_]


class HistogramChart(Chart):
    """A histogram of calibration scores, cut at the threshold, and the scores of a batch on it."""

    def __init__(
        self,
        histogram: Histogram,
        thresholds: Sequence[float],
        *,
        name: str,
        batch: Batch | None = None,
        width: int = 440,
        height: int = 190,
        x_label: str = "",
    ) -> None:
        self.histogram = histogram
        self.shares = histogram.counts / (histogram.counts.sum() or 1.0)
        many = batch is not None and len(batch.scores) > FEW
        others = histogram.shares(batch.scores) if batch is not None and many else np.zeros(1)
        scale = histogram.scale
        super().__init__(
            scale,
            Scale(0.0, 1.15 * max(float(self.shares.max()), float(others.max()))),
            name=name,
            width=width,
            height=height,
            x_label=x_label,
            x_ticks=scale.ticks(max(2, width // 90)),
            y_ticks=[],
        )
        self._bars(thresholds)
        for value in thresholds:
            text = f"threshold {short(value)}" if len(thresholds) == 1 else ""
            self.rule(x=self._within(value), text=text)
        if many:
            self.line(*histogram.steps(others), "plain")
        elif batch is not None:
            self._few(batch)
        self._beyond(
            histogram.beyond(batch.scores) if batch else (histogram.lower, histogram.higher)
        )

    def _few(self, batch: Batch) -> None:
        for score, is_out in zip(batch.scores.tolist(), batch.flagged.tolist(), strict=True):
            x, top = self._within(score), 0.3 * self.y.high
            self.line([x, x], [0.0, top], "out" if is_out else "plain", tip=short(score))

    def _within(self, value: float) -> float:
        """Return a value, or the edge of the histogram if it lies beyond."""
        return float(self.x.within(value))

    def _bars(self, thresholds: Sequence[float]) -> None:
        x, y = self.histogram.steps(self.shares)
        if len(thresholds) != 1:
            self.area(x, y, "in")
            return
        # The steps are cut at the threshold into the parts below and above it.
        edge = self._within(thresholds[0])
        at = np.searchsorted(self.histogram.edges, edge, "right") - 1
        there = self.shares[np.clip(at, 0, len(self.shares) - 1)]
        below, above = x < edge, x > edge
        self.area([*x[below], edge], [*y[below], there], "out")
        self.area([edge, *x[above]], [there, *y[above]], "in")

    def _beyond(self, n_scores: tuple[int, int]) -> None:
        """Write how many scores lie beyond the edges and are counted in the outermost bars."""
        lower, higher = n_scores
        if lower:
            self._note(4, 26, f"◀ {lower:,} lower", "start")
        if higher:
            self._note(self.width - 4, 26, f"{higher:,} higher ▶", "end")

    def marker(self, x: float, css: str, text: str) -> None:
        """Draw a line with a tip at one x; beyond the edges, the tip points outwards."""
        beyond = "left" if x < self.x.low else "right" if x > self.x.high else ""
        at = min(max(float(self.x.place(x, self.width)), 0.0), float(self.width))
        turn = {"left": 90, "right": -90}.get(beyond, 0)
        tip = self.height / 2 if beyond else self.height
        self.notes.append(
            f'<g class="marker {css}" data-mark="score" data-beyond="{beyond}">'
            f'<path d="M{at:.1f} 0V{self.height}"/><path class="tip" d="M-6 -9H6L0 0Z" '
            f'transform="translate({at:.1f} {tip:.1f}) rotate({turn})"/></g>'
        )
        side = "start" if at < 0.2 * self.width else "end" if at > 0.8 * self.width else "middle"
        arrow = {"left": f"◀ {text}", "right": f"{text} ▶"}
        self._note(at, -4, arrow.get(beyond, text), side)
