"""The command line: each command parses, calls the library and prints.

Exit codes: 0 success, 1 invalid input (with a one-line reason), 2 wrong usage, 130 interrupted
(Ctrl-C); `nescio monitor` also has 3 for an alarm.
"""

from __future__ import annotations

import io
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from nescio._version import __version__
from nescio.cli import (
    bench,
    calibrate,
    choose,
    convert,
    data,
    demo,
    evaluate,
    explain,
    export,
    extract,
    listing,
    monitor,
    report,
    score,
    serve,
    tables,
    train,
    tune,
)
from nescio.cli.options import plain_text
from nescio.errors import NescioError, ParameterError, ProbabilitiesWarning

INTERRUPTED = 130  # as the shell reports a process that Ctrl-C ended

# What the messages of the library call a parameter, and the option that sets it.
_OPTIONS = {
    "force=True": "--force",
    "skip_bad=True": "--skip-bad",
    "resume=True": "--resume",
    "nonfinite='out'": "--nonfinite out",
    "n_folds=2": "--folds 2",
    "refit='none'": "--refit none",
}
_PARAMETER = re.compile("|".join(map(re.escape, _OPTIONS)))

app = typer.Typer(
    name="nescio",
    help="Which inputs should a multi-label classifier not be trusted on?\n\n"
    "Calibrate a detector on held-out logits (calibrate), then get a verdict on new ones (score). "
    "Files may be .safetensors, .npy, .npz, .csv, .parquet or .arrow. To get logits from images, "
    "use train, tune and extract.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("calibrate")(calibrate.calibrate)
app.command("score")(score.score)
app.command("explain")(explain.explain)
app.command("monitor")(monitor.monitor)
app.command("eval")(evaluate.evaluate_detectors)
app.command("choose")(choose.choose)
app.command("detectors")(listing.detectors)
app.command("info")(listing.info)
app.command("demo")(demo.demo)
app.command("bench")(bench.bench)
app.command("tables")(tables.tables)
app.command("report")(report.report)
app.command("export")(export.export)
app.command("serve")(serve.serve)
app.command("train")(train.train)
app.command("tune")(tune.tune)
app.command("extract")(extract.extract)
app.command("convert")(convert.convert)
app.add_typer(data.app, name="data")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nescio {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    use: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PACKAGE.MODULE:CLASS",
            help="A detector of your own, for commands that read a file which holds one. May be "
            "repeated.",
        ),
    ] = None,
) -> None:
    """Options of nescio itself."""
    if use:
        from nescio.detectors.naming import detector_class

        for name in use:
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
    if misplaced := _misplaced_use(arguments):
        typer.echo(f"error: {misplaced}", err=True)
        return 2
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        # The commands that read a file have asked already whether it holds probabilities.
        warnings.simplefilter("ignore", ProbabilitiesWarning)
        try:
            _command()(args=arguments, prog_name="nescio")
        except (NescioError, OSError) as error:
            typer.echo(f"error: {_with_options(error)}", err=True)
            return 1
        except SystemExit as stop:
            if stop.code == INTERRUPTED:  # typer has caught the KeyboardInterrupt
                typer.echo("interrupted", err=True)
            elif stop.code == 2 and (hint := _unquoted_pattern(arguments)):
                typer.echo(hint, err=True)
            return stop.code if isinstance(stop.code, int) else 1
    return 0


@cache
def _command() -> Callable[..., Any]:
    """Return all commands. Making them takes longer than many a command, so it is done once."""
    return typer.main.get_command(app)


def _misplaced_use(arguments: Sequence[str]) -> str | None:
    """Return what to do if --use, which is an option of nescio itself, follows the command."""
    commands = {command.name for command in app.registered_commands} | {"data"}
    at = next((at for at, word in enumerate(arguments) if word in commands), len(arguments))
    given = next((word for word in arguments[at:] if word.partition("=")[0] == "--use"), None)
    if given is None:
        return None
    return f"put --use before the command: nescio --use package.module:Class {arguments[at]} ..."


def _unquoted_pattern(arguments: Sequence[str]) -> str | None:
    """Return what to do if the shell has replaced a pattern by the files that match it."""
    for one, other in pairwise(map(Path, arguments)):
        alike = (one.parent, one.suffix) == (other.parent, other.suffix)
        if alike and one.suffix and one.is_file() and other.is_file():
            pattern = one.parent / f"*{one.suffix}"
            return f"Put a pattern of several files in quotes: '{pattern}'."
    return None


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    typer.echo(f"warning: {_with_options(message)}", err=True)


def _with_options(message: object) -> str:
    """Return a message of the library with options instead of Python's parameters."""
    text = _PARAMETER.sub(lambda found: _OPTIONS[found.group()], str(message))
    return plain_text(text)  # names in files may hold control characters
