"""nescio calibrate: calibrate a detector on held-out data and save it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer

from nescio._io.files import check_target, same_file
from nescio.cli.options import (
    AsJson,
    DataOptions,
    Force,
    Nonfinite,
    calibration_facts,
    detector_names,
    output_option,
    refuse_overwriting,
)
from nescio.cli.printing import describe, print_json, say, working
from nescio.errors import DefaultDetectorWarning, MissingInputError, ParameterError, error_context
from nescio.outputs.reading import MAX_ROWS


def calibrate(
    held_out: Annotated[
        str,
        typer.Argument(
            metavar="HELD_OUT",
            help="Held-out in-distribution data to calibrate on: the model's logits, and features "
            "if the detector reads them. A file, a pattern or a folder of Parquet files, or a "
            "remote address. Of more than 4,194,304 rows, a random sample is used.",
        ),
    ],
    output: Annotated[Path, output_option("Where to save the detector.")],
    files: DataOptions,
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
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Calibrate a detector on held-out in-distribution data and save it.

    Examples: nescio calibrate val.npy --tpr 0.95 -o tagger.nescio, and with features and labels:
    nescio calibrate val.safetensors --train train.safetensors -o tagger.nescio
    """
    from nescio.detectors.default import AUTO, default_detector
    from nescio.detectors.naming import build_detector, written
    from nescio.detectors.saving import plain_params

    check_target(output, force=force)
    refuse_overwriting(output, held_out, train)
    if train is not None and same_file(train, held_out):
        raise ParameterError(
            "--train and the held-out data are the same file. Calibrating on data that the "
            "detector has learned from would void the guarantee."
        )
    made = None
    if detector != AUTO:
        made = build_detector(detector, tpr=tpr, nonfinite=nonfinite)
        if made.learns_from and train is None:
            raise MissingInputError(
                f"{detector} learns from data: pass training outputs with --train. (Calibrating "
                "on data that it has learned from would void the guarantee.)"
            )
    data = files.read(held_out, max_rows=MAX_ROWS)
    learned_from = None
    if train is not None:
        learned_from = files.read(train, first=data, max_rows=MAX_ROWS)
    reason = ""
    if made is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DefaultDetectorWarning)  # the reason is printed below
            made, reason = default_detector(
                learned_from, data, tpr=tpr, nonfinite=nonfinite or "raise"
            )
    if learned_from is not None and made.learns_from:
        with working("learning"), error_context(train):
            made.fit(learned_from, from_probs=False)
    n_rows = data.manifest.get("sampled_from", len(data))
    groups = "label_count" if by_label_count else None
    with working("calibrating"), error_context(held_out):
        made.calibrate(data, confidence=confidence, groups=groups, from_probs=False)
    made.save(output, force=force)
    calibration = made.calibration_
    ignored = data.manifest.get("ignored_columns", [])
    if as_json:
        shared = ("tpr", "nonfinite")  # the guarantee states the one, the user chose the other
        saved = {
            "detector": made.name,
            "reason": reason,
            "parameters": {k: v for k, v in plain_params(made).items() if k not in shared},
            "output": str(output),
            "n_rows": n_rows,
            "n_labels": data.n_labels,
            "ignored_columns": ignored,
        }
        print_json(saved | calibration_facts(calibration))
        return
    say(describe(n_rows, data.n_labels, data.label_names, ignored))
    if n_rows > len(data):
        say(f"{len(data):,} of the rows, drawn at random, set the threshold.")
    if reason:
        say(reason)
    for group, threshold in calibration.thresholds.items():
        which = "" if calibration.by is None else f" (predicted labels: {group})"
        say(
            f"{written(made)}{which}: in-distribution if the score is at least "
            f"{threshold.value:.6g}. {threshold.statement()}"
        )
    say(f"saved {output}")
