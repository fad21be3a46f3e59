"""nescio monitor: does a stream still look like the calibration data of the detector?

Exit code 3 means that it has changed: an alarm, or a changed group.
"""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from nescio._io.files import check_page_target, check_target, exclusive, existing_file, find_files
from nescio.cli.console import AsJson, Force, print_json, progress_bar, refuse_overwriting, say
from nescio.errors import InputError, NescioWarning, ParameterError, error_context, warn
from nescio.outputs.files import rows_place

if TYPE_CHECKING:
    from nescio.monitor import Monitor
    from nescio.monitor.verdict_table import ScoredTable

CHANGED = 3

_BLOCK = 2**16  # rows of a scored table that are read at once
_WINDOWS = 20  # in JSON
_REMEMBERED = 1_000  # files: three years of one per day


def monitor(
    detector: Annotated[Path, "The detector that scored the table."],
    scored: Annotated[
        str | None,
        Argument(
            metavar="SCORED",
            help="The table that 'nescio score -o' wrote, in order of time: a file, or a pattern "
            "or a folder of Parquet files, which may be larger than memory. Without it, the state "
            "is shown.",
        ),
    ] = None,
    id_column: Annotated[
        str | None, "The column of the table that holds the ids. Default: id."
    ] = None,
    time_column: Annotated[
        str | None, "The column of the table that holds the time of each row."
    ] = None,
    alpha: Annotated[
        float | None,
        "The probability that a false alarm is ever raised. Default: that of the state "
        "file, or 0.01. Some group seems changed by chance in 0.3 % of the runs.",
    ] = None,
    window: Annotated[
        int | None,
        "Number of inputs that are counted together. Default: that of the state file, or 500.",
    ] = None,
    state: Annotated[
        Path | None, "A file in safetensors format. Continue from it if it exists, and replace it."
    ] = None,
    acknowledge: Annotated[
        str | None,
        Option(
            metavar="NOTE",
            help="Record in the state file that the change was dealt with, by whom and how, and "
            "start again.",
        ),
    ] = None,
    plot: Annotated[Path | None, "Write figures to this .html file."] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Report whether a stream of verdicts still looks like the calibration data.

    Says what has changed, since which input, id or time, and what to do.

    Exit code 3: the data has changed, until --acknowledge: an alarm, or a changed group. 0: it has
    not. 1 and 2: an error in the command or its files.

    Example: nescio monitor scored.parquet --detector tagger.nescio --state state.safetensors
    """
    from nescio.detectors import load
    from nescio.monitor.monitor import resume
    from nescio.monitor.verdict_table import ScoredTable

    if acknowledge is not None and not acknowledge.strip():
        raise ParameterError("--acknowledge needs a note: who, and what was done.")
    if acknowledge is not None or scored is None:
        if state is None:
            raise ParameterError("pass SCORED, a scored table; --acknowledge needs --state.")
        existing_file(state)
    for target in (state, plot):
        refuse_overwriting(target, scored, detector)
    refuse_overwriting(plot, state)
    if state is not None:
        check_target(state, force=True)
    if plot is not None:
        from nescio.monitor.report import draw_monitor

        check_page_target(plot, force=force)
    columns = {"id_column": id_column, "time_column": time_column}
    table = None if scored is None else ScoredTable(scored, **columns)
    loaded = load(detector)
    # Two runs that read the same state would each save it without the rows of the other.
    with nullcontext() if state is None else exclusive(state, "state file"):
        watch = resume(loaded, state, alpha=alpha, window=window)
        if acknowledge is not None:
            watch.acknowledge(acknowledge)
        if table is not None:
            _add(watch, table, once=state is not None)
        changed = table is not None or acknowledge is not None
        if state is not None and changed:
            watch.save(state, force=True)
    if plot is not None:
        draw_monitor(watch, plot, force=force)
    if as_json:
        content = watch.as_dict()
        del content["trace"]  # up to 2,048 points, for figures
        content["windows"] = content["windows"][-_WINDOWS:]
        print_json(content | {"state": state and str(state), "plot": plot and str(plot)})
    else:
        say(watch.summary())
        own, column = f"--detector {quote(str(detector))}", watch.calibration.column
        if watch.changed or watch.difference or any(window.outside for window in watch.windows):
            more = "" if column is None else f" --group-column {quote(column)}"
            more += " --nonfinite out" * bool(watch.n_nonfinite)
            say(f"To look at them: nescio report --id OUTPUTS {own}{more} -o report.html")
        if watch.changed and state is not None:
            again = f"nescio monitor {own} --state {quote(str(state))} --acknowledge"
            say(f'To start again afterwards: {again} "who, and what was done"')
        say(*(f"saved {path}" for path in (state if changed else None, plot) if path is not None))
    if watch.changed:
        raise typer.Exit(CHANGED)


def _add(watch: Monitor, table: ScoredTable, *, once: bool) -> None:
    """Show all rows of a table to a monitor; with `once`, unless it was shown last time."""
    if once:
        _count_once(watch, str(table.path))
    with progress_bar("monitoring", table.n_rows) as advance:
        for start, (assessment, times) in zip(count(0, _BLOCK), table.blocks(_BLOCK)):
            with error_context(rows_place(str(table.path), start, _BLOCK, table.n_rows)):
                watch.update(assessment, times=times)
            if not start and (known := watch.calibration.known(assessment.scores)):
                warn(known, NescioWarning)
            advance(len(assessment))


def _count_once(watch: Monitor, path: str) -> None:
    """Remember this file as counted; raise if it was before, as after a repeated job."""
    files, digest = find_files(path), hashlib.sha256()
    for file in files.paths:
        with files.open(file) as stream:
            while part := stream.read(1 << 20):
                digest.update(part)
    if digest.hexdigest() in watch.counted_files:
        raise InputError(
            f"{path} has the same contents as a file that was counted before. Pass the next file."
        )
    watch.counted_files = [*watch.counted_files[1 - _REMEMBERED :], digest.hexdigest()]
