"""The page of a monitor: one column, without a script."""

from __future__ import annotations

from html import escape
from pathlib import Path

from nescio._charts.svg import chart_style
from nescio._io.files import check_target, replacing
from nescio.errors import ParameterError
from nescio.monitor import Monitor
from nescio.monitor.report import monitor_figures

_STYLE = """
body { margin: 0 auto; max-width: 800px; padding: 1.5rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 var(--sans); }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .2rem; }
p { color: var(--muted); margin: .2rem 0 .6rem; }
pre { white-space: pre-wrap; font: inherit; }
svg { max-width: 100%; }
"""


def check_plot_target(path: str | Path, *, force: bool) -> None:
    """Raise if no page can be written to this path."""
    if Path(path).suffix.lower() != ".html":
        raise ParameterError(f"cannot write {path}: the name must end in .html.")
    check_target(path, force=force)


def draw_monitor(monitor: Monitor, path: str | Path, *, force: bool = False) -> None:
    """Write the figures of a monitor as an HTML page, atomically.

    Parameters
    ----------
    monitor : Monitor
    path : str or Path
        The file to write. Its name must end in .html.
    force : bool
        Whether to replace an existing file.
    """
    check_plot_target(path, force=force)
    body = "\n".join(
        f"<section><h2>{escape(title)}</h2><p>{escape(text)}</p>{drawing}</section>"
        for title, text, drawing in monitor_figures(monitor)
    )
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>nescio monitor</title><style>{chart_style()}{_STYLE}</style></head><body>"
        "<h1>Does the stream still look like the calibration data?</h1>"
        f"<pre>{escape(monitor.summary())}</pre>\n{body}\n</body></html>\n"
    )
    with replacing(path, force=force) as temporary:
        temporary.write_text(page, encoding="utf-8")
