"""nescio detectors and nescio info: what there is, and what a file holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from nescio._io.tables import to_json
from nescio.cli.options import AsJson, calibration_facts, terminal


def detectors(as_json: AsJson = False) -> None:
    """List the detectors: what each one reads, whether it learns, and the paper behind it."""
    from nescio.detectors import DETECTORS

    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "reads": list(detector.reads),
            "learns": bool(detector.learned),
            "summary": (detector.__doc__ or "").partition("\n")[0],
            "paper": detector.paper,
        }
        for name, detector in DETECTORS.items()
    ]
    if as_json:
        typer.echo(to_json(rows))
        return
    table = Table()
    table.add_column("name", no_wrap=True)
    for title in ("reads", "learns", "what it is", "paper"):
        table.add_column(title)
    for row in rows:
        learns = "yes" if row["learns"] else "no"
        table.add_row(row["name"], ", ".join(row["reads"]), learns, row["summary"], row["paper"])
    terminal().print(table)


def info(
    file: Annotated[
        Path,
        typer.Argument(readable=False, metavar="FILE", help="A detector saved by 'nescio fit'."),
    ],
    as_json: AsJson = False,
) -> None:
    """Show what a saved detector is, its threshold and its guarantee."""
    from nescio.detectors import load
    from nescio.detectors.artifact import label_fingerprint
    from nescio.detectors.inputs import ONE_COLUMN_A_LABEL

    detector = load(file)
    calibration = getattr(detector, "calibration_", None)
    reads = "labels" if detector.reads[0] in ONE_COLUMN_A_LABEL else "features"
    parameters = detector.get_params()
    if calibration is not None:
        del parameters["tpr"]  # the calibration has its own
    facts: dict[str, Any] = {
        "detector": detector.name,
        "parameters": parameters,
        f"n_{reads}": detector.n_features_in_,
        "label_names": detector.label_names_,
        "label_fingerprint": label_fingerprint(detector.label_names_),
        **(
            {"threshold": detector.offset_}
            if calibration is None
            else calibration_facts(calibration)
        ),
    }
    if as_json:
        typer.echo(to_json(facts))
        return
    facts.pop("tpr_interval_99", None)  # the statement below says it
    console = terminal()
    for name, value in facts.items():
        if name == "label_names" and value is not None and len(value) > 5:
            value = f"{', '.join(value[:5])}, ... ({len(value)} in all)"
        console.print(f"{name:<20} {value}", soft_wrap=True)
    if calibration is not None:
        console.print(calibration.statement(), soft_wrap=True)
