"""Shared by several commands: options, reading files, building a detector."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress
from rich.status import Status

from nescio._validation import looks_like_percentages, looks_like_probabilities
from nescio.calibration import CUSTOM
from nescio.errors import InputError, ParameterError
from nescio.outputs import Outputs

if TYPE_CHECKING:
    from nescio.calibration import Calibration
    from nescio.detectors import Detector

DetectorFile = Annotated[
    Path,
    typer.Argument(
        readable=False, metavar="DETECTOR", help="A detector saved by 'nescio calibrate'."
    ),
]
FromProbs = Annotated[
    bool | None,
    typer.Option(
        "--from-probs/--from-logits",
        help="Whether the files hold probabilities, which are converted, or logits. Logits are "
        "expected; values that all lie within [0, 1] are rejected unless you pass one of these.",
    ),
]
Nonfinite = Annotated[
    str | None,
    typer.Option(help="Rows with NaN or infinity: 'raise' an error, or count them as 'out'."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing output file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a machine to read.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A parameter of the detector, such as k=10 or aggregate=sum. May be repeated.",
    ),
]


def terminal() -> Console:
    """Return standard output; wide enough for a table if it is not a terminal."""
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120
    return Console(highlight=False, markup=False, width=wide)  # names may hold brackets


def working(what: str) -> Status:
    """Show on the terminal that work is in progress; nothing without a terminal."""
    return Console(stderr=True).status(what)


def refuse_overwriting(output: Path | None, *inputs: Path | None) -> None:
    """Raise if the output is one of the inputs."""
    for path in inputs:
        if output is not None and path is not None and same_file(output, path):
            raise ParameterError(f"{output} is an input; write to another file.")


def same_file(a: Path, b: Path) -> bool:
    """Return whether two paths refer to one file."""
    try:
        return os.path.samefile(a, b)
    except OSError:  # one of them does not exist or cannot be accessed
        return False


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[int], object]]:
    """Yield a function to call with the steps done; show nothing without a terminal."""
    stderr = Console(stderr=True)
    if not stderr.is_terminal:
        yield lambda _: None
        return
    with Progress(console=stderr, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda steps: progress.advance(task, steps)


def read_outputs(path: Path, *, from_probs: bool | None) -> Outputs:
    """Read outputs; reject what looks like probabilities unless the user said which it is."""
    outputs = Outputs.load(path, from_probs=bool(from_probs))
    if not len(outputs):
        raise InputError(f"{path} has no rows.")
    if from_probs is None and looks_like_probabilities(outputs.logits, at_least=1):
        raise InputError(
            f"{path}: every value lies within [0, 1]. These look like probabilities, but logits "
            "are expected. Pass --from-probs if they are probabilities, --from-logits if not."
        )
    if from_probs is None and looks_like_percentages(outputs.logits):
        raise InputError(
            f"{path}: no value is negative, and the largest is {np.nanmax(outputs.logits):g}. "
            "These look like percentages, but logits are expected, which are negative for absent "
            "labels. If they are percentages, divide them by 100 and pass --from-probs. If they "
            "are logits, pass --from-logits."
        )
    return outputs


def load_detector(path: Path, *, nonfinite: str | None = None) -> Detector:
    """Load a detector; reject one whose groups only the caller knows."""
    from nescio.detectors import load

    detector = load(path)
    calibration = getattr(detector, "calibration_", None)
    if calibration is not None and calibration.by == CUSTOM:
        raise InputError(
            f"{path} was calibrated by your own groups, which the command line does not know. Use "
            "assess(..., groups=...) or explain(..., groups=...) in Python."
        )
    if nonfinite is not None:
        detector.set_params(nonfinite=nonfinite)
    return detector


def calibration_facts(calibration: Calibration) -> dict[str, Any]:
    """Return the settings and results of a calibration by group, for JSON."""
    first = next(iter(calibration.thresholds.values()))
    return {
        "n_samples": calibration.n_samples,
        "tpr": first.tpr,
        "confidence": first.confidence,
        "by": calibration.by,
        "threshold": calibration.threshold_values,
        "tpr_interval_99": {
            name: threshold.tpr_interval() for name, threshold in calibration.thresholds.items()
        },
    }


def detector_names(incomplete: str = "") -> list[str]:
    """Return the names of detectors, for shell completion."""
    from nescio.detectors import DETECTORS

    return [name for name in DETECTORS if name.startswith(incomplete)]


def build_detector(name: str, settings: list[str] | None, **parameters: Any) -> Detector:
    """Make a detector from its name, as name(parameter=value), and NAME=VALUE settings."""
    from nescio.detectors import naming

    pairs = (setting.partition("=") for setting in settings or ())
    return naming.build_detector(name, {key: text for key, _, text in pairs}, **parameters)
