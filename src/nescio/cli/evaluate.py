"""nescio eval: how well detectors tell in-distribution from out-of-distribution data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nescio._io.columns import Columns
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
    read_others,
    read_outputs,
    same_file,
    terminal,
)
from nescio.errors import MissingInputError, ParameterError
from nescio.outputs import Outputs

if TYPE_CHECKING:
    from nescio.metrics.comparison import Comparison


_ID = typer.Option(
    "--id", readable=False, help="In-distribution test outputs, not used in training."
)
_OOD = typer.Option("--ood", readable=False, help="Out-of-distribution outputs. May be repeated.")
IdPath = Annotated[Path | None, _ID]
OodPaths = Annotated[list[Path] | None, _OOD]
Train = Annotated[
    Path | None,
    typer.Option(readable=False, help="Training outputs, for the detectors that learn."),
]
HeldOut = Annotated[
    Path | None,
    typer.Option(
        readable=False,
        help="Held-out in-distribution outputs, for the detectors that learn from such data "
        "(combined). Neither training nor test data.",
    ),
]


def evaluate_detectors(
    id_path: Annotated[Path, _ID],
    ood_paths: Annotated[list[Path], _OOD],
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
    train: Train = None,
    held_out: HeldOut = None,
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

    Example: nescio eval --id test.npy --ood textures.npy --ood objects.npy --detector all
    """
    from nescio.metrics.comparison import compare

    wanted = names or ["all"]
    if settings and (len(wanted) > 1 or "all" in wanted):
        raise ParameterError("--set goes with a single --detector.")
    chosen = [name for one in wanted for name in (detector_names() if one == "all" else [one])]
    detectors = {name: build_detector(name, settings, nonfinite=nonfinite) for name in chosen}
    columns = chosen_columns(id_column, labels, ignore)
    sets = read_sets(id_path, ood_paths, train, held_out, from_probs=from_probs, columns=columns)
    with progress_bar("evaluating", len(detectors) * len(sets.ood)) as advance:
        comparison = compare(
            detectors,
            sets.id,
            sets.ood,
            train=sets.train,
            held_out=sets.held_out,
            tpr=tpr,
            n_bootstrap=bootstrap,
            seed=seed,
            on_step=advance,
        )
    if not comparison.scores:
        name, reason = next(iter(comparison.skipped.items()))
        raise MissingInputError(f"{name} cannot be evaluated: {reason}")
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


class Sets(NamedTuple):
    """The outputs to compare detectors on: ID, OOD by a short name, and what they learn from."""

    id: Outputs
    ood: dict[str, Outputs]
    train: Outputs | None
    held_out: Outputs | None


def read_sets(
    id_path: Path,
    ood_paths: list[Path],
    train: Path | None,
    held_out: Path | None,
    *,
    from_probs: bool | None,
    columns: Columns,
) -> Sets:
    """The outputs in the files. The labels of the ID file are looked for in the other files."""
    for path in ood_paths:
        if same_file(id_path, path):
            raise ParameterError(f"{path} is given as --id and as --ood.")
    for other, option in ((id_path, "--id"), (train, "--train")):
        if held_out is not None and other is not None and same_file(held_out, other):
            raise ParameterError(f"{held_out} is given as {option} and as --held-out.")
    id_outputs = read_outputs(id_path, from_probs=from_probs, columns=columns)

    def read(path: Path) -> Outputs:
        return read_others(path, id_outputs, from_probs=from_probs, columns=columns)

    ood_outputs = {
        label: read(path) for label, path in zip(_labels(ood_paths), ood_paths, strict=True)
    }
    others = (None if path is None else read(path) for path in (train, held_out))
    return Sets(id_outputs, ood_outputs, *others)


def _labels(paths: list[Path]) -> list[str]:
    """A short name for each OOD file; the whole path where two share one."""
    stems = [path.stem for path in paths]
    if len(set(paths)) != len(paths):
        raise ParameterError("the same --ood file was given twice.")
    return [path.stem if stems.count(path.stem) == 1 else str(path) for path in paths]
