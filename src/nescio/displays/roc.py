"""ROC curves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from nescio._charts.curves import roc
from nescio._charts.style import JOINT
from nescio._charts.svg import Values
from nescio._charts.text import cut
from nescio.displays.base import Display, hue, legend_outside, percent_axis
from nescio.errors import ParameterError

if TYPE_CHECKING:
    from nescio.detectors import Detector
    from nescio.metrics import Comparison

_MOST_CURVES = 8  # the palette has so many hues


class Curve(NamedTuple):
    """The shares of OOD and ID samples that are kept, over the threshold, and the area."""

    fpr: Values
    tpr: Values
    auroc: float

    @classmethod
    def from_scores(cls, id_scores: Any, ood_scores: Any) -> Curve:
        """Compute the curve and the area under it; a tie counts half."""
        id_, ood = np.asarray(id_scores, np.float64), np.sort(np.asarray(ood_scores, np.float64))
        below, upto = np.searchsorted(ood, id_, "left"), np.searchsorted(ood, id_, "right")
        return cls(*roc(id_, ood), float(np.mean(below + upto)) / (2 * len(ood)))


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

    def __init__(
        self, curves: Mapping[str, Curve], *, tpr: float = 0.95, ood_name: str = "OOD"
    ) -> None:
        self.curves = dict(curves)
        self.tpr = tpr
        self.ood_name = ood_name

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
        return cls({name: Curve.from_scores(id_scores, ood_scores)}, tpr=tpr).plot(ax)

    @classmethod
    def from_comparison(
        cls, comparison: Comparison, *, ood: str | None = None, ax: Any = None
    ) -> Self:
        """Draw the curves of the best detectors of a comparison on one OOD set, at most eight.

        `ood` is the name of the set, by default the first one.
        """
        name = next(iter(comparison.results)) if ood is None else ood
        if name not in comparison.results:
            known = ", ".join(map(repr, comparison.results))
            raise ParameterError(f"there is no OOD set {name!r}; the comparison has {known}.")
        found = {one: comparison.scores.get(one) for one in comparison.ranked(name)[:_MOST_CURVES]}
        curves = {
            one: Curve.from_scores(scores.id_scores, scores.ood_scores[name])
            for one, scores in found.items()
            if scores is not None
        }
        if not curves:
            raise ParameterError(
                "the comparison has no scores to draw: they were too many to keep, and were "
                "counted in cells."
            )
        tpr = comparison.results[name][next(iter(curves))].tpr
        return cls(curves, tpr=tpr, ood_name=name).plot(ax)

    def _size(self) -> tuple[float, float]:
        return 6.8, 4.0

    def _draw(self, ax: Any, colours: dict[str, str]) -> None:
        for at, (name, curve) in enumerate(self.curves.items()):
            is_joint = name == JOINT
            ax.plot(
                curve.fpr,
                curve.tpr,
                color=colours["accent"] if is_joint else hue(colours, at),
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
        percent_axis(ax.xaxis)
        percent_axis(ax.yaxis)
        legend_outside(ax, "detector (AUROC)")
