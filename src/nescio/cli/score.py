"""nescio score: a verdict on each input."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from nescio._io.tables import check_table_target, to_json
from nescio.cli.options import (
    AsJson,
    DetectorFile,
    Force,
    FromProbs,
    Nonfinite,
    load_detector,
    read_outputs,
    refuse_overwriting,
    terminal,
    working,
)
from nescio.detectors.assessment import Assessment
from nescio.errors import about

_SHOWN_ROWS = 20


def score(
    detector: DetectorFile,
    data: Annotated[
        Path,
        typer.Argument(
            readable=False, metavar="DATA", help="The model's logits for the inputs to assess."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Where to write the verdicts: .parquet, .csv or .jsonl."
        ),
    ] = None,
    fdr: Annotated[
        float | None,
        typer.Option(
            help="Instead of the threshold: flag as many of this batch as keep the expected share "
            "of false alarms among the flagged at most this (Benjamini-Hochberg)."
        ),
    ] = None,
    nonfinite: Nonfinite = None,
    from_probs: FromProbs = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Score inputs and say which ones the model should not be trusted on.

    Example: nescio score tagger.nescio new.parquet -o scored.parquet
    """
    if output is not None:
        check_table_target(output, force=force)
        refuse_overwriting(output, data, detector)
    loaded = load_detector(detector, nonfinite=nonfinite)
    outputs = read_outputs(data, from_probs=from_probs)
    with working("scoring"), about(data):
        result = loaded.assess(outputs, fdr=fdr)
    if output is not None:
        result.save(output, force=force)
    summary = {
        "n_samples": len(result),
        "n_flagged": len(result.flagged),
        "output": None if output is None else str(output),
    }
    if as_json:
        typer.echo(to_json(summary | ({"rows": _rows(result)} if output is None else {})))
        return
    console = terminal()
    if output is None:
        console.print(_table(result))
    share = len(result.flagged) / len(result)
    console.print(f"{len(result):,} scored, {len(result.flagged):,} flagged ({share:.1%})")
    if output is not None:
        console.print(f"saved {output}", soft_wrap=True)


def _rows(result: Assessment) -> list[dict[str, object]]:
    columns = {name: column.tolist() for name, column in result.columns().items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _table(result: Assessment) -> Table:
    hidden = len(result) - _SHOWN_ROWS
    table = Table(caption=f"... and {hidden:,} more: use -o" if hidden > 0 else None)
    table.add_column("sample", overflow="fold")
    for name in ("score", "p-value"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    if result.groups is not None:
        table.add_column("predicted labels", justify="right")
    for row in range(min(len(result), _SHOWN_ROWS)):
        score, p_value, inside = result[row]
        name = str(row) if result.ids is None else str(result.ids[row])
        verdict = Text("in") if inside else Text("OUT", style="bold red")
        group = [] if result.groups is None else [str(result.groups[row])]
        table.add_row(name, f"{score:.5g}", f"{p_value:.4f}", verdict, *group)
    return table
