"""nescio eval: how well detectors tell in-distribution from out-of-distribution data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nescio._io.addresses import find_files
from nescio._io.columns import Columns
from nescio._io.tables import to_json
from nescio.cli.large import LargeInput, check_fits, may_be_large, open_blocks
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
    columns_of_others,
    detector_names,
    matched,
    progress_bar,
    read_others,
    read_outputs,
    same_file,
    terminal,
)
from nescio.errors import MissingInputError, ParameterError
from nescio.outputs import Outputs
from nescio.outputs.files import TABLES
from nescio.outputs.outputs import TEXT

if TYPE_CHECKING:
    from nescio.detectors import Detector
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
    wanted = names or ["all"]
    if settings and (len(wanted) > 1 or "all" in wanted):
        raise ParameterError("--set goes with a single --detector.")
    chosen = [name for one in wanted for name in (detector_names() if one == "all" else [one])]
    detectors = {name: build_detector(name, settings, nonfinite=nonfinite) for name in chosen}
    columns = chosen_columns(id_column, labels, ignore)
    paths = (id_path, ood_paths, train, held_out)
    large = find_large_sets(*paths, from_probs=from_probs, columns=columns)
    options = {"tpr": tpr, "n_bootstrap": bootstrap, "seed": seed}
    if large is None:
        sets = read_sets(*paths, from_probs=from_probs, columns=columns)
        comparison = _compare(detectors, sets, options)
    else:
        comparison = _compare_blocks(detectors, large, options)
    if not any(comparison.results.values()):
        name, reason = next(iter(comparison.skipped.items()))
        raise MissingInputError(f"{name} cannot be evaluated: {reason}")
    if as_json:
        typer.echo(to_json(comparison.as_dict()))
    else:
        print_comparison(comparison, terminal())


def _compare(
    detectors: Mapping[str, Detector], sets: Sets, options: Mapping[str, Any]
) -> Comparison:
    from nescio.metrics.comparison import compare

    with progress_bar("evaluating", len(detectors) * len(sets.ood)) as advance:
        given: dict[str, Any] = {"train": sets.train, "held_out": sets.held_out}
        return compare(detectors, sets.id, sets.ood, **given, **options, on_step=advance)


def _compare_blocks(
    detectors: Mapping[str, Detector], sets: LargeSets, options: Mapping[str, Any]
) -> Comparison:
    from nescio.metrics.streams import compare_streams

    n_rows = sets.id.n_rows + sum(one.n_rows for one in sets.ood.values())
    with progress_bar("evaluating", n_rows, unit="rows") as advance:
        given: dict[str, Any] = {"train": sets.train, "held_out": sets.held_out}
        return compare_streams(detectors, sets.id, sets.ood, **given, **options, on_rows=advance)


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


class Sets(NamedTuple):
    """The outputs to compare detectors on: ID, OOD by a short name, and what they learn from."""

    id: Outputs
    ood: dict[str, Outputs]
    train: Outputs | None
    held_out: Outputs | None

    def with_texts(self, column: str) -> Sets:
        """Return the sets with a kept column of ID and OOD as the texts."""
        renamed = [
            replace(one, kept={TEXT: one.kept[column]}) for one in (self.id, *self.ood.values())
        ]
        return self._replace(id=renamed[0], ood=dict(zip(self.ood, renamed[1:], strict=True)))


class LargeSets(NamedTuple):
    """As `Sets`, but ID and OOD outputs are read in blocks."""

    id: LargeInput
    ood: dict[str, LargeInput]
    train: Outputs | None
    held_out: Outputs | None


def find_large_sets(
    id_path: str,
    ood_paths: list[str],
    train: str | None,
    held_out: str | None,
    *,
    from_probs: bool | None,
    columns: Columns,
) -> LargeSets | None:
    """Return the outputs to read in blocks; None if none of the ID and OOD files is large."""
    _check_paths(id_path, ood_paths, train, held_out)
    if not any(map(may_be_large, (id_path, *ood_paths))):
        return None
    of_id = open_blocks(id_path, from_probs=from_probs, columns=columns)

    def known(path: str) -> Columns:
        return columns_of_others(path, columns, of_id.head.label_names)

    def opened(path: str) -> LargeInput:
        large = open_blocks(path, from_probs=from_probs, columns=known(path))
        if find_files(path).suffix in TABLES:
            return large
        return replace(large, change=lambda outputs: matched(outputs, of_id.head, columns))

    def whole(path: str | None) -> Outputs | None:
        if path is None:
            return None
        check_fits(path, from_probs=from_probs, columns=known(path))
        return read_others(path, of_id.head, from_probs=from_probs, columns=columns)

    found = {path: opened(path) for path in ood_paths if may_be_large(path)}
    if not any(one.is_large for one in (of_id, *found.values())):
        return None
    ood = {
        name: found.get(path) or opened(path)
        for name, path in zip(_labels(ood_paths), ood_paths, strict=True)
    }
    return LargeSets(of_id, ood, whole(train), whole(held_out))


def read_sets(
    id_path: str | Path,
    ood_paths: Sequence[str | Path],
    train: str | Path | None,
    held_out: str | Path | None,
    *,
    from_probs: bool | None,
    columns: Columns,
) -> Sets:
    """The outputs in the files. The labels of the ID file are looked for in the other files."""
    _check_paths(id_path, ood_paths, train, held_out)
    id_outputs = read_outputs(id_path, from_probs=from_probs, columns=columns)

    def read(path: str | Path, columns: Columns) -> Outputs:
        return read_others(path, id_outputs, from_probs=from_probs, columns=columns)

    ood_outputs = {
        label: read(path, columns)
        for label, path in zip(_labels(ood_paths), ood_paths, strict=True)
    }
    unkept = replace(columns, keep=())  # what is learned from is not shown
    others = (None if path is None else read(path, unkept) for path in (train, held_out))
    return Sets(id_outputs, ood_outputs, *others)


def _check_paths(
    id_path: str | Path,
    ood_paths: Sequence[str | Path],
    train: str | Path | None,
    held_out: str | Path | None,
) -> None:
    for path in ood_paths:
        if same_file(id_path, path):
            raise ParameterError(f"{path} is given as --id and as --ood.")
    for other, option in ((id_path, "--id"), (train, "--train")):
        if held_out is not None and other is not None and same_file(held_out, other):
            raise ParameterError(f"{held_out} is given as {option} and as --held-out.")


def _labels(paths: Sequence[str | Path]) -> list[str]:
    """A short name for each OOD file; the whole path where two share one."""
    stems = [Path(path).stem for path in paths]
    if len(set(map(str, paths))) != len(paths):
        raise ParameterError("the same --ood file was given twice.")
    return [
        stem if stems.count(stem) == 1 and "*" not in stem else str(path)
        for stem, path in zip(stems, paths, strict=True)
    ]
