"""nescio report: one HTML file with tables, figures and cases."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nescio._io.files import check_target
from nescio._io.tables import require
from nescio.cli.evaluate import IdPath, OodPaths, Train, read_sets
from nescio.cli.options import (
    Force,
    FromProbs,
    Nonfinite,
    build_detector,
    detector_names,
    progress_bar,
    refuse_overwriting,
    terminal,
)
from nescio.errors import ParameterError

if TYPE_CHECKING:
    from nescio.benchmark.evidence import Evidence
    from nescio.benchmark.results import Line
    from nescio.detectors import Detector
    from nescio.outputs import Outputs


def report(
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file to write.")],
    results: Annotated[
        Path | None,
        typer.Argument(
            readable=False,
            metavar="RESULTS",
            help="The folder of a benchmark, such as nescio-bench/digits, or a results.jsonl for "
            "tables without figures.",
        ),
    ] = None,
    id_path: IdPath = None,
    ood_paths: OodPaths = None,
    train: Train = None,
    images: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FOLDER",
            help="For --id and --ood: the folder that the ids of this file are images in, for "
            "thumbnails; NAME is the file's, without its ending. May be repeated.",
        ),
    ] = None,
    title: Annotated[
        str | None, typer.Option(help="Of the report; the benchmark's name, if not given.")
    ] = None,
    nonfinite: Nonfinite = "raise",
    from_probs: FromProbs = None,
    force: Force = False,
) -> None:
    """Write a report that opens in any browser, without a network: tables, figures, cases.

    From a benchmark that was run, or from outputs of your own.

    Examples: nescio report nescio-bench/digits -o report.html,
    nescio report --id test.npy --ood textures.npy -o report.html
    """
    require("jinja2", "report")
    from nescio.report import write_report

    check_target(output, force=force)
    if (results is None) == (id_path is None and not ood_paths):
        raise ParameterError("name either a benchmark's results, or outputs with --id and --ood.")
    if results is not None:
        for option, value in (("--train", train), ("--images", images)):
            if value:
                raise ParameterError(f"{option} goes with --id and --ood.")
        refuse_overwriting(output, results)
        lines, evidence = _from_results(results)
    else:
        if id_path is None or not ood_paths:
            raise ParameterError("--id and --ood go together; one of them is missing.")
        refuse_overwriting(output, id_path, train, *ood_paths)
        sets = read_sets(id_path, ood_paths, train, from_probs=from_probs)
        detectors = {
            name: build_detector(name, None, nonfinite=nonfinite) for name in detector_names()
        }
        files = {"id": str(id_path), "ood": list(map(str, ood_paths)), "train": str(train)}
        lines, evidence = _from_outputs(sets, id_path, detectors, images or [], files)
    write_report(output, lines, evidence, title=title or lines[0].spec, force=force)
    terminal().print(f"saved {output} ({output.stat().st_size / 1e6:.1f} MB)", soft_wrap=True)


def _from_results(results: Path) -> tuple[list[Line], list[Evidence]]:
    from nescio.benchmark.folder import BenchmarkRun
    from nescio.benchmark.results import read_lines

    if results.is_dir():
        run = BenchmarkRun.load(results)
        found, evidence = list(run.lines), run.evidence()
    else:
        found, evidence = read_lines(results), []
    if not found:
        raise ParameterError(f"{results} holds no results.")
    return found, evidence


def _from_outputs(
    sets: tuple[Outputs, dict[str, Outputs], Outputs | None],
    id_path: Path,
    detectors: dict[str, Detector],
    images: list[str],
    files: dict[str, Any],
) -> tuple[list[Line], list[Evidence]]:
    from nescio.benchmark.evidence import Evidence
    from nescio.benchmark.results import comparison_lines
    from nescio.metrics.comparison import compare

    id_outputs, ood_outputs, training = sets
    name = id_path.stem if id_path.stem not in ood_outputs else str(id_path)
    roots = _image_roots(images, {name, *ood_outputs})
    with progress_bar("evaluating", len(detectors) * len(ood_outputs)) as advance:
        comparison = compare(detectors, id_outputs, ood_outputs, train=training, on_step=advance)
    manifest = {"files": files, "id": dict(id_outputs.manifest)}
    lines = comparison_lines(comparison, name, name, 0, manifest)
    return lines, [Evidence(name, 0, id_outputs, ood_outputs, comparison.scores, roots)]


def _image_roots(images: list[str], names: set[str]) -> dict[str, Path]:
    roots = {}
    for text in images:
        name, equals, folder = text.partition("=")
        if not equals or name not in names:
            raise ParameterError(
                f"--images {text}: expected NAME=FOLDER, with NAME one of "
                f"{', '.join(sorted(names))}."
            )
        if not Path(folder).is_dir():
            raise ParameterError(f"--images {text}: there is no folder {folder}.")
        roots[name] = Path(folder)
    return roots
