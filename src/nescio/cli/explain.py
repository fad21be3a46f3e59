"""nescio explain: why an input was flagged, label by label, and part by part of a combination."""

from __future__ import annotations

import difflib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.text import Text

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
)
from nescio.cli.printing import print_json, print_table, say, terminal, working
from nescio.errors import InputError, ParameterError, error_context
from nescio.explain import LabelTerm, PartsExplanation, Reason, checked_terms
from nescio.outputs import Outputs

if TYPE_CHECKING:
    from nescio.detectors import Detector

_BAR_WIDTH, _NARROW_BAR_WIDTH = 30, 12
_WIDE = 100  # columns of a terminal
_SIGNS = ("█", "│", "○")  # a bar, the median of the label, the median of the rank
_ASCII_SIGNS = ("#", "|", "o")


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
    with error_context(data):
        row = _row(loaded, outputs, row, sample_id)
        explanation = loaded.explain(outputs[[row]])
    if train is not None and isinstance(explanation, PartsExplanation):
        learned_from = read_for(loaded, train, from_probs=from_probs, columns=columns)
        with error_context(train):
            explanation = explanation.with_train_ids(_train_ids(loaded, learned_from))
    reason = explanation[0]
    if as_json:
        print_json({"row": row} | reason.as_dict())
        return
    name = f"row {row}" if reason.id is None else f"row {row}, {reason.id}"
    style = "bold" if reason.in_distribution else "bold red"
    say(Text.assemble(f"{name}: ", (reason.headline(), style)), reason.summary())
    _print_reason(reason, top)


def _print_reason(reason: Reason, top: int) -> None:
    """Print a table of the labels, or of the parts and then what each of them knows."""
    if not reason.parts:
        _print_labels(reason, reason.most_telling(top))
        return
    titles = ("part", "score", "p-value", "share")
    rows = [(part.detector, *part.cells()) for part in reason.parts]
    print_table(titles, rows, numbers=titles[1:])
    for part in reason.parts:
        if part.nearest:
            say(part.nearest_text())
        if part.reason is not None:
            say(f"{part.detector}: {part.reason.summary()}")
            _print_reason(part.reason, top)


def _train_ids(detector: Detector, train: Outputs) -> Array:
    """Return the ids of the rows that the detector has learned from."""
    from nescio.detectors import inputs
    from nescio.detectors.plausibility import has_learned_from

    if train.ids is None:
        raise InputError("the samples have no ids. Omit --train.")
    if not has_learned_from(detector, train):
        raise InputError(
            "the detector has not learned from this data, or not with the rows in this order. Pass "
            "its training data to --train, in the same order."
        )
    usable = inputs.usable_rows(inputs.read(train, detector.learns_from, detector).arrays, detector)
    ids: Array = train.ids[usable]
    return ids


def _row(detector: Detector, outputs: Outputs, row: int | None, sample_id: str | None) -> int:
    """Return the chosen row, or the most suspicious one."""
    if sample_id is None:
        if row is None:
            with working("scoring"):
                return int(np.argmin(detector.decision_function(outputs)))
        if not 0 <= row < len(outputs):
            raise InputError(f"there is no row {row}; the rows are 0 to {len(outputs) - 1}.")
        return row
    if outputs.ids is None:
        raise InputError("the samples have no ids. Pass --row instead of --id.")
    rows = np.flatnonzero(outputs.ids == sample_id)
    if len(rows) > 1:
        raise InputError(f"{len(rows)} rows have the id {sample_id!r}. Pass --row instead.")
    if not len(rows):
        near = difflib.get_close_matches(sample_id, outputs.ids.tolist(), n=3)
        hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise InputError(f"there is no id {sample_id!r}.{hint}")
    return int(rows[0])


def _print_labels(reason: Reason, shown: tuple[LabelTerm, ...]) -> None:
    """Print a table with one row per label: its name, a bar and the numbers that are known."""
    console = terminal()
    signs = _ASCII_SIGNS if console.options.ascii_only else _SIGNS
    width = _BAR_WIDTH if console.width >= _WIDE else _NARROW_BAR_WIDTH
    titles = (reason.term, "share", "median", "rank median")
    numbers = [
        column
        for column in zip(titles, *map(LabelTerm.cells, shown), strict=True)
        if any(column[1:])
    ]
    values = [value for label in shown for value in (label.term, label.median, label.rank_median)]
    values = [value for value in values if math.isfinite(value)]
    scale = min(0.0, *values), max(0.0, *values)  # a logit may be negative
    rows = [
        (label.label, _bar(label, scale, width, signs), *(column[at] for column in numbers))
        for at, label in enumerate(shown, 1)
    ]
    names = [column[0] for column in numbers]
    print_table(("label", "", *names), rows, numbers=names)
    if others := reason.others(shown):
        say(others)
    say(
        f"{signs[0]} this input  {signs[1]} in-distribution median of the label  {signs[2]} "
        "in-distribution median of the rank"
    )


def _bar(
    label: LabelTerm, scale: tuple[float, float], width: int, signs: tuple[str, str, str]
) -> str:
    """Draw a bar whose length is the term, with signs at the two medians."""
    low, high = scale
    bar, median, rank_median = signs

    def place(value: float) -> float:
        return (value - low) / (high - low or 1.0) * width

    filled = round(place(label.term)) if math.isfinite(label.term) else 0
    line = list(f"{bar * filled:<{width}}")
    for value, sign in ((label.rank_median, rank_median), (label.median, median)):
        if math.isfinite(value):
            line[min(width - 1, int(place(value)))] = sign
    return "".join(line)
