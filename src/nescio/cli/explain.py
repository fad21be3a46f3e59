"""nescio explain: why an input was flagged, label by label, and part by part of a combination."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from nescio.cli.options import AsJson, DataOptions, DetectorFile, Nonfinite, load_detector
from nescio.cli.printing import print_json, say, working
from nescio.errors import InputError, ParameterError, error_context
from nescio.outputs import Outputs

if TYPE_CHECKING:
    from nescio.detectors import Detector


def explain(
    detector: DetectorFile,
    data: Annotated[
        Path,
        typer.Argument(metavar="DATA", help="The logits of the model. One input is explained."),
    ],
    files: DataOptions,
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
    nonfinite: Nonfinite = None,
    as_json: AsJson = False,
) -> None:
    """Show the share of each label in the score of one input, next to in-distribution medians.

    For a combination of detectors, show what each part says. The most telling labels are shown;
    JSON has all of them.

    Example: nescio explain tagger.nescio new.parquet --id IMG_0142
    """
    if row is not None and sample_id is not None:
        raise ParameterError("--row and --id both choose an input. Pass only one of them.")
    loaded = load_detector(detector, nonfinite=nonfinite)
    outputs = files.read(data, detector=loaded)
    with error_context(data):
        row = _row(loaded, outputs, row, sample_id)
        reason = loaded.explain(outputs[[row]])[0]
    if as_json:
        print_json({"row": row} | reason.as_dict())
        return
    say(f"row {row}{': ' if reason.id is None else ', '}{reason}")
    by_label = reason.by_label()
    if by_label not in (None, reason):  # that of the decisive part of a combination
        say(f"\n{by_label}")


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
