"""The control chart of a monitor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from nescio._charts.svg import Values
from nescio.displays.base import Display, legend_outside, percent_axis

if TYPE_CHECKING:
    from nescio.monitor import Monitor, MonitorReport


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

    def __init__(
        self,
        edges: Values,
        shares: Values,
        low: Values,
        high: Values,
        *,
        change_at: int | None = None,
        alarm_at: int | None = None,
    ) -> None:
        self.edges = edges
        self.shares = shares
        self.low = low
        self.high = high
        self.change_at = change_at
        self.alarm_at = alarm_at

    @classmethod
    def from_monitor(cls, monitor: Monitor, *, ax: Any = None) -> Self:
        """Draw the present state of a monitor."""
        return cls.from_report(monitor.report(), ax=ax)

    @classmethod
    def from_report(cls, report: MonitorReport, *, ax: Any = None) -> Self:
        """Draw the windows of a report."""
        columns = {name: np.array(column, np.float64) for name, column in report.columns().items()}
        start, n = columns["start"], columns["n"]
        return cls(
            np.stack([start, start + n], axis=1),
            columns["share"],
            columns["low"] / n,
            columns["high"] / n,
            change_at=None if report.change is None else report.change.since.at,
            alarm_at=report.alarm_at,
        ).plot(ax)

    def _size(self) -> tuple[float, float]:
        return 7.6, 3.0

    def _draw(self, ax: Any, colours: dict[str, str]) -> None:
        band = (self.edges.ravel(), np.repeat(self.low, 2), np.repeat(self.high, 2))
        ax.fill_between(*band, color=colours["in"], alpha=0.18, linewidth=0, label="expected")
        middles, outside = (
            self.edges.mean(axis=1),
            (self.shares < self.low) | (self.shares > self.high),
        )
        for chosen, name, text in ((~outside, "in", "within"), (outside, "out", "outside")):
            if chosen.any():
                dots = {"color": colours[name], "label": f"{text} ({np.count_nonzero(chosen):,})"}
                ax.plot(middles[chosen], self.shares[chosen], "o", markersize=4, **dots)
        lines = (
            (self.change_at, "ink", "--", "changed at about\ninput {:,}"),
            (self.alarm_at, "out", ":", "alarm at {:,}"),
        )
        for at, name, style, text in lines:
            if at is not None:
                label = text.format(at)
                ax.axvline(at, color=colours[name], linestyle=style, linewidth=1.3, label=label)
        ax.set(xlabel="inputs", ylabel="flagged")
        ax.xaxis.set_major_formatter("{x:,.0f}")
        ax.margins(x=0.02)
        ax.set_ylim(bottom=0.0)
        percent_axis(ax.yaxis)
        legend_outside(ax)
