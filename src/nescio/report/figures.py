"""The figures of the scores of detectors: ROC curves, densities and thresholds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nescio._charts.curves import density, roc, share_kept, visible_range
from nescio._charts.style import JOINT, curve_style, set_style
from nescio._charts.svg import Chart, Markup, Scale, Values, percent, percent_ticks, short
from nescio.benchmark.evidence import Evidence
from nescio.metrics import auroc, fpr_at_tpr
from nescio.report.panels import MAX, Panel, Switch, choose_by_name, find_threshold, scores_of

_WHOLE = Scale(0.0, 1.0)
_Curve = tuple[int, str, str, Values, Values]  # number, CSS classes, name, ID and OOD scores
_CORNER = (0.3, 0.7)  # the enlarged part: FPR up to, TPR from


def roc_figure(evidence: Evidence, ood: str, tpr: float) -> dict[str, Any]:
    """Draw the ROC curves of all detectors, and the upper left corner if a curve reaches it."""
    curves = [
        (at, curve_style(at, name), name, found.id_scores, found.ood_scores[ood])
        for at, (name, found) in enumerate(evidence.scores.items())
    ]
    # Joint energy is drawn last, on top of the others.
    curves.sort(key=lambda curve: curve[2] == JOINT)
    return _roc_curves(f"ROC curves, {evidence.id_name} against {ood}", curves, tpr)


def joint_roc_figures(evidence: Sequence[Evidence], tpr: float) -> list[dict[str, Any]]:
    """Draw the ROC curves of joint energy on several ID sets together, one figure per OOD set.

    OOD sets with one ID set only have no figure. If no OOD set has several, one figure has the
    curves of all pairs. The evidence has at most one entry per ID set.
    """
    if len(evidence) < 2:
        return []
    found = [(one, ood) for one in evidence for ood in one.ood_outputs]
    oods = Counter(ood for _, ood in found)
    shared = [ood for ood, n_sets in oods.items() if n_sets > 1]
    figures = []
    for shown in shared or [""]:
        curves: list[_Curve] = []
        for one, ood in found:
            if shown not in ("", ood):
                continue
            scores = scores_of(one, JOINT)
            name = one.id_name if shown else f"{one.id_name} against {ood}"
            css = curve_style(len(curves), "")
            curves.append((len(curves), css, name, scores.id_scores, scores.ood_scores[ood]))
        title = "ROC curves of joint energy on all ID sets" + (f" against {shown}" if shown else "")
        figures.append({"ood": shown, **_roc_curves(title, curves, tpr)})
    return figures


def _roc_curves(title: str, curves: Sequence[_Curve], tpr: float) -> dict[str, Any]:
    """Draw curves, with a legend by AUROC, and the upper left corner if a curve reaches it."""
    whole = _roc_chart(_WHOLE, _WHOLE, title, tpr)
    x, y = Scale(0.0, _CORNER[0]), Scale(_CORNER[1], 1.0)
    corner = _roc_chart(x, y, f"{title}, upper left corner", tpr)
    legend = []
    near = False
    for at, css, name, id_scores, ood_scores in curves:
        fpr, kept = roc(id_scores, ood_scores)
        near |= bool(np.interp(_CORNER[0], fpr, kept) > _CORNER[1])
        area = f"{100 * auroc(id_scores, ood_scores):.2f}"
        for chart in (whole, corner):
            chart.line(fpr, kept, css, curve=at, tip=f"{name}: AUROC {area}")
        legend.append((at, css, name, area))
    legend.sort(key=lambda entry: -float(entry[-1]))
    charts = [whole.draw(), corner.draw()] if near else [whole.draw()]
    return {"charts": charts, "legend": legend}


def _roc_chart(x: Scale, y: Scale, name: str, tpr: float) -> Chart:
    chart = Chart(
        x,
        y,
        name=name,
        height=380,
        x_label="OOD let through, %",
        y_label="ID kept, %",
        x_ticks=percent_ticks(x),
        y_ticks=percent_ticks(y),
    )
    chart.rule(y=tpr, text=f"TPR {percent(tpr)} %")
    return chart


def density_switch(evidence: Evidence, ood: str, tpr: float, css: str) -> Switch | None:
    """Draw the score densities of ID and OOD for every detector; two of them are shown."""
    panels: list[Panel] = []
    for at, (name, found) in enumerate(evidence.scores.items()):
        chart = _density_chart(name, found.id_scores, found.ood_scores[ood], tpr, css)
        if chart is not None:
            fpr = 100 * fpr_at_tpr(found.id_scores, found.ood_scores[ood], tpr)
            area = 100 * auroc(found.id_scores, found.ood_scores[ood])
            note = f"{fpr:.2f} % of OOD let through, AUROC {area:.2f}."
            lost = int(np.isneginf([*found.id_scores, *found.ood_scores[ood]]).sum())
            if lost:
                note += f" {lost:,} inputs with a score of −∞ count as out and are not drawn."
            panels.append(Panel(at, name, chart, note))
    if not panels:
        return None
    names = [panel.name for panel in panels]
    left = MAX if MAX in names else names[0]
    right = JOINT if JOINT in names else names[-1]
    return choose_by_name(panels, {"Left": left, "Right": right})


def _density_chart(
    name: str, id_scores: Values, ood_scores: Values, tpr: float, css: str
) -> Markup | None:
    ends = visible_range(id_scores, ood_scores)
    if ends is None:
        return None
    grid, of_id = density(id_scores, *ends)
    _, of_ood = density(ood_scores, *ends)
    top = max(float(of_id.max()), float(of_ood.max())) or 1.0
    chart = Chart(
        Scale(*ends),
        Scale(0.0, 1.06 * top),
        name=f"Densities of {name}, ID against OOD",
        height=270,
        x_label=f"{name}, higher is more in-distribution",
        y_ticks=[],
    )
    chart.area(grid, of_ood, f"line {css}")
    chart.area(grid, of_id, "line id")
    threshold = find_threshold(id_scores, tpr)
    if threshold is not None:
        # The part of the OOD density that is let through is the FPR.
        through = np.union1d(grid[grid > threshold], [threshold])
        chart.area(through, np.interp(through, grid, of_ood), f"{css} through")
        chart.rule(x=threshold, text=f"threshold {short(threshold)}")
    return chart.draw()


def threshold_switch(evidence: Evidence, tpr: float) -> Switch | None:
    """Draw the share of each set kept over the threshold, for every detector; one is shown."""
    panels = []
    for at, (name, found) in enumerate(evidence.scores.items()):
        sets = {evidence.id_name: found.id_scores, **found.ood_scores}
        ends = visible_range(*sets.values())
        if ends is not None:
            threshold = find_threshold(found.id_scores, tpr)
            chart = _threshold_chart(name, sets, ends, threshold)
            panels.append(Panel(at, name, chart, _threshold_note(sets, threshold)))
    if not panels:
        return None
    names = [panel.name for panel in panels]
    return choose_by_name(panels, {"Detector": JOINT if JOINT in names else names[0]})


def _threshold_chart(
    name: str, sets: Mapping[str, Values], ends: tuple[float, float], threshold: float | None
) -> Markup:
    """Draw the share kept; the first set is the ID set."""
    chart = Chart(
        Scale(*ends),
        _WHOLE,
        name=f"Share kept over the threshold, {name}",
        width=620,
        height=300,
        x_label=f"threshold on {name}",
        y_label="kept, %",
        y_ticks=percent_ticks(_WHOLE),
    )
    if threshold is not None:
        chart.rule(x=threshold, text=f"threshold {short(threshold)}")
    grid = np.linspace(*ends, 200)
    for at, (set_name, values) in enumerate(sets.items()):
        css = "id" if at == 0 else set_style(at - 1)
        chart.line(grid, share_kept(np.sort(values), grid), css, tip=set_name)
        if threshold is not None:
            kept = float(np.mean(values >= threshold))
            chart.dot(threshold, kept, css, tip=f"{set_name}: {100 * kept:.2f} %")
    return chart.draw()


def _threshold_note(sets: Mapping[str, Values], threshold: float | None) -> str:
    if threshold is None:
        return ""
    kept = [f"{100 * np.mean(one >= threshold):.2f} % of {name}" for name, one in sets.items()]
    return f"{short(threshold)} keeps {kept[0]} and lets through {', '.join(kept[1:])}."
