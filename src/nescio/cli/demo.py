"""nescio demo: run everything on data that ships with scikit-learn."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from nescio._io.tables import require, to_json
from nescio.cli.bench import stages
from nescio.cli.options import AsJson, Force, terminal
from nescio.cli.vision import Device, require_vision

if TYPE_CHECKING:
    from nescio.demo import Demo


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder for the report and all other files.")
    ] = Path("nescio-demo"),
    seeds: Annotated[int, typer.Option(min=1, help="How many networks to train.")] = 3,
    device: Device = "auto",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Train small networks, run every detector on unseen data, and write a report.

    The networks are trained on scenes of handwritten digits, which are made from data that ships
    with scikit-learn (no download). The unseen data are other digits, photographs and noise.
    """
    require_vision()
    require("jinja2", "report")
    from nescio.demo import run_demo
    from nescio.training import choose_device

    with stages() as watch:
        done = run_demo(output, seeds=seeds, device=choose_device(device), force=force, watch=watch)
    kept = float((done.detector.predict(done.test) == 1).mean())
    flagged = float((done.detector.predict(done.unseen) == -1).mean())
    if as_json:
        found = {"test_kept": kept, "unseen_flagged": flagged}
        results = [line.as_dict() for line in done.run.lines]
        typer.echo(to_json(_paths(done) | found | {"results": results}))
        return
    console = terminal()
    console.print(_table(done))
    console.print(
        f"joint_energy, calibrated on validation scenes to keep 95 % (seed 0), keeps {kept:.1%} "
        f"of the test scenes and flags {flagged:.1%} of the scenes of unseen digits.",
        soft_wrap=True,
    )
    console.print(done.detector.calibration_.statement(), soft_wrap=True)
    program = "nescio" if shutil.which("nescio") else f"{shlex.quote(sys.executable)} -m nescio"
    paths = {name: shlex.quote(path) for name, path in _paths(done).items()}
    console.print(
        f"\nReport: {paths['report']}\n\nNow try:\n"
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


def _table(done: Demo) -> Table:
    """Return the FPR95 of each detector on every OOD set."""
    from nescio.benchmark.results import Spread, summarise

    summary = summarise(done.run.lines)
    n_seeds = len({line.seed for line in done.run.lines})
    spread = f"mean ± standard deviation over {n_seeds} seeds" if n_seeds > 1 else "one seed"
    best = {line.seed: line.manifest["training"]["best"]["val_map"] for line in done.run.lines}
    table = Table(
        title=f"FPR95 ↓ against scenes of known digits, per cent, {spread}",
        caption=f"validation mAP of the networks: {Spread.of(list(best.values()))}",
    )
    table.add_column("detector", no_wrap=True)
    for _, ood in summary:
        table.add_column(ood, justify="right")
    first = next(iter(summary.values()))
    for name in sorted(first, key=lambda one: first[one]["fpr"].mean):
        table.add_row(name, *(str(found[name]["fpr"]) for found in summary.values()))
    return table
