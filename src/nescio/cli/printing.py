"""What commands print: JSON, lines, tables and progress. Names from files may hold anything."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.status import Status
from rich.table import Table
from rich.text import Text

from nescio._io.results import to_json

if TYPE_CHECKING:
    from nescio.lab.benchmark import tables

_SECONDS_BETWEEN_LINES = 30
_SECONDS_OF_SPEED = 600  # on a CPU, one batch of training may take a minute
_WIDEST_NAME = 40  # a longer first column is folded
_NAMED_LABELS = 12  # that are printed

Advance = Callable[[int], object]
Watch = Callable[[str, int], AbstractContextManager[Advance]]


def print_json(value: Any) -> None:
    """Print one JSON value, as every command does with --json."""
    typer.echo(to_json(value))


def say(*lines: str) -> None:
    """Print lines of text, which a terminal may wrap."""
    console = _terminal()
    for line in lines:
        console.print(plain_text(line), soft_wrap=True)


def describe(
    n_rows: int, n_labels: int, names: Sequence[str] | None, ignored: Sequence[str]
) -> str:
    """Describe what was read in one line: rows, labels and the columns that were ignored."""
    shown = "" if names is None else f" ({some_of(names)})"
    labels = "label" if n_labels == 1 else "labels"
    line = f"{n_rows:,} rows x {n_labels:,} {labels}{shown}"
    return line + (f"; ignored columns: {', '.join(ignored)}" if ignored else "")


def some_of(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    n_more = len(names) - _NAMED_LABELS
    return ", ".join(names[:_NAMED_LABELS]) + (f" and {n_more:,} more" if n_more > 0 else "")


def as_text(value: Any) -> str:
    """Return a value of JSON as a person writes it."""
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    if isinstance(value, dict):
        return ", ".join(f"{name}={as_text(item)}" for name, item in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ", ".join(map(as_text, value)) or "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def print_facts(facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print named values as JSON, or one per line."""
    if as_json:
        print_json(facts)
    else:
        say(*(f"{name:<20} {as_text(value)}" for name, value in facts.items()))


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    *,
    as_json: bool = False,
    without: Sequence[str] = (),
    title: str | None = None,
    caption: str | None = None,
) -> None:
    """Print rows of named values as JSON, or as a table `without` some of the values."""
    if as_json:
        print_json(rows)
        return
    titles = {name: name.replace("_", " ") for name in rows[0] if name not in without}
    print_table(
        list(titles.values()),
        [[as_text(row[name]) for name in titles] for row in rows],
        numbers=[titles[name] for name in titles if isinstance(rows[0][name], int | float)],
        title=title,
        caption=caption,
    )


def print_table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    numbers: Sequence[str] = (),
    title: str | None = None,
    caption: str | None = None,
) -> None:
    """Print a table; the columns of `numbers` are aligned right."""
    rows = list(rows)
    table = Table(title=title and plain_text(title), caption=caption)
    widest = max((len(row[0]) for row in rows), default=0)
    for at, name in enumerate(titles):
        table.add_column(
            plain_text(name),
            justify="right" if name in numbers else "left",
            no_wrap=at == 0 and widest <= _WIDEST_NAME,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(plain_text(cell) if isinstance(cell, str) else cell for cell in row))
    _terminal().print(table)


def print_result_table(table: tables.Table) -> None:
    """Print a table of a benchmark, with the best values in bold and the notes below."""

    def text(cell: tables.TableCell) -> Text:
        return Text(" / ").join(
            Text(plain_text(part.text), "bold" if part.best else "") for part in cell
        )

    print_table(
        [column.title for column in table.columns],
        [[text(cell) for cell in row] for row in table.rows],
        numbers=[column.title for column in table.columns if column.number],
        title=table.title,
    )
    say(*table.notes)


def _terminal() -> Console:
    """Return standard output; wide enough for a table if it is not a terminal."""
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120
    return Console(highlight=False, markup=False, width=wide)  # names may hold brackets


_CONTROL = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) != "\n"}


def plain_text(text: str) -> str:
    """Return a text with a replacement character for each control character but the newline.

    Ids and labels come from files. An escape sequence in them could change what is shown.
    """
    return text.translate(_CONTROL)


# --- progress, on standard error ------------------------------------------------------------------


def working(what: str) -> Status:
    """Show on the terminal that work is in progress; nothing without a terminal."""
    return Console(stderr=True).status(what)


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Advance]:
    """Yield a function to call with the steps done; show nothing without a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with stages() as watch, watch(what, total) as advance:
        yield advance


@contextmanager
def stages() -> Iterator[Watch]:
    """Show each stage of a long job as a progress bar, or as lines of text without a terminal."""
    console = Console(stderr=True, highlight=False, markup=False)
    progress = Progress(
        console=console,
        transient=True,
        disable=not console.is_terminal,
        speed_estimate_period=_SECONDS_OF_SPEED,
    )

    @contextmanager
    def watch(stage: str, total: int) -> Iterator[Advance]:
        if not console.is_terminal:
            yield _logged(console, stage, total)
            return
        task = progress.add_task(stage.replace("[", r"\["), total=total or None)
        try:
            yield lambda steps: progress.advance(task, steps)
        finally:
            progress.remove_task(task)

    with progress:
        yield watch


def _logged(console: Console, stage: str, total: int) -> Advance:
    """Return a function that counts steps and prints the progress every 30 seconds.

    The stage is named at its first step: an error in the arguments may end it before.
    """
    done, printed = 0, time.monotonic()
    if not total:  # unknown: it may take long
        console.print(stage, soft_wrap=True)

    def advance(steps: int) -> None:
        nonlocal done, printed
        if not done and total:
            console.print(stage, soft_wrap=True)
        done, now = done + steps, time.monotonic()
        if done < total and now - printed >= _SECONDS_BETWEEN_LINES:
            printed = now
            console.print(f"{stage}: {done / total:.0%}", soft_wrap=True)

    return advance
