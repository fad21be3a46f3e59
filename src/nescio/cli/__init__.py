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
from typer import Option

from nescio._version import __version__
from nescio.cli import deploy, evaluate, experiments, monitor, networks, verdicts
from nescio.cli.console import for_typer, plain_text
from nescio.errors import NescioError, ParameterError

INTERRUPTED = 130  # as the shell reports a process that Ctrl-C ended

# What the messages of the library call a parameter, and the option that sets it.
_OPTIONS = {
    "force=True": "--force",
    "from_probs=True": "--from-probs",
    "from_probs=False": "--from-logits",
    "skip_bad=True": "--skip-bad",
    "resume=True": "--resume",
    "nonfinite='out'": "--nonfinite out",
    "n_folds=2": "--folds 2",
    "refit='none'": "--refit none",
}
_PARAMETER = re.compile("|".join(map(re.escape, _OPTIONS)))

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
data_app = typer.Typer(
    help="Image data sets: list the kinds, check the data of a benchmark.",
    no_args_is_help=True,
    context_settings=_HELP,
)
_PAPER = "Experiments of the paper"
app.add_typer(data_app, name="data", rich_help_panel=_PAPER)
_VERDICTS: dict[str, Callable[..., None]] = {
    "calibrate": verdicts.calibrate,
    "score": verdicts.score,
    "explain": verdicts.explain,
    "monitor": monitor.monitor,
    "eval": evaluate.evaluate_detectors,
    "choose": evaluate.choose,
    "detectors": verdicts.detectors,
    "info": verdicts.info,
    "report": evaluate.report,
    "export": deploy.export,
    "serve": deploy.serve,
    "demo": experiments.demo,
}
_EXPERIMENTS: dict[str, Callable[..., None]] = {
    "train": networks.train,
    "tune": networks.tune,
    "extract": networks.extract,
    "convert": networks.convert,
    "bench": experiments.bench,
    "tables": experiments.tables,
}
_DATA: dict[str, Callable[..., None]] = {
    "check": experiments.check_data,
    "list": experiments.list_data,
}
for _app, _panel, _commands in (
    (app, "Verdicts", _VERDICTS),
    (app, _PAPER, _EXPERIMENTS),
    (data_app, None, _DATA),
):
    for _name, _function in _commands.items():
        _app.command(_name, rich_help_panel=_panel)(for_typer(_function))


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nescio {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        Option("--version", callback=_print_version, is_eager=True, help="Print the version."),
    ] = False,
    use: Annotated[
        list[str] | None,
        Option(
            metavar="PACKAGE.MODULE:CLASS",
            help="A detector of your own, for commands that read a file which holds one. May be "
            "repeated.",
        ),
    ] = None,
) -> None:
    """Options of nescio itself."""
    if use:
        from nescio.detectors.registry import detector_class

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
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: typer.echo(
            f"warning: {_with_options(message)}", err=True
        )
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
    command = typer.main.get_command(app)
    _hide_type_of_flags(command)
    return command


def _hide_type_of_flags(command: Any) -> None:
    """Let the help show a flag without a type: it takes no value."""
    context = command.context_class(command, **_HELP)
    for parameter in command.get_params(context):
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    for subcommand in getattr(command, "commands", {}).values():
        _hide_type_of_flags(subcommand)


def _unquoted_pattern(arguments: Sequence[str]) -> str | None:
    """Return what to do if the shell has replaced a pattern by the files that match it."""
    for first, second in pairwise(map(Path, arguments)):
        alike = (first.parent, first.suffix) == (second.parent, second.suffix)
        if alike and first.suffix and first.is_file() and second.is_file():
            pattern = first.parent / f"*{first.suffix}"
            return f"Put a pattern of several files in quotes: '{pattern}'."
    return None


def _with_options(message: object) -> str:
    """Return a message of the library with options instead of Python's parameters."""
    text = _PARAMETER.sub(lambda match: _OPTIONS[match.group()], str(message))
    return plain_text(text)  # names in files may hold control characters
