"""nescio monitor: does a stream still look like the calibration data of the detector?

Exit code 3 means an alarm.
"""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument

from nescio._io.files import check_target, exclusive, find_files
from nescio.cli.console import (
    AsJson,
    Force,
    print_json,
    progress_bar,
    refuse_overwriting,
    say,
)
from nescio.errors import InputError, error_context
from nescio.outputs.files import rows_place

if TYPE_CHECKING:
    from nescio.monitor import Monitor

ALARM = 3

_BLOCK = 2**16  # rows of a scored table that are read at once
_WINDOWS = 20  # in JSON


def monitor(
    scored: Annotated[
        str,
        Argument(
            metavar="SCORED",
            help="The table that 'nescio score -o' wrote, in order of time: a file, or a pattern "
            "or a folder of Parquet files, which may be larger than memory.",
        ),
    ],
    detector: Annotated[Path, "The detector that scored the table."],
    id_column: Annotated[
        str | None, "The column of the table that holds the ids, if it has no column id."
    ] = None,
    time_column: Annotated[
        str | None, "The column of the table that holds the time of each row."
    ] = None,
    alpha: Annotated[
        float | None,
        "The probability that a false alarm is ever raised. Default: that of the state "
        "file, or 0.01.",
    ] = None,
    window: Annotated[
        int | None,
        "Number of inputs that are counted together. Default: that of the state file, or 500.",
    ] = None,
    state: Annotated[
        Path | None, "A .safetensors file. Continue from it if it exists, and replace it."
    ] = None,
    plot: Annotated[Path | None, "Write figures to this .html file."] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Report whether a stream of verdicts still looks like the calibration data.

    Says what has changed, since which input, id or time, and what to do.

    Exit code 0: no alarm. 3: an alarm. 1 and 2: an error in the command or its files.

    Example: nescio monitor scored.parquet --detector tagger.nescio --state state.safetensors
    """
    from nescio.detectors import load
    from nescio.monitor.monitor import resume
    from nescio.monitor.verdict_table import ScoredTable

    for target in (state, plot):
        refuse_overwriting(target, scored, detector)
    refuse_overwriting(plot, state)
    if state is not None:
        check_target(state, force=True)
    if plot is not None:
        from nescio.lab.report.page import check_plot_target

        check_plot_target(plot, force=force)
    table = ScoredTable(scored, id_column=id_column, time_column=time_column)
    loaded = load(detector)
    # Two runs that read the same state would each save it without the rows of the other.
    with nullcontext() if state is None else exclusive(state, "state file"):
        watch = resume(loaded, state, alpha=alpha, window=window)
        if state is not None:
            _count_once(watch, scored)
        with progress_bar("monitoring", table.n_rows) as advance:
            for start, (assessment, times) in zip(count(0, _BLOCK), table.blocks(_BLOCK)):
                with error_context(rows_place(str(scored), start, _BLOCK, table.n_rows)):
                    watch.update(assessment, times=times)
                advance(len(assessment))
        if state is not None:
            watch.save(state, force=True)
    if plot is not None:
        from nescio.lab.report import draw_monitor

        draw_monitor(watch, plot, force=force)
    if as_json:
        content = watch.as_dict()
        del content["trace"]  # up to 2,048 points, for figures
        content["windows"] = content["windows"][-_WINDOWS:]
        print_json(content | {"state": state and str(state), "plot": plot and str(plot)})
    else:
        say(watch.summary(), *(f"saved {path}" for path in (state, plot) if path is not None))
    if watch.alarm:
        raise typer.Exit(ALARM)


def _count_once(watch: Monitor, path: str) -> None:
    """Remember this file as counted; raise if it was the last one, as after a repeated job."""
    files, digest = find_files(path), hashlib.sha256()
    for file in files.paths:
        with files.open(file) as stream:
            while part := stream.read(1 << 20):
                digest.update(part)
    if digest.hexdigest() == watch.last_file:
        raise InputError(
            f"{path} has the same contents as the file that was counted last. Pass the next file."
        )
    watch.last_file = digest.hexdigest()
