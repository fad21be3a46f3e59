"""nescio eval: how well detectors tell in-distribution from out-of-distribution data."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nescio._io.tables import to_json
from nescio.cli.options import (
    AsJson,
    FromProbs,
    IdColumn,
    IgnoreColumns,
    LabelColumns,
    Nonfinite,
    Settings,
    build_detector,
    chosen_columns,
    detector_names,
    progress_bar,
    terminal,
)
from nescio.errors import ParameterError

if TYPE_CHECKING:
    from nescio.metrics.comparison import Comparison


_ID = typer.Option("--id", help="In-distribution test outputs, not used in training.")
_OOD = typer.Option("--ood", help="Out-of-distribution outputs. May be repeated.")
IdPath = Annotated[Path | None, _ID]
OodPaths = Annotated[list[Path] | None, _OOD]
_TRAIN = typer.Option("--train", help="Training outputs, for the detectors that learn.")
_HELD_OUT = typer.Option(
    "--held-out",
    help="Held-out in-distribution outputs, for the detectors that learn from such data "
    "(combined). Neither training nor test data.",
)
Train = Annotated[Path | None, _TRAIN]
HeldOut = Annotated[Path | None, _HELD_OUT]


def evaluate_detectors(
    id_path: Annotated[str, _ID],
    ood_paths: Annotated[list[str], _OOD],
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--detector",
            "-d",
            help="A detector, or 'all' (the default). May be repeated.",
            autocompletion=lambda incomplete: [
                name for name in ("all", *detector_names()) if name.startswith(incomplete)
            ],
        ),
    ] = None,
    train: Annotated[str | None, _TRAIN] = None,
    held_out: Annotated[str | None, _HELD_OUT] = None,
    tpr: Annotated[
        float,
        typer.Option(help="The share of in-distribution samples to keep. The FPR is at this TPR."),
    ] = 0.95,
    bootstrap: Annotated[
        int,
        typer.Option(min=0, help="The number of resamples for the intervals; 0 for no intervals."),
    ] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the resampling.")] = 0,
    settings: Settings = None,
    nonfinite: Nonfinite = "raise",
    id_column: IdColumn = None,
    labels: LabelColumns = None,
    ignore: IgnoreColumns = None,
    from_probs: FromProbs = None,
    as_json: AsJson = False,
) -> None:
    """Compare detectors: FPR95, AUROC and AUPR, with in-distribution as the positive side.

    Parquet, Arrow and safetensors files that are larger than memory are read in blocks.

    Example: nescio eval --id test.npy --ood textures.npy --ood objects.npy --detector all
    """
    from nescio.metrics import compare

    wanted = names or ["all"]
    if settings and (len(wanted) > 1 or "all" in wanted):
        raise ParameterError("--set goes with a single --detector.")
    chosen = [name for one in wanted for name in (detector_names() if one == "all" else [one])]
    detectors = {name: build_detector(name, settings, nonfinite=nonfinite) for name in chosen}
    columns = chosen_columns(id_column, labels, ignore)
    comparison = compare(
        id_path,
        ood_paths,
        detectors,
        train=train,
        held_out=held_out,
        tpr=tpr,
        n_bootstrap=bootstrap,
        seed=seed,
        from_probs=from_probs,
        id_column=columns.id_column,
        labels=columns.labels,
        ignore=columns.ignore,
        progress=partial(progress_bar, "evaluating"),
    )
    if as_json:
        typer.echo(to_json(comparison.as_dict()))
    else:
        print_comparison(comparison, terminal())


def print_comparison(comparison: Comparison, console: Console) -> None:
    """A table for each OOD set, the difference of the best two, and what was left out."""
    for ood in comparison.results:
        console.print(_table(comparison, ood))
        if ood in comparison.notes:
            console.print(comparison.notes[ood], soft_wrap=True)
        lead = comparison.lead.get(ood)
        if lead is not None:
            console.print(
                f"{lead.best} against {lead.second}: AUROC {lead.test.difference * 100:+.2f} "
                f"points, DeLong's p = {lead.test.p_value:.2g} (these two were chosen by "
                "their results, so p is too small)",
                soft_wrap=True,
            )
    if comparison.largest_error:
        console.print(
            "The scores were too many to keep and were counted in cells. FPR, AUROC and AUPR "
            f"differ by at most {comparison.largest_error * 100:.1g} points from those of all "
            "scores; the intervals contain this. DeLong's test is left out.",
            soft_wrap=True,
        )
    for name, reason in comparison.skipped.items():
        console.print(f"left out {name}: {reason}", soft_wrap=True)


def _table(comparison: Comparison, ood: str) -> Table:
    """Return the results on one OOD set, with the highest AUROC first."""
    results = comparison.results[ood]
    first = next(iter(results.values()))
    columns = {"fpr": f"{first.fpr_name} ↓", "auroc": "AUROC ↑", "aupr": "AUPR ↑"}
    # Equal as printed is equal; a single detector is not the best of anything.
    shown = {
        m: [round(100 * getattr(one, m).value, 2) for one in results.values()] for m in columns
    }
    best = {m: (min if m == "fpr" else max)(shown[m]) for m in columns if len(results) > 1}
    table = Table(
        title=f"{ood}: {first.n_id:,} ID against {first.n_ood:,} OOD, per cent, sorted by AUROC",
        caption="* best of its column" if best else None,
    )
    table.add_column("detector", no_wrap=True)
    for title in columns.values():
        table.add_column(title, justify="right")
    for name in comparison.ranked(ood):
        estimates = {measure: getattr(results[name], measure) for measure in columns}
        cells = [
            _cell(str(one), is_best=round(100 * one.value, 2) == best.get(measure))
            for measure, one in estimates.items()
        ]
        table.add_row(name, *cells)
    return table


def _cell(text: str, *, is_best: bool) -> Text:
    """Mark the best with a star, which a file keeps too. A space keeps the others aligned."""
    return Text(text + (" *" if is_best else "  "), style="bold" if is_best else "")
