"""nescio calibrate: calibrate a detector on held-out data and save it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nescio._io.addresses import same_file
from nescio._io.files import check_target
from nescio._io.tables import to_json
from nescio.calibration.sampling import MAX_SAMPLES
from nescio.cli.options import (
    AsJson,
    Force,
    FromProbs,
    IdColumn,
    IgnoreColumns,
    LabelColumns,
    Nonfinite,
    Settings,
    build_detector,
    calibration_facts,
    chosen_columns,
    detector_names,
    progress_bar,
    refuse_overwriting,
    terminal,
    what_was_read,
    working,
)
from nescio.errors import MissingInputError, ParameterError, about
from nescio.outputs.large import LargeInput, check_fits, find_large
from nescio.outputs.reading import columns_of_others, read_others, read_outputs

if TYPE_CHECKING:
    from nescio.detectors import Detector


def calibrate(
    held_out: Annotated[
        str,
        typer.Argument(
            metavar="HELD_OUT",
            help="Held-out in-distribution data to calibrate on: the model's logits, and features "
            "if the detector reads them. A file, a pattern or a folder of Parquet files, or a "
            "remote address; files larger than memory are read in blocks.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to save the detector.")],
    detector: Annotated[
        str,
        typer.Option(
            "--detector",
            "-d",
            help="The name of the detector, with parameters if needed: top_k_joint_energy(k=5). "
            "'nescio detectors' lists them; package.module:Class names one of your own. auto takes "
            "a combination of logits and features if --train has features and labels, otherwise "
            "joint energy, with more than 20 labels that of the 20 largest.",
            autocompletion=detector_names,
        ),
    ] = "auto",
    tpr: Annotated[
        float, typer.Option(help="The share of in-distribution samples to keep.")
    ] = 0.95,
    confidence: Annotated[
        float | None,
        typer.Option(
            help="Choose the threshold so that the long-run share kept is at least --tpr with this "
            "confidence, e.g. 0.99. Without it, it is at least --tpr on average."
        ),
    ] = None,
    by_label_count: Annotated[
        bool,
        typer.Option(
            "--by-label-count",
            help="Use one threshold per number of predicted labels, so that samples with few "
            "labels do not get most of the false alarms.",
        ),
    ] = False,
    train: Annotated[
        str | None,
        typer.Option(
            help="Training outputs, for a detector that learns from data. With features and "
            "labels, the default is better than with logits alone.",
        ),
    ] = None,
    nonfinite: Nonfinite = "raise",
    settings: Settings = None,
    id_column: IdColumn = None,
    labels: LabelColumns = None,
    ignore: IgnoreColumns = None,
    from_probs: FromProbs = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Calibrate a detector on held-out in-distribution data and save it.

    Examples: nescio calibrate val.npy --tpr 0.95 -o tagger.nescio, and with features and labels:
    nescio calibrate val.safetensors --train train.safetensors -o tagger.nescio
    """
    from nescio.detectors import steps
    from nescio.detectors.default import AUTO, default_detector
    from nescio.detectors.naming import written

    check_target(output, force=force)
    refuse_overwriting(output, held_out, train)
    columns = chosen_columns(id_column, labels, ignore)
    if train is not None and same_file(train, held_out):
        raise ParameterError(
            "--train and the held-out data are the same file. Calibrating on data that the "
            "detector has learned from would void the guarantee."
        )
    made = None
    if detector != AUTO:
        made = build_detector(detector, settings, tpr=tpr, nonfinite=nonfinite)
        _check_train(made, detector, train)
    elif settings:
        raise ParameterError("--set needs a detector: name it with --detector.")
    large = find_large(held_out, from_probs=from_probs, columns=columns)
    data = large.head if large else read_outputs(held_out, from_probs=from_probs, columns=columns)
    learned_from = None
    if train is not None:
        of_train = columns_of_others(train, columns, data.label_names)
        check_fits(train, from_probs=from_probs, columns=of_train)
        learned_from = read_others(train, data, from_probs=from_probs, columns=columns)
    reason = ""
    if made is None:
        made, reason = default_detector(learned_from, data, tpr=tpr, nonfinite=nonfinite or "raise")
    if large and made.learns_from_held_out:
        large.check_fits(f"{made.name} learns from all of them at once")
        data, large = read_outputs(held_out, from_probs=from_probs, columns=columns), None
    if learned_from is not None and made.learns_from:
        with working("learning"), about(train):
            # Unlike fit, this does not score the training data: calibrate sets the threshold.
            steps.learn(made, learned_from, None)
    n_rows = large.n_rows if large else len(data)
    if large:
        n_learned = None if learned_from is None else len(learned_from)
        _calibrate_blocks(made, large, confidence, n_learned, by_label_count=by_label_count)
    else:
        groups = "label_count" if by_label_count else None
        with working("calibrating"), about(held_out):
            made.calibrate(data, confidence=confidence, groups=groups)
    made.save(output, force=force)
    calibration = made.calibration_
    if as_json:
        saved = {
            "detector": made.name,
            "reason": reason,
            "parameters": _parameters(made),
            "output": str(output),
            "n_rows": n_rows,
            "n_labels": data.n_labels,
            "ignored_columns": data.manifest.get("ignored_columns", []),
        }
        typer.echo(to_json(saved | calibration_facts(calibration)))
        return
    console = terminal()
    console.print(what_was_read(data, n_rows), soft_wrap=True)
    if n_rows > MAX_SAMPLES:
        console.print(
            f"{MAX_SAMPLES:,} of the rows, drawn at random, set the threshold: a detector keeps no "
            "more scores.",
            soft_wrap=True,
        )
    if reason:
        console.print(reason, soft_wrap=True)
    name = written(made)
    for group, threshold in calibration.thresholds.items():
        which = "" if calibration.by is None else f" (predicted labels: {group})"
        console.print(
            f"{name}{which}: in-distribution if the score is at least {threshold.value:.6g}. "
            + threshold.statement(),
            soft_wrap=True,
        )
    console.print(f"saved {output}", soft_wrap=True)


def _calibrate_blocks(
    made: Detector,
    held_out: LargeInput,
    confidence: float | None,
    n_learned: int | None,
    *,
    by_label_count: bool,
) -> None:
    from nescio.detectors.calibrating import calibrate_stream

    with progress_bar("calibrating", held_out.n_rows, unit="rows") as advance:
        calibrate_stream(
            made,
            held_out,
            confidence=confidence,
            by_label_count=by_label_count,
            n_learned=n_learned,
            on_rows=advance,
        )


def _check_train(made: Detector, name: str, train: str | None) -> None:
    """Raise unless there are training outputs just if the detector learns from them."""
    if made.learns_from and train is None:
        raise MissingInputError(
            f"{name} learns from data: pass training outputs with --train. (Calibrating on data "
            "that it has learned from would void the guarantee.)"
        )
    if train is not None and not made.learns_from:
        raise ParameterError(f"{name} does not learn from training data: omit --train.")


def _parameters(detector: Detector) -> dict[str, Any]:
    """Return the parameters that the detector has of its own, defaults included."""
    from nescio.detectors.saving import plain_params

    shared = ("tpr", "nonfinite")  # the guarantee states the one, the user chose the other
    return {name: value for name, value in plain_params(detector).items() if name not in shared}
