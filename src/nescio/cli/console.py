"""The application, and what its commands share: options, and what they print."""

from __future__ import annotations

import csv
import inspect
import io
import os
import re
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, wraps
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer
from rich.console import Console
from rich.progress import Progress
from rich.status import Status
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from nescio._io.files import existing_file, to_json
from nescio._io.tables import Columns, described_labels
from nescio._version import __version__
from nescio.errors import NescioError, ParameterError, counted

if TYPE_CHECKING:
    from nescio.detectors import Detector
    from nescio.lab.benchmark.run import Advance, Watch

_SECONDS_BETWEEN_LINES = 30
_SECONDS_OF_SPEED = 600  # on a CPU, one batch of training may take a minute
_WIDEST_NAME = 40  # a longer first column is folded

# --- the application ------------------------------------------------------------------------------

_INTERRUPTED = 130  # as the shell reports a process that Ctrl-C ended

# Parameters in the messages of the library, and the options that set them.
_OPTIONS = {
    "force=True": "--force",
    "from_probs=True to wrap, calibrate, assess or another method,": "--from-probs",
    "from_probs=False": "--from-logits",
    "skip_bad=True": "--skip-bad",
    "resume=True": "--resume",
    "nonfinite='out' to a detector (wrapped.detector.set_params, if it has one)": "--nonfinite out",
    "n_folds=2": "--folds 2",
    "refit='none'": "--refit none",
    "Outputs.select_labels": "--ignore",
    "Outputs(..., labels=...)": "lists in a column labels, or an array labels in an .npz file",
}
_PARAMETER = re.compile("|".join(map(re.escape, _OPTIONS)))
_SPELLED_TWICE = re.compile(r"\w+=(?:\[[^]]*\]|\S+) \((--[^)]*)\)")  # ignore=['a'] (--ignore a)

_HELP = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    name="nescio",
    help="Which inputs should a multi-label classifier not be trusted on?\n\n"
    "Calibrate a detector on held-out logits (calibrate), then get a verdict on new ones (score). "
    "Files may be .safetensors, .npy, .npz, .csv, .tsv, .jsonl, .parquet or .arrow. To get logits "
    "from images, use train, tune and extract.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=_HELP,
)


def add_commands(panel: str, commands: Mapping[str, Callable[..., None]]) -> None:
    """Add commands by name, in one panel of the help."""
    for name, command in commands.items():
        app.command(name, rich_help_panel=panel)(for_typer(command))


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nescio {__version__}")
        raise typer.Exit


