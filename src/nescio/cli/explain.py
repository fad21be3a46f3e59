"""nescio explain: why an input was flagged, label by label, and part by part of a combination."""

from __future__ import annotations

import difflib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np
import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from nescio._io.tables import to_json
from nescio._validation import Array, checked_whole
from nescio.cli.options import (
    AsJson,
    DetectorFile,
    FromProbs,
    IdColumn,
    IgnoreColumns,
    LabelColumns,
    Nonfinite,
    chosen_columns,
    load_detector,
    read_for,
    terminal,
    working,
)
from nescio.errors import InputError, ParameterError, about
from nescio.explain import (
    LabelTerm,
    PartsExplanation,
    PartsReason,
    Reason,
    cells,
    checked_terms,
)
from nescio.outputs import Outputs

if TYPE_CHECKING:
    from nescio.detectors import Detector

_WIDEST_NAME = 30
_WIDEST_BAR = 40
_NARROWEST_NAME = 8
_NARROWEST_BAR = 12


def explain(
    detector: DetectorFile,
    data: Annotated[
        Path,
        typer.Argument(
            readable=False, metavar="DATA", help="The logits of the model. One input is explained."
        ),
    ],
    row: Annotated[
        int | None,
        typer.Option(
            help="The row of the input to explain; the first is 0. Default: the input furthest "
            "below its threshold."
        ),
    ] = None,
    sample_id: Annotated[
        str | None, typer.Option("--id", metavar="NAME", help="The id of the input to explain.")
    ] = None,
    top: Annotated[int, typer.Option(help="Number of labels to show; JSON has all.")] = 10,
    train: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            help="The training outputs, to show the nearest training samples by their ids instead "
            "of their rows.",
        ),
    ] = None,
    id_column: IdColumn = None,
    labels: LabelColumns = None,
    ignore: IgnoreColumns = None,
    nonfinite: Nonfinite = None,
    from_probs: FromProbs = None,
    as_json: AsJson = False,
) -> None:
    """Show the share of each label in the score of one input, next to in-distribution medians.

    For a combination of detectors, show what each part says.

    Example: nescio explain tagger.nescio new.parquet --id IMG_0142
    """
    checked_whole("--top", top, minimum=1)
    if row is not None and sample_id is not None:
        raise ParameterError("--row and --id both choose an input. Pass only one of them.")
    loaded = load_detector(detector, nonfinite=nonfinite)
    if not loaded.explains:
        checked_terms(None, loaded.name)
    columns = chosen_columns(id_column, labels, ignore)
    outputs = read_for(loaded, data, from_probs=from_probs, columns=columns)
    with about(data):
        row = _row(loaded, outputs, row, sample_id)
        explanation = loaded.explain(outputs[[row]])
    if train is not None and isinstance(explanation, PartsExplanation):
        learned_from = read_for(loaded, train, from_probs=from_probs, columns=columns)
        with about(train):
            explanation = explanation.with_train_ids(_train_ids(loaded, learned_from))
    reason = explanation[0]
    if as_json:
        typer.echo(to_json({"row": row} | reason.as_dict()))
        return
    console = terminal()
    name = f"row {row}" if reason.id is None else f"row {row}, {reason.id}"
    style = "bold" if reason.in_distribution else "bold red"
    name, summary = (_printable(text, console.encoding) for text in (name, reason.summary()))
    console.print(Text.assemble(f"{name}: ", (reason.headline(), style)))
    console.print(summary, end="\n\n")
    if isinstance(reason, PartsReason):
        _print_parts(console, reason, top)
    else:
        _print_bars(console, reason, reason.most_telling(top))


def _train_ids(detector: Detector, train: Outputs) -> Array:
    """Return the ids of the rows that the detector has learned from."""
    from nescio.detectors import arrays
    from nescio.detectors.plausibility import has_learned_from

    if train.ids is None:
        raise InputError("the samples have no ids. Omit --train.")
    if not has_learned_from(detector, train):
        raise InputError(
            "the detector has not learned from this data, or not with the rows in this order. Pass "
            "its training data to --train, in the same order. If an older nescio saved the "
            "detector, run nescio calibrate again: the order is not in its file."
        )
    usable = arrays.usable_rows(arrays.read(train, detector.learns_from, detector).arrays, detector)
    ids: Array = train.ids[usable]
    return ids


def _print_parts(console: Console, reason: PartsReason, top: int) -> None:
    """Print a table of the parts, then what each of them knows besides its score."""
    rows = reason.rows()
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *cells_of_row in rows:
        numbers = (f"  {cell:>{w}}" for cell, w in zip(cells_of_row, widths[1:], strict=True))
        console.print(f"{name:<{widths[0]}}" + "".join(numbers), soft_wrap=True)
    for part in reason.parts:
        if part.nearest:
            text = f"{part.detector}: nearest training samples {part.nearest_text()}"
            console.print("\n" + _printable(text, console.encoding), soft_wrap=True)
        if part.reason is not None:
            text = f"{part.detector}: {part.reason.summary()}"
            console.print("\n" + _printable(text, console.encoding), end="\n\n", soft_wrap=True)
        if isinstance(part.reason, PartsReason):
            _print_parts(console, part.reason, top)
        elif part.reason is not None:
            _print_bars(console, part.reason, part.reason.most_telling(top))


