"""nescio score: a verdict on each input."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from nescio._io.tables import check_table_target, to_json, to_values
from nescio.cli.options import (
    AsJson,
    DetectorFile,
    Engine,
    Force,
    FromProbs,
    IdColumn,
    IgnoreColumns,
    LabelColumns,
    Nonfinite,
    checked_engine,
    chosen_columns,
    describe,
    load_detector,
    progress_bar,
    refuse_among_inputs,
    refuse_overwriting,
    terminal,
)
from nescio.outputs.streams import open_stream

if TYPE_CHECKING:
    from nescio.detectors.streaming import Scored, ScoreEngine


def score(
    detector: DetectorFile,
    data: Annotated[
        str,
        typer.Argument(metavar="DATA", help="The model's logits for the inputs to assess."),
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
    with_labels: Annotated[
        bool,
        typer.Option(
            "--with-labels",
            help="Add the labels that the model predicts (probability above 0.5) as the column "
            "predicted, and the probability of each label as prob_NAME.",
        ),
    ] = False,
    id_column: IdColumn = None,
    labels: LabelColumns = None,
    ignore: IgnoreColumns = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES",
            help="Of the columns that are neither labels nor ids, copy only these to the output: "
            "names or patterns with commas between them. May be repeated. Default: all of them, "
            "except those of --ignore. Empty: none.",
        ),
    ] = None,
    nonfinite: Nonfinite = None,
    from_probs: FromProbs = None,
    engine: Engine = "local",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Score inputs and say which ones the model should not be trusted on.

    DATA may be larger than memory: a .parquet, .arrow or .safetensors file, a pattern in quotes
    ('data/*.parquet'), a folder of Parquet files, or a remote address (s3://bucket/x.parquet). If
    the command is interrupted, run it again: it continues where it stopped.

    Example: nescio score tagger.nescio new.parquet -o scored.parquet
    """
    from nescio.detectors.streaming import score_stream

    if output is not None:
        check_table_target(output, force=force)
        refuse_overwriting(output, Path(data), detector)
        refuse_among_inputs(output, data)
    loaded = load_detector(detector, nonfinite=nonfinite)
    columns = replace(
        chosen_columns(id_column, labels, ignore, keep),
        expected=getattr(loaded, "label_names_", None),
        keep_rest=keep is None or any(map(str.strip, keep)),  # --keep "" copies nothing
    )
    stream = open_stream(data, columns, from_probs=from_probs)
    key = {
        "detector": hashlib.sha256(detector.read_bytes()).hexdigest(),
        "columns": asdict(columns),
        "from_probs": from_probs,
        "nonfinite": nonfinite,
    }
    with (
        _place(checked_engine(engine)) as place,
        progress_bar("scoring", stream.n_rows, unit="rows") as advance,
    ):
        result = score_stream(
            loaded,
            stream,
            output,
            key=key,
            fdr=fdr,
            with_labels=with_labels,
            in_memory=as_json and output is None,
            force=force,
            on_rows=advance,
            engine=place,
        )
    if as_json:
        summary = {
            "n_samples": result.n_samples,
            "n_labels": stream.n_labels,
            "ignored_columns": stream.ignored,
            "kept_columns": list(stream.kept_names),
            "n_flagged": result.n_flagged,
            "output": None if output is None else str(output),
        }
        rows = [row for columns in result.parts for row in _rows(columns)]
        typer.echo(to_json(summary | ({"rows": rows} if output is None else {})))
        return
    console = terminal()
    line = describe(stream.n_rows, stream.n_labels, stream.label_names, stream.ignored)
    copied = f"; copied columns: {', '.join(stream.kept_names)}" if output is not None else ""
    console.print(line + (copied if stream.kept_names else ""), soft_wrap=True)
    if output is None:
        console.print(_table(result))
    share = result.n_flagged / result.n_samples
    console.print(f"{result.n_samples:,} scored, {result.n_flagged:,} flagged ({share:.1%})")
    if output is not None:
        console.print(f"saved {output}", soft_wrap=True)


def _place(engine: str) -> AbstractContextManager[ScoreEngine | None]:
    """Return where the rows are scored: None for this process."""
    if engine == "local":
        return nullcontext()
    from nescio.ray import ray_scoring

    return ray_scoring()


def _rows(part: Mapping[str, Any]) -> list[dict[str, object]]:
    columns = {name: to_values(column) for name, column in part.items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _table(result: Scored) -> Table:
    """Return the most suspicious rows."""
    shown = result.lowest
    more = result.n_samples > len(shown)
    caption = f"the {len(shown)} most suspicious of {result.n_samples:,} rows; use -o to get all"
    table = Table(caption=caption if more else None)
    table.add_column("row", justify="right")
    if shown.ids is not None:
        table.add_column("id", overflow="fold")
    for name in ("score", "p-value"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    if shown.groups is not None:
        table.add_column("predicted labels", justify="right")
    words = shown.verdicts
    for at, row in enumerate(result.rows.tolist()):
        score, p_value, inside = shown[at]
        sample_id = [] if shown.ids is None else [str(shown.ids[at])]
        verdict = Text(words[at], style="" if inside else "bold red")
        group = [] if shown.groups is None else [str(shown.groups[at])]
        table.add_row(str(row), *sample_id, f"{score:.5g}", f"{p_value:.4f}", verdict, *group)
    return table
