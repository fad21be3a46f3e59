"""What all displays share: axes, and the colours of the palette."""

from __future__ import annotations

from typing import Any, Self

from nescio._charts.style import palette
from nescio._io.tables import require

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
            pyplot = require("matplotlib.pyplot", "plot")
            _, ax = pyplot.subplots(figsize=self._size(), layout="constrained")
        self.ax_, self.figure_ = ax, ax.figure
        ax.spines[["top", "right"]].set_visible(False)
        self._draw(ax, _colours(ax))
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def _size(self) -> tuple[float, float]:
        """Return the size of a new figure in inches."""
        return 6.8, 3.4

    def _draw(self, ax: Any, colours: dict[str, str]) -> None:
        raise NotImplementedError


def _colours(ax: Any) -> dict[str, str]:
    """Return the palette that suits the background of the axes."""
    red, green, blue = require("matplotlib.colors", "plot").to_rgb(ax.get_facecolor()[:3])
    return palette(dark=0.299 * red + 0.587 * green + 0.114 * blue < 0.5)


def hue(colours: dict[str, str], at: int) -> str:
    """Return the colour of the curve of a number."""
    return colours[f"hue{at % _HUES}"]


def legend_outside(ax: Any, title: str | None = None) -> None:
    """Draw the legend beside the axes, where it covers no data."""
    place = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "borderaxespad": 0.0}
    ax.legend(title=title, frameon=False, alignment="left", **place)


def percent_axis(axis: Any) -> None:
    """Write the shares of an axis in per cent."""
    ticker = require("matplotlib.ticker", "plot")
    axis.set_major_formatter(ticker.PercentFormatter(1.0, symbol=" %"))