@app.callback()
def _root_options(
    version: Annotated[
        bool,
        Option("--version", callback=_print_version, is_eager=True, help="Print the version."),
    ] = False,
    use: Annotated[
        list[str] | None,
        Option(
            metavar="PACKAGE.MODULE:CLASS",
            help="Your own detector, for commands that read a file which holds one. May be "
            "repeated.",
        ),
    ] = None,
) -> None:
    """Options of nescio itself."""
    for name in use or ():
        from nescio.detectors.registry import detector_class

        if ":" not in name:
            raise ParameterError(f"--use must be package.module:Class, got {name!r}.")
        detector_class(name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the terminal cannot show must not end the command.
            stream.reconfigure(errors="replace")
    if arguments is None:
        arguments = sys.argv[1:]
    with warnings.catch_warnings():
        # Invalid metadata is common in photographs from the web and does no harm.
        warnings.filterwarnings("ignore", module="PIL")
        warnings.showwarning = lambda message, *_, **__: typer.echo(
            f"warning: {_with_options(message)}", err=True
        )
        try:
            _commands()(args=arguments, prog_name="nescio")
        except (NescioError, OSError) as error:
            typer.echo(f"error: {_with_options(error)}", err=True)
            return 1
        except SystemExit as stop:
            if stop.code == _INTERRUPTED:  # typer has caught the KeyboardInterrupt
                typer.echo("interrupted", err=True)
            elif isinstance(stop.__context__, BrokenPipeError):  # as of 'nescio score | head'
                return 128 + 13  # the number of this signal
            elif stop.code == 2 and (hint := _quoting_hint(arguments)):
                typer.echo(hint, err=True)
            return stop.code if isinstance(stop.code, int) else 1
    return 0


@cache
def _commands() -> Callable[..., Any]:
    """Return all commands. Making them takes longer than many a command, so it is done once."""
    commands = typer.main.get_command(app)
    _hide_type_of_flags(commands)
    return commands


def _hide_type_of_flags(command: Any) -> None:
    """Let the help show a flag without a type: it takes no value."""
    context = command.context_class(command, **_HELP)
    for parameter in command.get_params(context):
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    for subcommand in getattr(command, "commands", {}).values():
        _hide_type_of_flags(subcommand)


def _quoting_hint(arguments: Sequence[str]) -> str | None:
    """Return what to do about names with spaces between them, or a pattern that lacks quotes."""
    for option, *words in zip(arguments, arguments[1:], arguments[2:], strict=False):
        no_names = any(word.startswith("-") or Path(word).exists() for word in words)
        if option in ("--labels", "--ignore", "--keep") and not no_names:
            return f"Put commas between names, without spaces: {option} {','.join(words)}."
    for first, second in pairwise(map(Path, arguments)):
        alike = (first.parent, first.suffix) == (second.parent, second.suffix)
        if alike and first.suffix and first.is_file() and second.is_file():
            pattern = first.parent / f"*{first.suffix}"
            return f"Put a pattern of several files in quotes: '{pattern}'."
    return None


def _with_options(message: object) -> str:
    """Return a message of the library with options instead of Python's parameters."""
    text = _SPELLED_TWICE.sub(r"\1", str(message))
    text = _PARAMETER.sub(lambda match: _OPTIONS[match.group()], text)
    return plain_text(text)  # names in files may hold control characters


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
GroupColumn = Annotated[
    str | None,
    "The column that holds the group of each sample, such as a customer, site or camera. Each "
    "group that was calibrated has its own threshold, any other that of all samples together.",
]
Force = Annotated[bool, "Replace an existing output file."]
AsJson = Annotated[bool, Option("--json", help="Print JSON for a machine to read.")]


def detectors_option(text: str) -> Any:
    """Return the option -d of a command that takes several detectors."""
    return Option(
        "--detector", "-d", help=f"{text} May be repeated.", autocompletion=detector_names
    )


def detector_names(incomplete: str = "") -> list[str]:
    """Return the names of detectors, for shell completion."""
    from nescio.detectors import DETECTORS

    return [name for name in DETECTORS if name.startswith(incomplete)]


_SHORT = {"output": ["-o"]}


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
    sep: Annotated[str | None, "The separator of CSV files. Default: found in the header."] = None
    decimal: Annotated[
        str | None, "The decimal sign of CSV files. Default: found in the numbers."
    ] = None
    from_probs: FromProbs = None

    def columns(
        self,
        *,
        keep: Sequence[str] | None = None,
        detector: Detector | None = None,
        group_column: str | None = None,
    ) -> Columns:
        """Return what is said about the columns; a detector may know the labels."""
        for option, character in (("--sep", self.sep), ("--decimal", self.decimal)):
            if character is not None and len(character) != 1:
                raise ParameterError(f"{option} must be one character, got {character!r}.")
        labels: list[str] | None = None
        if self.labels is not None:
            labels = []
            for text in self.labels:
                labels += read_names(text) if text.lower().endswith(".txt") else _split(text)
        return Columns(
            self.id_column,
            labels,
            [name for text in self.ignore or () for name in _split(text)],
            [name for text in keep or () for name in _split(text)],
            expected=getattr(detector, "label_names_", None),
            sep=self.sep,
            decimal=self.decimal,
            group_column=group_column,
        )

    def given(self, **more: str | None) -> str:
        """Return the options that were given, and `more`, as a command has them."""
        words = {None: [], True: ["--from-probs"], False: ["--from-logits"]}[self.from_probs]
        for name, value in (vars(self) | more | {"from_probs": None}).items():
            for text in [value] if isinstance(value, str) else value or ():
                words += [f"--{name.replace('_', '-')}", text]
        return shlex.join(words)

    def reading(self, **options: Any) -> dict[str, Any]:
        """Return how files are read, as the functions that read outputs take it."""
        return {"from_probs": self.from_probs, "columns": self.columns(**options)}


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
    text in `Annotated` is the help of an option. Paragraphs of the docstring become single lines.
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

    run.__doc__ = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(command) or "")
    run.__signature__ = inspect.Signature(list(map(_declared, parameters)))  # type: ignore[attr-defined]
    return run


def _declared(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter with its option or argument, in any order of parameters."""
    kind, option = get_args(parameter.annotation)
    if isinstance(option, str):
        names = [f"--{parameter.name.replace('_', '-')}", *_SHORT.get(parameter.name, ())]
        option = Option(*names, help=option)
    choices = "|".join(dict.fromkeys(re.findall(r"'(\w+)'", option.help or "")))
    if value := re.search("int|float|str|Path", str(kind)):  # without the words list and range
        shown = choices if "|" in choices else f"<{value[0].lower()}>"
        option.metavar = option.metavar or shown
    option.readable = False  # the library says more about a file that it cannot read
    return parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=Annotated[kind, option])


# --- what commands do with options --------------------------------------------------------------


def refuse_overwriting(output: Path | None, *inputs: str | Path | None) -> None:
    """Raise if the output is one of the inputs."""
    for path in inputs:
        with suppress(OSError):  # one of them does not exist
            if output and path and os.path.samefile(output, path):
                raise ParameterError(f"{output} is an input; write to another file.")


def load_detector(path: Path, *, nonfinite: str | None = None) -> Detector:
    """Load a detector, with another way to treat rows of NaN if it is given."""
    from nescio.detectors import load

    detector = load(path)
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
    line = f"{counted(n_rows, 'row')} x {described_labels(n_labels, names)}"
    return line + (f"; ignored columns: {', '.join(ignored)}" if ignored else "")


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


def print_facts(facts: Mapping[str, Any], *, as_json: bool = False) -> None:
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
        [
            [f"{row[name]:.4f}" if name == "p_value" else as_text(row[name]) for name in titles]
            for row in rows
        ],
        numbers=[titles[name] for name in titles if isinstance(rows[0][name], int | float)],
        title=title,
        caption=caption,
    )


def print_table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str | Text]],
    *,
    numbers: Sequence[str] = (),
    title: str | None = None,
    caption: str | None = None,
) -> None:
    """Print a table; the columns of `numbers` are aligned right."""
    table = Table(title=title and plain_text(title), caption=caption)
    widest = max((len(row[0]) for row in rows), default=0)
    for column, name in enumerate(titles):
        table.add_column(
            plain_text(name),
            justify="right" if name in numbers else "left",
            no_wrap=column == 0 and widest <= _WIDEST_NAME,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(plain_text(cell) if isinstance(cell, str) else cell for cell in row))
    _terminal().print(table)


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
