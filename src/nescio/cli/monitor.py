"""nescio monitor: is the stream still the one that the detector was calibrated on?

Exit code 3 means an alarm.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from nescio._io.files import check_target, existing_file
from nescio._io.tables import to_json
from nescio.cli.options import (
    AsJson,
    Force,
    FromProbs,
    read_outputs,
    refuse_overwriting,
    terminal,
    working,
)
from nescio.detectors.assessment import Assessment
from nescio.errors import (
    InputError,
    LabelMismatchError,
    MissingInputError,
    ParameterError,
    ShapeError,
    about,
)

if TYPE_CHECKING:
    from nescio.detectors import Detector
    from nescio.monitor import Monitor
    from nescio.monitor.report import MonitorReport
    from nescio.outputs import Outputs

ALARM = 3

_WINDOWS = 20  # of the report, in short JSON
_ROWS_COMPARED = 16
_CLOSE = 1e-4  # of the largest score: more than another order of adding up makes


def monitor(
    scored: Annotated[
        Path,
        typer.Argument(
            readable=False, metavar="SCORED", help="What 'nescio score -o' wrote, in order of time."
        ),
    ],
    detector: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            help="The detector that scored it. Without it, the number of calibration samples is "
            "inferred from the p-values.",
        ),
    ] = None,
    outputs: Annotated[
        Path | None,
        typer.Option(readable=False, help="The logits of the same rows, for drift of labels."),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(help="The probability of a false alarm, ever: 0.01, unless the state has it."),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(help="Inputs in a window of the control chart: 500, unless the state has it."),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            help="Go on from this file, if it exists, and write it anew: .safetensors.",
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Where to draw it: .html or .svg.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the random ranks among ties.")] = 0,
    from_probs: FromProbs = None,
    again: Annotated[
        bool,
        typer.Option("--again", help="Count the same file as in the last run of --state anew."),
    ] = False,
    force: Force = False,
    as_json: AsJson = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="With --json: the evidence over time, all windows too.")
    ] = False,
) -> None:
    """Say whether a stream of verdicts is still like the calibration data.

    Exit code 0: no alarm. 3: an alarm. 1 and 2: a mistake in what was given.

    Example: nescio monitor scored.parquet --detector tagger.nescio --state state.safetensors
    """
    from nescio.monitor.figures import check_plot_target, write_plot
    from nescio.monitor.scored import read_scored

    for target in (state, plot):
        refuse_overwriting(target, scored, detector, outputs)
    if state is not None:
        _check_state_target(state)
        refuse_overwriting(plot, state)
    if plot is not None:
        check_plot_target(plot, force=force)
    if trace and not as_json:
        raise ParameterError("--trace needs --json.")
    if outputs is not None and detector is None:
        raise ParameterError("--outputs needs --detector, which knows how often its labels fired.")
    verdicts = read_scored(scored)
    loaded = None if detector is None else _load(detector)
    with about(scored):
        watch = _monitor(verdicts, loaded, state, alpha=alpha, window=window, seed=seed)
    _count_once(scored, watch, state, again=again)
    logits = None
    if outputs is not None and loaded is not None:
        read = read_outputs(outputs, from_probs=from_probs)
        logits = _logits(verdicts, read, outputs, loaded, watch)
    with working("monitoring"), about(scored):
        watch.update(verdicts, logits)
    if state is not None:
        watch.save(state, force=True)
    report = watch.report()
    if plot is not None:
        write_plot(report, plot, force=force)
    inferred = _inferred(watch)
    if as_json:
        written = {name: None if p is None else str(p) for name, p in _files(state, plot)}
        content = _content(report, whole=trace) | {"n_calibration_inferred": inferred}
        typer.echo(to_json(content | written))
    else:
        console = terminal()
        console.print(report.summary(), soft_wrap=True)
        if inferred is not None:
            console.print(
                f"{inferred:,} calibration samples, inferred from the p-values; better pass "
                "--detector",
                soft_wrap=True,
            )
        for _, path in _files(state, plot):
            if path is not None:
                console.print(f"saved {path}", soft_wrap=True)
    if report.any_alarm:
        raise typer.Exit(ALARM)


def _files(state: Path | None, plot: Path | None) -> list[tuple[str, Path | None]]:
    return [("state", state), ("plot", plot)]


def _check_state_target(state: Path) -> None:
    if state.suffix.lower() != ".safetensors":
        raise ParameterError(f"cannot write {state}: the name must end in .safetensors.")
    check_target(state, force=True)


def _count_once(scored: Path, watch: Monitor, state: Path | None, *, again: bool) -> None:
    """Note which file is counted; refuse the one that was counted last, as after a failed job."""
    if state is None:
        return
    with existing_file(scored).open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found == watch.last_file and not again:
        raise InputError(
            f"{scored} holds the same as the file that {state} counted last. Pass the next one, or "
            "--again to count it once more."
        )
    watch.last_file = found


def _content(report: MonitorReport, *, whole: bool) -> dict[str, Any]:
    """The report as JSON has it, short unless all of it is wanted."""
    content = report.as_dict()
    if not whole:
        del content["trace"]
        content["windows"] = content["windows"][-_WINDOWS:]
    return content


def _load(path: Path) -> Detector:
    from nescio.detectors import load

    return load(path)


def _monitor(
    verdicts: Assessment,
    detector: Detector | None,
    state: Path | None,
    *,
    alpha: float | None,
    window: int | None,
    seed: int,
) -> Monitor:
    """The monitor that the state holds, or a new one."""
    from nescio.monitor import Monitor
    from nescio.monitor.scored import infer_calibration

    if state is not None and state.exists():
        found = Monitor.load(state, detector)
        for name, value in (("alpha", alpha), ("window", window)):
            if value is not None and value != getattr(found, name):
                raise ParameterError(
                    f"{state} was begun with --{name} {getattr(found, name):g}, which cannot "
                    f"become {value:g} on the way. Leave it out, or begin a new state."
                )
        return found
    settings: dict[str, Any] = {"seed": seed}
    settings |= {} if alpha is None else {"alpha": alpha}
    settings |= {} if window is None else {"window": window}
    if detector is not None:
        return Monitor.for_detector(detector, **settings)
    sizes, ranks = infer_calibration(verdicts)
    return Monitor.from_p_values(sizes, rank=ranks, **settings)


def _logits(
    verdicts: Assessment, outputs: Outputs, path: Path, detector: Detector, watch: Monitor
) -> Any:
    """The logits of the verdicts' own inputs; raises if they are of others."""
    from nescio.detectors.arrays import label_difference

    if not watch.watches_labels:
        raise MissingInputError(
            "the detector does not know how often its labels fired: it was calibrated without "
            "usable logits, or by an older nescio. Calibrate again, or leave out --outputs."
        )
    if len(outputs) != len(verdicts):
        raise ShapeError(f"{path} has {len(outputs):,} rows, and {len(verdicts):,} were scored.")
    if outputs.ids is not None and verdicts.ids is not None:
        differ = np.flatnonzero(outputs.ids != verdicts.ids)
        if len(differ):
            row = int(differ[0])
            raise InputError(
                f"{path}: row {row} is {str(outputs.ids[row])!r}, and "
                f"{str(verdicts.ids[row])!r} was scored there. The rows must be the same."
            )
    names, known = outputs.label_names, detector.label_names_
    if names is not None and known is not None and names != known:
        raise LabelMismatchError(f"{path}: {label_difference(known, names)}")
    _check_scores(verdicts, outputs, path, detector)
    return outputs.logits


def _check_scores(verdicts: Assessment, outputs: Outputs, path: Path, detector: Detector) -> None:
    """Raise if some of the rows do not get the scores that they had."""
    rows = np.unique(np.linspace(0, len(verdicts) - 1, _ROWS_COMPARED).astype(int))
    scores = np.asarray(verdicts.scores, np.float64)[rows]
    if np.isnan(scores).all() or (detector.input_name() == "features" and outputs.features is None):
        return
    with about(path):
        found = np.asarray(detector.score_samples(outputs[rows]), np.float64)
    largest = np.abs(scores[np.isfinite(scores)]).max(initial=0.0)
    same = np.isclose(found, scores, rtol=0.0, atol=_CLOSE * largest, equal_nan=True)
    if not same.all():
        at = int(np.flatnonzero(~same)[0])
        raise InputError(
            f"{path}: row {rows[at]} scores {found[at]:g}, and {scores[at]:g} was scored there. "
            "The rows must be the same, and in the same order."
        )


def _inferred(watch: Monitor) -> int | None:
    """How many calibration samples were inferred; None where a detector knows them."""
    if not watch.references.by_p_value:
        return None
    return sum(len(reference.scores) for reference in watch.references.by_group.values())
