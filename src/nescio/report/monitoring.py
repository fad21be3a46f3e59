"""The result of a monitor as figures: one HTML page or one SVG file without external files."""

from __future__ import annotations

from html import escape
from pathlib import Path

from nescio._charts.style import chart_style
from nescio._io.files import check_target, replacing
from nescio.errors import ParameterError
from nescio.monitor import MonitorReport
from nescio.monitor.showing import PAGE, MonitorFigure, monitor_figures
from nescio.report.plain import plain_page

_PICTURE_STYLE = """
.paper { fill: var(--paper); } .head { font: 600 15px var(--sans); fill: var(--ink); }
"""


def check_plot_target(path: str | Path, *, force: bool) -> None:
    """Raise if no plot can be written to this path."""
    if Path(path).suffix.lower() not in (".html", ".svg"):
        raise ParameterError(f"cannot write {path}: the name must end in .html or .svg.")
    check_target(path, force=force)


def draw_monitor(report: MonitorReport, path: str | Path, *, force: bool = False) -> None:
    """Write the figures of a monitor as an .html page or an .svg file, atomically.

    Parameters
    ----------
    report : MonitorReport
        Result of `Monitor.report`.
    path : str or Path
        The file to write. Its name must end in .html or .svg.
    force : bool
        Whether to replace an existing file.
    """
    check_plot_target(path, force=force)
    figures = monitor_figures(report)
    page = _page(report, figures) if Path(path).suffix.lower() == ".html" else _picture(figures)
    with replacing(path, force=force) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _page(report: MonitorReport, figures: list[MonitorFigure]) -> str:
    return plain_page(
        "nescio monitor",
        "Does the stream still look like the calibration data?",
        report.summary(),
        [(figure.title, figure.text, figure.drawing) for figure in figures],
    )


def _picture(figures: list[MonitorFigure]) -> str:
    top, parts = 0, []
    for figure in figures:
        parts.append(f'<text class="head" x="14" y="{top + 22}">{escape(figure.title)}</text>')
        placed = f'<svg x="0" y="{top + 32}" width="{PAGE.width}" height="{figure.height}" '
        parts.append(placed + figure.drawing.removeprefix("<svg "))
        top += figure.height + 44
    style = escape(chart_style() + _PICTURE_STYLE)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{PAGE.width}" height="{top}" '
        f'viewBox="0 0 {PAGE.width} {top}"><style>{style}</style>'
        f'<rect class="paper" width="100%" height="100%"/>{"".join(parts)}</svg>\n'
    )
