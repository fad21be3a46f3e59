"""nescio calibrate, score, explain, detectors and info: from outputs to verdicts."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from typer import Argument, Option

from nescio._charts.results import View, result_text
from nescio._io.files import check_table_target, check_target, to_values
from nescio._io.tables import GROUP, described_labels
from nescio._validation import checked_choice
from nescio.calibration import LABEL_COUNT, TOP_LABEL
from nescio.cli.console import (
    AsJson,
    DataOptions,
    DetectorFile,
    Force,
    GroupColumn,
    Nonfinite,
    describe,
    detector_names,
    load_detector,
    print_facts,
    print_json,
    print_rows,
    progress_bar,
    refuse_overwriting,
    say,
    working,
)
from nescio.errors import (
    DefaultDetectorWarning,
    InputError,
    MissingInputError,
    ParameterError,
    error_context,
    listed,
    nearest,
    require,
    warn,
)
from nescio.outputs import Outputs
from nescio.outputs.files import MAX_ROWS, OutputsStream, read_outputs

if TYPE_CHECKING:
    from nescio.detectors import Detector
    from nescio.detectors.verdicts import ScoreEngine

_TELLING_SHARE = 0.1  # of the evidence; what other parts say would only distract


def calibrate(
    held_out: Annotated[
        str,
        Argument(
            metavar="HELD_OUT",
            help="Held-out in-distribution data to calibrate on: the model's logits, and features "
            "if the detector reads them. A file, a pattern or a folder of Parquet files, or a "
            "remote address. Of more than 4,194,304 rows, a random sample is used.",
        ),
    ],
    output: Annotated[Path, "Where to save the detector."],
    files: DataOptions,
    detector_name: Annotated[
        str,
        Option(
            "--detector",
            "-d",
            help="The name of the detector, with parameters if needed: top_k_joint_energy(k=5). "
            "'nescio detectors' lists them; package.module:Class names one of your own. auto takes "
            "a combination of logits and features if --train has features and labels, otherwise "
            "joint energy and the ranges of the features or logits.",
            autocompletion=detector_names,
        ),
    ] = "auto",
    tpr: Annotated[float, "The share of in-distribution samples to keep."] = 0.95,
    confidence: Annotated[
        float | None,
        "Choose the threshold so that the long-run share kept is at least --tpr with this "
        "confidence, e.g. 0.99. Without it, it is at least --tpr on average.",
    ] = None,
    by: Annotated[
        str | None,
        "Use several thresholds, so that each group of samples keeps its share: 'label_count', by "
        "the number of predicted labels, or 'top_label', by how frequent the most likely label is.",
    ] = None,
    group_column: GroupColumn = None,
    train: Annotated[
        str | None,
        "Training outputs, for a detector that learns from data. With features and "
        "labels, the default is better than with logits alone.",
    ] = None,
    nonfinite: Nonfinite = "raise",
    self_check: Annotated[
        bool,
        Option(
            "--self-check/--no-self-check",
            help="Print how many of the samples are flagged if gross faults change their outputs: "
            "scaled, shifted, zeros, shuffled, noise.",
        ),
    ] = True,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Calibrate a detector on held-out in-distribution data and save it.

    Examples: nescio calibrate val.npy --tpr 0.95 -o tagger.nescio, and with features and labels:
    nescio calibrate val.safetensors --train train.safetensors -o tagger.nescio
    """
    from nescio.detectors.combined import AUTO_DETECTOR, default_detector
    from nescio.detectors.registry import build_detector

    check_target(output, force=force)
    refuse_overwriting(output, held_out, train)
    if by is not None:
        if by not in (LABEL_COUNT, TOP_LABEL):
            raise ParameterError(
                f"--by must be {LABEL_COUNT!r} or {TOP_LABEL!r}, got {by!r}. For groups in a "
                "column of the table, pass --group-column."
            )
        if group_column is not None:
            raise ParameterError("--by and --group-column both name groups. Pass only one of them.")
    detector = None
    if detector_name != AUTO_DETECTOR:
        detector = build_detector(detector_name, tpr=tpr, nonfinite=nonfinite)
        if detector.learns_from and train is None:
            raise MissingInputError(
                f"{detector_name} learns from data: pass training outputs with --train. "
                "(Calibrating on data that it has learned from would void the guarantee.)"
            )
    reading = files.reading(group_column=group_column)
    data = read_outputs(held_out, **reading, max_rows=MAX_ROWS)
    learned_from = None
    if train is not None:
        learned_from = read_outputs(train, **reading, max_rows=MAX_ROWS, first=data)
    reason = ""
    if detector is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DefaultDetectorWarning)  # the reason is printed below
            default = default_detector(learned_from, data, tpr=tpr, nonfinite=nonfinite or "raise")
        detector, reason = default.detector, default.reason
        if learned_from is not None and not detector.learns_from:
            warn(f"--train was not used: {default.obstacle}.", DefaultDetectorWarning)
    if learned_from is not None and detector.learns_from:
        with working("learning"), error_context(train):
            detector.fit(learned_from, from_probs=False)
    n_rows = data.manifest.get("sampled_from", len(data))
    groups = by if group_column is None else data.kept[GROUP]
    with working("calibrating"), error_context(held_out):
        detector.calibrate(data, confidence=confidence, groups=groups, from_probs=False)
        if group_column is not None:
            detector.calibration_ = replace(detector.calibration_, column=group_column)
        own = None if group_column is None else groups
        checked = detector.self_check(data, groups=own, from_probs=False) if self_check else None
    detector.save(output, force=force)
    ignored = data.manifest.get("ignored_columns", [])
    if as_json:
        read = {"n_rows": n_rows, "n_labels": data.n_labels, "ignored_columns": ignored}
        faults = None if checked is None else _rows(checked.columns())
        facts = {**_facts(detector), "self_check": faults}
        print_json({"output": str(output), "reason": reason, **read, **facts})
        return
    say(describe(n_rows, data.n_labels, data.label_names, ignored))
    if n_rows > len(data):
        say(f"{len(data):,} of the rows, drawn at random, set the threshold.")
    if reason:
        say(reason)
    calibration, what = detector.calibration_, "in-distribution if the score is at least"
    if calibration.by is None:
        say(f"{detector.text()}: {what} {calibration.first.value:.6g}. {calibration.statement()}")
    else:
        say(f"{detector.text()}: {what} the threshold of its group. {calibration}")
    if checked is not None:
        say(str(checked))
    say(f"saved {output}")


