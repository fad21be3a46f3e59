"""Results as HTML for a notebook: a title, tables and charts, without a script or a template."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from nescio._charts.style import sheet
from nescio._charts.svg import Markup
from nescio._charts.text import MOST_ROWS, cut

_LONGEST = 40  # characters of a cell


def card(title: str, *parts: str) -> str:
    """Return the HTML of a result; parts are finished markup, and texts are escaped."""
    body = "".join(
        part if isinstance(part, Markup) else f'<p class="text">{escape(part)}</p>'
        for part in parts
        if part
    )
    return (
        f'<div class="nescio"><style>{_style()}</style>'
        f'<p class="title">{escape(cut(title, 300))}</p>{body}</div>'
    )


def _style() -> str:
    rules = sheet("palette.css").replace(":root", "&") + sheet("charts.css") + sheet("card.css")
    return f".nescio {{{rules}}}"


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    n_numbers: int | None = None,
    chosen: int | None = None,
) -> Markup:
    """Return an HTML table: a first column of text, `n_numbers` of numbers, and text again.

    By default all but the first are numbers. Cells are escaped, except finished markup. `chosen` is
    the number of the row that stands out.
    """
    n_right = len(columns) - 1 if n_numbers is None else n_numbers

    right = ' class="number"'

    def line(cells: Sequence[str], tag: str, css: str = "") -> str:
        drawn = (
            f"<{tag}{right if 0 < at <= n_right else ''}>"
            f"{one if isinstance(one, Markup) else escape(one)}</{tag}>"
            for at, one in enumerate(cells)
        )
        return f"<tr{css}>{''.join(drawn)}</tr>"

    body = (
        line(row, "td", ' class="chosen"' if at == chosen else "") for at, row in enumerate(rows)
    )
    return Markup(f"<table>{line(columns, 'th')}{''.join(body)}</table>")


def short_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    n_rows: int | None = None,
    *,
    n_numbers: int | None = None,
) -> Markup:
    """Return a table whose cells are cut; a last line says how many of `n_rows` are not shown."""
    shown = [
        [one if isinstance(one, Markup) else cut(one, _LONGEST) for one in row]
        for row in rows[:MOST_ROWS]
    ]
    more = (len(rows) if n_rows is None else n_rows) - len(shown)
    if more > 0:
        shown.append([f"and {more:,} more", *("" for _ in columns[1:])])
    heads = [cut(name, _LONGEST) for name in columns]
    return Markup(f'<div class="scroll">{table(heads, shown, n_numbers=n_numbers)}</div>')


def word(text: str, css: str) -> Markup:
    """Return a word in the colour of a class."""
    return Markup(f'<span class="word {css}">{escape(text)}</span>')


def keyed(name: str, css: str) -> Markup:
    """Return a name after a line in the colour of its curve."""
    return Markup(f'<span class="key {css}"></span>{escape(cut(name, _LONGEST))}')


def strip(value: float, low: float, high: float, css: str = "plain") -> Markup:
    """Draw a share as a point between 0 and 100 %, with its interval as a line."""
    start, end = (4 + 132 * min(max(one, 0.0), 1.0) for one in (low, high))
    return Markup(
        f'<svg class="strip" viewBox="0 0 140 16" aria-hidden="true">'
        f'<path class="grid" d="M4 8H136M4 4V12M70 4V12M136 4V12"/>'
        f'<path class="whisker {css}" d="M{start:.1f} 8H{end:.1f}"/>'
        f'<circle class="dot {css}" cx="{4 + 132 * value:.1f}" cy="8" r="2.8"/></svg>'
    )
