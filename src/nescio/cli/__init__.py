"""The command line: each command parses, calls the library and prints.

Exit codes: 0 fine, 1 a mistake in what was given (with a one-line reason), 2 wrong usage; and of
`nescio monitor`, 3 an alarm.
"""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from nescio._version import __version__
from nescio.cli import (
    bench,
    convert,
    data,
    demo,
    evaluate,
    explain,
    export,
    extract,
    fit,
    listing,
    monitor,
    report,
    score,
    serve,
    tables,
    train,
    tune,
)
from nescio.errors import NescioError, ProbabilitiesWarning

app = typer.Typer(
    name="nescio",
    help="Which inputs should a multi-label classifier not be trusted on?\n\n"
    "Calibrate a detector on held-out logits (fit), then get a verdict on new ones (score). "
    "Files may be .safetensors, .npy, .npz, .csv or .parquet. To get logits from images: train, "
    "tune, extract.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("fit")(fit.fit)
app.command("score")(score.score)
app.command("explain")(explain.explain)
app.command("monitor")(monitor.monitor)
app.command("eval")(evaluate.evaluate_detectors)
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
) -> None:
    """Options of nescio itself."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # An arrow that the terminal cannot show is no reason to fail.
            stream.reconfigure(errors="replace")
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        # Reading a file has asked already whether it holds probabilities.
        warnings.simplefilter("ignore", ProbabilitiesWarning)
        try:
            app(args=arguments, prog_name="nescio")
        except (NescioError, OSError) as error:
            typer.echo(f"error: {error}", err=True)
            return 1
        except SystemExit as stop:
            return stop.code if isinstance(stop.code, int) else 1
    return 0


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    typer.echo(f"warning: {message}", err=True)


def run() -> None:
    """The console script."""
    sys.exit(main())
