"""nescio demo: the whole job on data that ships with scikit-learn."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from nescio.cli.options import AsJson, Force, terminal
from nescio.errors import FileError
from nescio.files import check_target
from nescio.tables import to_json

_FILES = ("digits.nescio", "test.safetensors", "held-out-digits.safetensors")


def demo(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="A folder for the calibrated detector and data to try it on."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many networks to train.")] = 3,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Detect digits that a network has never seen, with every detector.

    Trains a small multi-label network on scenes of handwritten digits (scikit-learn's own data, no
    download), with 7, 8 and 9 held out as the out-of-distribution data.
    """
    from nescio.demo import run
    from nescio.detectors import JointEnergy

    if output is not None:
        if output.exists() and not output.is_dir():
            raise FileError(f"{output} is not a folder.")
        output.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            check_target(output / name, force=force)
    with Console(stderr=True).status("") as status:
        scenes, measured, precisions = run(seeds, on_step=status.update)
    detector = JointEnergy().calibrate(scenes.val, tpr=0.95)
    kept = float((detector.predict(scenes.test) == 1).mean())
    caught = float((detector.predict(scenes.held_out) == -1).mean())
    if output is not None:
        detector.save(output / _FILES[0], force=force)
        scenes.test.save(output / _FILES[1], force=force)
        scenes.held_out.save(output / _FILES[2], force=force)
    if as_json:
        report = {"seeds": seeds, "val_map": precisions, "detectors": measured}
        typer.echo(to_json(report | {"test_kept": kept, "held_out_flagged": caught}))
        return
    console = terminal()
    console.print(_table(measured, precisions))
    console.print(
        f"joint_energy, calibrated on {len(scenes.val):,} validation scenes to keep 95 % "
        f"(seed 0): keeps {kept:.1%} of the test scenes, flags {caught:.1%} of the scenes of "
        "unseen digits.",
        soft_wrap=True,
    )
    console.print(detector.calibration_.statement(), soft_wrap=True)
    if output is not None:
        program = "nescio" if shutil.which("nescio") else sys.argv[0]
        console.print("\nNow try:")
        console.print(f"  {program} info {output / _FILES[0]}", soft_wrap=True)
        console.print(
            f"  {program} score {output / _FILES[0]} {output / _FILES[2]}", soft_wrap=True
        )


def _table(measured: dict[str, dict[str, list[float]]], precisions: list[float]) -> Table:
    seeds = len(precisions)
    spread = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    table = Table(
        title=f"Scenes of unseen digits against scenes of known ones\nper cent, {spread}",
        caption=f"validation mAP of the network: {_spread(precisions)}",
    )
    table.add_column("detector", no_wrap=True)
    titles = {"fpr": "FPR95 ↓", "auroc": "AUROC ↑", "aupr": "AUPR ↑"}
    for title in titles.values():
        table.add_column(title, justify="right")
    ranked = sorted(measured, key=lambda name: np.mean(measured[name]["fpr"]))
    for name in ranked:
        table.add_row(name, *(_spread(measured[name][measure]) for measure in titles))
    return table


def _spread(values: list[float]) -> str:
    mean = f"{100 * np.mean(values):.2f}"
    return f"{mean} ± {100 * np.std(values, ddof=1):.2f}" if len(values) > 1 else mean
