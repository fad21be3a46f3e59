"""Figures on matplotlib, in the style of scikit-learn's displays: `plot(ax=...)` draws.

A display keeps the result that it draws. `from_...` makes one from other data and draws it.
matplotlib is imported when the first figure is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from nescio._charts.histogram import FEW, Histogram, roc
from nescio._charts.svg import HUES, JOINT, Values, cut, palette, short
from nescio.errors import InputError, ParameterError, require

if TYPE_CHECKING:
    from nescio.calibration import Calibration
    from nescio.detectors import Detector
    from nescio.metrics import Comparison

__all__ = ["RocDisplay", "ScoreHistogramDisplay"]


class Display:
    """A figure that can be drawn on axes."""

    ax_: Any  # of the last `plot`
    figure_: Any  # its figure
    _legend_title: ClassVar[str | None] = None

    def plot(self, ax: Any = None) -> Self:
        """Draw on the axes `ax`, or on those of a new figure; return the display."""
        if ax is None:
            pyplot = require("matplotlib.pyplot", "report")
            _, ax = pyplot.subplots(figsize=(7.0, 3.4), layout="constrained")
        self.ax_, self.figure_ = ax, ax.figure
        ax.spines[["top", "right"]].set_visible(False)
        red, green, blue = ax.get_facecolor()[:3]
        self._draw(ax, palette(dark=0.299 * red + 0.587 * green + 0.114 * blue < 0.5))
        if ax.get_legend_handles_labels()[0]:
            # Beside the axes, where it covers no data.
            place = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "borderaxespad": 0.0}
            ax.legend(title=self._legend_title, frameon=False, alignment="left", **place)
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def _draw(self, ax: Any, colours: dict[str, str]) -> None:
        raise NotImplementedError


@dataclass(repr=False, eq=False)
class ScoreHistogramDisplay(Display):
    """The scores of the calibration and of other data, with the threshold.

    Parameters
    ----------
    calibration : Calibration
        Its scores are drawn filled, and its thresholds as lines.
    scores : mapping of name to array, optional
        Further scores: at most 30 are drawn one by one, more as an outline.
    name : str
        What the scores are of, for the axis.
    """

    calibration: Calibration
    scores: Mapping[str, Values] = field(default_factory=dict)
    name: str = "score"

    @classmethod
    def from_detector(
        cls, detector: Detector, X: Any = None, *, ood: Any = None, ax: Any = None
    ) -> Self:
        """Draw the calibration scores of a detector, and the scores of other data.

        `X` is new data, and `ood` out-of-distribution data, or a mapping of name to such data: what
        the detector scores. Without the matplotlib axes `ax`, there is a new figure.
        """
        calibration = getattr(detector, "calibration_", None)
        if calibration is None:
            raise InputError(
                f"this {type(detector).__name__} is not calibrated, so there is nothing to draw. "
                "Call calibrate(held_out) first."
            )
        sets = {} if X is None else {"new data": X}
        if ood is not None:
            sets |= ood if isinstance(ood, Mapping) else {"OOD data": ood}
        scores = {name: detector.score_samples(data) for name, data in sets.items()}
        return cls(calibration, scores, detector.name).plot(ax)

    def _draw(self, ax: Any, colours: dict[str, str]) -> None:
        calibrated = self.calibration.scores
        thresholds = list(self.calibration.threshold_values.values())
        histogram = Histogram.of(calibrated, thresholds, list(self.scores.values()))
        heights, edges = histogram.shares(calibrated), histogram.edges
        label = f"calibration ({len(calibrated):,})"
        ax.stairs(heights, edges, fill=True, color=colours["id"], alpha=0.35, label=label)
        for number, (name, scores) in enumerate(self.scores.items(), start=1):
            colour = colours[f"hue{number % HUES}"]
            options = {"color": colour, "label": f"{cut(name, 24)} ({len(scores):,})"}
            if len(scores) > FEW:
                ax.stairs(histogram.shares(scores), edges, linewidth=1.4, **options)
            elif len(scores):
                marks, top = histogram.scale.within(scores), 0.15 * float(heights.max())
                ax.vlines(marks, 0.0, top, linewidth=1.8, **options)
        n = len(thresholds)
        label = f"threshold {short(thresholds[0])}" if n == 1 else f"{n} thresholds"
        for value in histogram.scale.within(thresholds).tolist():
            ax.axvline(value, color=colours["ink"], linestyle="--", linewidth=1.2, label=label)
            label = "_nolegend_"
        # Scores beyond the axis are counted in its outermost bars.
        beyond = map(histogram.beyond, (calibrated, *self.scores.values()))
        lower, higher = (sum(counts) for counts in zip(*beyond, strict=True))
        style = {"xycoords": "axes fraction", "size": "small", "color": colours["muted"]}
        if lower:
            ax.annotate(f"◀ {lower:,} off the axis", (0.01, 1.01), ha="left", **style)
        if higher:
            ax.annotate(f"{higher:,} off the axis ▶", (0.99, 1.01), ha="right", **style)
        ax.set(xlabel=f"{self.name}, higher is more in-distribution", ylabel="share of samples")
        ax.set_xscale("log" if histogram.log else "linear")
        ax.set_xlim(edges[0], edges[-1])
        ax.set_ylim(bottom=0.0)


@dataclass(repr=False, eq=False)
class RocDisplay(Display):
    """ROC curves with ID as the positive side: the share of ID kept over that of OOD kept.

    Parameters
    ----------
    scores : mapping of name to two arrays
        The ID scores and the OOD scores of each detector. The first is drawn on top.
    tpr : float
        The share of ID samples that is marked.
    ood_name : str
        The name of the OOD set, for the axis.
    """

    scores: Mapping[str, tuple[Values, Values]]
    tpr: float = 0.95
    ood_name: str = "OOD"
    _legend_title = "detector (AUROC)"

    @classmethod
    def from_comparison(
        cls, comparison: Comparison, *, ood: str | None = None, ax: Any = None
    ) -> Self:
        """Draw the curves of the eight best detectors on one OOD set, by default the first."""
        name = next(iter(comparison.results)) if ood is None else ood
        if name not in comparison.results:
            names = ", ".join(map(repr, comparison.results))
            raise ParameterError(f"there is no OOD set {name!r}; the comparison has {names}.")
        best = comparison.ranked(name)[:HUES]
        scored = {detector: comparison.scores[detector] for detector in best}
        scores = {detector: (s.id_scores, s.ood_scores[name]) for detector, s in scored.items()}
        return cls(scores, comparison.results[name][best[0]].tpr, name).plot(ax)

    def _draw(self, ax: Any, colours: dict[str, str]) -> None:
        for number, (name, (id_scores, ood_scores)) in enumerate(self.scores.items()):
            is_joint = name == JOINT
            ordered = np.sort(ood_scores)  # a tie counts half
            below = [np.searchsorted(ordered, id_scores, side) for side in ("left", "right")]
            area = np.mean(below) / len(ordered)
            ax.plot(
                *roc(id_scores, ood_scores),
                color=colours["accent" if is_joint else f"hue{number % HUES}"],
                linewidth=2.2 if is_joint else 1.5,
                label=f"{cut(name, 28)} ({100 * area:.2f})",
                zorder=3 + len(self.scores) - number,
            )
        ax.axhline(self.tpr, color=colours["muted"], linestyle="--", linewidth=1.0)
        place = {"textcoords": "offset points", "ha": "right", "va": "top"}
        text = f"TPR {100 * self.tpr:g} %"
        ax.annotate(text, (1, self.tpr), (-3, -3), color=colours["muted"], size="small", **place)
        ax.set(xlabel=f"{cut(self.ood_name, 40)} let through", ylabel="ID kept")
        ax.set_xlim(-0.01, 1.0)
        ax.set_ylim(0.0, 1.01)
        percent = require("matplotlib.ticker", "report").PercentFormatter
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter(percent(1.0, symbol=" %"))
