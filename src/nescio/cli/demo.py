"""nescio demo: run everything on data that ships with scikit-learn."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nescio._io.tables import require, to_json
from nescio.cli.bench import stages
from nescio.cli.options import AsJson, Force, terminal
from nescio.cli.tables import print_table
from nescio.cli.vision import Device, require_vision

if TYPE_CHECKING:
    from nescio.demo import Demo


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder for the report and all other files.")
    ] = Path("nescio-demo"),
    full: Annotated[
        bool,
        typer.Option("--full", help="Run the benchmark digits: three networks; takes minutes."),
    ] = False,
    detectors: Annotated[
        list[str] | None,
        typer.Option(
            "--detector",
            "-d",
            help="Show this detector too, or 'all' of them. May be repeated.",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="How many networks to train. Default: 1, or 3 with --full."),
    ] = None,
    device: Device = "auto",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Train a small network, judge data that it does not know, and write a report.

    The network is trained on scenes of handwritten digits, which are made from data that ships
    with scikit-learn (no download). The data that it does not know are other digits, photographs
    and noise. On two cores, it takes about a minute.
    """
    require_vision()
    require("jinja2", "report")
    from nescio.demo import run_demo
    from nescio.training import choose_device

    with stages() as watch:
        done = run_demo(
            output,
            full=full,
            seeds=seeds,
            detectors=detectors or (),
            device=choose_device(device),
            force=force,
            watch=watch,
        )
    if as_json:
        found = {"test_kept": done.test_kept, "flagged": done.flagged}
        results = [line.as_dict() for line in done.run.lines]
        typer.echo(to_json(_paths(done) | found | {"results": results}))
        return
    console = terminal()
    for sentence in (*done.sentences, done.detector.calibration_.statement()):
        console.print(sentence, soft_wrap=True)
    print_table(done.table, console)
    program = "nescio" if shutil.which("nescio") else f"{shlex.quote(sys.executable)} -m nescio"
    paths = {name: shlex.quote(path) for name, path in _paths(done).items()}
    console.print(
        f"\nReport, with pictures: {paths['report']}\n\nNow try:\n"
        f"  {program} score {paths['detector']} {paths['unseen']}\n"
        f"  {program} explain {paths['detector']} {paths['unseen']}\n"
        "and on held-out logits of your own model, one row per sample and one column per label:\n"
        f"  {program} calibrate your-validation-logits.npy -o yours.nescio\n"
        f"  {program} score yours.nescio your-new-logits.npy",
        soft_wrap=True,
    )


def _paths(done: Demo) -> dict[str, str]:
    from nescio.demo import DETECTOR, REPORT, TEST, UNSEEN

    names = {"report": REPORT, "detector": DETECTOR, "test": TEST, "unseen": UNSEEN}
    return {name: str(done.folder / file) for name, file in names.items()}
