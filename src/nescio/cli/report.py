"""nescio report: one HTML file with tables, figures and case studies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nescio._io.files import check_target
from nescio._io.tables import require
from nescio.cli.evaluate import HeldOut, IdPath, OodPaths, Train
from nescio.cli.options import (
    Force,
    FromProbs,
    IdColumn,
    IgnoreColumns,
    LabelColumns,
    Nonfinite,
    build_detector,
    chosen_columns,
    detector_names,
    progress_bar,
    refuse_overwriting,
    terminal,
)
from nescio.errors import ParameterError

_RECORDED = "recorded"


def report(
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file to write.")],
    results: Annotated[
        Path | None,
        typer.Argument(
            readable=False,
            metavar="RESULTS",
            help="The folder of a benchmark, such as nescio-bench/digits, or a results.jsonl file "
            "for tables without figures.",
        ),
    ] = None,
    id_path: IdPath = None,
    ood_paths: OodPaths = None,
    train: Train = None,
    held_out: HeldOut = None,
    images: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FOLDER",
            help="The folder that holds the images of a set, for thumbnails. With --id and --ood, "
            "NAME is the name of its file without the ending. For results of your own, 'recorded' "
            "stands for the folders that the benchmark has used. May be repeated.",
        ),
    ] = None,
    title: Annotated[
        str | None, typer.Option(help="Title of the report. Default: the title of the benchmark.")
    ] = None,
    nonfinite: Nonfinite = "raise",
    id_column: IdColumn = None,
    text_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The column of a table that has the texts, for the case studies. Outputs that "
            "nescio has made from texts have them.",
        ),
    ] = None,
    labels: LabelColumns = None,
    ignore: IgnoreColumns = None,
    from_probs: FromProbs = None,
    force: Force = False,
) -> None:
    """Write an HTML report with tables, figures and case studies, which opens offline.

    It is made from the results of a benchmark, or from your own outputs.

    Examples: nescio report nescio-bench/digits -o report.html,
    nescio report --id test.npy --ood textures.npy -o report.html
    """
    require("jinja2", "report")
    from nescio.metrics.sets import checked_sets, read_sets
    from nescio.report import write_report
    from nescio.report.inputs import from_outputs, from_results

    check_target(output, force=force)
    if (results is None) == (id_path is None and not ood_paths):
        raise ParameterError("pass either the results of a benchmark, or --id and --ood.")
    if results is not None:
        only_for_outputs = {
            "--train": train,
            "--held-out": held_out,
            "--id-column": id_column,
            "--text-column": text_column,
            "--labels": labels,
            "--ignore": ignore,
        }
        for option, value in only_for_outputs.items():
            if value:
                raise ParameterError(f"{option} can only be used with --id and --ood.")
        refuse_overwriting(output, results)
        named = [text for text in images or [] if text != _RECORDED]
        lines, evidence = from_results(
            results, _image_roots(named), recorded_roots=_RECORDED in (images or [])
        )
    else:
        if id_path is None or not ood_paths:
            raise ParameterError("--id and --ood must be used together.")
        refuse_overwriting(output, id_path, train, held_out, *ood_paths)
        given = checked_sets(id_path, ood_paths, train, held_out)
        kept = None if text_column is None else [text_column]
        columns = chosen_columns(id_column, labels, ignore, kept)
        sets = read_sets(given, from_probs=from_probs, columns=columns)
        if text_column is not None:
            sets = sets.with_texts(text_column)
        name = id_path.stem if id_path.stem not in sets.ood else str(id_path)
        detectors = {
            name: build_detector(name, None, nonfinite=nonfinite) for name in detector_names()
        }
        files = {"id": id_path, "train": train, "held_out": held_out}
        with progress_bar("evaluating", len(detectors) * len(sets.ood)) as advance:
            lines, evidence = from_outputs(
                name,
                sets.id,
                sets.ood,
                detectors,
                train=sets.train,
                held_out=sets.held_out,
                image_roots=_image_roots(images or [], {name, *sets.ood}),
                files={"ood": list(map(str, ood_paths))}
                | {kind: str(path) for kind, path in files.items() if path is not None},
                on_step=advance,
            )
    title = title or lines[0].manifest.get("title") or lines[0].spec
    write_report(output, lines, evidence, title=title, force=force)
    terminal().print(f"saved {output} ({output.stat().st_size / 1e6:.1f} MB)", soft_wrap=True)


def _image_roots(images: list[str], names: set[str] | None = None) -> dict[str, Path]:
    roots = {}
    for text in images:
        name, equals, folder = text.partition("=")
        if not equals or (names is not None and name not in names):
            known = "" if names is None else f", with NAME one of {', '.join(sorted(names))}"
            raise ParameterError(f"--images {text}: expected NAME=FOLDER{known}.")
        if not Path(folder).is_dir():
            raise ParameterError(f"--images {text}: the folder {folder} does not exist.")
        roots[name] = Path(folder)
    return roots
