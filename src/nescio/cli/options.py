"""Options that several commands share, and what the commands do with them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nescio._io.columns import Columns
from nescio._io.files import existing_file, same_file
from nescio._optional import require
from nescio._validation import checked_choice
from nescio.calibration import CUSTOM
from nescio.errors import InputError, ParameterError
from nescio.outputs import Outputs
from nescio.outputs.reading import ANY_COLUMNS, read_outputs

if TYPE_CHECKING:
    from nescio.calibration import Calibration
    from nescio.detectors import Detector

_NAMED_LABELS = 12  # that are printed

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
        help="The files hold probabilities, which are converted to logits; or logits, even if "
        "they look like probabilities, which are rejected otherwise.",
    ),
]
Nonfinite = Annotated[
    str | None,
    typer.Option(help="Rows with NaN or infinity: 'raise' an error, or count them as 'out'."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing output file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a machine to read.")]
Engine = Annotated[
    str,
    typer.Option(
        help="Where the work is done: 'local', on this machine, or 'ray', on the Ray cluster at "
        "the address in RAY_ADDRESS (without it, on a temporary one on this machine).",
    ),
]
IdColumn = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The column of a table that holds the ids. Default: a column named id, or the index "
        "that pandas stored.",
    ),
]
LabelColumns = Annotated[
    list[str] | None,
    typer.Option(
        "--labels",
        metavar="NAMES",
        help="The columns of a table that hold the logits, in this order: names or patterns with "
        "commas between them ('logit_*'), or a .txt file with one name per line. All other columns "
        "are ignored. May be repeated.",
    ),
]
IgnoreColumns = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore",
        metavar="NAMES",
        help="Columns of a table to leave out: names or patterns with commas between them. May be "
        "repeated.",
    ),
]
Separator = Annotated[
    str | None,
    typer.Option(
        "--sep",
        metavar="CHARACTER",
        help="The separator of CSV files, such as ';'. Default: a comma, in .tsv files a tab.",
    ),
]
Decimal = Annotated[
    str, typer.Option("--decimal", metavar="CHARACTER", help="The decimal sign of CSV files.")
]
Train = Annotated[
    str | None, typer.Option("--train", help="Training outputs, for the detectors that learn.")
]
HeldOut = Annotated[
    str | None,
    typer.Option(
        "--held-out",
        help="Held-out in-distribution outputs, for the detectors that learn from such data "
        "(combined). Neither training nor test data.",
    ),
]
Tpr = Annotated[
    float,
    typer.Option(help="The share of in-distribution samples to keep. The FPR is at this TPR."),
]


def refuse_overwriting(output: Path | None, *inputs: str | Path | None) -> None:
    """Raise if the output is one of the inputs."""
    for path in inputs:
        if output is not None and path is not None and same_file(output, path):
            raise ParameterError(f"{output} is an input; write to another file.")


def named_paths(option: str, texts: Sequence[str], form: str) -> dict[str, Path]:
    """Return the paths of an option that is given as NAME=PATH, by name."""
    paths = {}
    for text in texts:
        name, _, path = text.partition("=")
        if not (name and path):
            raise ParameterError(f"{option} {text}: expected {form}.")
        paths[name] = Path(path)
    return paths


def checked_engine(engine: str) -> str:
    """Return the engine; raise if there is no such engine, or if it is not installed."""
    checked_choice("--engine", engine, ("local", "ray"))
    if engine == "ray":
        require("ray", "ray")
    return engine


def chosen_columns(
    id_column: str | None,
    labels: list[str] | None,
    ignore: list[str] | None,
    keep: list[str] | None = None,
    *,
    sep: str | None = None,
    decimal: str = ".",
) -> Columns:
    """Return the options for the columns of a table."""
    for option, character in (("--sep", sep), ("--decimal", decimal)):
        if character is not None and len(character) != 1:
            raise ParameterError(f"{option} must be one character, got {character!r}.")
    names = None if labels is None else [name for text in labels for name in _labels(text)]
    ignored, kept = (
        [name for text in given or () for name in _split(text)] for given in (ignore, keep)
    )
    return Columns(id_column, names, ignored, kept, sep=sep, decimal=decimal)


def read_names(path: str) -> list[str]:
    """Read a text file with one name per line, for --labels."""
    try:
        lines = existing_file(path).read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ParameterError(f"--labels {path} is not a text file in UTF-8.") from error
    return [line.strip() for line in lines if line.strip()]


def _labels(text: str) -> list[str]:
    return read_names(text) if text.lower().endswith(".txt") else _split(text)


def _split(text: str) -> list[str]:
    """Split names at commas; a name that holds a comma is put in double quotes."""
    names = next(csv.reader([text], skipinitialspace=True), [])
    return [name.strip() for name in names if name.strip()]


def read_for(
    detector: Detector,
    path: str | Path,
    *,
    from_probs: bool | None,
    columns: Columns = ANY_COLUMNS,
) -> Outputs:
    """Read outputs for a detector: from a table, the labels that the detector knows by name."""
    expected = replace(columns, expected=getattr(detector, "label_names_", None))
    return read_outputs(path, from_probs=from_probs, columns=expected)


def describe(
    n_rows: int, n_labels: int, names: Sequence[str] | None, ignored: Sequence[str]
) -> str:
    """Describe what was read in one line: rows, labels and the columns that were ignored."""
    shown = ""
    if names is not None:
        n_more = len(names) - _NAMED_LABELS
        more = f" and {n_more:,} more" if n_more > 0 else ""
        shown = f" ({', '.join(names[:_NAMED_LABELS])}{more})"
    labels = "label" if n_labels == 1 else "labels"
    line = f"{n_rows:,} rows x {n_labels:,} {labels}{shown}"
    return line + (f"; ignored columns: {', '.join(ignored)}" if ignored else "")


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
    return {
        **calibration.facts(),
        "tpr_interval_99": {
            name: threshold.tpr_interval() for name, threshold in calibration.thresholds.items()
        },
    }


def detector_names(incomplete: str = "") -> list[str]:
    """Return the names of detectors, for shell completion."""
    from nescio.detectors import DETECTORS

    return [name for name in DETECTORS if name.startswith(incomplete)]
