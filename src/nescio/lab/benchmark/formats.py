"""A table as data, and its text in Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nescio._io.files import replacing
from nescio._io.results import no_formula

_SUFFIXES = {"markdown": ".md", "latex": ".tex", "csv": ".csv"}


@dataclass(frozen=True)
class TablePart:
    """A text within a cell; bold if it is the best value of its kind in the table."""

    text: str
    best: bool = False
    code: bool = False


@dataclass(frozen=True)
class Column:
    """A column: its title, and whether it contains numbers."""

    title: str
    number: bool = True


def listed(names: Sequence[str]) -> str:
    """Return names as text: "a", "a and b", "a, b and c"."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


TableCell = tuple[TablePart, ...]
"""A cell of a table; its parts are shown with " / " between them."""


@dataclass(frozen=True)
class Table:
    """A table, independent of any format.

    Attributes
    ----------
    title : str
        Plain text; may be empty.
    columns : tuple of Column
    rows : tuple of rows, each a tuple with one TableCell per column
    records : tuple of mapping
        The values for CSV: one mapping of column to value per row.
    notes : tuple of str
        Plain text, shown below the table.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    records: tuple[Mapping[str, str | float | None], ...]
    notes: tuple[str, ...] = ()

    def to_markdown(self) -> str:
        """Return a Markdown table, with the title above and the notes below."""
        head = [_markdown(column.title) for column in self.columns]
        rule = "|".join("---:" if column.number else "---" for column in self.columns)
        body = [[_markdown_cell(cell) for cell in row] for row in self.rows]
        lines = [f"| {' | '.join(cells)} |" for cells in (head, *body)]
        table = "\n".join([lines[0], f"|{rule}|", *lines[1:]])
        title = [f"**{_markdown(self.title)}**"] if self.title else []
        return "\n\n".join([*title, table, *map(_markdown, self.notes)])

    def to_latex(self) -> str:
        """Return a LaTeX tabular, which needs the package booktabs.

        The title is a comment above it and the notes are small print below it. The text can be put
        into a table environment.
        """
        layout = "".join("r" if column.number else "l" for column in self.columns)
        head = [_latex(column.title) for column in self.columns]
        body = [[_latex_cell(cell) for cell in row] for row in self.rows]
        lines = [" & ".join(cells) + r" \\" for cells in (head, *body)]
        return "\n".join(
            [
                *([f"% {_one_line(self.title)}"] if self.title else []),
                rf"\begin{{tabular}}{{{layout}}}",
                r"\toprule",
                lines[0],
                r"\midrule",
                *lines[1:],
                r"\bottomrule",
                r"\end{tabular}",
                *(rf"\par{{\footnotesize {_latex(note)}\par}}" for note in self.notes),
            ]
        )

    def to_csv(self) -> str:
        """Return CSV, with numbers in full precision, without title and notes."""
        stream = io.StringIO()
        names = list(self.records[0]) if self.records else [column.title for column in self.columns]
        writer = csv.DictWriter(stream, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {name: no_formula(value) for name, value in record.items()} for record in self.records
        )
        return stream.getvalue()

    def write(self, folder: Path, name: str) -> None:
        """Write the table in every format; existing files are replaced."""
        folder.mkdir(exist_ok=True)
        for format_, suffix in _SUFFIXES.items():
            with replacing(folder / f"{name}{suffix}", force=True) as temporary:
                temporary.write_text(FORMATS[format_](self), "utf-8")


FORMATS: dict[str, Callable[[Table], str]] = {
    "markdown": lambda table: table.to_markdown() + "\n",
    "latex": lambda table: table.to_latex() + "\n",
    "csv": Table.to_csv,
}
"""The functions that format a table, by name; the text ends with a newline."""

_MARKDOWN_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~$&])")
_LATEX_SPECIAL = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        # At the start of a row, LaTeX would read these as options of the row before.
        "[": "{[}",
        "*": "{*}",
        "±": r"$\pm$",
        "ε": r"$\varepsilon$",
        "↓": r"$\downarrow$",
        "↑": r"$\uparrow$",
    }
)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _markdown(text: str) -> str:
    return _MARKDOWN_SPECIAL.sub(r"\\\1", _one_line(text))


def _markdown_cell(cell: TableCell) -> str:
    texts = []
    for part in cell:
        escaped = _one_line(part.text).replace("|", r"\|").replace("`", "'")
        text = f"`{escaped}`" if part.code else _markdown(part.text)
        texts.append(f"**{text}**" if part.best else text)
    return " / ".join(texts)


def _latex(text: str) -> str:
    return _one_line(text).translate(_LATEX_SPECIAL)


def _latex_cell(cell: TableCell) -> str:
    texts = []
    for part in cell:
        # A hyphen before a number is a minus sign.
        text = re.sub(r"^-(?=\d)", "$-$", _latex(part.text))
        text = rf"\texttt{{{text}}}" if part.code else text
        texts.append(rf"\textbf{{{text}}}" if part.best else text)
    return " / ".join(texts)
