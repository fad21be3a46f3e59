"""nescio bench: run a benchmark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from nescio._io.tables import to_json
from nescio.benchmark.progress import READING
from nescio.cli.options import AsJson, terminal
from nescio.cli.tables import print_table
from nescio.cli.vision import BatchSize, Device, Runtime, SkipBad, Verify, require_vision
from nescio.data.damage import Thoroughness
from nescio.errors import ParameterError

if TYPE_CHECKING:
    from nescio.benchmark.progress import Watch
    from nescio.benchmark.spec import BenchmarkSpec

_SECONDS_BETWEEN_LINES = 30
_SECONDS_OF_SPEED = 600  # on a CPU, one batch of training may take a minute


def bench(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="SPEC",
            help="A shipped benchmark or a .toml file. Without it, the shipped ones are listed.",
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder for the results and the cache.")
    ] = Path("nescio-bench"),
    data: Annotated[
        Path | None,
        typer.Option(help="The folder of the data sets: {data} in the benchmark's file."),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="Run only this in-distribution set. May be repeated."),
    ] = None,
    seeds: Annotated[
        list[int] | None, typer.Option("--seed", help="Run only this seed. May be repeated.")
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(help="'paper' or 'authors'. Default: as the benchmark's file says."),
    ] = None,
    device: Device = "auto",
    batch_size: BatchSize = 16,
    runtime: Runtime = "auto",
    check: Annotated[
        Thoroughness,
        typer.Option(
            help="How every image is checked before the work begins: 'fast' opens it and looks at "
            "the end of its file, 'full' decodes it."
        ),
    ] = "fast",
    skip_bad: SkipBad = False,
    verify: Verify = False,
    jobs: Annotated[
        int,
        typer.Option(
            "--jobs",
            "-j",
            min=1,
            help="Number of networks to run at once, each in a process of its own and, if there "
            "are several, on a GPU of its own.",
        ),
    ] = 1,
    show: Annotated[
        bool, typer.Option("--show", help="Print the benchmark's file and exit.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train, tune, extract and evaluate, and compare the results with the paper's.

    Work that is already done is not repeated: networks and outputs are kept in the cache of the
    output folder, which all benchmarks in this folder share.

    Example: nescio bench paper-main --data /data --set PASCAL-VOC
    """
    from nescio.benchmark.spec import load_spec, shipped_specs

    if name is None:
        _list_specs([load_spec(shipped) for shipped in shipped_specs()], as_json=as_json)
        return
    if show:
        if name not in shipped_specs():
            raise ParameterError(f"there is no shipped benchmark {name!r}.")
        typer.echo(shipped_specs()[name], nl=False)
        return
    spec = load_spec(name, protocol=protocol).with_data(data).only(sets or [], seeds or [])
    if skip_bad:
        spec = replace(spec, sets=tuple(replace(one, skip_bad=True) for one in spec.sets))
    require_vision()
    from nescio.benchmark.folder import RESULTS
    from nescio.benchmark.run import run_benchmark
    from nescio.benchmark.tables import benchmark_tables
    from nescio.training import choose_device

    with stages() as watch:
        where = choose_device(device)
        run = run_benchmark(
            spec,
            output,
            device=where,
            batch_size=batch_size,
            runtime=runtime,
            check=check,
            verify=verify,
            jobs=jobs,
            watch=watch,
        )
    if as_json:
        typer.echo(to_json([line.as_dict() for line in run.lines]))
        return
    console = terminal()
    for table in benchmark_tables(run.lines, spec.paper_tables).values():
        print_table(table, console)
    console.print(
        f"Wrote {len(run.lines):,} results to {run.folder / RESULTS}, and tables in Markdown, "
        f"LaTeX and CSV to {run.folder / 'tables'}.\n"
        f"For figures, run: nescio report {run.folder} -o report.html",
        soft_wrap=True,
    )


def _list_specs(specs: list[BenchmarkSpec], *, as_json: bool) -> None:
    facts: list[dict[str, Any]] = [
        {
            "name": spec.name,
            "title": spec.title,
            "sets": [one.name for one in spec.sets],
            "seeds": spec.seeds,
            "detectors": spec.detectors,
        }
        for spec in specs
    ]
    if as_json:
        typer.echo(to_json(facts))
        return
    table = Table("name", "what", "sets", "seeds", "detectors", title="nescio bench NAME")
    for one in facts:
        counts = (str(len(one[name])) for name in ("seeds", "detectors"))
        table.add_row(one["name"], one["title"], ", ".join(one["sets"]), *counts)
    terminal().print(table)


def _logged(console: Console, stage: str, total: int) -> Callable[[int], object]:
    """Return a function that counts steps and prints the progress every 30 seconds."""
    done, printed = 0, time.monotonic()
    # The first report may be of work that an earlier run has done, so it says nothing about speed.
    first: tuple[int, float] | None = None

    def advance(steps: int) -> None:
        nonlocal done, printed, first
        done, now = done + steps, time.monotonic()
        first = first or (done, now)
        if done < total and now - printed >= _SECONDS_BETWEEN_LINES:
            printed = now
            elapsed, since = now - first[1], done - first[0]
            left = f", {_duration(elapsed / since * (total - done))} left" if since else ""
            console.print(f"{stage}: {done / total:.0%}{left}", soft_wrap=True)

    return advance


def _duration(seconds: float) -> str:
    """Return a time in its two largest units, such as "2 h 05 min"."""
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    if hours < 24:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{hours // 24} d {hours % 24} h"


class _Rate(ProgressColumn):
    """Steps per second."""

    def render(self, task: Task) -> Text:
        """Return the rate as text; empty while it is not known."""
        return Text(f"{task.speed:,.1f}/s" if task.speed else "")


@contextmanager
def stages() -> Iterator[Watch]:
    """Show each stage as a progress bar, or as lines of text without a terminal."""
    console = Console(stderr=True, highlight=False, markup=False)
    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        _Rate(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
        speed_estimate_period=_SECONDS_OF_SPEED,
    )

    @contextmanager
    def watch(stage: str, total: int) -> Iterator[Callable[[int], object]]:
        if not console.is_terminal:
            if stage != READING:  # it is short, and what follows may be an error in the arguments
                console.print(stage, soft_wrap=True)
            yield _logged(console, stage, total)
            return
        task = progress.add_task(stage, total=total or None)
        try:
            yield lambda steps: progress.advance(task, steps)
        finally:
            progress.remove_task(task)

    try:
        with progress:
            yield watch
    except KeyboardInterrupt:
        console.print("Interrupted. Run the same command again to continue.")
        raise
