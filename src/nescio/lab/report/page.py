"""The report: what the templates read, and the page as one HTML file."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from nescio._charts.style import JOINT, set_style
from nescio._charts.svg import percent
from nescio.detectors import Detector
from nescio.errors import InputError
from nescio.lab.benchmark.results import (
    BenchmarkRun,
    Evidence,
    Line,
    comparison_lines,
    read_lines,
    summarise,
)
from nescio.lab.benchmark.tables import Table
from nescio.lab.report.cases import (
    case_groups,
    false_alarms,
    input_case,
    input_verdict,
    why_no_pictures,
)
from nescio.lab.report.figures import (
    MAX,
    best_detectors,
    density_switch,
    joint_roc_figures,
    label_names,
    label_switch,
    roc_figure,
    set_legend,
    threshold_switch,
    top_k_figure,
)
from nescio.lab.report.standings import standings
from nescio.metrics.comparison import Spread, compare_outputs
from nescio.outputs import Outputs
from nescio.outputs.outputs import TEXT
from nescio.outputs.reading import Sets

ReportInputs = tuple[list[Line], list[Evidence]]


def from_results(
    path: Path, image_roots: Mapping[str, Path] | None = None, *, recorded_roots: bool = False
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
        named = {name: root for name, root in (image_roots or {}).items() if name in own}
        evidence.append(replace(of_network, image_roots=roots | named))
    return lines, evidence


def from_outputs(
    name: str,
    sets: Sets,
    detectors: Mapping[str, Detector],
    *,
    text_column: str | None,  # the kept column of ID and OOD that has the texts
    image_roots: Mapping[str, Path],  # for each set, the folder in which its ids are image files
    files: Mapping[str, Any],  # where the outputs came from, for the manifest
    on_step: Callable[[int], object],
) -> ReportInputs:
    """Evaluate detectors on the outputs of one network; `name` is that of the ID set."""

    def with_texts(outputs: Outputs, name: str) -> Outputs:
        if text_column is None:
            return outputs
        if text_column not in outputs.kept:  # only of a table is it checked before
            raise InputError(
                f"{name} has no column {text_column!r} (--text-column). Pass a table that has it "
                "(.csv, .parquet or .arrow), or leave out --text-column."
            )
        return replace(outputs, kept={TEXT: outputs.kept[text_column]})

    ood = {name: with_texts(data, f"the OOD data {name!r}") for name, data in sets.ood.items()}
    id_outputs = with_texts(sets.id, "the ID data")
    comparison = compare_outputs(
        detectors, id_outputs, ood, train=sets.train, held_out=sets.held_out, on_step=on_step
    )
    manifest = {"files": files, "id": dict(id_outputs.manifest)}
    lines = comparison_lines(comparison, name, name, 0, manifest)
    return lines, [Evidence(name, 0, id_outputs, ood, comparison.scores, image_roots)]


_SHOWN = 6


@dataclass(frozen=True)
class Introduction:
    """What a report begins with.

    Attributes
    ----------
    sentences : sequence of str
    table : Table
    detector : Detector
        A calibrated detector, whose verdicts are shown.
    """

    sentences: Sequence[str]
    table: Table
    detector: Detector


def introduced(introduction: Introduction, evidence: Evidence) -> dict[str, Any]:
    """Return what the template reads: the sentences, the table, and the first inputs of each set.

    The inputs are the first ones, so that they are not chosen by their verdicts.
    """
    sets = {evidence.id_name: evidence.id_outputs, **evidence.ood_outputs}
    return {
        "sentences": introduction.sentences,
        "table": introduction.table,
        "sets": [
            _shown_set(introduction.detector, evidence, name, outputs)
            for name, outputs in sets.items()
        ],
    }


def _shown_set(
    detector: Detector, evidence: Evidence, name: str, outputs: Outputs
) -> dict[str, Any]:
    """Return the first inputs of one set, and how many of all are flagged."""
    is_id = outputs is evidence.id_outputs
    verdicts = detector.assess(outputs, from_probs=False)
    labels = label_names(evidence)
    cases = []
    for row in range(min(_SHOWN, len(outputs))):
        case = input_case(evidence, name, outputs, row)
        predicted = np.flatnonzero(outputs.logits[row] > 0)
        case["predicted"] = ", ".join(labels[label] for label in predicted) or "nothing"
        score = float(verdicts.scores[row])
        case["verdicts"] = [input_verdict(detector.name, score, detector.offset_, is_id=is_id)]
        cases.append(case)
    return {
        "name": name,
        "is_id": is_id,
        "n_inputs": len(outputs),
        "n_flagged": len(verdicts.flagged),
        "cases": cases,
    }


Key = TypeVar("Key", bound=Hashable)

_LONGEST_FACT = 600


def chapters(lines: Sequence[Line], evidence: Sequence[Evidence]) -> list[dict[str, Any]]:
    """Return all chapters, in order of appearance."""
    result = []
    for number, (id_name, own) in enumerate(_grouped(lines, lambda line: line.id).items()):
        seeds = sorted((run for run in evidence if run.id_name == id_name), key=lambda e: e.seed)
        result.append(_chapter(f"id{number}", own, seeds))
    return result


def joint_rocs(lines: Sequence[Line], evidence: Sequence[Evidence]) -> list[dict[str, Any]]:
    """Return the figures of joint energy on all ID sets together, of the first seed of each."""
    first: dict[str, Evidence] = {}
    for run in sorted(evidence, key=lambda run: run.seed):
        if run.ood_outputs:
            first.setdefault(run.id_name, run)
    order = dict.fromkeys(line.id for line in lines if line.id in first)
    return joint_roc_figures([first[name] for name in order], _tpr(lines))


def _tpr(lines: Sequence[Line]) -> float:
    return next((line.evaluation.tpr for line in lines if line.evaluation is not None), 0.95)


def _grouped(lines: Sequence[Line], key: Callable[[Line], Key]) -> dict[Key, list[Line]]:
    groups: dict[Key, list[Line]] = {}
    for line in lines:
        groups.setdefault(key(line), []).append(line)
    return groups


def _chapter(anchor: str, lines: Sequence[Line], evidence: Sequence[Evidence]) -> dict[str, Any]:
    tpr = _tpr(lines)
    first = next((run for run in evidence if run.scores and run.ood_outputs), None)
    summary = summarise(lines)
    sections = []
    for number, (ood, own) in enumerate(_grouped(lines, lambda line: line.ood).items()):
        spreads = summary.get((own[0].id, ood), {})
        sections.append(_section(f"{anchor}-ood{number}", own, spreads, evidence, first, tpr))
    return {
        "id_name": lines[0].id,
        "anchor": anchor,
        "tpr": percent(tpr),
        "n_seeds": len({line.seed for line in lines}),
        "sections": sections,
        "figures": None if first is None else _figures(first, tpr),
    }


def _section(
    anchor: str,
    lines: Sequence[Line],
    spreads: Mapping[str, Mapping[str, Spread]],
    evidence: Sequence[Evidence],
    first: Evidence | None,
    tpr: float,
) -> dict[str, Any]:
    """Return one OOD set within a chapter; without evidence it has no figures."""
    ood = lines[0].ood
    section: dict[str, Any] = {"ood": ood, "anchor": anchor, "figures": None}
    curves: list[str] = []
    if first is not None and ood in first.ood_outputs:
        css = set_style(list(first.ood_outputs).index(ood))
        curves = list(first.scores)
        section["figures"] = {
            "roc": roc_figure(first, ood, tpr),
            "densities": density_switch(first, ood, tpr, css),
            "legend": [("id", first.id_name), (css, ood)],
        }
    return section | {"standings": standings(lines, spreads, evidence, curves)}


def _figures(evidence: Evidence, tpr: float) -> dict[str, Any]:
    """Return the figures that all OOD sets of a chapter share."""
    best = best_detectors(evidence, tpr)
    groups = case_groups(evidence, tpr, best)
    return {
        "seed": evidence.seed,
        "outputs": evidence.id_outputs,
        "energies": label_switch(evidence),
        "energies_legend": set_legend(evidence, with_label=True),
        "top_k": top_k_figure(evidence, tpr),
        "thresholds": threshold_switch(evidence, tpr),
        "legend": set_legend(evidence),
        "alarms": false_alarms(evidence, tpr, tuple(best.values())),
        "cases": groups,
        "other_best": {ood: name for ood, name in best.items() if name not in (JOINT, MAX)},
        "why_no_pictures": why_no_pictures(evidence, groups),
    }


def manifests(lines: Sequence[Line]) -> dict[tuple[str, int], dict[str, str]]:
    """Return what the results of each ID set and seed were made from."""
    first = {(line.id, line.seed): line for line in reversed(lines)}
    return {
        run: {"benchmark": first[run].spec, **dict(_flat(first[run].manifest, ""))}
        for run in dict.fromkeys((line.id, line.seed) for line in lines)
    }


def _flat(content: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in content.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{name}.")
            continue
        text = (
            value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        )
        # The result file holds it in full.
        long = len(text) > _LONGEST_FACT
        yield name, f"{text[:_LONGEST_FACT]} … (see the result file)" if long else text
