"""What several commands share: options, reading files, building a detector."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from nescio.arrays import looks_like_probabilities
from nescio.errors import InputError, ParameterError
from nescio.outputs import Outputs

if TYPE_CHECKING:
    from nescio.calibration import Calibration
    from nescio.detectors import Detector

FromProbs = Annotated[
    bool,
    typer.Option(
        "--from-probs", help="The files hold probabilities; convert them to logits exactly."
    ),
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
    """Standard output; wide enough for a table when it is not a terminal."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=120)


def read_outputs(path: Path, *, from_probs: bool) -> Outputs:
    """Outputs from a file; probabilities are refused unless announced."""
    outputs = Outputs.load(path, from_probs=from_probs)
    if not len(outputs):
        raise InputError(f"{path} has no rows.")
    if not from_probs and looks_like_probabilities(outputs.logits):
        raise InputError(
            f"{path}: every value lies within [0, 1]. These look like probabilities, and logits "
            "are expected; pass --from-probs if they are."
        )
    return outputs


def calibration_facts(calibration: Calibration) -> dict[str, Any]:
    """What was asked of a calibration and what it gives, by group, for JSON."""
    first = next(iter(calibration.thresholds.values()))
    return {
        "n_samples": calibration.n_samples,
        "tpr": first.tpr,
        "confidence": first.confidence,
        "by": calibration.by,
        "tau": calibration.taus,
        "tpr_interval_99": {
            name: threshold.tpr_interval() for name, threshold in calibration.thresholds.items()
        },
    }


def detector_names(incomplete: str = "") -> list[str]:
    """Names of detectors, for shell completion."""
    from nescio.detectors import DETECTORS

    return [name for name in DETECTORS if name.startswith(incomplete)]


def build_detector(name: str, settings: list[str] | None, **parameters: Any) -> Detector:
    """A detector by name, with NAME=VALUE settings."""
    from nescio.detectors import DETECTORS

    if name not in DETECTORS:
        raise ParameterError(f"there is no detector {name!r}. Choose from: {', '.join(DETECTORS)}.")
    detector_class = DETECTORS[name]
    known = set(detector_class().get_params()) - {"tpr", "nonfinite"}
    for setting in settings or ():
        key, _, text = setting.partition("=")
        if key not in known:
            allowed = f"it has {', '.join(sorted(known))}" if known else "it has none"
            raise ParameterError(f"{name} has no parameter {key!r} to set; {allowed}.")
        parameters[key] = _value(text, type(detector_class().get_params()[key]), setting)
    return detector_class(**parameters)


def _value(text: str, kind: type, setting: str) -> Any:
    """The text as a value of the same kind as the parameter's default."""
    if kind is str:
        return text
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if type(value) is not kind:
        raise ParameterError(f"--set {setting}: expected a value of type {kind.__name__}.")
    return value
