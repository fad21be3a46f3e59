"""How every result is shown: one table of columns, one text and one card for notebooks.

A result says once what it shows (`View`). `result_text` writes it for a terminal, and `result_card`
as HTML without a script or a template.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, ClassVar

import numpy as np

from nescio._charts.svg import Markup, cut, sheet
from nescio._io.files import to_values
from nescio._validation import BoolArray
from nescio.errors import InputError, require

MOST_ROWS = 8
_LONGEST_CELL = 40  # characters
_LONGEST_TITLE = 300
_LONGEST_GROUP = 14  # the upper line of a title
_TEXT_NOTES = 2  # a card has them all
_NUMBER = re.compile(r"[-+−]?[\d.,]+(e[-+]?\d+)?( ?%)?( \[.*\]| ± .*)?|[-−]?inf|nan|-|")


class Cell(str):
    """The text of a cell that is drawn differently in HTML."""

    html: Markup

    def __new__(cls, text: str, html: str) -> Cell:
        cell = super().__new__(cls, text)
        cell.html = Markup(html)
        return cell


def word(text: str, css: str) -> Cell:
    """Return a word that has the colour of a CSS class in HTML."""
    return Cell(text, f'<span class="word {css}">{escape(text)}</span>')


def keyed(name: str, css: str) -> Cell:
    """Return a name that follows a line in the colour of its curve in HTML."""
    return Cell(name, f'<span class="key {css}"></span>{escape(cut(name, _LONGEST_CELL))}')


def strip(value: float, low: float | None, high: float | None, css: str = "plain") -> Cell:
    """Draw a share as a point between 0 and 100 %, with its interval, if it has one, as a line."""
    ends = (value if end is None else end for end in (low, high))
    start, end = (4 + 132 * min(max(end, 0.0), 1.0) for end in ends)
    return Cell(
        "",
        f'<svg class="strip" viewBox="0 0 140 16" aria-hidden="true">'
        f'<path class="grid" d="M4 8H136M4 4V12M70 4V12M136 4V12"/>'
        f'<path class="whisker {css}" d="M{start:.1f} 8H{end:.1f}"/>'
        f'<circle class="dot {css}" cx="{4 + 132 * value:.1f}" cy="8" r="2.8"/></svg>',
    )


@dataclass(frozen=True)
class View:
    """What is shown of a result."""

    title: str  # one line
    text: str = ""  # a sentence below it
    # The cells of each column by its title, which may have two lines; for the first rows at least.
    # The first column names the rows.
    table: Mapping[str, Sequence[str]] = field(default_factory=dict)
    n_rows: int | None = None  # of all rows; None if the table has them all
    charts: Callable[[], Sequence[Markup]] = tuple  # draws the charts of the card
    notes: Sequence[str] = ()  # lines below the table

    def rows(self) -> list[tuple[str, ...]]:
        """Return the first rows of the table."""
        return list(zip(*self.table.values(), strict=True))[:MOST_ROWS]

    def hidden(self) -> str:
        """Return how many rows are not shown; empty if all are."""
        n_rows = max((len(cells) for cells in self.table.values()), default=0)
        more = (n_rows if self.n_rows is None else self.n_rows) - min(n_rows, MOST_ROWS)
        return f"and {more:,} more" if more > 0 else ""


class Result:
    """A result: a subclass writes `columns` and `_view`, and the rest follows."""

    index_column: ClassVar[str | None] = None
    """The column that names the rows, which becomes the index of a pandas frame."""

    def columns(self) -> dict[str, Any]:
        """Return the table: columns of equal length, arrays or lists, by name."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the columns of the table by name, as lists of plain Python values."""
        return {
            name: column if isinstance(column, list) else to_values(column)
            for name, column in self.columns().items()
        }

    def to_pandas(self) -> Any:
        """Return the table as a pandas frame; the names of the rows, if any, are its index.

        If the rows came from a pandas frame or column, it is their index, so that
        `frame.join(result.to_pandas())` puts each row where it belongs.
        """
        columns, own = self.columns(), getattr(self, "index", None)
        # Without ids, a column of this name is something else, such as a label.
        is_named = self.index_column in columns and getattr(self, "ids", ()) is not None
        frame = require("pandas", None).DataFrame(columns)
        if is_named:
            frame = frame.set_index(self.index_column)
        return frame if own is None else frame.set_axis(own)

    def to_polars(self) -> Any:
        """Return the table as a polars frame; tuples and objects become lists."""
        columns = {
            name: [list(cell) if isinstance(cell, tuple) else cell for cell in column]
            if isinstance(column, list) or np.asarray(column).dtype.kind == "O"
            else np.asarray(column)
            for name, column in self.columns().items()
        }
        return require("polars", None).DataFrame(columns)

    def _view(self) -> View:
        raise NotImplementedError

    def __repr__(self) -> str:
        return result_text(self._view())

    def _repr_html_(self) -> str:
        return result_card(self._view())


