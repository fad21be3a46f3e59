"""nescio score: a verdict on each input."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from nescio._io.results import check_table_target, to_values
from nescio.cli.options import (
    AsJson,
    DataOptions,
    DetectorFile,
    Engine,
    Force,
    Nonfinite,
    is_ray,
    load_detector,
    output_option,
    refuse_overwriting,
)
from nescio.cli.printing import describe, print_json, print_table, progress_bar, say
from nescio.outputs.reading import open_stream

if TYPE_CHECKING:
    from nescio.detectors.streaming import Scored, ScoreEngine


def score(
    detector: DetectorFile,
    data: Annotated[
        str,
        typer.Argument(metavar="DATA", help="The model's logits for the inputs to assess."),
    ],
    files: DataOptions,
    output: Annotated[
        Path | None, output_option("Where to write the verdicts: .parquet, .csv or .jsonl.")
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
    engine: Engine = "local",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Score inputs and say which ones the model should not be trusted on.

    DATA may be larger than memory: a .parquet, .arrow or .safetensors file, a pattern in quotes
    ('data/*.parquet'), a folder of Parquet files, or a remote address (s3://bucket/x.parquet). The
    output is there once all rows are scored.

    Example: nescio score tagger.nescio new.parquet -o scored.parquet
    """
    from nescio.detectors.streaming import score_stream

    if output is not None:
        check_table_target(output, force=force)
        refuse_overwriting(output, Path(data), detector)
    loaded = load_detector(detector, nonfinite=nonfinite)
    columns = replace(
        files.columns(keep=keep, detector=loaded),
        keep_rest=keep is None or any(map(str.strip, keep)),  # --keep "" copies nothing
    )
    stream = open_stream(data, columns, from_probs=files.from_probs)
    place: AbstractContextManager[ScoreEngine | None] = nullcontext()
    if is_ray(engine):
        from nescio.integrations.ray import ray_scoring

        place = ray_scoring()
    with place as cluster, progress_bar("scoring", stream.n_rows) as advance:
        result = score_stream(
            loaded,
            stream,
            output,
            fdr=fdr,
            with_labels=with_labels,
            in_memory=as_json and output is None,
            force=force,
            on_rows=advance,
            engine=cluster,
        )
    if as_json:
        summary: dict[str, Any] = {
            "n_samples": result.n_samples,
            "n_labels": stream.n_labels,
            "ignored_columns": stream.ignored,
            "kept_columns": list(stream.kept_names),
            "n_flagged": result.n_flagged,
            "output": None if output is None else str(output),
        }
        if output is None:
            parts = ({name: to_values(c) for name, c in part.items()} for part in result.parts)
            summary["rows"] = [
                dict(zip(part, row, strict=True))
                for part in parts
                for row in zip(*part.values(), strict=True)
            ]
        print_json(summary)
        return
    line = describe(stream.n_rows, stream.n_labels or 0, stream.label_names, stream.ignored)
    copied = f"; copied columns: {', '.join(stream.kept_names)}" if output is not None else ""
    say(line + (copied if stream.kept_names else ""))
    if output is None:
        _print_lowest(result)
    share = result.n_flagged / result.n_samples
    say(f"{result.n_samples:,} scored, {result.n_flagged:,} flagged ({share:.1%})")
    if output is not None:
        say(f"saved {output}")


def _print_lowest(result: Scored) -> None:
    """Print the most suspicious rows."""
    shown = result.lowest
    caption = f"the {len(shown)} most suspicious of {result.n_samples:,} rows; use -o to get all"
    columns: dict[str, list[str | Text]] = {"row": list(map(str, result.rows.tolist()))}
    if shown.ids is not None:
        columns["id"] = list(map(str, shown.ids))
    columns["score"] = [f"{score:.5g}" for score in shown.scores]
    columns["p-value"] = [f"{p_value:.4f}" for p_value in shown.p_values]
    columns["verdict"] = [
        Text(verdict, style="" if inside else "bold red")
        for verdict, inside in zip(shown.verdicts, shown.in_distribution, strict=True)
    ]
    if shown.groups is not None:
        columns["predicted labels"] = list(map(str, shown.groups))
    print_table(
        tuple(columns),
        list(zip(*columns.values(), strict=True)),
        numbers=("row", "score", "p-value", "predicted labels"),
        caption=caption if result.n_samples > len(shown) else None,
    )
