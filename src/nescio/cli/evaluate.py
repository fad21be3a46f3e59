"""nescio eval, choose and report: detectors compared on data."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.text import Text
from typer import Argument, Option

from nescio._io.files import check_page_target
from nescio.calibration import CUSTOM
from nescio.cli.console import (
    AsJson,
    DataOptions,
    Force,
    GroupColumn,
    Nonfinite,
    detector_names,
    detectors_option,
    load_detector,
    print_json,
    print_table,
    progress_bar,
    refuse_overwriting,
    say,
    stages,
    working,
)
from nescio.errors import (
    DefaultDetectorWarning,
    NescioWarning,
    ParameterError,
    error_context,
    listed,
    require,
    warn,
)

if TYPE_CHECKING:
    from nescio.metrics.comparison import Comparison

ID_DATA = Option("--id", help="In-distribution test outputs, not used in training.")
OOD_DATA = Option("--ood", help="Out-of-distribution outputs. May be repeated.")

Train = Annotated[str | None, "Training outputs, for the detectors that learn."]
HeldOut = Annotated[
    str | None,
    "Held-out in-distribution outputs, for the detectors that learn from such data (combined). "
    "Neither training nor test data.",
]
Tpr = Annotated[float, "The share of in-distribution samples to keep. The FPR is at this TPR."]

_ALL = "all"
_DEFAULT = "default"
_RECORDED = "recorded"


def evaluate_detectors(
    id_path: Annotated[str, ID_DATA],
    ood_paths: Annotated[list[str], OOD_DATA],
    files: DataOptions,
    names: Annotated[
        list[str] | None,
        detectors_option(
            "A detector, such as top_k_joint_energy(k=3), the file of a calibrated one, or 'all'. "
            "'auto' is what calibrate chooses by default, with --held-out. Default: auto and all."
        ),
    ] = None,
    train: Train = None,
    held_out: HeldOut = None,
    tpr: Tpr = 0.95,
    bootstrap: Annotated[
        int, Option(min=0, help="The number of resamples for the intervals; 0 for no intervals.")
    ] = 1000,
    nonfinite: Nonfinite = "raise",
    as_json: AsJson = False,
) -> None:
    """Compare detectors: FPR95, AUROC and AUPR, with in-distribution as the positive side.

    Of files with more than 4,194,304 rows, a random sample of the rows is read.

    Example: nescio eval --id test.npy --ood textures.npy --ood objects.npy --detector all
    """
    from nescio.detectors.combined import AUTO_DETECTOR, default_detector
    from nescio.detectors.registry import build_detector
    from nescio.metrics.comparison import compare
    from nescio.outputs.sets import read_sets

    detectors, wanted = {}, _expanded([AUTO_DETECTOR, _ALL] if names is None else names)
    for name in wanted:
        if name.endswith(".nescio"):
            detectors[Path(name).stem] = load_detector(Path(name), nonfinite=nonfinite)
        elif name != AUTO_DETECTOR:
            detectors[name] = build_detector(name, nonfinite=nonfinite)
    sets = read_sets(id_path, ood_paths, train, held_out, **files.reading())
    if AUTO_DETECTOR in wanted:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DefaultDetectorWarning)  # all detectors are compared
            chosen = default_detector(
                sets.train, sets.held_out, tpr=tpr, nonfinite=nonfinite or "raise"
            )
        default = chosen.detector.text(defaults=False)
        default = default if default in detectors else _DEFAULT  # a combination with other parts
        detectors = {default: chosen.detector, **detectors}
    first = default if wanted[0] == AUTO_DETECTOR else next(iter(detectors))
    with progress_bar("evaluating", len(detectors) * len(sets.ood)) as advance:
        comparison = compare(
            sets.id,
            sets.ood,
            detectors,
            train=sets.train,
            held_out=sets.held_out,
            tpr=tpr,
            n_bootstrap=bootstrap,
            from_probs=False,  # the data was checked when it was read
            on_step=advance,
        )
    if as_json:
        print_json(comparison.as_dict())
    else:
        _print_comparison(comparison, first if first in comparison.scores else comparison.best)
        said = any("--held-out" in reason for reason in comparison.skipped.values())
        if AUTO_DETECTOR in wanted and held_out is None and not said:
            which = "calibrate for logits alone" if sets.id.get("features") is None else "calibrate"
            say(f"The default of {which} has no row: it learns from held-out data (--held-out).")


def _expanded(names: list[str] | None) -> list[str]:
    """Return the names of detectors, with all of them in place of 'all' and of none."""
    return [
        each for name in names or [_ALL] for each in (detector_names() if name == _ALL else [name])
    ]


def _print_comparison(comparison: Comparison, by_label: str) -> None:
    """Print a table for each OOD set, one detector by label, and what was left out."""
    for ood in comparison.results:
        _print_results(comparison, ood)
        if ood in comparison.notes:
            say(comparison.notes[ood])
        lead = comparison.lead.get(ood)
        if lead is not None:
            chosen = " (these two were chosen by their results, so p is too small)"
            say(
                f"{lead.best} against {lead.second}: AUROC {lead.test.difference * 100:+.2f} points"
                f", DeLong's p = {lead.test.p_value:.2g}{chosen * (len(comparison.scores) > 2)}"
            )
    for ood in comparison.results:
        rates = comparison.by_label(by_label, ood)
        say("", f"{by_label} by {comparison.labels.kind} label, against {ood}: {rates}")
    say(
        *(
            f"{name}: a random sample of the {n_rows:,} rows was read"
            for name, n_rows in comparison.sampled.items()
        ),
    )
    _say_left_out(comparison.skipped)


def _say_left_out(skipped: Mapping[str, str]) -> None:
    """Say in one line which detectors were left out, and why if the reason is the same."""
    from nescio.metrics.comparison import left_out

    reasons = left_out(skipped)
    if len(reasons) > 1:
        options = [o for o in ("--train", "--held-out") if any(o in r for r in skipped.values())]
        need = f" Pass {' and '.join(options)} for more of them." if options else ""
        names = listed(list(skipped), 3, quoted=False)
        reasons = [f"{len(skipped)} detectors ({names}): --json has the reasons.{need}"]
    say(*(f"left out {reason}" for reason in reasons))


def _print_results(comparison: Comparison, ood: str) -> None:
    """Print the results on one OOD set, with the highest AUROC first."""
    results = comparison.results[ood]
    first = next(iter(results.values()))
    columns = {"fpr": f"{first.fpr_name} ↓", "auroc": "AUROC ↑", "aupr": "AUPR ↑"}

    def shown(name: str, measure: str) -> float:  # equal as printed is equal
        return round(100 * float(getattr(results[name], measure).value), 2)

    best = {
        measure: (min if measure == "fpr" else max)(shown(name, measure) for name in results)
        for measure in columns
        if len(results) > 1  # a single detector is not the best of anything
    }

    def cell(name: str, measure: str) -> Text:
        # The best has a star, which a file keeps too. A space keeps the others aligned.
        is_best = shown(name, measure) == best.get(measure)
        text = f"{getattr(results[name], measure)}{' *' if is_best else '  '}"
        return Text(text, style="bold" if is_best else "")

    print_table(
        ("detector", *columns.values()),
        [[name, *(cell(name, m) for m in columns)] for name in comparison.ranked(ood)],
        numbers=tuple(columns.values()),
        title=f"{ood}: {first.n_id:,} ID against {first.n_ood:,} OOD, per cent, sorted by AUROC",
        caption="* best of its column" if best else None,
    )


def choose(
    train: Annotated[Path, "Training outputs with labels, and with features."],
    held_out: Annotated[
        Path,
        "Held-out in-distribution outputs with labels, and with features. Not used in training.",
    ],
    files: DataOptions,
    names: Annotated[
        list[str] | None,
        detectors_option("A detector to rank, or 'all'. Default: a list for logits and layers."),
    ] = None,
    far: Annotated[
        list[str] | None,
        Option(
            metavar="CORRUPTION=FILE",
            help="Outputs for the held-out images after one of nescio.lab.data.CORRUPTIONS, "
            "such as jigsaw=jigsaw.safetensors. May be repeated.",
        ),
    ] = None,
    folds: Annotated[
        int, Option(min=2, help="The number of parts that the labels are divided into.")
    ] = 5,
    refit: Annotated[
        str,
        "'head': train the head anew without the left-out labels. 'none': drop their "
        "columns. 'auto': 'head' if there are features.",
    ] = "auto",
    tpr: Tpr = 0.95,
    as_json: AsJson = False,
) -> None:
    """Rank detectors on in-distribution data only, and pick one.

    Labels are left out, part by part: the samples that carry only left-out labels stand for
    unknown inputs. Out-of-distribution data is not needed and cannot be passed.

    Example: nescio choose --train train.safetensors --held-out val.safetensors
    """
    from nescio.choosing import choose as choose_detector
    from nescio.choosing.choice import COLUMNS
    from nescio.outputs.files import read_outputs

    corrupted = _named_paths("--far", far, "CORRUPTION=FILE, such as jigsaw=jigsaw.safetensors")
    reading = files.reading()
    calibrated_on = read_outputs(held_out, **reading)
    learned_from = read_outputs(train, **reading, first=calibrated_on)
    with stages() as watch, watch("leaving labels out", folds) as advance:
        choice = choose_detector(
            learned_from,
            calibrated_on,
            detectors=None if names is None else _expanded(names),
            far={
                name: read_outputs(path, **reading, first=calibrated_on)
                for name, path in corrupted.items()
            },
            n_folds=folds,
            refit=refit,
            tpr=tpr,
            on_fold=advance,
        )
    if as_json:
        print_json(choice.as_dict())
        return
    print_table(
        COLUMNS,
        [(name + (" *" if name == choice.pick else ""), *row) for name, *row in choice.rows()],
        numbers=COLUMNS[1:],
        title=f"{choice.fpr_name} on simulated OOD data in per cent (near: left-out labels), "
        "mean ± standard deviation over folds",
        caption="* the pick",
    )
    say(choice.summary())
    _say_left_out(choice.skipped)


def _named_paths(option: str, texts: Sequence[str] | None, form: str) -> dict[str, Path]:
    """Return the paths of an option that is given as NAME=PATH, by name."""
    paths = {}
    for text in texts or ():
        name, _, path = text.partition("=")
        if not (name and path):
            raise ParameterError(f"{option} {text}: expected {form}.")
        paths[name] = Path(path)
    return paths


def report(
    files: DataOptions,
    results: Annotated[
        Path | None,
        Argument(
            metavar="RESULTS",
            help="The folder of a benchmark, such as nescio-bench/digits, or a results.jsonl file "
            "for tables without figures.",
        ),
    ] = None,
    output: Annotated[Path, "The HTML file to write."] = Path("report.html"),
    id_path: Annotated[str | None, ID_DATA] = None,
    ood_paths: Annotated[list[str] | None, OOD_DATA] = None,
    detector: Annotated[
        Path | None,
        "A detector saved by calibrate. Without it, the default is calibrated on --held-out or, "
        "without that, on half of the rows of --id.",
    ] = None,
    train: Train = None,
    held_out: HeldOut = None,
    images: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=FOLDER",
            help="The folder that holds the images of a set, for thumbnails. With --id and --ood, "
            "NAME is the name of its file without the ending. For results of your own, 'recorded' "
            "stands for the folders that the benchmark has used. May be repeated.",
        ),
    ] = None,
    title: Annotated[
        str | None, "Title of the report. Default: the title of the benchmark."
    ] = None,
    nonfinite: Nonfinite = None,
    text_column: Annotated[
        str | None,
        "The column of a table that has the texts, for the case studies. Outputs that nescio has "
        "made from texts have them.",
    ] = None,
    group_column: GroupColumn = None,
    force: Force = False,
) -> None:
    """Write an HTML report, which opens offline: which inputs are flagged, and why.

    It is made from your own outputs, or from the results of a benchmark. Out-of-distribution data
    adds a comparison of detectors.

    Examples: nescio report --id new.csv --detector tagger.nescio -o report.html,
    nescio report nescio-bench/digits -o report.html
    """
    require("jinja2", "report")
    from nescio.detectors.registry import build_detector
    from nescio.lab.report import write_report
    from nescio.lab.report.page import from_outputs, from_results
    from nescio.lab.report.verdicts import Chosen, choose_default
    from nescio.outputs.sets import read_sets

    refuse_overwriting(output, results, id_path, detector, train, held_out, *(ood_paths or ()))
    check_page_target(output, force=force)
    named = [text for text in images or () if text != _RECORDED]
    roots = _named_paths("--images", named, "NAME=FOLDER")
    for name, folder in roots.items():
        if not folder.is_dir():
            raise ParameterError(f"--images {name}={folder}: the folder {folder} does not exist.")
    own = (id_path, ood_paths, detector, train, held_out, text_column, group_column)
    chosen, how = None, nonfinite or "raise"
    if results is not None and not any(own) and files == DataOptions():
        lines, evidence = from_results(results, roots, recorded_roots=_RECORDED in (images or ()))
    elif results is None and id_path:
        keep = None if text_column is None else [text_column]
        loaded = None if detector is None else load_detector(detector, nonfinite=nonfinite)
        if group_column is not None and (loaded is None or loaded.calibration_.by != CUSTOM):
            raise ParameterError("--group-column needs a detector calibrated by it (--detector).")
        reading = files.reading(keep=keep, detector=loaded, group_column=group_column)
        if loaded is not None and not ood_paths and (train or held_out):
            warn(
                "--train and --held-out are not used: the verdicts are those of --detector. They "
                "serve to choose the default, or to compare detectors on OOD data (--ood).",
                NescioWarning,
            )
            train = held_out = None
        sets = read_sets(id_path, ood_paths or None, train, held_out, **reading)
        name = id_path if Path(id_path).stem in sets.ood else Path(id_path).stem
        if unknown := [root for root in roots if root not in (name, *sets.ood)]:
            raise ParameterError(
                f"--images {unknown[0]}: NAME must be one of {', '.join([name, *sets.ood])}."
            )
        if loaded is not None and detector is not None:
            chosen = Chosen(f"{detector.stem} ({loaded.name})", loaded)
        else:
            with working("calibrating"), error_context(held_out or id_path):
                chosen, sets = choose_default(sets, how)
        given = {"ood": ood_paths, "detector": detector, "train": train, "held_out": held_out}
        paths = {"id": id_path, **{kind: path for kind, path in given.items() if path}}
        options = files.given(group_column=group_column, nonfinite=nonfinite)
        manifest = {"files": paths, "options": options, "id": dict(sets.id.manifest)}
        chosen = replace(chosen, manifest=manifest)
        detectors = {each: build_detector(each, nonfinite=how) for each in detector_names()}
        with progress_bar("evaluating", len(detectors) * len(sets.ood)) as advance:
            lines, evidence = from_outputs(
                name,
                sets,
                chosen,
                detectors,
                text_column=text_column,
                image_roots=roots,
                on_step=advance,
            )
    else:
        raise ParameterError(
            f"pass your own outputs with --id {results or 'new.csv'}. RESULTS is for the results "
            "of a benchmark, which take no options of outputs."
        )
    if chosen is None:
        title = title or lines[0].manifest.get("title") or lines[0].spec
    title = title or f"Report on {evidence[0].id_name}"
    with error_context(id_path or results):
        write_report(output, lines, evidence, title=title, chosen=chosen, force=force)
    if chosen is not None:
        say(chosen.headline(evidence[0].id_outputs))
    say(f"saved {output} ({output.stat().st_size / 1000:,.0f} kB)")