def by_name(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the columns of records that all have the same names."""
    return {name: [record[name] for record in records] for name in records[0]} if records else {}


def label_columns(names: Sequence[str] | None, values: Any) -> dict[str, Any]:
    """Return the columns of an array of shape (n_samples, n_labels), by the names of the labels."""
    names = names or [f"label {number}" for number in range(values.shape[1])]
    return dict(zip(names, values.T, strict=True))


def joined(*groups: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of several groups; raise if two have the same name."""
    columns: dict[str, Any] = {}
    for group in groups:
        both = next((name for name in group if name in columns), None)
        if both is not None:
            raise InputError(
                f"the table would have two columns named {both!r}. Rename the label or the kept "
                "column of this name."
            )
        columns |= group
    return columns


def shown_rows(in_distribution: BoolArray) -> list[int]:
    """Return the numbers of the rows that a view has, in order: of many, first those flagged."""
    return sorted(np.argsort(in_distribution, kind="stable")[:MOST_ROWS].tolist())


def result_text(view: View) -> str:
    """Write a result for a terminal: numbers stand on the right of their columns."""
    titles, rows = list(view.table), view.rows()
    n_heads = max((title.count("\n") + 1 for title in titles), default=0)
    columns = []
    for number, title in enumerate(titles):
        cells = [cut(row[number], _LONGEST_CELL) for row in rows]
        *groups, own = title.split("\n")
        head = [*(group[:_LONGEST_GROUP] for group in groups), own]
        lines = [""] * (n_heads - len(head)) + head + cells
        width, right = max(map(len, lines)), is_number(number, cells)
        if number == 0 or any(cells):  # a column of drawings has no text
            columns.append([line.rjust(width) if right else line.ljust(width) for line in lines])
    table = ["  ".join(line) for line in zip(*columns, strict=True)]
    # Sentences are not cut: their end may say what to do.
    text, *notes = (" ".join(said.split()) for said in (view.text, *view.notes[:_TEXT_NOTES]))
    lines = [cut(view.title, _LONGEST_TITLE), text, *table, view.hidden(), *notes]
    return "\n".join(line.rstrip() for line in lines if line.strip())


def is_number(column: int, cells: Sequence[str]) -> bool:
    """Return whether a column holds numbers; the first one names the rows."""
    return column > 0 and all(_NUMBER.fullmatch(cell) for cell in cells)


def result_card(view: View) -> str:
    """Return the HTML of a result, for a notebook."""
    body: list[str] = [_paragraph(view.text)]
    if view.table:
        rows = [
            [cell if isinstance(cell, Cell) else cut(cell, _LONGEST_CELL) for cell in row]
            for row in view.rows()
        ]
        if view.hidden():
            rows.append([view.hidden(), *("" for _ in list(view.table)[1:])])
        body.append(f'<div class="scroll">{table(list(view.table), rows)}</div>')
    body += view.charts()
    body += map(_paragraph, view.notes)
    rules = sheet("palette.css").replace(":root", "&") + sheet("charts.css") + sheet("card.css")
    return (
        f'<div class="nescio"><style>.nescio {{{rules}}}</style>'
        f'<p class="title">{escape(cut(view.title, _LONGEST_TITLE))}</p>{"".join(body)}</div>'
    )


def _paragraph(text: str) -> str:
    return f'<p class="text">{escape(text)}</p>' if text else ""


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    """Return an HTML table with numbers on the right."""
    numbers = [is_number(n, [row[n] for row in rows]) for n in range(len(titles))]
    classes = [' class="number"' if number else "" for number in numbers]

    def line(cells: Sequence[str], tag: str) -> str:
        drawn = (
            f"<{tag}{css_class}>{_html(cell)}</{tag}>"
            for cell, css_class in zip(cells, classes, strict=True)
        )
        return f"<tr>{''.join(drawn)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    return Markup(f"<table>{line(titles, 'th')}{body}</table>")


def _html(cell: str) -> str:
    return cell.html if isinstance(cell, Cell) else escape(cell).replace("\n", "<br>")
