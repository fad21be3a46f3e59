"""Scores on a histogram, with the threshold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from nescio._charts.histogram import FEW, Histogram
from nescio._charts.svg import Values, short
from nescio._charts.text import cut
from nescio.displays.base import Display, hue, legend_outside
from nescio.errors import InputError

if TYPE_CHECKING:
    from nescio.calibration import Calibration
    from nescio.detectors import Assessment, Detector

_OWN_COLOURS = {"flagged": "out", "kept": "in", "assessed": "ink"}


class ScoreHistogramDisplay(Display):
    """The scores of the calibration and of other data, with the threshold.

    Parameters
    ----------
    calibration_scores : array of shape (n_samples,)
        They are drawn filled.
    thresholds : mapping of group name to float
        One line each.
    scores : mapping of name to array, optional
        Further scores: at most 30 are drawn one by one, more as an outline.
    name : str
        What the scores are of, for the axis.
    """

    def __init__(
        self,
        calibration_scores: Values,
        thresholds: Mapping[str, float],
        *,
        scores: Mapping[str, Values] | None = None,
        name: str = "score",
    ) -> None:
        self.calibration_scores = calibration_scores
        self.thresholds = dict(thresholds)
        self.scores = dict(scores or {})
        self.name = name

    @classmethod
    def from_detector(
        cls, detector: Detector, X: Any = None, *, ood: Any = None, ax: Any = None
    ) -> Self:
        """Draw the calibration scores of a detector, and the scores of other data.

        Parameters
        ----------
        detector : Detector
            A calibrated detector.
        X : array, data frame or Outputs, optional
            New data.
        ood : array, data frame or Outputs, or mapping of name to these, optional
            Out-of-distribution data.
        ax : matplotlib Axes, optional
            Where to draw; by default in a new figure.
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
        return cls.from_calibration(calibration, scores, name=detector.name, ax=ax)

    @classmethod
    def from_calibration(
        cls,
        calibration: Calibration,
        scores: Mapping[str, Values] | None = None,
        *,
        name: str = "score",
        ax: Any = None,
    ) -> Self:
        """Draw calibration scores with their thresholds, and further scores by name."""
        thresholds = calibration.threshold_values
        return cls(calibration.scores, thresholds, scores=scores, name=name).plot(ax)

    @classmethod
    def from_assessment(cls, assessment: Assessment, *, ax: Any = None) -> Self:
        """Draw the scores of an assessment on those of the calibration."""
        if assessment.calibration is None:
            raise InputError(
                "this assessment does not know its calibration: it was read from a table, or made "
                "with fdr. Use ScoreHistogramDisplay.from_detector(detector, data)."
            )
        inside = assessment.in_distribution
        scores = {"assessed": assessment.scores}
        if len(inside) <= FEW:
            scores = {"flagged": assessment.scores[~inside], "kept": assessment.scores[inside]}
        return cls.from_calibration(assessment.calibration, scores, ax=ax)

    def _draw(self, ax: Any, colours: dict[str, str]) -> None:
        thresholds, others = list(self.thresholds.values()), list(self.scores.values())
        histogram = Histogram.of(self.calibration_scores, thresholds, others)
        heights = histogram.shares(self.calibration_scores)
        label = f"calibration ({len(self.calibration_scores):,})"
        ax.stairs(heights, histogram.edges, fill=True, color=colours["id"], alpha=0.35, label=label)
        for at, (name, scores) in enumerate(self.scores.items()):
            known = _OWN_COLOURS.get(name)
            colour = hue(colours, at + 1) if known is None else colours[known]
            options = {"color": colour, "label": f"{cut(name, 24)} ({len(scores):,})"}
            if len(scores) > FEW:
                ax.stairs(histogram.shares(scores), histogram.edges, linewidth=1.4, **options)
            elif len(scores):
                marks, top = histogram.scale.within(scores), 0.15 * float(heights.max())
                ax.vlines(marks, 0.0, top, linewidth=1.8, **options)
        self._draw_beyond(ax, histogram, colours["muted"])
        self._draw_thresholds(ax, histogram, colours["ink"])
        ax.set(xlabel=f"{self.name}, higher is more in-distribution", ylabel="share of samples")
        if histogram.log:
            # symlog is logarithmic beyond its threshold, for negative numbers too.
            ax.set_xscale("symlog", linthresh=np.abs(histogram.edges).min())
        ax.set_xlim(histogram.scale.low, histogram.scale.high)
        ax.set_ylim(bottom=0.0)
        legend_outside(ax)

    def _draw_beyond(self, ax: Any, histogram: Histogram, colour: str) -> None:
        """Write how many scores lie beyond the axis and are counted in its outermost bars."""
        sets = (self.calibration_scores, *self.scores.values())
        lower, higher = (sum(counts) for counts in zip(*map(histogram.beyond, sets), strict=True))
        style = {"xycoords": "axes fraction", "size": "small", "color": colour}
        if lower:
            ax.annotate(f"◀ {lower:,} lower", (0.01, 1.01), ha="left", **style)
        if higher:
            ax.annotate(f"{higher:,} higher ▶", (0.99, 1.01), ha="right", **style)

    def _draw_thresholds(self, ax: Any, histogram: Histogram, colour: str) -> None:
        values = list(self.thresholds.values())
        label = f"threshold {short(values[0])}" if len(values) == 1 else f"{len(values)} thresholds"
        for at, value in enumerate(histogram.scale.within(values).tolist()):
            text = "_nolegend_" if at else label
            ax.axvline(value, color=colour, linestyle="--", linewidth=1.2, label=text)
