"""What all commands share: their options, and what they print."""

from __future__ import annotations

import csv
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer
from rich.console import Console
from rich.progress import Progress
from rich.status import Status
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from nescio._io.files import existing_file, same_file, to_json
from nescio._io.tables import Columns
from nescio.calibration import CUSTOM
from nescio.errors import InputError, ParameterError

if TYPE_CHECKING:
    from nescio.detectors import Detector
    from nescio.lab.benchmark import tables

_SECONDS_BETWEEN_LINES = 30
_SECONDS_OF_SPEED = 600  # on a CPU, one batch of training may take a minute
_WIDEST_NAME = 40  # a longer first column is folded
_NAMED_LABELS = 12  # that are printed

Advance = Callable[[int], object]
Watch = Callable[[str, int], AbstractContextManager[Advance]]

# --- options ------------------------------------------------------------------------------------

DetectorFile = Annotated[
    Path, Argument(metavar="DETECTOR", help="A detector saved by 'nescio calibrate'.")
]
Nonfinite = Annotated[
    str | None, "Rows with NaN or infinity: 'raise' an error, or count them as 'out'."
]
FromProbs = Annotated[
    bool | None,
    Option(
        "--from-probs/--from-logits",
        help="The model gave probabilities, which are converted to logits; or logits, even if they "
        "look like probabilities, which are rejected otherwise.",
    ),
]
Force = Annotated[bool, "Replace an existing output file."]
AsJson = Annotated[bool, Option("--json", help="Print JSON for a machine to read.")]
Train = Annotated[str | None, "Training outputs, for the detectors that learn."]
HeldOut = Annotated[
    str | None,
    "Held-out in-distribution outputs, for the detectors that learn from such data (combined). "
    "Neither training nor test data.",
]
Tpr = Annotated[float, "The share of in-distribution samples to keep. The FPR is at this TPR."]


def detectors_option(text: str) -> Any:
    """Return the option -d of a command that takes several detectors."""
    return Option(
        "--detector", "-d", help=f"{text} May be repeated.", autocompletion=detector_names
    )


def detector_names(incomplete: str = "") -> list[str]:
    """Return the names of detectors, for shell completion."""
    from nescio.detectors import DETECTORS

    return [name for name in DETECTORS if name.startswith(incomplete)]


_SHORT = {"output": ["-o"], "jobs": ["-j"]}


# --- groups of options ------------------------------------------------------------------------


@dataclass(frozen=True)
class DataOptions:
    """How files of data are read: the columns of tables, and logits or probabilities."""

    id_column: Annotated[
        str | None,
        "The column of a table that holds the ids. Default: a column named id, or the index that "
        "pandas stored.",
    ] = None
    labels: Annotated[
        list[str] | None,
        Option(
            metavar="NAMES",
            help="The columns of a table that hold the logits, in this order: names or patterns "
            "with commas between them ('logit_*'), or a .txt file with one name per line. All "
            "other columns are ignored. May be repeated.",
        ),
    ] = None
    ignore: Annotated[
        list[str] | None,
        Option(
            metavar="NAMES",
            help="Columns of a table to leave out: names or patterns with commas between them. "
            "May be repeated.",
        ),
    ] = None
    sep: Annotated[
        str | None,
        "The separator of CSV files, such as ';'. Default: a comma, in .tsv files a tab.",
    ] = None
    decimal: Annotated[str, "The decimal sign of CSV files."] = "."
    from_probs: FromProbs = None

    def columns(
        self, *, keep: Sequence[str] | None = None, detector: Detector | None = None
    ) -> Columns:
        """Return what is said about the columns; the labels are those of a detector, if it knows.

        Columns to `keep` are given like those to ignore.
        """
        for option, character in (("--sep", self.sep), ("--decimal", self.decimal)):
            if character is not None and len(character) != 1:
                raise ParameterError(f"{option} must be one character, got {character!r}.")
        labels = None
        if self.labels is not None:
            labels = [name for text in self.labels for name in _label_names(text)]
        return Columns(
            self.id_column,
            labels,
            [name for text in self.ignore or () for name in _split(text)],
            [name for text in keep or () for name in _split(text)],
            expected=getattr(detector, "label_names_", None),
            sep=self.sep,
            decimal=self.decimal,
        )

    def reading(
        self, *, keep: Sequence[str] | None = None, detector: Detector | None = None
    ) -> dict[str, Any]:
        """Return how files are read, as the functions that read outputs take it."""
        columns = self.columns(keep=keep, detector=detector)
        return {"from_probs": self.from_probs, "columns": columns}


def _label_names(text: str) -> list[str]:
    return read_names(text) if text.lower().endswith(".txt") else _split(text)


def read_names(path: str) -> list[str]:
    """Read a text file with one name per line, for --labels."""
    try:
        lines = existing_file(path).read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ParameterError(f"--labels {path} is not a text file in UTF-8.") from error
    return [line.strip() for line in lines if line.strip()]


def _split(text: str) -> list[str]:
    """Split names at commas; a name that holds a comma is put in double quotes."""
    names = next(csv.reader([text], skipinitialspace=True), [])
    return [name.strip() for name in names if name.strip()]


def for_typer(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the signature that typer reads options from.

    A parameter whose type is a group is replaced by its fields, after the options of the command. A
    text in `Annotated` is the help of an option, which is a flag if its type is bool.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    own = inspect.signature(command, eval_str=True).parameters
    parameters = [parameter for name, parameter in own.items() if name not in groups]
    for group in groups.values():
        parameters += inspect.signature(group, eval_str=True).parameters.values()
    parameters.sort(key=lambda parameter: parameter.name in ("force", "as_json"))

    @wraps(command)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    run.__signature__ = inspect.Signature(list(map(_declared, parameters)))  # type: ignore[attr-defined]
    return run


def _declared(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter with its option or argument, in any order of parameters."""
    kind, option = get_args(parameter.annotation)
    if isinstance(option, str):
        names = [f"--{parameter.name.replace('_', '-')}", *_SHORT.get(parameter.name, ())]
        option = Option(*names, help=option)
    option.readable = False  # the library says more about a file that it cannot read
    return parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=Annotated[kind, option])


# --- what commands do with options --------------------------------------------------------------


def refuse_overwriting(output: Path | None, *inputs: str | Path | None) -> None:
    """Raise if the output is one of the inputs."""
    for path in inputs:
        if output is not None and path is not None and same_file(output, path):
            raise ParameterError(f"{output} is an input; write to another file.")


def named_paths(option: str, texts: Sequence[str] | None, form: str) -> dict[str, Path]:
    """Return the paths of an option that is given as NAME=PATH, by name."""
    paths = {}
    for text in texts or ():
        name, _, path = text.partition("=")
        if not (name and path):
            raise ParameterError(f"{option} {text}: expected {form}.")
        paths[name] = Path(path)
    return paths


def load_detector(path: Path, *, nonfinite: str | None = None) -> Detector:
    """Load a detector; reject one whose groups only the caller knows."""
    from nescio.detectors import load

    detector = load(path)
    calibration = getattr(detector, "calibration_", None)
    if calibration is not None and calibration.by == CUSTOM:
        raise InputError(
            f"{path} was calibrated by your own groups, which the command line does not know. Use "
            "assess(..., groups=...) or explain(..., groups=...) in Python."
        )
    if nonfinite is not None:
        detector.set_params(nonfinite=nonfinite)
    return detector


# --- what commands print --------------------------------------------------------------------------


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