def score(
    detector: DetectorFile,
    data: Annotated[
        str, Argument(metavar="DATA", help="The model's logits for the inputs to assess.")
    ],
    files: DataOptions,
    output: Annotated[Path | None, "Where to write the verdicts: .parquet, .csv or .jsonl."] = None,
    fdr: Annotated[
        float | None,
        "Instead of the threshold: flag as many of this batch as keep the expected share "
        "of false alarms among the flagged at most this (Benjamini-Hochberg).",
    ] = None,
    with_labels: Annotated[
        bool,
        "Add the labels that the model predicts (probability above 0.5) as the column "
        "predicted, and the probability of each label as prob_NAME.",
    ] = False,
    keep: Annotated[
        list[str] | None,
        Option(
            metavar="NAMES",
            help="Of the columns that are neither labels nor ids, copy only these to the output: "
            "names or patterns with commas between them. May be repeated. Default: all of them, "
            "except those of --ignore. Empty: none.",
        ),
    ] = None,
    group_column: GroupColumn = None,
    nonfinite: Nonfinite = None,
    engine: Annotated[
        str,
        "Where the work is done: 'local', on this machine, or 'ray', on the Ray cluster at "
        "the address in RAY_ADDRESS (without it, on a temporary one on this machine).",
    ] = "local",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Score inputs and say which ones the model should not be trusted on.

    DATA may be larger than memory: a .parquet, .arrow or .safetensors file, a pattern in quotes
    ('data/*.parquet'), a folder of Parquet files, or a remote address (s3://bucket/x.parquet). The
    output is there once all rows are scored.

    Example: nescio score tagger.nescio new.parquet -o scored.parquet
    """
    from nescio.detectors.verdicts import score_stream

    if output is not None:
        check_table_target(output, force=force)
        refuse_overwriting(output, Path(data), detector)
    if with_labels and output is None and not as_json:
        raise ParameterError("--with-labels adds columns to a table: pass -o, or --json.")
    loaded = load_detector(detector, nonfinite=nonfinite)
    columns = replace(
        files.columns(keep=keep, detector=loaded, group_column=group_column),
        keep_rest=keep is None or any(map(str.strip, keep)),  # --keep "" copies nothing
    )
    stream = OutputsStream(data, columns, from_probs=files.from_probs)
    scoring: AbstractContextManager[ScoreEngine | None] = nullcontext()
    if checked_choice("--engine", engine, ("local", "ray")) == "ray":
        require("ray", "ray")
        from nescio.integrations.ray import ray_scoring

        scoring = ray_scoring()
    with scoring as cluster, progress_bar("scoring", stream.n_rows) as advance:
        result = score_stream(
            loaded,
            stream,
            output,
            fdr=fdr,
            with_labels=with_labels,
            in_memory=as_json and output is None,
            force=force,
            on_rows=advance,
            engine=cluster,
        )
    if as_json:
        summary: dict[str, Any] = {
            "n_samples": result.n_samples,
            "n_labels": stream.n_labels,
            "ignored_columns": stream.ignored,
            "kept_columns": list(stream.kept_names),
            "n_flagged": result.n_flagged,
            "n_nonfinite": result.n_nonfinite,
            "output": None if output is None else str(output),
        }
        if output is None:
            summary["rows"] = [row for part in result.parts for row in _rows(part)]
        print_json(summary)
        return
    line = describe(stream.n_rows, stream.n_labels or 0, stream.label_names, stream.ignored)
    copied = f"; copied columns: {', '.join(stream.kept_names)}" if output is not None else ""
    say(line + (copied if stream.kept_names else ""))
    if output is None:
        verdicts = np.where(result.lowest["in_distribution"], "in", "OUT")
        rows = _rows({**result.lowest, "verdict": verdicts})
        caption = f"the {len(rows)} most suspicious of {result.n_samples:,} rows; use -o to get all"
        is_part = result.n_samples > len(rows)
        print_rows(rows, without=("in_distribution",), caption=caption if is_part else None)
    share = result.n_flagged / result.n_samples
    bad = f", {result.n_nonfinite:,} of them with NaN or infinity" if result.n_nonfinite else ""
    say(f"{result.n_samples:,} scored, {result.n_flagged:,} flagged ({share:.1%}){bad}")
    if output is not None:
        say(f"saved {output}")


def _rows(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a table of columns, each by name."""
    values = zip(*map(to_values, columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in values]


def explain(
    detector: DetectorFile,
    data: Annotated[
        Path,
        Argument(metavar="DATA", help="The logits of the model. One input is explained."),
    ],
    files: DataOptions,
    row: Annotated[
        int | None,
        "The row of the input to explain; the first is 0. Default: the most suspicious one.",
    ] = None,
    sample_id: Annotated[
        str | None, Option("--id", metavar="NAME", help="The id of the input to explain.")
    ] = None,
    group_column: GroupColumn = None,
    nonfinite: Nonfinite = None,
    as_json: AsJson = False,
) -> None:
    """Show why one input was flagged: parts, labels and columns, next to their usual values.

    For a combination of detectors, show what each part says, and the details of those that
    decided. The most telling labels are shown; JSON has everything.

    Example: nescio explain tagger.nescio new.parquet --id IMG_0142
    """
    if row is not None and sample_id is not None:
        raise ParameterError("--row and --id both choose an input. Pass only one of them.")
    loaded = load_detector(detector, nonfinite=nonfinite)
    outputs = read_outputs(data, **files.reading(detector=loaded, group_column=group_column))
    groups = None if group_column is None else outputs.kept[GROUP]
    with error_context(data):
        row = _row(loaded, outputs, groups, row, sample_id)
        group = None if groups is None else groups[[row]]
        reason = loaded.explain(outputs[[row]], groups=group)[0]
    if as_json:
        print_json({"row": row} | reason.as_dict())
        return
    view = reason._view()
    say(f"row {row}{': ' if reason.id is None else ', '}{view.title}", _whole(view))
    for part in reason.parts:  # the largest share of the evidence first
        if part.reason is not None and part.share >= _TELLING_SHARE:
            say("", f"{part.detector} in detail:", _whole(replace(part.reason._view(), text="")))


def _whole(view: View) -> str:
    """Return a result without its title, with sentences of any length."""
    table = result_text(replace(view, title="", text="", notes=()))
    return "\n".join(filter(None, (view.text, table, *view.notes)))


def _row(
    detector: Detector, outputs: Outputs, groups: Any, row: int | None, sample_id: str | None
) -> int:
    """Return the chosen row, or the most suspicious one."""
    from nescio.detectors.verdicts import suspicion_order

    if sample_id is None:
        if row is None:
            with working("scoring"):
                verdicts = detector.assess(outputs, groups=groups)
                return int(suspicion_order(detector.calibration_, verdicts.columns())[0])
        if not 0 <= row < len(outputs):
            raise InputError(f"there is no row {row}; the rows are 0 to {len(outputs) - 1}.")
        return row
    if outputs.ids is None:
        raise InputError("the samples have no ids. Name their column (--id-column), or pass --row.")
    rows = np.flatnonzero(outputs.ids == sample_id)
    if len(rows) > 1:
        raise InputError(f"{len(rows)} rows have the id {sample_id!r}. Pass --row instead.")
    if not len(rows):
        ids = outputs.ids.tolist()
        hint = nearest(sample_id, ids) or f" The ids are {listed(ids, 3)}."
        raise InputError(f"there is no id {sample_id!r}.{hint}")
    return int(rows[0])


def detectors(as_json: AsJson = False) -> None:
    """List the detectors: which arrays each one scores and learns from, and its paper."""
    from nescio.detectors import DETECTORS

    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "scores_from": list(detector().scores_from),
            "learns_from": list(detector().learns_from),
            "learns_from_held_out": list(detector().learns_from_held_out),
            "summary": (detector.__doc__ or "").partition("\n")[0],
            "paper": detector.paper,
        }
        for name, detector in DETECTORS.items()
    ]
    print_rows(rows, as_json=as_json, without=("learns_from_held_out",))


def info(detector: DetectorFile, as_json: AsJson = False) -> None:
    """Show what a saved detector is, its threshold and its guarantee."""
    from nescio.detectors import load

    loaded = load(detector)
    facts = _facts(loaded)
    if as_json:
        print_json(facts)
        return
    facts.pop("tpr_interval_99", None)  # the statement below says it
    nonfinite, names = facts.pop("parameters")["nonfinite"], loaded.label_names_
    label_names = names and described_labels(len(names), names)
    written = {"detector": loaded.text(), "nonfinite": nonfinite, "label_names": label_names}
    print_facts(facts | written)
    if "n_samples" in facts:
        say(loaded.calibration_.statement())


def _facts(detector: Detector) -> dict[str, Any]:
    """Return what a detector is, with the settings and results of its calibration by group."""
    from nescio.detectors.saving import plain_params

    facts: dict[str, Any] = {
        "detector": detector.name,
        "parameters": plain_params(detector),
        "n_columns": detector.n_columns_,
        "label_names": detector.label_names_,
    }
    calibration = getattr(detector, "calibration_", None)
    if calibration is None:
        return facts | {"threshold": detector.offset_}
    del facts["parameters"]["tpr"]  # the calibration has its own
    intervals = {name: part.tpr_interval() for name, part in calibration.thresholds.items()}
    return {**facts, **calibration.facts(), "tpr_interval_99": intervals}
