"""A table as data, and as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nescio._io.files import replacing

_SUFFIXES = {"markdown": ".md", "latex": ".tex", "csv": ".csv"}

Plain = str | float | None


@dataclass(frozen=True)
class Part:
    """Text within a cell; bold if it is the best of its kind in the table."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Cell:
    """What stands where a row meets a column.

    Attributes
    ----------
    parts : tuple of Part
        Shown with " / " between them.
    plain : tuple of str, float or None
        The same for CSV: one for each of the column's plain names.
    code : bool
        Whether it is a name to be set as code.
    """

    parts: tuple[Part, ...]
    plain: tuple[Plain, ...]
    code: bool = False

    @property
    def text(self) -> str:
        """All parts, without emphasis."""
        return " / ".join(part.text for part in self.parts)


@dataclass(frozen=True)
class Column:
    """A title, the names of the columns that it becomes in CSV, and whether it holds numbers."""

    title: str
    plain: tuple[str, ...]
    number: bool = True


@dataclass(frozen=True)
class Table:
    """A table, not yet in any format.

    Attributes
    ----------
    title : str
        Plain text; may be empty.
    columns : tuple of Column
    rows : tuple of rows, each a tuple with a Cell for every column
    notes : tuple of str
        Plain text, to be read with the table.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def to_markdown(self) -> str:
        """A GitHub table, with the title above it and the notes below."""
        head = [_markdown(column.title) for column in self.columns]
        rule = "|".join("---:" if column.number else "---" for column in self.columns)
        body = [[_markdown_cell(cell) for cell in row] for row in self.rows]
        lines = [f"| {' | '.join(cells)} |" for cells in (head, *body)]
        table = "\n".join([lines[0], f"|{rule}|", *lines[1:]])
        title = [f"**{_markdown(self.title)}**"] if self.title else []
        return "\n\n".join([*title, table, *map(_markdown, self.notes)])

    def to_latex(self) -> str:
        """A tabular that needs the package booktabs; the title is a comment above it.

        Notes are small print below. The whole can go inside a table environment as it is.
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
        """Numbers in full, each in a column of its own; without title and notes."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([name for column in self.columns for name in column.plain])
        writer.writerows([value for cell in row for value in cell.plain] for row in self.rows)
        return stream.getvalue()

    def write(self, folder: Path, name: str) -> None:
        """Write it in every format, in place of files that may be there."""
        folder.mkdir(exist_ok=True)
        for format_, suffix in _SUFFIXES.items():
            with replacing(folder / f"{name}{suffix}", force=True) as temporary:
                temporary.write_text(FORMATS[format_](self), "utf-8")


FORMATS: dict[str, Callable[[Table], str]] = {
    "markdown": lambda table: table.to_markdown() + "\n",
    "latex": lambda table: table.to_latex() + "\n",
    "csv": Table.to_csv,
}
"""Each format by name; what it gives ends with a newline."""

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
        # After the end of a row, these would be read as its options.
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


def _markdown_code(text: str) -> str:
    """Code, fenced by more backticks than it holds; a table's bar must be escaped even there."""
    text = _one_line(text).replace("|", r"\|")
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    space = " " if longest else ""
    return f"{'`' * (longest + 1)}{space}{text}{space}{'`' * (longest + 1)}"


def _markdown_cell(cell: Cell) -> str:
    texts = []
    for part in cell.parts:
        text = _markdown_code(part.text) if cell.code else _markdown(part.text)
        texts.append(f"**{text}**" if part.best else text)
    return " / ".join(texts)


def _latex(text: str) -> str:
    return _one_line(text).translate(_LATEX_SPECIAL)


def _latex_cell(cell: Cell) -> str:
    texts = []
    for part in cell.parts:
        # A hyphen before a number is a minus.
        text = re.sub(r"^-(?=\d)", "$-$", _latex(part.text))
        text = rf"\texttt{{{text}}}" if cell.code else text
        texts.append(rf"\textbf{{{text}}}" if part.best else text)
    return " / ".join(texts)
