"""nescio score: a verdict on each input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from nescio._io.tables import check_table_target, to_json, to_values
from nescio.cli.options import (
    AsJson,
    DetectorFile,
    Force,
    FromProbs,
    IdColumn,
    IgnoreColumns,
    LabelColumns,
    Nonfinite,
    chosen_columns,
    load_detector,
    read_for,
    refuse_overwriting,
    terminal,
    what_was_read,
    working,
)
from nescio.detectors.assessment import Assessment
from nescio.errors import InputError, about
from nescio.outputs import Outputs
from nescio.scores import label_prob

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
            help="Columns of a table to copy to the output: names or patterns with commas between "
            "them. May be repeated.",
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
    columns = chosen_columns(id_column, labels, ignore, keep)
    outputs = read_for(loaded, data, from_probs=from_probs, columns=columns)
    with working("scoring"), about(data):
        result = loaded.assess(outputs, fdr=fdr)
        if with_labels:
            result = replace(result, kept=_with_predictions(outputs, loaded.label_names_))
    if output is not None:
        result.save(output, force=force)
    summary = {
        "n_samples": len(result),
        "n_labels": outputs.n_labels,
        "ignored_columns": outputs.manifest.get("ignored_columns", []),
        "n_flagged": len(result.flagged),
        "output": None if output is None else str(output),
    }
    if as_json:
        typer.echo(to_json(summary | ({"rows": _rows(result)} if output is None else {})))
        return
    console = terminal()
    console.print(what_was_read(outputs), soft_wrap=True)
    if output is None:
        console.print(_table(result))
    share = len(result.flagged) / len(result)
    console.print(f"{len(result):,} scored, {len(result.flagged):,} flagged ({share:.1%})")
    if output is not None:
        console.print(f"saved {output}", soft_wrap=True)


def _rows(result: Assessment) -> list[dict[str, object]]:
    columns = {name: to_values(column) for name, column in result.columns().items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _with_predictions(outputs: Outputs, known: Sequence[str] | None) -> dict[str, NDArray[Any]]:
    """Return the kept columns, the labels that the model predicts and all probabilities."""
    names = outputs.label_names or known or [str(at) for at in range(outputs.n_labels)]
    predicted = [
        "; ".join(names[at] for at in np.flatnonzero(row).tolist()) for row in outputs.logits > 0
    ]
    added = {"predicted": np.array(predicted, dtype=object)}
    probs = label_prob(outputs.logits)
    added |= {f"prob_{name}": probs[:, at] for at, name in enumerate(names)}
    taken = next((name for name in added if name in outputs.kept), None)
    if taken is not None:
        raise InputError(
            f"the column {taken!r} cannot be kept, because --with-labels adds a column of the same "
            "name. Rename it."
        )
    return {**outputs.kept, **added}


def _table(result: Assessment) -> Table:
    """Return the most suspicious rows: the lowest p-values, then the lowest scores."""
    order = np.lexsort((result.scores, result.p_values))[:_SHOWN_ROWS]
    more = len(result) > _SHOWN_ROWS
    caption = f"the {_SHOWN_ROWS} most suspicious of {len(result):,} rows; use -o to get all"
    table = Table(caption=caption if more else None)
    table.add_column("row", justify="right")
    if result.ids is not None:
        table.add_column("id", overflow="fold")
    for name in ("score", "p-value"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    if result.groups is not None:
        table.add_column("predicted labels", justify="right")
    words = result.verdicts
    for row in order.tolist():
        score, p_value, inside = result[row]
        sample_id = [] if result.ids is None else [str(result.ids[row])]
        verdict = Text(words[row], style="" if inside else "bold red")
        group = [] if result.groups is None else [str(result.groups[row])]
        table.add_row(str(row), *sample_id, f"{score:.5g}", f"{p_value:.4f}", verdict, *group)
    return table
