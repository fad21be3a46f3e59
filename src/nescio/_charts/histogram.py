"""Scores in charts: histograms with the threshold, and ROC curves. -inf counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nescio._charts.svg import Chart, Markup, Scale, Values, percent, short

_BINS = 60
_MOST = (0.01, 0.99)  # of further scores, which should be seen
_MARGIN = 0.02  # of the range, beyond the further scores and the thresholds: more than a bin
_SKEWED = 8  # times as large is a usual score as a small one, on a logarithmic axis
FEW = 30  # so many scores are drawn one by one


@dataclass(frozen=True)
class Histogram:
    """Bins of equal width, on a logarithmic axis if `log`; the outermost count all beyond."""

    edges: Values
    log: bool = False

    @classmethod
    def of(
        cls, scores: Values, thresholds: Sequence[float], further: Sequence[Values] = ()
    ) -> Histogram:
        """Return bins for almost all scores that are finite, and for all thresholds.

        The range is extended by at most its width to each side, to show most of the further scores.
        """
        finite, limits = (part[np.isfinite(part)] for part in (scores, np.array(thresholds)))
        # Scores such as energies would fall into a few bins of a linear axis.
        small, usual = np.quantile(finite, (0.01, 0.5))
        log = min(float(finite.min()), *thresholds) > 0 and bool(usual / small > _SKEWED)
        forward = np.log10 if log else np.asarray
        low, high = _range(forward(finite), forward(limits).tolist())
        ends, width = [low, high], high - low
        for values_of_set in further:
            usable = values_of_set[np.isfinite(values_of_set)]
            usable = usable[usable > 0] if log else usable
            if len(usable):
                first, last = np.quantile(forward(usable), _MOST)
                ends += [first - _MARGIN * width, last + _MARGIN * width]
        low, high = max(min(ends), low - width), min(max(ends), high + width)
        edges = np.linspace(low, high, _BINS + 1)
        return cls(10.0**edges if log else edges, log)

    def beyond(self, scores: Values) -> tuple[int, int]:
        """Return how many of these scores lie below and above the range."""
        low, high = self.edges[0], self.edges[-1]
        return int(np.count_nonzero(~(scores >= low))), int(np.count_nonzero(scores > high))

    def shares(self, scores: Values) -> Values:
        """Return the share of these scores in each bin, those beyond the range in the last ones."""
        counts, _ = np.histogram(self.scale.within(scores), bins=self.edges)
        return counts / max(1, len(scores))

    @property
    def scale(self) -> Scale:
        """The axis of the scores."""
        return Scale(float(self.edges[0]), float(self.edges[-1]), log=self.log)

    def steps(self, heights: Values) -> tuple[Values, Values]:
        """Return the outline of bars of these heights."""
        return np.repeat(self.edges, 2)[1:-1], np.repeat(heights, 2)


def _range(scores: Values, thresholds: list[float]) -> tuple[float, float]:
    """Return a range of all thresholds and almost all scores, without outliers."""
    low, first, third, high = np.quantile(scores, (0.0025, 0.25, 0.75, 0.9975))
    if first < third:  # else most scores are equal, and every other one would be an outlier
        # Tukey's outer fences: three interquartile ranges beyond the quartiles.
        low, high = first - 3 * (third - first), third + 3 * (third - first)
        low, high = max(low, scores.min()), min(high, scores.max())
    room = _MARGIN * (max([high, *thresholds]) - min([low, *thresholds]))  # beside a threshold
    low = min([low, *(value - room for value in thresholds)])
    high = max([high, *(value + room for value in thresholds)])
    return (low, high) if low < high else (low - 0.5, high + 0.5)


class Batch(NamedTuple):
    """New scores, and which of them are flagged."""

    scores: Values
    flagged: NDArray[np.bool_]


def score_chart(scores: Values, thresholds: Sequence[float], batch: Batch | None = None) -> Markup:
    """Draw calibration scores, cut at the threshold, and the scores of a batch on them."""
    x_label = "score: calibration, cut at the threshold" if len(thresholds) == 1 else "score"
    shown, further = scores, []
    if batch is not None:
        x_label = "score: calibration (filled), these samples (lines)"
        shown, further = batch.scores, [batch.scores]
    histogram = Histogram.of(scores, thresholds, further)
    many = batch is not None and len(shown) > FEW
    shares, outline = histogram.shares(scores), histogram.shares(shown) if many else np.zeros(1)
    chart = Chart(
        histogram.scale,
        Scale(0.0, 1.15 * max(float(shares.max()), float(outline.max()))),
        name="Histogram of the calibration scores, with the threshold",
        height=190,
        x_label=x_label,
        x_ticks=histogram.scale.ticks(4),
        y_ticks=[],
    )
    _draw_bars(chart, histogram, shares, thresholds)
    for value in thresholds:
        n_below = np.count_nonzero(~(shown >= value))
        text = f"threshold {short(value)}, {n_below:,} below" if len(thresholds) == 1 else ""
        chart.rule(x=float(chart.x.within(value)), text=text)
    if many:
        chart.line(*histogram.steps(outline), "plain")
    elif batch is not None:
        for score, is_out in zip(shown.tolist(), batch.flagged.tolist(), strict=True):
            x, top = float(chart.x.within(score)), 0.3 * chart.y.high
            chart.line([x, x], [0.0, top], "out" if is_out else "plain", tip=short(score))
    # Scores beyond the edges are counted in the outermost bars.
    lower, higher = histogram.beyond(shown)
    if lower:
        chart.note(4, 26, f"◀ {lower:,} off the axis", "start")
    if higher:
        chart.note(chart.width - 4, 26, f"{higher:,} off the axis ▶", "end")
    return chart.draw()


def _draw_bars(
    chart: Chart, histogram: Histogram, shares: Values, thresholds: Sequence[float]
) -> None:
    x, y = histogram.steps(shares)
    if len(thresholds) != 1:
        chart.area(x, y, "in")
        return
    # The steps are cut at the threshold into the parts below and above it.
    edge = float(chart.x.within(thresholds[0]))
    number = np.searchsorted(histogram.edges, edge, "right") - 1
    height = shares[np.clip(number, 0, len(shares) - 1)]
    below, above = x < edge, x > edge
    chart.area([*x[below], edge], [*y[below], height], "out")
    chart.area([edge, *x[above]], [height, *y[above]], "in")


# --- curves ---


def roc_axes(name: str, tpr: float, *, height: int, x_label: str = "OOD let through, %") -> Chart:
    """Return the axes of ROC curves, with ID as the positive class and a line at a TPR."""
    whole = Scale(0.0, 1.0, write=percent)
    chart = Chart(whole, whole, name=name, height=height, x_label=x_label, y_label="ID kept, %")
    chart.rule(y=tpr, text=f"TPR {percent(tpr)} %")
    return chart


def roc(id_scores: Values, ood_scores: Values, n_points: int = 160) -> tuple[Values, Values]:
    """Return (FPR, TPR) with ID as the positive class, at evenly spaced points of the curve."""
    id_, ood = np.sort(id_scores), np.sort(ood_scores)
    thresholds = np.unique(np.concatenate([id_, ood]))[::-1]
    fpr = np.concatenate([[0.0], share_kept(ood, thresholds)])
    tpr = np.concatenate([[0.0], share_kept(id_, thresholds)])
    along = fpr + tpr  # from 0 to 2, never falling
    picked = np.searchsorted(along, np.linspace(0, 2, n_points))
    picked = np.unique(np.append(np.minimum(picked, len(along) - 1), [0, len(along) - 1]))
    return fpr[picked], tpr[picked]


def share_kept(ordered: Values, thresholds: Values) -> Values:
    """Return the share of ascending scores at or above each threshold."""
    below: Values = np.searchsorted(ordered, thresholds, side="left") / len(ordered)
    return 1.0 - below
