"""nescio bench: a whole evaluation from one small file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from nescio._io.tables import to_json
from nescio.cli.options import AsJson, terminal
from nescio.cli.tables import print_table
from nescio.cli.vision import BatchSize, Device, require_vision
from nescio.errors import ParameterError

if TYPE_CHECKING:
    from nescio.benchmark.pipeline import Watch
    from nescio.benchmark.spec import BenchmarkSpec

_SECONDS_BETWEEN_LINES = 30


def bench(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="SPEC", help="A shipped benchmark or a .toml file; left out, lists them."
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder for results and what they need.")
    ] = Path("nescio-bench"),
    data: Annotated[
        Path | None,
        typer.Option(help="The folder that the data sets are in, {data} in the benchmark."),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="Only this in-distribution set. May be repeated."),
    ] = None,
    seeds: Annotated[
        list[int] | None, typer.Option("--seed", help="Only this seed. May be repeated.")
    ] = None,
    device: Device = "auto",
    batch_size: BatchSize = 16,
    show: Annotated[
        bool, typer.Option("--show", help="Print the benchmark's file, to make one of your own.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train, tune, extract and evaluate, with the paper's numbers beside ours.

    What is done already is not done again: networks and outputs are kept in the output folder's
    cache, where other benchmarks find them too.

    Example: nescio bench paper-main --data /data --set PASCAL-VOC
    """
    from nescio.benchmark.spec import load_spec, shipped_specs

    if name is None:
        specs = [load_spec(shipped) for shipped in shipped_specs()]
        if as_json:
            typer.echo(to_json([_facts(spec) for spec in specs]))
        else:
            terminal().print(_listing(specs))
        return
    if show:
        if name not in shipped_specs():
            raise ParameterError(f"there is no shipped benchmark {name!r} to show.")
        typer.echo(shipped_specs()[name], nl=False)
        return
    spec = load_spec(name).with_data(data).only(sets or [], seeds or [])
    require_vision()
    from nescio.benchmark.folder import RESULTS
    from nescio.benchmark.run import run_benchmark
    from nescio.benchmark.tables import benchmark_tables
    from nescio.training import choose_device

    with stages() as watch:
        run = run_benchmark(
            spec,
            output,
            device=choose_device(device),
            batch_size=batch_size,
            watch=watch,
        )
    if as_json:
        typer.echo(to_json([line.as_dict() for line in run.lines]))
        return
    console = terminal()
    for table in benchmark_tables(run.lines, spec.paper_tables).values():
        print_table(table, console)
    console.print(
        f"{len(run.lines):,} results in {run.folder / RESULTS}, their tables as Markdown, LaTeX "
        f"and CSV in {run.folder / 'tables'}\nFigures: nescio report {run.folder} -o report.html",
        soft_wrap=True,
    )


def _facts(spec: BenchmarkSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "title": spec.title,
        "sets": [part.name for part in spec.sets],
        "seeds": spec.seeds,
        "detectors": spec.detectors,
    }


def _listing(specs: list[BenchmarkSpec]) -> Table:
    table = Table(title="nescio bench NAME")
    for title in ("name", "what", "sets", "seeds", "detectors"):
        table.add_column(title)
    for spec in specs:
        sets = ", ".join(part.name for part in spec.sets)
        table.add_row(spec.name, spec.title, sets, str(len(spec.seeds)), str(len(spec.detectors)))
    return table


def _logged(console: Console, stage: str, total: int) -> Callable[[int], object]:
    """A function to be told of steps done, which says now and then how far it is."""
    done, said = 0, time.monotonic()

    def advance(steps: int) -> None:
        nonlocal done, said
        done += steps
        if done < total and time.monotonic() - said >= _SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            console.print(f"{stage}: {done / total:.0%}", soft_wrap=True)

    return advance


@contextmanager
def stages() -> Iterator[Watch]:
    """Shows each stage as a bar; without a terminal as a line, and more if it takes long."""
    console = Console(stderr=True, highlight=False, markup=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)

    @contextmanager
    def watch(stage: str, total: int) -> Iterator[Callable[[int], object]]:
        if not console.is_terminal:
            console.print(stage, soft_wrap=True)
            yield _logged(console, stage, total)
            return
        task = progress.add_task(stage, total=total)
        try:
            yield lambda steps: progress.advance(task, steps)
        finally:
            progress.remove_task(task)

    try:
        with progress:
            yield watch
    except KeyboardInterrupt:
        console.print("stopped; the same command goes on from here.")
        raise
