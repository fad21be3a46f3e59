"""The figures of label-wise energies: of each label, and of the k largest together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nescio import scores
from nescio._charts.curves import density, visible_range
from nescio._charts.style import set_style
from nescio._charts.svg import Chart, Markup, Scale, Values, percent, percent_ticks
from nescio.benchmark.evidence import Evidence
from nescio.metrics import auroc, fpr_at_tpr
from nescio.report.panels import (
    Option,
    Panel,
    Switch,
    label_energies,
    label_names,
    rowwise,
    set_legend,
    true_or_predicted,
)

_LABELS_AT_FIRST = 6
_LABELS_DRAWN = 100  # one panel takes about 4 kB of the page
_TOP_K = (1, 2, 3, 5, 10, 20, 40, 80, 160, 320, 640)
_SMALLEST_ENERGY = 1e-9


def label_switch(evidence: Evidence) -> Switch:
    """Draw the densities of the energies of the most frequent labels; the first six are shown."""
    names = label_names(evidence)
    has, is_truth = true_or_predicted(evidence), evidence.id_outputs.labels is not None
    # Without truth all ID inputs count, because the energy itself decides what is predicted.
    counts = has.sum(axis=0)
    by_count = np.argsort(-counts, kind="stable")
    frequent = by_count[:_LABELS_AT_FIRST].tolist()
    drawn = np.sort(by_count[:_LABELS_DRAWN])
    sets = (evidence.id_outputs, *evidence.ood_outputs.values())
    # Each has shape (n_samples, n_drawn).
    logs = [
        np.log10(np.maximum(label_energies(one.logits[:, drawn]), _SMALLEST_ENERGY)) for one in sets
    ]
    low, _ = visible_range(*(one.ravel() for one in logs)) or (-3.0, 1.0)
    # One label may have all the large energies, so the upper end is the overall maximum.
    high = max(float(one.max()) for one in logs) + 0.15
    panels = []
    for place, at in enumerate(drawn.tolist()):
        own = logs[0][has[:, at], place] if is_truth else logs[0][:, place]
        kind = "with this label" if is_truth else "predicted"
        chart = _energy_chart(names[at], own, [one[:, place] for one in logs[1:]], (low, high))
        panels.append(Panel(at, names[at], chart, f"{counts[at]:,} ID inputs {kind}"))
    keys = " ".join(map(str, frequent))
    several = Option(keys, f"the {len(frequent)} most frequent labels", True)
    every = [Option(str(panel.key), panel.name, False) for panel in panels]
    return Switch({"Label": [several, *every]}, panels, set(frequent))


def _energy_chart(
    name: str, of_id: Values, of_oods: Sequence[Values], ends: tuple[float, float]
) -> Markup:
    """Draw densities; the values are exponents of ten, and the axis shows the powers."""
    curves = [density(one, *ends, n_points=72) for one in (*of_oods, of_id)]
    top = max(float(heights.max()) for _, heights in curves) or 1.0
    chart = Chart(
        Scale(10.0 ** ends[0], 10.0 ** ends[1], log=True),
        Scale(0.0, 1.06 * top),
        name=f"Densities of the energy of {name}, ID against OOD",
        width=320,
        height=150,
        y_ticks=[],
    )
    styles = [*(set_style(at) for at in range(len(of_oods))), "id"]
    for (grid, heights), css in zip(curves, styles, strict=True):
        chart.area(10.0**grid, heights, f"line {css}")
    return chart.draw()


def top_k_figure(evidence: Evidence, tpr: float) -> dict[str, Any]:
    """Draw FPR and AUROC of the joint energy of the k largest logits, over k."""
    n_labels = evidence.id_outputs.n_labels
    ks = [*(k for k in _TOP_K if k < n_labels), n_labels]
    fpr: dict[str, list[float]] = {ood: [] for ood in evidence.ood_outputs}
    area: dict[str, list[float]] = {ood: [] for ood in evidence.ood_outputs}
    for k in ks:
        of_id = rowwise(scores.top_k_joint_energy(evidence.id_outputs.logits, k))
        for ood, outputs in evidence.ood_outputs.items():
            of_ood = rowwise(scores.top_k_joint_energy(outputs.logits, k))
            fpr[ood].append(fpr_at_tpr(of_id, of_ood, tpr))
            area[ood].append(auroc(of_id, of_ood))
    charts = [_top_k_chart(f"FPR{percent(tpr)}", ks, fpr), _top_k_chart("AUROC", ks, area)]
    return {"charts": charts, "legend": set_legend(evidence)[1:]}


def _top_k_chart(name: str, ks: Sequence[int], by_ood: dict[str, list[float]]) -> Markup:
    pooled = [value for values in by_ood.values() for value in values]
    margin = 0.08 * (max(pooled) - min(pooled)) or 0.02
    y = Scale(max(0.0, min(pooled) - margin), min(1.0, max(pooled) + margin))
    # The text "all" needs room beside the last k.
    ticks = [(float(k), str(k)) for k in ks[:-1] if k <= ks[-1] / 1.5]
    chart = Chart(
        Scale(0.85, max(ks[-1], 2) * 1.15, log=True),
        y,
        name=f"{name} of the joint energy of the k largest logits, over k",
        height=270,
        x_label="k, the number of largest logits summed",
        y_label=f"{name}, %",
        x_ticks=[*ticks, (float(ks[-1]), f"all {ks[-1]}")],
        y_ticks=percent_ticks(y),
    )
    for at, (ood, values) in enumerate(by_ood.items()):
        chart.line(ks, values, set_style(at), tip=ood)
        for k, value in zip(ks, values, strict=True):
            chart.dot(k, value, set_style(at), tip=f"{ood}, k = {k}: {100 * value:.2f} %")
    return chart.draw()
