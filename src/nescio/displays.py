"""Figures on matplotlib, as scikit-learn has them: `from_*` draws, `plot(ax=...)` draws again.

They need matplotlib, which is imported when the first figure is drawn. A display takes arrays, or
the results that have them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from nescio._charts.histogram import FEW, Histogram, roc
from nescio._charts.style import JOINT, cut, palette
from nescio._charts.svg import Values, short
from nescio._optional import require
from nescio.errors import InputError, ParameterError

if TYPE_CHECKING:
    from nescio.calibration import Calibration
    from nescio.detectors import Assessment, Detector
    from nescio.explain import PartsReason, Reason
    from nescio.metrics import Comparison
    from nescio.monitor import MonitorReport

__all__ = ["ExplanationDisplay", "MonitorDisplay", "RocDisplay", "ScoreHistogramDisplay"]

_HUES = 8  # in the palette


class Display:
    """A figure that can be drawn on axes.

    Attributes
    ----------
    ax_ : matplotlib Axes
        The axes of the last `plot`.
    figure_ : matplotlib Figure
        Its figure.
    """

    ax_: Any
    figure_: Any

    def plot(self, ax: Any = None) -> Self:
        """Draw on the axes `ax`, or on those of a new figure; return the display."""
        if ax is None:
            pyplot = require("matplotlib.pyplot", "report")
            _, ax = pyplot.subplots(figsize=(7.0, self._height()), layout="constrained")
        self.ax_, self.figure_ = ax, ax.figure
        ax.spines[["top", "right"]].set_visible(False)
        red, green, blue = ax.get_facecolor()[:3]
        self._draw(ax, palette(dark=0.299 * red + 0.587 * green + 0.114 * blue < 0.5))
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def _height(self) -> float:
        """Return the height of a new figure in inches."""
        return 3.4

    def _draw(self, ax: Any, colours: dict[str, str]) -> None:
        raise NotImplementedError


def _legend_outside(ax: Any, title: str | None = None) -> None:
    """Draw the legend beside the axes, where it covers no data."""
    place = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "borderaxespad": 0.0}
    ax.legend(title=title, frameon=False, alignment="left", **place)


def _percent_axis(axis: Any) -> None:
    axis.set_major_formatter(
        require("matplotlib.ticker", "report").PercentFormatter(1.0, symbol=" %")
    )


# --- scores -----------------------------------------------------------------------------------


@dataclass(repr=False, eq=False)
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

    calibration_scores: Values
    thresholds: Mapping[str, float]
    scores: Mapping[str, Values] = field(default_factory=dict)
    name: str = "score"

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
        return cls(calibration.scores, calibration.threshold_values, scores or {}, name).plot(ax)

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
        thresholds = list(self.thresholds.values())
        histogram = Histogram.of(self.calibration_scores, thresholds, list(self.scores.values()))
        heights = histogram.shares(self.calibration_scores)
        label = f"calibration ({len(self.calibration_scores):,})"
        ax.stairs(heights, histogram.edges, fill=True, color=colours["id"], alpha=0.35, label=label)
        own = {"flagged": "out", "kept": "in", "assessed": "ink"}
        for i, (name, scores) in enumerate(self.scores.items(), start=1):
            colour = colours[own.get(name, f"hue{i % _HUES}")]
            options = {"color": colour, "label": f"{cut(name, 24)} ({len(scores):,})"}
            if len(scores) > FEW:
                ax.stairs(histogram.shares(scores), histogram.edges, linewidth=1.4, **options)
            elif len(scores):
                marks, top = histogram.scale.within(scores), 0.15 * float(heights.max())
                ax.vlines(marks, 0.0, top, linewidth=1.8, **options)
        # Scores beyond the axis are counted in its outermost bars.
        sets = (self.calibration_scores, *self.scores.values())
        lower, higher = (sum(counts) for counts in zip(*map(histogram.beyond, sets), strict=True))
        style = {"xycoords": "axes fraction", "size": "small", "color": colours["muted"]}
        if lower:
            ax.annotate(f"◀ {lower:,} lower", (0.01, 1.01), ha="left", **style)
        if higher:
            ax.annotate(f"{higher:,} higher ▶", (0.99, 1.01), ha="right", **style)
        n = len(thresholds)
        label = f"threshold {short(thresholds[0])}" if n == 1 else f"{n} thresholds"
        for value in histogram.scale.within(thresholds).tolist():
            ax.axvline(value, color=colours["ink"], linestyle="--", linewidth=1.2, label=label)
            label = "_nolegend_"
        ax.set(xlabel=f"{self.name}, higher is more in-distribution", ylabel="share of samples")
        if histogram.log:
            # symlog is logarithmic beyond its threshold, for negative numbers too.
            ax.set_xscale("symlog", linthresh=np.abs(histogram.edges).min())
        ax.set_xlim(histogram.scale.low, histogram.scale.high)
        ax.set_ylim(bottom=0.0)
        _legend_outside(ax)


# --- ROC curves -------------------------------------------------------------------------------


class Curve(NamedTuple):
    """The shares of OOD and ID samples that are kept, over the threshold, and the area."""

    fpr: Values
    tpr: Values
    auroc: float

    @classmethod
    def from_scores(cls, id_scores: Any, ood_scores: Any) -> Curve:
        """Compute the curve and the area under it; a tie counts half."""
        id_, ood = np.asarray(id_scores, np.float64), np.sort(np.asarray(ood_scores, np.float64))
        below, up_to = np.searchsorted(ood, id_, "left"), np.searchsorted(ood, id_, "right")
        return cls(*roc(id_, ood), float(np.mean(below + up_to)) / (2 * len(ood)))


@dataclass(repr=False, eq=False)
class RocDisplay(Display):
    """ROC curves with ID as the positive side: the share of ID kept over that of OOD kept.

    Parameters
    ----------
    curves : mapping of name to Curve
        The first is drawn on top.
    tpr : float
        The share of ID samples that is marked.
    ood_name : str
        The name of the OOD set, for the axis.
    """

    curves: Mapping[str, Curve]
    tpr: float = 0.95
    ood_name: str = "OOD"

    @classmethod
    def from_detector(
        cls, detector: Detector, id_data: Any, ood_data: Any, *, tpr: float = 0.95, ax: Any = None
    ) -> Self:
        """Score ID and OOD data with a detector, and draw its curve."""
        scores = detector.score_samples(id_data), detector.score_samples(ood_data)
        return cls.from_scores(*scores, name=detector.name, tpr=tpr, ax=ax)

    @classmethod
    def from_scores(
        cls,
        id_scores: Any,
        ood_scores: Any,
        *,
        name: str = "score",
        tpr: float = 0.95,
        ax: Any = None,
    ) -> Self:
        """Draw the curve of ID and OOD scores."""
        return cls({name: Curve.from_scores(id_scores, ood_scores)}, tpr).plot(ax)

    @classmethod
    def from_comparison(
        cls, comparison: Comparison, *, ood: str | None = None, ax: Any = None
    ) -> Self:
        """Draw the curves of the best detectors of a comparison on one OOD set, at most eight.

        `ood` is the name of the set, by default the first one.
        """
        name = next(iter(comparison.results)) if ood is None else ood
        if name not in comparison.results:
            names = ", ".join(map(repr, comparison.results))
            raise ParameterError(f"there is no OOD set {name!r}; the comparison has {names}.")
        best = comparison.ranked(name)[:_HUES]
        scored = {detector: comparison.scores[detector] for detector in best}
        curves = {
            detector: Curve.from_scores(scores.id_scores, scores.ood_scores[name])
            for detector, scores in scored.items()
        }
        return cls(curves, comparison.results[name][best[0]].tpr, name).plot(ax)

    def _draw(self, ax: Any, colours: dict[str, str]) -> None:
        for at, (name, curve) in enumerate(self.curves.items()):
            is_joint = name == JOINT
            ax.plot(
                curve.fpr,
                curve.tpr,
                color=colours["accent" if is_joint else f"hue{at % _HUES}"],
                linewidth=2.2 if is_joint else 1.5,
                label=f"{cut(name, 28)} ({100 * curve.auroc:.2f})",
                zorder=3 + len(self.curves) - at,
            )
        ax.axhline(self.tpr, color=colours["muted"], linestyle="--", linewidth=1.0)
        place = {"textcoords": "offset points", "ha": "right", "va": "top"}
        text = f"TPR {100 * self.tpr:g} %"
        ax.annotate(text, (1, self.tpr), (-3, -3), color=colours["muted"], size="small", **place)
        ax.set(xlabel=f"{cut(self.ood_name, 40)} let through", ylabel="ID kept")
        ax.set_xlim(-0.01, 1.0)
        ax.set_ylim(0.0, 1.01)
        _percent_axis(ax.xaxis)
        _percent_axis(ax.yaxis)
        _legend_outside(ax, "detector (AUROC)")


# --- explanations -----------------------------------------------------------------------------


@dataclass(repr=False, eq=False)
class ExplanationDisplay(Display):
    """A bar for each label, next to what is usual; or for each part of a combination.

    Parameters
    ----------
    names : sequence of str
        Labels or parts, from top to bottom.
    values : array of shape (n_names,)
        The length of the bars.
    medians : array of shape (n_names,), optional
        The usual values, drawn as marks.
    title : str
        The verdict.
    value_name : str
        What the bars are, for the axis.
    flagged : bool
        Whether the sample is flagged, for the colour.
    """

    names: Sequence[str]
    values: Values
    medians: Values | None = None
    title: str = ""
    value_name: str = "energy"
    flagged: bool = True

    @classmethod
    def from_reason(
        cls, reason: Reason | PartsReason, *, n_labels: int = 12, ax: Any = None
    ) -> Self:
        """Draw the most telling labels of one sample, or all parts of a combination."""
        word = "in-distribution" if reason.in_distribution else "OUT"
        named = f"{cut(reason.id, 30)}: {word}" if reason.id else word
        title = f"{named}. {reason.detector} {reason.score:.4g}, threshold {reason.threshold:.4g}"
        medians, flagged = None, not reason.in_distribution
        parts: Any = getattr(reason, "parts", None)
        if parts is not None:
            names, values = [p.detector for p in parts], _finite([p.share for p in parts])
            value_name = "share of the evidence"
        else:
            labels: Any = reason
            shown = labels.most_telling(n_labels)
            names, values = [one.label for one in shown], _finite([one.term for one in shown])
            medians, value_name = _finite([one.median for one in shown]), labels.term
        return cls(names, values, medians, title, value_name, flagged).plot(ax)

    def _height(self) -> float:
        return 1.2 + 0.27 * len(self.names)

    def _draw(self, ax: Any, colours: dict[str, str]) -> None:
        places = np.arange(len(self.names))
        colour = colours["out" if self.flagged else "in"]
        ax.barh(places, self.values, height=0.66, color=colour, label="this sample", zorder=2)
        if self.medians is not None:
            mark = {"marker": "|", "s": 130, "linewidths": 2, "color": colours["ink"], "zorder": 3}
            ax.scatter(self.medians, places, label="in-distribution\nmedian", **mark)
            _legend_outside(ax)
        ax.set_yticks(places, [cut(name, 30) for name in self.names])
        ax.invert_yaxis()
        ax.set_xlabel(self.value_name)
        ax.locator_params(axis="x", nbins=5)
        ax.set_title(self.title, size="medium", loc="left")


def _finite(values: Sequence[float]) -> Values:
    """Return the values as an array; masked labels and values that cannot be used have no bar."""
    return np.nan_to_num(np.array(values, np.float64), nan=0.0, posinf=0.0, neginf=0.0)


# --- a monitor --------------------------------------------------------------------------------


@dataclass(repr=False, eq=False)
class MonitorDisplay(Display):
    """The share flagged in each window of a stream, with the expected band.

    Parameters
    ----------
    edges : array of shape (n_windows, 2)
        The first and the last input of each window.
    shares, low, high : array of shape (n_windows,)
        The share flagged, and the band.
    change_at, alarm_at : int, optional
        The input at which the stream most likely changed, and that at which it was noticed.
    """

    edges: Values
    shares: Values
    low: Values
    high: Values
    change_at: int | None = None
    alarm_at: int | None = None

    @classmethod
    def from_report(cls, report: MonitorReport, *, ax: Any = None) -> Self:
        """Draw the windows of a report."""
        columns = {name: np.array(column, np.float64) for name, column in report.columns().items()}
        start, n = columns["start"], columns["n"]
        change_at = None if report.change is None else report.change.since.at
        bounds = columns["low"] / n, columns["high"] / n
        edges = np.stack([start, start + n], axis=1)
        return cls(edges, columns["share"], *bounds, change_at, report.alarm_at).plot(ax)

    def _draw(self, ax: Any, colours: dict[str, str]) -> None:
        band = (self.edges.ravel(), np.repeat(self.low, 2), np.repeat(self.high, 2))
        ax.fill_between(*band, color=colours["in"], alpha=0.18, linewidth=0, label="expected")
        middles = self.edges.mean(axis=1)
        outside = (self.shares < self.low) | (self.shares > self.high)
        for chosen, name, text in ((~outside, "in", "within"), (outside, "out", "outside")):
            if chosen.any():
                dots = {"color": colours[name], "label": f"{text} ({np.count_nonzero(chosen):,})"}
                ax.plot(middles[chosen], self.shares[chosen], "o", markersize=4, **dots)
        for at, name, style, text in (
            (self.change_at, "ink", "--", "changed at about\ninput {:,}"),
            (self.alarm_at, "out", ":", "alarm at {:,}"),
        ):
            if at is not None:
                line = {"linestyle": style, "linewidth": 1.3, "label": text.format(at)}
                ax.axvline(at, color=colours[name], **line)
        ax.set(xlabel="inputs", ylabel="flagged")
        ax.xaxis.set_major_formatter("{x:,.0f}")
        ax.margins(x=0.02)
        ax.set_ylim(bottom=0.0)
        _percent_axis(ax.yaxis)
        _legend_outside(ax)
