"""What a score is made of: the terms of labels, or the shares of parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from nescio._charts.svg import Values
from nescio._charts.text import cut
from nescio.displays.base import Display, legend_outside

if TYPE_CHECKING:
    from nescio.explain import Explanation, PartsExplanation, PartsReason, Reason

_MOST = 12


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

    def __init__(
        self,
        names: Sequence[str],
        values: Values,
        *,
        medians: Values | None = None,
        title: str = "",
        value_name: str = "energy",
        flagged: bool = True,
    ) -> None:
        self.names = list(names)
        self.values = values
        self.medians = medians
        self.title = title
        self.value_name = value_name
        self.flagged = flagged

    @classmethod
    def from_explanation(
        cls,
        explanation: Explanation | PartsExplanation,
        row: int = 0,
        *,
        n_labels: int = _MOST,
        ax: Any = None,
    ) -> Self:
        """Draw one sample of an explanation."""
        return cls.from_reason(explanation[row], n_labels=n_labels, ax=ax)

    @classmethod
    def from_reason(
        cls, reason: Reason | PartsReason, *, n_labels: int = _MOST, ax: Any = None
    ) -> Self:
        """Draw the most telling labels of one sample, or all parts of a combination."""
        word = "in-distribution" if reason.in_distribution else "OUT"
        named = f"{cut(reason.id, 30)}: {word}" if reason.id else word
        title = f"{named}. {reason.detector} {reason.score:.4g}, threshold {reason.threshold:.4g}"
        of_verdict: dict[str, Any] = {"title": title, "flagged": not reason.in_distribution}
        parts = getattr(reason, "parts", None)
        if parts is not None:
            shares = _finite([part.share for part in parts])
            names = [part.detector for part in parts]
            return cls(names, shares, value_name="share of the evidence", **of_verdict).plot(ax)
        by_label: Any = reason
        shown = by_label.most_telling(n_labels)
        return cls(
            [label.label for label in shown],
            _finite([label.term for label in shown]),
            medians=_finite([label.median for label in shown]),
            value_name=by_label.term,
            **of_verdict,
        ).plot(ax)

    def _size(self) -> tuple[float, float]:
        return 6.8, 1.2 + 0.27 * len(self.names)

    def _draw(self, ax: Any, colours: dict[str, str]) -> None:
        places = np.arange(len(self.names))
        colour = colours["out" if self.flagged else "in"]
        ax.barh(places, self.values, height=0.66, color=colour, label="this sample", zorder=2)
        if self.medians is not None:
            mark = {"marker": "|", "s": 130, "linewidths": 2, "color": colours["ink"], "zorder": 3}
            ax.scatter(self.medians, places, label="in-distribution\nmedian", **mark)
            legend_outside(ax)
        ax.set_yticks(places, [cut(name, 30) for name in self.names])
        ax.invert_yaxis()
        ax.set_xlabel(self.value_name)
        ax.locator_params(axis="x", nbins=5)
        ax.set_title(self.title, size="medium", loc="left")


def _finite(values: Sequence[float]) -> Values:
    """Return the values as an array; masked labels and values that cannot be used have no bar."""
    return np.nan_to_num(np.array(values, np.float64), nan=0.0, posinf=0.0, neginf=0.0)
