"""Pages of one column without a script: the results of `choose` and of a monitor."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import fmean

from nescio._charts.results import table
from nescio._charts.svg import Chart, Markup, Scale, chart_style, cut, percent
from nescio._io.files import check_target, replacing
from nescio.choosing import Choice
from nescio.choosing.choice import COLUMNS
from nescio.errors import ParameterError, listed
from nescio.monitor import Monitor
from nescio.monitor.report import monitor_figures

_PAGE_STYLE = """
body { margin: 0 auto; max-width: 800px; padding: 1.5rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 var(--sans); }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .2rem; }
p { color: var(--muted); margin: .2rem 0 .6rem; }
pre { white-space: pre-wrap; font: inherit; }
svg { max-width: 100%; }
table { border-collapse: collapse; width: 100%; font-size: .86rem; }
th, td { text-align: left; padding: .25rem .5rem; border-bottom: 1px solid var(--grid);
  overflow-wrap: anywhere; }
td.number, th.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
tr.chosen { background: var(--accent-wash); font-weight: 600; }
"""


def _write_page(
    path: str | Path,
    title: str,
    heading: str,
    summary: str,
    sections: Sequence[tuple[str, str, Markup]],
    *,
    force: bool,
) -> None:
    """Write an HTML page atomically; a section has a title, a text and finished markup."""
    body = "\n".join(
        f"<section><h2>{escape(name)}</h2><p>{escape(text)}</p>{content}</section>"
        for name, text, content in sections
    )
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{chart_style()}{_PAGE_STYLE}</style></head><body>"
        f"<h1>{escape(heading)}</h1>"
        f"<pre>{escape(summary)}</pre>\n{body}\n</body></html>\n"
    )
    with replacing(path, force=force) as temporary:
        temporary.write_text(page, encoding="utf-8")


_SIZE = {"width": 760, "height": 340}
_MOST_LABELS = 12


def draw_choice(choice: Choice, path: str | Path, *, force: bool = False) -> None:
    """Write a choice as an HTML page, atomically.

    Parameters
    ----------
    choice : Choice
        Result of `nescio.choose`.
    path : str or Path
        The file to write.
    force : bool
        Whether to replace an existing file.
    """
    names = [standing.name for standing in choice.ranking]
    sections = [
        (
            "Ranking",
            f"{choice.fpr_name} on simulated OOD data in per cent, mean ± standard deviation over "
            "folds. Near: left-out labels. The criterion is the mean of near and far "
            f"{choice.fpr_name}, each divided by joint energy's. p is of a paired t-test "
            "against the pick over folds, which share samples: it is an approximation.",
            table(COLUMNS, choice.rows(), chosen=names.index(choice.pick)),
        )
    ]
    if choice.baseline.far:
        text = (
            f"Simulated {choice.fpr_name} of each detector: the lower left is the best. The far "
            f"{choice.fpr_name} is the mean over: {', '.join(choice.baseline.far)}."
        )
        sections.append(("Near and far", text, _near_and_far(choice)))
    text = (
        "In each fold these labels were unknown. The samples that carry only these labels stand "
        "for unknown inputs."
    )
    sections.append(("Folds", text, _folds(choice)))
    heading = "Which detector?"
    _write_page(path, "nescio choose", heading, choice.summary(), sections, force=force)


def _near_and_far(choice: Choice) -> Markup:
    scale, ticks = Scale(-0.03, 1.03), Scale(0.0, 1.0, write=percent).ticks()  # room for whole dots
    chart = Chart(
        scale,
        scale,
        name="Near and far FPR of each detector",
        x_label=f"near {choice.fpr_name}, %",
        y_label=f"far {choice.fpr_name}, %",
        x_ticks=ticks,
        y_ticks=ticks,
        **_SIZE,
    )
    baseline = choice.baseline
    chart.rule(x=fmean(baseline.near), y=fmean(baseline.mean_far), text=baseline.name)
    for standing in reversed(choice.ranking):  # the best on top
        css = "accent" if standing.name == choice.pick else "others"
        chart.dot(fmean(standing.near), fmean(standing.mean_far), css, tip=standing.name, radius=5)
    return chart.draw()


def _folds(choice: Choice) -> Markup:
    rows = []
    for fold in choice.folds:
        unused = "" if fold.used else " (too few samples: not used)"
        labels = listed([cut(name, 40) for name in fold.left_out], _MOST_LABELS, quoted=False)
        rows.append((labels + unused, f"{fold.n_id:,}", f"{fold.n_near:,}"))
    return table(("left-out labels", "in-distribution samples", "unknown samples"), rows)


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
    heading = "Does the stream still look like the calibration data?"
    figures = monitor_figures(monitor)
    _write_page(path, "nescio monitor", heading, monitor.summary(), figures, force=force)
