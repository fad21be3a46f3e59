"""nescio tables: print results and the paper's numbers as tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import rich.table
import typer
from rich.console import Console
from rich.text import Text

from nescio._validation import checked_choice
from nescio.cli.options import terminal
from nescio.errors import ParameterError

if TYPE_CHECKING:
    from nescio.benchmark.formats import Table, TableCell

_TEXT = "text"


def tables(
    results: Annotated[
        Path | None,
        typer.Argument(
            readable=False,
            metavar="RESULTS",
            help="The folder of a benchmark, or its results.jsonl. Without it, the paper's "
            "tables are printed.",
        ),
    ] = None,
    paper: Annotated[
        list[str] | None,
        typer.Option(
            "--paper",
            metavar="TABLE",
            help="A table of the paper, to compare the results with: main, ablation, max-sum, "
            "resnet, resnet-ablation, texture, texture-ablation or topk. May be repeated.",
        ),
    ] = None,
    format_: Annotated[
        str, typer.Option("--format", "-f", help="text, markdown, latex or csv.")
    ] = _TEXT,
) -> None:
    """Print results as tables, or beside the numbers of the paper's tables.

    Examples: nescio tables nescio-bench/coco70 -f latex, nescio tables --paper main
    """
    from nescio.benchmark.folder import BenchmarkRun
    from nescio.benchmark.formats import FORMATS
    from nescio.benchmark.paper import find_paper_table, paper_tables
    from nescio.benchmark.results import read_lines
    from nescio.benchmark.tables import (
        network_table,
        paper_comparison,
        paper_table,
        result_tables,
    )

    checked_choice("--format", format_, (_TEXT, *FORMATS))
    wanted = [find_paper_table(key) for key in paper or ()]
    if results is None:
        found = [paper_table(table) for table in wanted or paper_tables().values()]
    else:
        folder = results.is_dir()
        lines = list(BenchmarkRun.load(results).lines) if folder else read_lines(results)
        if not lines:
            raise ParameterError(f"{results} contains no results.")
        if wanted:
            found = [paper_comparison(table, lines) for table in wanted]
        else:
            found = [network_table(lines), *result_tables(lines)]
    if format_ == _TEXT:
        console = terminal()
        for table in found:
            print_table(table, console)
    else:
        typer.echo("\n".join(FORMATS[format_](table) for table in found), nl=False)


def print_table(table: Table, console: Console) -> None:
    """Print a table to the terminal, with the best values in bold and the notes below."""
    shown = rich.table.Table(title=table.title)
    for column in table.columns:
        shown.add_column(column.title, justify="right" if column.number else "left")
    for row in table.rows:
        shown.add_row(*map(_text, row))
    console.print(shown)
    for note in table.notes:
        console.print(note, soft_wrap=True)


def _text(cell: TableCell) -> Text:
    parts = [(part.text, "bold" if part.best else "") for part in cell]
    return Text(" / ").join(Text(text, style=style) for text, style in parts)
