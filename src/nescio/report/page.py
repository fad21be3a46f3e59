"""The chapters of the page: one for each in-distribution set, with a section per OOD set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nescio.benchmark.evidence import Evidence
from nescio.benchmark.results import Line, Spread, summarise
from nescio.report.alarms import Alarms, false_alarms
from nescio.report.cases import CaseGroup, case_groups
from nescio.report.energies import label_switch, top_k_figure
from nescio.report.figures import density_switch, roc_figure, threshold_switch
from nescio.report.panels import Figure, LegendEntry, Switch, set_legend, set_style
from nescio.report.standings import Standings, standings
from nescio.report.svg import percent

Key = tuple[str, str]


@dataclass(frozen=True)
class Section:
    """One OOD set within a chapter; the figures are None without evidence."""

    ood: str
    anchor: str
    standings: Standings
    roc: Figure | None
    densities: Switch | None
    legend: Sequence[LegendEntry]


@dataclass(frozen=True)
class ChapterFigures:
    """The figures that all OOD sets of a chapter share."""

    seed: int
    n_inputs: int
    n_labels: int
    energies: Switch
    energies_legend: Sequence[LegendEntry]
    is_truth: bool
    top_k: Figure
    thresholds: Switch | None
    legend: Sequence[LegendEntry]
    alarms: Alarms
    cases: Sequence[CaseGroup]
    has_pictures: bool


@dataclass(frozen=True)
class Chapter:
    """One in-distribution set."""

    id_name: str
    anchor: str
    tpr: str
    seeds: Sequence[int]
    sections: Sequence[Section]
    figures: ChapterFigures | None


def chapters(lines: Sequence[Line], evidence: Sequence[Evidence]) -> list[Chapter]:
    """Return all chapters, in order of appearance."""
    summary = summarise(lines)
    by_id: dict[str, list[Line]] = {}
    for line in lines:
        by_id.setdefault(line.id, []).append(line)
    return [
        _chapter(
            f"id{at}",
            own,
            summary,
            sorted((one for one in evidence if one.id_name == id_name), key=lambda one: one.seed),
        )
        for at, (id_name, own) in enumerate(by_id.items())
    ]


def _chapter(
    anchor: str,
    lines: Sequence[Line],
    summary: Mapping[Key, Mapping[str, Mapping[str, Spread]]],
    evidence: Sequence[Evidence],
) -> Chapter:
    tpr = next((one.evaluation.tpr for one in lines if one.evaluation is not None), 0.95)
    usable = [one for one in evidence if one.scores and one.ood_outputs]
    first = usable[0] if usable else None
    by_ood: dict[str, list[Line]] = {}
    for line in lines:
        by_ood.setdefault(line.ood, []).append(line)
    sections = []
    for at, (ood, own) in enumerate(by_ood.items()):
        spreads = summary.get((own[0].id, ood), {})
        sections.append(_section(f"{anchor}-ood{at}", own, spreads, evidence, first, tpr))
    return Chapter(
        id_name=lines[0].id,
        anchor=anchor,
        tpr=percent(tpr),
        seeds=sorted({line.seed for line in lines}),
        sections=sections,
        figures=None if first is None else _figures(first, tpr),
    )


def _section(
    anchor: str,
    lines: Sequence[Line],
    spreads: Mapping[str, Mapping[str, Spread]],
    evidence: Sequence[Evidence],
    first: Evidence | None,
    tpr: float,
) -> Section:
    ood = lines[0].ood
    shown = first if first is not None and ood in first.ood_outputs else None
    curves = {} if shown is None else {name: at for at, name in enumerate(shown.scores)}
    found = standings(lines, spreads, evidence, curves)
    if shown is None:
        return Section(ood, anchor, found, None, None, [])
    css = set_style(list(shown.ood_outputs).index(ood))
    legend = [LegendEntry("id", shown.id_name), LegendEntry(css, ood)]
    densities = density_switch(shown, ood, tpr, css)
    return Section(ood, anchor, found, roc_figure(shown, ood, tpr), densities, legend)


def _figures(evidence: Evidence, tpr: float) -> ChapterFigures:
    groups = case_groups(evidence, tpr)
    return ChapterFigures(
        seed=evidence.seed,
        n_inputs=len(evidence.id_outputs),
        n_labels=evidence.id_outputs.n_labels,
        energies=label_switch(evidence),
        energies_legend=set_legend(evidence, with_label=True),
        is_truth=evidence.id_outputs.labels is not None,
        top_k=top_k_figure(evidence, tpr),
        thresholds=threshold_switch(evidence, tpr),
        legend=set_legend(evidence),
        alarms=false_alarms(evidence, tpr),
        cases=groups,
        has_pictures=any(case.picture for group in groups for case in group.cases),
    )
