"""nescio data: list the kinds of data sets, and check the data of a benchmark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from nescio._io.tables import to_json
from nescio.cli.options import AsJson, terminal, working
from nescio.cli.vision import require_vision

if TYPE_CHECKING:
    from nescio.data import Finding, ProtocolReport
    from nescio.data.check import SplitSummary

app = typer.Typer(
    help="Image data sets: list the kinds, check the data of a benchmark.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

SkipBad = Annotated[
    bool,
    typer.Option("--skip-bad", help="Continue without files that cannot be used, and count them."),
]

_EXAMPLES = 3


@app.command("check")
def check(
    id_addresses: Annotated[
        list[str],
        typer.Option(
            "--id",
            metavar="ADDRESS",
            help="A split of the in-distribution set, such as coco@val:/data/coco. Repeat it for "
            "each split.",
        ),
    ],
    ood_addresses: Annotated[
        list[str] | None,
        typer.Option(
            "--ood",
            metavar="ADDRESS",
            help="An out-of-distribution set, such as textures:/data/dtd. May be repeated.",
        ),
    ] = None,
    skip_bad: SkipBad = False,
    no_hash: Annotated[
        bool, typer.Option("--no-hash", help="Do not search for duplicate images.")
    ] = False,
    images: Annotated[
        Literal["fast", "full", "none"],
        typer.Option(
            help="How to look for damaged images: 'fast' opens every image and looks at the end of "
            "its file, 'full' decodes it, 'none' opens no image."
        ),
    ] = "fast",
    as_json: AsJson = False,
) -> None:
    """Check data sets before a benchmark: label overlap, duplicate and damaged images, gaps."""
    from nescio.data import check_protocol, load
    from nescio.data.damage import find_damaged, without

    how = None if images == "none" else images
    if how is not None:
        require_vision(torch=False)
    with working("reading the data sets"):
        id_splits = [load(address, skip_bad=skip_bad) for address in id_addresses]
        ood_splits = [load(address, skip_bad=skip_bad) for address in ood_addresses or ()]
        if skip_bad and how is not None:
            id_splits, ood_splits = (
                [without(split, find_damaged(split, how)) for split in splits]
                for splits in (id_splits, ood_splits)
            )
            how = None
        report = check_protocol(id_splits, ood_splits, hash_images=not no_hash, images=how)
    if as_json:
        typer.echo(to_json(report.as_dict()))
    else:
        _print_report(report)
    if not report.ok:
        raise typer.Exit(1)


@app.command("list")
def list_kinds(as_json: AsJson = False) -> None:
    """List the kinds of data sets, with their splits and the path that they need."""
    from nescio.data import DATASETS

    rows: list[dict[str, Any]] = [
        {
            "name": source.name,
            "splits": source.splits,
            "what": source.what,
            "path": source.root_help,
        }
        for source in DATASETS.values()
    ]
    if as_json:
        typer.echo(to_json(rows))
        return
    table = Table()
    table.add_column("name", no_wrap=True)
    for title in ("splits", "what it is", "the path"):
        table.add_column(title)
    for row in rows:
        splits = "those of its column split" if row["splits"] is None else ", ".join(row["splits"])
        table.add_row(row["name"], splits or "-", row["what"], row["path"])
    terminal().print(table)


def _print_report(report: ProtocolReport) -> None:
    console = terminal()
    table = Table()
    table.add_column("set", no_wrap=True)
    table.add_column("role")
    for title in ("images", "labels", "without label", "images per label"):
        table.add_column(title, justify="right")
    for split in report.splits:
        table.add_row(*_cells(split))
    console.print(table)
    for finding in report.findings:
        console.print(_line(finding), soft_wrap=True)
    if report.ok:
        console.print("No errors.")


def _cells(split: SplitSummary) -> list[str]:
    fewest, median, most = split.class_counts or (None, None, None)
    return [
        split.title,
        split.role,
        f"{split.n_images:,}",
        "-" if split.n_labels is None else f"{split.n_labels:,}",
        "-" if split.n_unlabelled is None else f"{split.n_unlabelled:,}",
        "-" if median is None else f"{fewest:,} to {most:,}, median {median:,.0f}",
    ]


def _line(finding: Finding) -> str:
    line = f"{finding.severity}: {finding.message}"
    if not finding.examples:
        return f"{line}."
    more = ", ..." if len(finding.examples) > _EXAMPLES else ""
    return f"{line}: {', '.join(finding.examples[:_EXAMPLES])}{more}"
