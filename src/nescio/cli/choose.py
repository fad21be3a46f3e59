"""nescio choose: rank detectors on in-distribution data, and pick one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from nescio._io.addresses import same_file
from nescio._io.files import check_target, replacing
from nescio._io.tables import to_json
from nescio.cli.options import (
    AsJson,
    Force,
    FromProbs,
    IdColumn,
    IgnoreColumns,
    LabelColumns,
    chosen_columns,
    detector_names,
    progress_bar,
    refuse_overwriting,
    terminal,
)
from nescio.errors import ParameterError
from nescio.outputs.reading import read_others, read_outputs

if TYPE_CHECKING:
    from nescio.choosing import Choice


def choose(
    train: Annotated[
        Path,
        typer.Option(readable=False, help="Training outputs with labels, and with features."),
    ],
    held_out: Annotated[
        Path,
        typer.Option(
            readable=False,
            help="Held-out in-distribution outputs with labels, and with features. Not used in "
            "training.",
        ),
    ],
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--detector",
            "-d",
            help="A detector to rank, or 'all'. May be repeated. Default: a list of detectors of "
            "logits and of each layer.",
            autocompletion=detector_names,
        ),
    ] = None,
    far: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CORRUPTION=FILE",
            help="Outputs for the held-out images after a corruption of nescio.data.corrupt, such "
            "as jigsaw=jigsaw.safetensors. May be repeated.",
        ),
    ] = None,
    folds: Annotated[
        int, typer.Option(min=2, help="The number of parts that the labels are divided into.")
    ] = 5,
    refit: Annotated[
        str,
        typer.Option(
            help="'head': train the head anew without the left-out labels. 'none': drop their "
            "columns. 'auto': 'head' if there are features."
        ),
    ] = "auto",
    tpr: Annotated[
        float,
        typer.Option(help="The share of in-distribution samples to keep. The FPR is at this TPR."),
    ] = 0.95,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the folds.")] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The JSON file to write.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="The HTML page to write.")] = None,
    id_column: IdColumn = None,
    labels: LabelColumns = None,
    ignore: IgnoreColumns = None,
    from_probs: FromProbs = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Rank detectors on in-distribution data only, and pick one.

    Labels are left out, part by part: the samples that carry only left-out labels stand for
    unknown inputs. Out-of-distribution data is not needed and cannot be passed.

    Example: nescio choose --train train.safetensors --held-out val.safetensors --report chosen.html
    """
    from nescio.choosing import choose as choose_detector
    from nescio.report import draw_choice

    files = _far_files(far or [])
    if same_file(train, held_out):
        raise ParameterError(f"{train} is given as --train and as --held-out.")
    for target in (output, report):
        refuse_overwriting(target, train, held_out, *files.values())
        if target is not None:
            check_target(target, force=force)
    columns = chosen_columns(id_column, labels, ignore)
    first = read_outputs(train, from_probs=from_probs, columns=columns)
    others = {
        path: read_others(path, first, from_probs=from_probs, columns=columns)
        for path in (held_out, *files.values())
    }
    every = detector_names() if "all" in (names or ()) else []
    with progress_bar("leaving labels out", folds) as advance:
        choice = choose_detector(
            first,
            others[held_out],
            detectors=None if names is None else [*every, *(n for n in names if n != "all")],
            far={name: others[path] for name, path in files.items()},
            n_folds=folds,
            refit=refit,
            tpr=tpr,
            seed=seed,
            on_fold=advance,
        )
    if output is not None:
        with replacing(output, force=force) as temporary:
            temporary.write_text(to_json(choice.as_dict()) + "\n", "utf-8")
    if report is not None:
        draw_choice(choice, report, force=force)
    if as_json:
        typer.echo(to_json(choice.as_dict()))
    else:
        _print(choice, terminal(), [path for path in (output, report) if path is not None])


def _far_files(given: list[str]) -> dict[str, Path]:
    files = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            raise ParameterError(
                f"--far {text}: expected CORRUPTION=FILE, such as jigsaw=jigsaw.safetensors."
            )
        files[name] = Path(path)
    return files


def _print(choice: Choice, console: Console, written: list[Path]) -> None:
    from nescio.choosing.choice import COLUMNS

    table = Table(
        title=f"{choice.fpr_name} in per cent, mean ± standard deviation over folds, sorted by the "
        "criterion",
        caption="* the pick",
    )
    first, *others = COLUMNS
    table.add_column(first, overflow="fold")
    for title in others:
        table.add_column(title, justify="right", no_wrap=True)
    for name, *cells in choice.rows():
        table.add_row(name + (" *" if name == choice.pick else ""), *cells)
    console.print(table)
    console.print(choice.summary(), soft_wrap=True)
    for name, reason in choice.skipped.items():
        console.print(f"left out {name}: {reason}", soft_wrap=True)
    for path in written:
        console.print(f"saved {path}", soft_wrap=True)
