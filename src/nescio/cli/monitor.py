"""nescio monitor: does a stream still look like the calibration data of the detector?

Exit code 3 means an alarm.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nescio._io.locks import exclusive
from nescio._io.tables import to_json
from nescio.cli.options import (
    AsJson,
    Force,
    FromProbs,
    IdColumn,
    IgnoreColumns,
    LabelColumns,
    chosen_columns,
    progress_bar,
    refuse_overwriting,
    terminal,
)
from nescio.errors import MissingInputError, ParameterError, about
from nescio.outputs.streams import OutputsStream, open_stream, where

if TYPE_CHECKING:
    from nescio.detectors import Detector
    from nescio.monitor import Monitor, MonitorReport
    from nescio.monitor.scored import ScoredTable

ALARM = 3

_BLOCK = 2**16  # rows of a scored table that are read at once
_WINDOWS = 20  # in JSON without --trace


def monitor(
    scored: Annotated[
        str,
        typer.Argument(
            metavar="SCORED",
            help="The table that 'nescio score -o' wrote, in order of time: a file, or a pattern "
            "or a folder of Parquet files, which may be larger than memory.",
        ),
    ],
    detector: Annotated[
        Path, typer.Option(readable=False, help="The detector that scored the table.")
    ],
    outputs: Annotated[
        str | None,
        typer.Option(
            help="The logits of the same rows, to find labels that fire more or less often.",
        ),
    ] = None,
    time_column: Annotated[
        str | None,
        typer.Option(help="The column of the table that holds the time of each row."),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(
            help="The probability that a false alarm is ever raised. Default: that of the state "
            "file, or 0.01."
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            help="Number of inputs that are counted together. Default: that of the state "
            "file, or 500."
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            help="A .safetensors file. Continue from it if it exists, and replace it.",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Write figures to this file: .html or .svg.")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the random numbers that break ties.")
    ] = 0,
    id_column: IdColumn = None,
    labels: LabelColumns = None,
    ignore: IgnoreColumns = None,
    from_probs: FromProbs = None,
    again: Annotated[
        bool,
        typer.Option("--again", help="Count a file even if the last run of --state counted it."),
    ] = False,
    force: Force = False,
    as_json: AsJson = False,
    trace: Annotated[
        bool,
        typer.Option("--trace", help="Add the evidence over time and all windows to the JSON."),
    ] = False,
) -> None:
    """Report whether a stream of verdicts still looks like the calibration data.

    Says what has changed, since which input, id or time, and what to do.

    Exit code 0: no alarm. 3: an alarm. 1 and 2: an error in the command or its files.

    Example: nescio monitor scored.parquet --detector tagger.nescio --state state.safetensors
    """
    from nescio.detectors import load
    from nescio.monitor.scored import ScoredTable
    from nescio.monitor.state import check_state_target, count_once, resume

    if trace and not as_json:
        raise ParameterError("--trace needs --json.")
    for target in (state, plot):
        refuse_overwriting(target, scored, detector, outputs)
    refuse_overwriting(plot, state)
    if state is not None:
        check_state_target(state)
    if plot is not None:
        from nescio.report.monitoring import check_plot_target

        check_plot_target(plot, force=force)
    columns = chosen_columns(id_column, labels, ignore)
    table = ScoredTable(scored, id_column=id_column, time_column=time_column)
    loaded = load(detector)
    # Two runs that read the same state would each save it without the rows of the other.
    with nullcontext() if state is None else exclusive(state, "state file"):
        watch = resume(loaded, state, alpha=alpha, window=window, seed=seed)
        if state is not None:
            count_once(watch, scored, again=again)
        if outputs is not None and not watch.watches_labels:
            raise MissingInputError(
                f"{detector} does not know how often its labels fired: it was calibrated "
                "without usable logits, or by an older nescio. Calibrate it again, or leave "
                "out --outputs."
            )
        logits = None
        if outputs is not None:
            expected = replace(columns, expected=loaded.label_names_)
            logits = open_stream(outputs, expected, from_probs=from_probs)
        with progress_bar("monitoring", table.n_rows, unit="rows") as advance:
            for n_rows in _update(watch, loaded, table, logits):
                advance(n_rows)
        if state is not None:
            watch.save(state, force=True)
    report = watch.report()
    if plot is not None:
        from nescio.report import draw_monitor

        draw_monitor(report, plot, force=force)
    _print(report, {"state": state, "plot": plot}, as_json=as_json, trace=trace)
    if report.any_alarm:
        raise typer.Exit(ALARM)


def _update(
    watch: Monitor, detector: Detector, table: ScoredTable, outputs: OutputsStream | None
) -> Iterator[int]:
    """Let the monitor see the rows, block by block; give the number of rows of each block."""
    from nescio.monitor.scored import check_same_length, matching_logits

    logits, start = None, 0
    if outputs is not None:
        with about(outputs.address):
            check_same_length(outputs.n_rows, table.n_rows)
    size = _BLOCK if outputs is None else outputs.block_rows
    blocks = iter(() if outputs is None else outputs.blocks())
    for assessment, times in table.blocks(size):
        if outputs is not None:
            read = next(blocks).outputs
            with about(where(outputs.address, start, size, table.n_rows)):
                logits = matching_logits(detector, assessment, read)
        with about(where(str(table.path), start, size, table.n_rows)):
            watch.update(assessment, logits, times=times)
        start += size
        yield len(assessment)
    next(blocks, None)  # checks all rows of the outputs together


def _print(
    report: MonitorReport, files: dict[str, Path | None], *, as_json: bool, trace: bool
) -> None:
    if as_json:
        content: dict[str, Any] = report.as_dict()
        if not trace:
            del content["trace"]
            content["windows"] = content["windows"][-_WINDOWS:]
        content |= {name: None if path is None else str(path) for name, path in files.items()}
        typer.echo(to_json(content))
        return
    console = terminal()
    console.print(report.summary(), soft_wrap=True)
    for path in files.values():
        if path is not None:
            console.print(f"saved {path}", soft_wrap=True)