def _row(detector: Detector, outputs: Outputs, row: int | None, sample_id: str | None) -> int:
    """Return the chosen row, or the most suspicious one."""
    if sample_id is not None:
        return _row_of_id(outputs, sample_id)
    if row is None:
        with working("scoring"):
            return int(np.argmin(detector.decision_function(outputs)))
    if not 0 <= row < len(outputs):
        raise InputError(f"there is no row {row}; the rows are 0 to {len(outputs) - 1}.")
    return row


def _row_of_id(outputs: Outputs, sample_id: str) -> int:
    if outputs.ids is None:
        raise InputError("the samples have no ids. Pass --row instead of --id.")
    rows = np.flatnonzero(outputs.ids == sample_id)
    if len(rows) > 1:
        some = ", ".join(map(str, rows[:5].tolist()))
        raise InputError(
            f"{len(rows)} rows have the id {sample_id!r} ({some}). Pass --row instead."
        )
    if not len(rows):
        near = difflib.get_close_matches(sample_id, outputs.ids.tolist(), n=3)
        hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise InputError(f"there is no id {sample_id!r}.{hint}")
    return int(rows[0])


# --- bars -------------------------------------------------------------------------------------


class _Signs(NamedTuple):
    bar: str
    median: str
    rank_median: str
    cut: str


_SIGNS = _Signs("█", "│", "○", "…")
_ASCII_SIGNS = _Signs("#", "|", "o", "~")


def _print_bars(console: Console, reason: Reason, shown: tuple[LabelTerm, ...]) -> None:
    """Print one line per label: its name, a bar and as many numbers as there is room for."""
    signs = _ASCII_SIGNS if console.options.ascii_only else _SIGNS
    names = ["label", *(_printable(label.label, console.encoding) for label in shown)]
    titles = (reason.term, "share", "median", "rank median")
    columns = [column for column in zip(titles, *map(cells, shown), strict=True) if any(column[1:])]
    name_width, bar_width, widths = _layout(console.width, names, columns)
    bars = ["", *(_bar(label, _scale(shown), bar_width, signs) for label in shown)]
    for name, bar, *numbers in zip(names, bars, *columns, strict=True):
        right = "".join(f"  {text:>{w}}" for text, w in zip(numbers, widths, strict=False))
        line = f"{_fitted(name, name_width, signs)} {bar:<{bar_width}}{right}"
        console.print(Text(line), no_wrap=True, overflow="crop")
    if others := reason.others(shown):
        console.print(others)
    console.print(
        f"\n{signs.bar} this input  {signs.median} in-distribution median of the label  "
        f"{signs.rank_median} in-distribution median of the rank"
    )


def _layout(
    width: int, names: list[str], columns: list[tuple[str, ...]]
) -> tuple[int, int, list[int]]:
    """Return the widths of the names, the bars and as many columns as there is room for."""

    def room() -> int:  # for the name and the bar, with a space between them
        return width - sum(widths) - 2 * len(widths) - 1

    name_width = min(_WIDEST_NAME, max(map(cell_len, names)))
    widths = [max(map(len, column)) for column in columns]
    while len(widths) > 1 and room() < name_width + _NARROWEST_BAR:
        widths.pop()
    name_width = min(name_width, max(_NARROWEST_NAME, room() - _NARROWEST_BAR))
    return name_width, max(1, min(_WIDEST_BAR, room() - name_width)), widths


def _scale(shown: tuple[LabelTerm, ...]) -> tuple[float, float]:
    """Return the range of the bars: from 0, or a negative logit, to the largest number."""
    values = [value for label in shown for value in (label.term, label.median, label.rank_median)]
    values = [value for value in values if math.isfinite(value)]
    return min(0.0, *values), max(0.0, *values)


def _bar(label: LabelTerm, scale: tuple[float, float], width: int, signs: _Signs) -> str:
    """Draw a bar whose length is the term, with signs at the two medians."""
    low, high = scale

    def place(value: float) -> float:
        return (value - low) / (high - low or 1.0) * width

    filled = round(place(label.term)) if math.isfinite(label.term) else 0
    line = list(f"{signs.bar * filled:<{width}}")
    for value, sign in ((label.rank_median, signs.rank_median), (label.median, signs.median)):
        if math.isfinite(value):
            line[min(width - 1, int(place(value)))] = sign
    return "".join(line)


def _fitted(name: str, width: int, signs: _Signs) -> str:
    """Return the name with this width on the terminal, cut if it is longer."""
    if cell_len(name) > width:
        return set_cell_size(name, width - 1) + signs.cut
    return set_cell_size(name, width)


def _printable(text: str, encoding: str) -> str:
    """Return the text without characters that move the cursor or that the terminal lacks."""
    shown = "".join(character if character.isprintable() else "?" for character in text)
    return shown.encode(encoding, "replace").decode(encoding)
