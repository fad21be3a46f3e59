"""The report as one HTML file: where its data comes from, its chapters, and the results in them."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from nescio._charts.results import strip
from nescio._charts.svg import Markup, chart_style, percent, set_style, sheet
from nescio._io.files import check_page_target, write_text
from nescio._version import __version__
from nescio.detectors import Detector
from nescio.errors import InputError, counted, require
from nescio.lab.benchmark.results import (
    MEASURES,
    BenchmarkRun,
    Evidence,
    Line,
    comparison_lines,
    read_lines,
    summarise,
)
from nescio.lab.report.cases import case_groups, why_no_pictures
from nescio.lab.report.figures import (
    USUAL_PAIR,
    Pair,
    density_switch,
    joint_roc_figures,
    label_switch,
    roc_figure,
)
from nescio.lab.report.verdicts import Chosen, describe_verdicts
from nescio.metrics import Evaluation
from nescio.metrics.comparison import Spread, chance_note, compare_outputs, left_out
from nescio.outputs import Outputs
from nescio.outputs.outputs import TEXT
from nescio.outputs.sets import Sets

ReportInputs = tuple[list[Line], list[Evidence]]
Spreads = Mapping[str, Mapping[str, Spread]]  # by detector and measure

_LONGEST_FACT = 600


# --- what a report is made from -------------------------------------------------------------------


def from_results(
    path: Path, image_roots: Mapping[str, Path], *, recorded_roots: bool = False
) -> ReportInputs:
    """Read the folder of a benchmark, or a file of result lines, which has no evidence.

    The folder may come from someone else, and it says where its images are. A report that showed
    any picture of this computer could give it away, so recorded folders are used only if they are
    within the folder of the benchmarks, or with `recorded_roots`. `image_roots` names others.
    """
    run = BenchmarkRun.load(path) if path.is_dir() else None
    lines = read_lines(path) if run is None else list(run.lines)
    if not lines:
        raise InputError(f"{path} has no results.")
    if run is None:
        return lines, []
    within = run.folder.resolve().parent
    evidence = []
    for of_network in run.evidence():
        roots = {
            name: root
            for name, root in of_network.image_roots.items()
            if recorded_roots or root.resolve().is_relative_to(within)
        }
        own = {of_network.id_name, *of_network.ood_outputs}
        roots |= {name: root for name, root in image_roots.items() if name in own}
        evidence.append(replace(of_network, image_roots=roots))
    return lines, evidence


def from_outputs(
    name: str,
    sets: Sets,
    chosen: Chosen,
    detectors: Mapping[str, Detector],
    *,
    text_column: str | None,  # the kept column of ID and OOD that has the texts
    image_roots: Mapping[str, Path],  # for each set, the folder in which its ids are image files
    on_step: Callable[[int], object],
) -> ReportInputs:
    """Evaluate detectors, if there is OOD data, on outputs; `name` is that of the ID set."""

    def with_texts(outputs: Outputs, set_name: str) -> Outputs:
        if text_column is None:
            return outputs
        if text_column not in outputs.kept:  # it is a pattern
            raise InputError(f"{set_name} has no column {text_column!r} (--text-column).")
        return replace(outputs, kept={**outputs.kept, TEXT: outputs.kept[text_column]})

    id_outputs = with_texts(sets.id, "the ID data")
    ood = {ood: with_texts(outputs, f"the OOD data {ood!r}") for ood, outputs in sets.ood.items()}
    if not ood:
        return [], [Evidence(name, 0, id_outputs, {}, {}, image_roots)]
    own = chosen.detector
    others = {
        f"{each} with standard settings" if each == own.name else each: detector
        for each, detector in detectors.items()
        if detector.text() != own.text()
    }
    comparison = compare_outputs(
        {chosen.name: chosen.detector, **others},
        id_outputs,
        ood,
        train=sets.train,
        held_out=sets.held_out,
        on_step=on_step,
    )
    lines = comparison_lines(comparison, name, name, 0, chosen.manifest)
    return lines, [Evidence(name, 0, id_outputs, ood, comparison.scores, image_roots)]


# --- the page -------------------------------------------------------------------------------------


def resource(name: str) -> str:
    """Return the text of a file of this package: a style sheet, a template or the script."""
    return files(__package__).joinpath(name).read_text("utf-8")


def build_report(
    lines: Sequence[Line], evidence: Sequence[Evidence], *, title: str, chosen: Chosen | None = None
) -> str:
    """Return the report as HTML.

    Parameters
    ----------
    lines : sequence of Line
        Results of all ID sets, OOD sets, detectors and seeds.
    evidence : sequence of Evidence
        At most one for each ID set and seed. The figures show the first seed of each ID set.
        Without evidence there are only tables.
    chosen : Chosen, optional
        A detector that the page is about. Its verdicts on the first evidence, which must be there,
        come before the summary. With it, there may be no lines.
    """
    if not lines and chosen is None:
        raise InputError("a report needs at least one result line, got none.")
    jinja2 = require("jinja2", "report")
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(resource),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # The figures show the first seed of each ID set: the last one here.
    runs = sorted(evidence, key=lambda run: -run.seed)
    first = {run.id_name: run for run in runs if run.scores and run.ood_outputs}
    names = list(dict.fromkeys(line.id for line in lines))
    pair = chosen.pair if chosen else USUAL_PAIR
    script = resource("script.js")
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    page: str = environment.get_template("page.html.j2").render(
        title=title,
        verdicts=chosen and describe_verdicts(chosen, evidence[0]),
        facts=chosen and dict(_flat(chosen.manifest, "")),
        joint_rocs=joint_roc_figures([first[n] for n in names if n in first], _tpr(lines)),
        chapters=[
            _chapter(f"id{n}", [line for line in lines if line.id == name], first.get(name), pair)
            for n, name in enumerate(names)
        ],
        manifests=_manifests(lines),
        version=__version__,
        style=Markup(chart_style() + sheet("base.css") + resource("style.css")),
        script=Markup(script),
        # The content security policy allows the one script with this hash.
        script_hash="sha256-" + base64.b64encode(digest).decode("ascii"),
    )
    return page


def write_report(
    path: str | Path,
    lines: Sequence[Line],
    evidence: Sequence[Evidence],
    *,
    title: str,
    chosen: Chosen | None = None,
    force: bool = False,
) -> None:
    """Write the report to one file, atomically; replace an existing file only with `force`."""
    check_page_target(path, force=force)
    write_text(path, build_report(lines, evidence, title=title, chosen=chosen), force=force)


def _tpr(lines: Sequence[Line]) -> float:
    return next((line.evaluation.tpr for line in lines if line.evaluation is not None), 0.95)


def _manifests(lines: Sequence[Line]) -> dict[tuple[str, int], dict[str, str]]:
    """Return what the results of each ID set and seed were made from."""
    runs = {(line.id, line.seed): line for line in lines}  # all lines of a run have the same
    return {
        run: {"benchmark": line.spec, **dict(_flat(line.manifest, ""))}
        for run, line in runs.items()
    }


def _flat(content: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in content.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{name}.")
            continue
        own = isinstance(value, str | Path)
        text = str(value) if own else json.dumps(value, ensure_ascii=False, default=str)
        # The result file holds it in full.
        long = len(text) > _LONGEST_FACT
        yield name, f"{text[:_LONGEST_FACT]} … (see the result file)" if long else text


def _chapter(
    anchor: str, lines: Sequence[Line], first: Evidence | None, pair: Pair
) -> dict[str, Any]:
    """Return one ID set: a section per OOD set, and the figures that these share."""
    tpr, id_name = _tpr(lines), lines[0].id
    summary = summarise(lines)
    sections = []
    for number, ood in enumerate(dict.fromkeys(line.ood for line in lines)):
        run = first if first is not None and ood in first.ood_outputs else None
        own = [line for line in lines if line.ood == ood]
        curves = [] if run is None else list(run.scores)
        section = {
            "ood": ood,
            "anchor": f"{anchor}-ood{number}",
            "figures": None,
            "standings": _standings(own, summary.get((id_name, ood), {}), curves, pair),
        }
        if run is not None:
            css = set_style(list(run.ood_outputs).index(ood))
            section["figures"] = {
                "roc": roc_figure(run, ood, tpr, pair[0]),
                "densities": density_switch(run, ood, tpr, css, pair),
                "legend": [("id", run.id_name), (css, ood)],
            }
        sections.append(section)
    return {
        "id_name": id_name,
        "anchor": anchor,
        "tpr": percent(tpr),
        "n_seeds": len({line.seed for line in lines}),
        "sections": sections,
        "figures": None if first is None else _shared_figures(first, tpr, pair),
    }


def _shared_figures(evidence: Evidence, tpr: float, pair: Pair) -> dict[str, Any]:
    """Return the figures that all OOD sets of a chapter share."""
    usual = pair == USUAL_PAIR  # a page about a chosen detector does not explain joint energy
    groups = case_groups(evidence, tpr, pair)
    labelled = evidence.labelled
    with_label = "" if labelled.labels is None else ", inputs with the label"
    oods = [(set_style(number), ood) for number, ood in enumerate(evidence.ood_outputs)]
    return {
        "seed": evidence.seed,
        "outputs": evidence.id_outputs,
        "has_labels": labelled.labels is not None,
        "is_val": labelled is evidence.val,
        "energies": label_switch(evidence) if usual else None,
        "energies_legend": [("id", evidence.id_name + with_label), *oods],
        "pair": pair,
        "cases": groups,
        "why_no_pictures": why_no_pictures(evidence, groups),
    }


# --- the results of one pair of sets: a sentence, a table and a test of the lead ------------------


def _standings(
    lines: Sequence[Line], spreads: Spreads, curves: Sequence[str], pair: Pair
) -> dict[str, Any]:
    """Return the standings from the lines of one pair of sets, and their summary.

    `curves` are the detectors of the ROC figure. The lowest FPR comes first, then the best AUROC.
    """
    ood = lines[0].ood
    ran = [(line.detector, line.seed, line.evaluation) for line in lines if line.evaluation]
    seeds = sorted({seed for _, seed, _ in ran})
    first = {name: evaluation for name, seed, evaluation in ran if seed == seeds[0]}
    fpr_name = next((evaluation.fpr_name for evaluation in first.values()), "FPR95")
    ranked = sorted(spreads, key=lambda n: (spreads[n]["fpr"].printed, -spreads[n]["auroc"].mean))
    fprs = {name: spreads[name]["fpr"] for name in ranked}
    sentence = f"On {lines[0].id} against {ood}: {_places_sentence(fprs, fpr_name, pair)}"
    chance, is_alarming = chance_note(
        {name: [own for detector, _, own in ran if detector == name] for name in ranked}
    )
    skipped = {line.detector: line.skipped for line in lines if line.evaluation is None}
    return {
        # No line break between a number and its deviation.
        "sentence": sentence.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"),
        "columns": [fpr_name, "AUROC", "AUPR"],
        "rows": [
            {
                "detector": name,
                "cells": _cells(name, spreads, first.get(name)),
                "strip": _fpr_strip(name == pair[0], fprs[name], first.get(name)),
                "curve": curves.index(name) if name in curves else None,
                "is_first": name == pair[0],
            }
            for name in ranked
        ],
        "caption": _caption(seeds, first),
        "chance": chance,
        "is_alarming": is_alarming,
        "skipped": left_out(skipped),
        "n_skipped": len(skipped),
    }


def _places_sentence(fprs: Mapping[str, Spread], fpr_name: str, pair: Pair) -> str:
    """Say where the leading detector stands, then the one it is compared with, then the best."""
    if not fprs:
        return "no detector could run."
    best, fpr = next(iter(fprs.items()))
    leading = [name for name in pair if name in fprs]
    printed = [fpr.printed for fpr in fprs.values()]  # ascending; equal ones share a place
    places = [
        f"{name} lets {fprs[name]} % through (place {1 + printed.index(fprs[name].printed)})"
        for name in leading
    ]
    leads = any(fprs[name].printed == fpr.printed for name in leading)
    over = f" over {fpr.n} seeds" if fpr.n > 1 else ""
    said = f"{', '.join(places)} of {counted(len(fprs), 'detector')} ({fpr_name}{over})."
    hindsight = "" if leads else f"In hindsight, {best} is the best, with {fpr} %{over}."
    return " ".join(filter(None, (said if places else "", hindsight)))


def _cells(name: str, spreads: Spreads, first: Evaluation | None) -> list[dict[str, Any]]:
    """Return the measures; without intervals if the detector could not run in the first seed."""
    cells = []
    for measure in MEASURES:
        spread = spreads[name][measure]
        printed = [measures[measure].printed for measures in spreads.values()]
        best = spread.printed == (min if measure == "fpr" else max)(printed)
        interval = "" if first is None else first.estimates[measure].interval
        if first is not None and interval and spread.n > 1:  # with the value of the first seed
            interval = str(first.estimates[measure])
        cell = {"value": spread.mean, "text": str(spread), "interval": interval, "best": best}
        cells.append(cell)
    return cells


def _fpr_strip(is_first: bool, spread: Spread, first: Evaluation | None) -> Markup:
    """Draw the FPR as a point between 0 and 100 %, with its spread or interval as a line."""
    low = high = None
    if spread.deviation is not None:
        low, high = spread.mean - spread.deviation, spread.mean + spread.deviation
    elif first is not None:
        low, high = first.fpr.low, first.fpr.high
    return strip(spread.mean, low, high, "joint" if is_first else "plain").html


def _caption(seeds: Sequence[int], first: Mapping[str, Evaluation]) -> str:
    if not seeds:
        return "No detector could run."
    evaluation = next(iter(first.values()))
    text = (
        f"In percent, with ID as the positive class; {evaluation.n_id:,} ID and "
        f"{evaluation.n_ood:,} OOD inputs."
    )
    interval = f"{100 * evaluation.confidence:g} % bootstrap interval"
    if len(seeds) == 1:
        return f"{text} Small print: the {interval}."
    return (
        f"{text} Mean ± standard deviation over {len(seeds)} seeds. Small print: "
        f"seed {seeds[0]} with its {interval}."
    )
