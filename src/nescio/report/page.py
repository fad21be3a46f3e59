"""What the templates read: a chapter for each ID set, a section per OOD set, and the manifest."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from nescio._charts.style import JOINT, set_style
from nescio._charts.svg import percent
from nescio.benchmark.evidence import Evidence
from nescio.benchmark.results import Line, Spread, summarise
from nescio.report.alarms import false_alarms
from nescio.report.cases import case_groups, why_no_pictures
from nescio.report.energies import label_switch, top_k_figure
from nescio.report.figures import density_switch, joint_roc_figures, roc_figure, threshold_switch
from nescio.report.panels import MAX, best_detectors, set_legend
from nescio.report.standings import standings

Key = TypeVar("Key", bound=Hashable)

_LONGEST_FACT = 600


def chapters(lines: Sequence[Line], evidence: Sequence[Evidence]) -> list[dict[str, Any]]:
    """Return all chapters, in order of appearance."""
    found = []
    for at, (id_name, own) in enumerate(_grouped(lines, lambda line: line.id).items()):
        seeds = sorted((one for one in evidence if one.id_name == id_name), key=lambda e: e.seed)
        found.append(_chapter(f"id{at}", own, seeds))
    return found


def joint_rocs(lines: Sequence[Line], evidence: Sequence[Evidence]) -> list[dict[str, Any]]:
    """Return the figures of joint energy on all ID sets together, of the first seed of each."""
    first: dict[str, Evidence] = {}
    for one in sorted(evidence, key=lambda one: one.seed):
        if one.ood_outputs:
            first.setdefault(one.id_name, one)
    order = dict.fromkeys(line.id for line in lines if line.id in first)
    return joint_roc_figures([first[name] for name in order], _tpr(lines))


def _tpr(lines: Sequence[Line]) -> float:
    return next((one.evaluation.tpr for one in lines if one.evaluation is not None), 0.95)


def _grouped(lines: Sequence[Line], key: Callable[[Line], Key]) -> dict[Key, list[Line]]:
    groups: dict[Key, list[Line]] = {}
    for line in lines:
        groups.setdefault(key(line), []).append(line)
    return groups


def _chapter(anchor: str, lines: Sequence[Line], evidence: Sequence[Evidence]) -> dict[str, Any]:
    tpr = _tpr(lines)
    first = next((one for one in evidence if one.scores and one.ood_outputs), None)
    summary = summarise(lines)
    sections = []
    for at, (ood, own) in enumerate(_grouped(lines, lambda line: line.ood).items()):
        spreads = summary.get((own[0].id, ood), {})
        sections.append(_section(f"{anchor}-ood{at}", own, spreads, evidence, first, tpr))
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
    runs = _grouped(lines, lambda line: (line.id, line.seed))
    return {run: _facts(own) for run, own in runs.items()}


def _facts(lines: Sequence[Line]) -> dict[str, str]:
    """Return each fact once; if the lines differ, with all their values."""
    found: dict[str, dict[str, None]] = {"benchmark": {}}
    for line in lines:
        found["benchmark"][line.spec] = None
        for name, text in _flat(line.manifest, ""):
            found.setdefault(name, {})[text] = None
    return {name: _shortened(" · ".join(texts)) for name, texts in found.items()}


def _flat(content: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in content.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{name}.")
        elif isinstance(value, str):
            yield name, value
        else:
            yield name, json.dumps(value, ensure_ascii=False, default=str)


def _shortened(text: str) -> str:
    """Cut a very long fact, which the result file holds in full."""
    if len(text) <= _LONGEST_FACT:
        return text
    return text[:_LONGEST_FACT] + " … (see the result file)"
