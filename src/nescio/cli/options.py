"""Shared by several commands: options, reading files, building a detector."""

from __future__ import annotations

import csv
import glob
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import Progress, ProgressColumn, Task
from rich.segment import Segment
from rich.status import Status
from rich.text import Text

from nescio._io.addresses import is_remote, same_file
from nescio._io.columns import Columns
from nescio._io.files import existing_file
from nescio._io.tables import require
from nescio._validation import checked_choice
from nescio.calibration import CUSTOM
from nescio.errors import InputError, ParameterError
from nescio.outputs import Outputs
from nescio.outputs.reading import ANY_COLUMNS, read_outputs

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
Engine = Annotated[
    str,
    typer.Option(
        help="Where the work is done: 'local', on this machine, or 'ray', on the Ray cluster at "
        "the address in RAY_ADDRESS (without it, on a temporary one on this machine).",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A parameter of the detector, such as k=10 or aggregate=sum. May be repeated.",
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


def terminal() -> Console:
    """Return standard output; wide enough for a table if it is not a terminal."""
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120
    return PlainConsole(highlight=False, markup=False, width=wide)  # names may hold brackets


class PlainConsole(Console):
    """A console that shows control characters of texts instead of sending them to the terminal.

    Ids and labels come from files. An escape sequence in them could change what is shown.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text without control characters, which have no width."""
        return super().render_str(plain_text(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Return the segments of what is printed, without control characters in texts."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(plain_text(segment.text), segment.style)


_CONTROL = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) != "\n"}


def plain_text(text: str) -> str:
    """Return a text with a replacement character for each control character but the newline."""
    return text.translate(_CONTROL)


def working(what: str) -> Status:
    """Show on the terminal that work is in progress; nothing without a terminal."""
    return Console(stderr=True).status(what)


def refuse_overwriting(output: Path | None, *inputs: str | Path | None) -> None:
    """Raise if the output is one of the inputs."""
    for path in inputs:
        if output is not None and path is not None and same_file(output, path):
            raise ParameterError(f"{output} is an input; write to another file.")


def refuse_among_inputs(output: Path, data: str) -> None:
    """Raise if the output would be one of the files of a folder or a pattern."""
    if is_remote(data):
        return
    target, folder = Path(os.path.realpath(output)), Path(data)
    if os.path.lexists(data):  # also if the name of the file looks like a pattern
        among = folder.is_dir() and Path(os.path.realpath(folder)) in target.parents
    else:
        parts = Path(os.path.abspath(data)).parts
        fixed = next((at for at, part in enumerate(parts) if glob.has_magic(part)), len(parts))
        root = Path(os.path.realpath(Path(*parts[:fixed])))
        among = _matches(target.parts, (*root.parts, *parts[fixed:]), fixed=len(root.parts))
    if among:
        raise ParameterError(
            f"{output} would be among the inputs, {data}: write it to another folder."
        )


def _matches(parts: Sequence[str], pattern: Sequence[str], fixed: int = 0) -> bool:
    """Return whether the parts of a path match those of a pattern, as glob does.

    The first parts are names and no patterns.
    """
    if fixed:
        return parts[:fixed] == pattern[:fixed] and _matches(parts[fixed:], pattern[fixed:])
    if not pattern or not parts:
        return not parts and all(part == "**" for part in pattern)
    if pattern[0] == "**" and _matches(parts, pattern[1:]):
        return True
    rest = pattern if pattern[0] == "**" else pattern[1:]
    return fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], rest)


@contextmanager
def progress_bar(what: str, total: int, unit: str = "steps") -> Iterator[Callable[[int], object]]:
    """Yield a function to call with the steps done; show nothing without a terminal."""
    stderr = Console(stderr=True)
    if not stderr.is_terminal:
        yield lambda _: None
        return
    shown = (*Progress.get_default_columns(), _Rate(unit))
    with Progress(*shown, console=stderr, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda steps: progress.advance(task, steps)


def checked_engine(engine: str) -> str:
    """Return the engine; raise if there is no such engine, or if it is not installed."""
    checked_choice("--engine", engine, ("local", "ray"))
    if engine == "ray":
        require("ray", "ray")
    return engine


class _Rate(ProgressColumn):
    """How many steps per second are done."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        """Return the rate; nothing while it is not known."""
        speed = task.finished_speed or task.speed
        if not speed:
            return Text("")
        return Text(f"{speed:,.{0 if speed >= 10 else 1}f} {self._unit}/s")


def chosen_columns(
    id_column: str | None,
    labels: list[str] | None,
    ignore: list[str] | None,
    keep: list[str] | None = None,
) -> Columns:
    """Return what the options say about the columns of a table."""
    names = None if labels is None else [name for text in labels for name in _label_list(text)]
    ignored, kept = (
        [name for text in given or () for name in _split(text)] for given in (ignore, keep)
    )
    return Columns(id_column, names, ignored, kept)


def _label_list(text: str) -> list[str]:
    if not text.lower().endswith(".txt"):
        return _split(text)
    try:
        lines = existing_file(text).read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ParameterError(f"--labels {text} is not a text file in UTF-8.") from error
    return [line.strip() for line in lines if line.strip()]


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


def what_was_read(outputs: Outputs, n_rows: int | None = None) -> str:
    """Describe outputs in one line: rows, labels and the columns that were ignored.

    If they are only the first rows of a large input, `n_rows` is the number of all.
    """
    ignored = outputs.manifest.get("ignored_columns", ())
    return describe(n_rows or len(outputs), outputs.n_labels, outputs.label_names, ignored)


def describe(
    n_rows: int, n_labels: int, names: Sequence[str] | None, ignored: Sequence[str]
) -> str:
    """Describe what was read in one line: rows, labels and the columns that were ignored."""
    shown = "" if names is None else f" ({names[0]} ... {names[-1]})"
    if names is not None and len(names) == 1:
        shown = f" ({names[0]})"
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


def build_detector(name: str, settings: list[str] | None, **parameters: Any) -> Detector:
    """Make a detector from its name, as name(parameter=value), and NAME=VALUE settings."""
    from nescio.detectors import naming

    pairs = (setting.partition("=") for setting in settings or ())
    return naming.build_detector(name, {key: text for key, _, text in pairs}, **parameters)
