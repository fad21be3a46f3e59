"""nescio bench, tables, datasets and demo: the experiments of the paper."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text
from typer import Argument, Option

from nescio._validation import checked_choice
from nescio.cli.console import (
    AsJson,
    Force,
    plain_text,
    print_json,
    print_rows,
    print_table,
    say,
    stages,
)
from nescio.cli.models import RunOptions, SkipBad
from nescio.errors import ParameterError, require

if TYPE_CHECKING:
    from nescio.lab.benchmark.tables import Table, TableCell

_TEXT = "text"


def bench(
    run: RunOptions,
    name: Annotated[
        str | None,
        Argument(
            metavar="SPEC",
            help="A shipped benchmark or a .toml file. Without it, the shipped ones are listed.",
        ),
    ] = None,
    output: Annotated[Path, "The folder for the results and the cache."] = Path("nescio-bench"),
    data: Annotated[
        Path | None, "The folder of the data sets: {data} in the benchmark's file."
    ] = None,
    sets: Annotated[
        list[str] | None,
        Option("--set", help="Run only this in-distribution set. May be repeated."),
    ] = None,
    seeds: Annotated[
        list[int] | None, Option("--seed", help="Run only this seed. May be repeated.")
    ] = None,
    protocol: Annotated[
        str | None,
        "'paper', 'authors' or 'authors-earlier'. Default: as the benchmark's file says.",
    ] = None,
    skip_bad: SkipBad = False,
    limit: Annotated[
        int | None,
        Option(
            min=2,
            help="Rehearse: run everything on this many random images of each split, in the folder "
            "'rehearsal' of the output. The numbers are no results, so they are not shown.",
        ),
    ] = None,
    epochs: Annotated[
        int | None, Option(min=1, help="Epochs of a rehearsal (--limit); default 1.")
    ] = None,
    show: Annotated[bool, "Print the benchmark's file and exit."] = False,
    as_json: AsJson = False,
) -> None:
    """Train, tune, extract and evaluate, and compare the results with the paper's.

    Work that is already done is not repeated: networks and outputs are kept in the cache of the
    output folder, which all benchmarks in this folder share.

    Examples: nescio bench paper-densenet --data /data --set PASCAL-VOC, and before it, to see in
    minutes whether everything runs, nescio bench paper-densenet --data /data --limit 50
    """
    from nescio.lab.benchmark.spec import load_spec, shipped_specs

    if name is None:
        rows = [
            {
                "name": spec.name,
                "title": spec.title,
                "sets": [part.name for part in spec.sets],
                "seeds": spec.seeds,
                "detectors": spec.detectors,
            }
            for spec in map(load_spec, shipped_specs())
        ]
        print_rows(rows, as_json=as_json, without=("seeds", "detectors"), title="nescio bench NAME")
        return
    if show:
        if name not in shipped_specs():
            raise ParameterError(f"there is no shipped benchmark {name!r}.")
        typer.echo(shipped_specs()[name], nl=False)
        return
    spec = load_spec(name, protocol=protocol).with_data(data).only(sets or [], seeds or [])
    if limit:
        spec = spec.rehearsed(limit, epochs or 1)
    elif epochs:
        raise ParameterError("--epochs is for a rehearsal: pass --limit, or set them in a file.")
    if skip_bad:
        spec = replace(spec, sets=tuple(replace(part, skip_bad=True) for part in spec.sets))
    require("torchvision", "torch")
    from nescio.lab.benchmark.results import RESULTS
    from nescio.lab.benchmark.run import run_benchmark
    from nescio.lab.benchmark.tables import benchmark_tables
    from nescio.models.torch_models import choose_device

    with stages() as watch:
        done = run_benchmark(
            spec,
            output,
            device=choose_device(run.device),
            batch_size=run.batch_size,
            runtime=run.runtime,
            watch=watch,
        )
    if as_json:
        print_json([line.as_dict() for line in done.lines])
        return
    if limit:
        skipped = {line.detector: line.skipped for line in done.lines if line.evaluation is None}
        say(
            f"Rehearsed {spec.name}: {len(done.lines):,} lines, marked as no results, in "
            f"{done.folder / RESULTS}.",
            *(f"{detector} did not run: {why}" for detector, why in skipped.items()),
        )
        return
    for table in benchmark_tables(done.lines, spec.paper_tables).values():
        print_result_table(table)
    say(
        *done.left_out,
        f"Wrote {len(done.lines):,} results to {done.folder / RESULTS}, and tables in Markdown, "
        f"LaTeX and CSV to {done.folder / 'tables'}.",
        f"For figures, run: nescio report {done.folder} -o report.html",
    )


def print_result_table(table: Table) -> None:
    """Print a table of a benchmark, with the best values in bold and the notes below."""

    def text(cell: TableCell) -> Text:
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


def tables(
    results: Annotated[
        Path | None,
        Argument(
            metavar="RESULTS",
            help="The folder of a benchmark, or its results.jsonl. Without it, the paper's "
            "tables are printed.",
        ),
    ] = None,
    paper: Annotated[
        list[str] | None,
        "A table of the paper, to compare the results with: main, ablation, max-sum, resnet, "
        "resnet-ablation, texture, texture-ablation or topk. May be repeated.",
    ] = None,
    format_: Annotated[str, Option("--format", "-f", help="text, markdown, latex or csv.")] = _TEXT,
) -> None:
    """Print results as tables, or beside the numbers of the paper's tables.

    Examples: nescio tables nescio-bench/coco70 -f latex, nescio tables --paper main
    """
    from nescio.lab.benchmark.paper import find_paper_table, paper_tables
    from nescio.lab.benchmark.results import BenchmarkRun, read_lines
    from nescio.lab.benchmark.tables import (
        FORMATS,
        network_table,
        paper_comparison,
        paper_table,
        result_tables,
    )

    checked_choice("--format", format_, (_TEXT, *FORMATS))
    wanted = [find_paper_table(key) for key in paper or ()]
    if results is None:
        shown = [paper_table(table) for table in wanted or paper_tables().values()]
    else:
        lines = list(BenchmarkRun.load(results).lines) if results.is_dir() else read_lines(results)
        if not lines:
            raise ParameterError(f"{results} contains no results.")
        if wanted:
            shown = [paper_comparison(table, lines) for table in wanted]
        else:
            shown = [network_table(lines), *result_tables(lines)]
    if format_ == _TEXT:
        for table in shown:
            print_result_table(table)
    else:
        typer.echo("\n".join(FORMATS[format_](table) for table in shown), nl=False)


def datasets(as_json: AsJson = False) -> None:
    """List the kinds of data sets, with their splits and the path that they need."""
    from nescio.lab.data import DATASETS

    rows = [
        {"name": name, "splits": kind.splits, "what": kind.what, "path": kind.root_help}
        for name, kind in DATASETS.items()
    ]
    print_rows(rows, as_json=as_json)


def demo(
    output: Annotated[Path, "The folder for the report and all other files."] = Path("nescio-demo"),
    seeds: Annotated[int, Option(min=1, help="How many networks to train.")] = 1,
    force: Force = False,
) -> None:
    """Train a small network, judge data that it does not know, and write a report.

    The network is trained on scenes of handwritten digits, which are made from data that ships
    with scikit-learn (no download). The data that it does not know are other digits, photographs
    and noise. On two cores, it takes about a minute.
    """
    require("torchvision", "torch")
    require("jinja2", "report")
    import torch

    from nescio.lab.demo import DETECTOR, REPORT, UNSEEN, run_demo
    from nescio.models.torch_models import choose_device

    # With a network this small, threads wait for each other, and for those that read images.
    torch.set_num_threads(1)
    with stages() as watch:
        done = run_demo(output, seeds=seeds, device=choose_device("auto"), force=force, watch=watch)
    say(*done.sentences)
    print_result_table(done.table)
    report, detector, unseen = (
        shlex.quote(str(done.folder / file)) for file in (REPORT, DETECTOR, UNSEEN)
    )
    say(
        f"\nReport, with pictures: {report}\n\nNow try:\n"
        f"  nescio score {detector} {unseen}\n"
        f"  nescio explain {detector} {unseen}"
    )
