"""The figures of a report: scores of detectors, and label-wise energies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nescio import scores
from nescio._charts.histogram import roc, roc_axes
from nescio._charts.svg import (
    JOINT,
    Chart,
    Markup,
    Scale,
    Values,
    curve_style,
    set_style,
    short,
)
from nescio.lab.benchmark.results import Evidence
from nescio.metrics import auroc
from nescio.metrics.comparison import Scored
from nescio.metrics.measures import Ranking, n_allowed
from nescio.outputs import Outputs

Flags = NDArray[np.bool_]

MAX = "max_logit"

Ends = tuple[float, float]  # of an axis
Pair = tuple[str, str]
"""The detector that leads a page, and the one that it is compared with."""
USUAL_PAIR: Pair = (JOINT, MAX)

_LARGEST = 3e38  # replaces an infinite energy


class Panel(NamedTuple):
    """One chart under its name; `key` is its number in the page."""

    key: int
    name: str
    chart: Markup
    note: str


class Switch(NamedTuple):
    """Panels, and the selects that choose which of them are shown."""

    panels: Sequence[Panel]
    selects: Mapping[str, Sequence[int]]  # by label: the keys of the panels shown at first
    several: str = ""  # the text of a first option, which shows these panels again


def scores_of(evidence: Evidence, name: str) -> Scored:
    """Return the scores of a detector; compute a score function that the benchmark did not run."""
    if name in evidence.scores:
        return evidence.scores[name]

    def score(outputs: Outputs) -> Values:
        values = np.asarray(scores.SCORES[name](outputs.logits), np.float64)
        return np.where(np.isnan(values), -np.inf, values)  # NaN is out-of-distribution

    oods = {ood: score(outputs) for ood, outputs in evidence.ood_outputs.items()}
    return Scored(score(evidence.id_outputs), oods)


def find_threshold(id_scores: Values, tpr: float) -> float | None:
    """Return the threshold that keeps a share `tpr` of these scores; None if it would be -inf."""
    rank = min(n_allowed(len(id_scores), tpr), len(id_scores) - 1)
    threshold = float(np.sort(id_scores)[rank])
    return threshold if math.isfinite(threshold) else None


def label_names(evidence: Evidence) -> tuple[str, ...]:
    """Return the names of the labels, or numbers if there are none."""
    outputs = evidence.id_outputs
    return outputs.label_names or tuple(f"label {number}" for number in range(outputs.n_labels))


def label_energies(logits: NDArray[np.floating]) -> Values:
    """Return label-wise energies as float64, with 0 in place of NaN."""
    energies = np.asarray(scores.label_energy(logits), dtype=np.float64)
    return np.nan_to_num(energies, nan=0.0, posinf=_LARGEST)


def true_or_predicted(outputs: Outputs) -> Flags:
    """Return the true labels of each input, (n_samples, n_labels); else the predicted ones."""
    return outputs.logits > 0 if outputs.labels is None else outputs.labels.astype(bool)


_Curve = tuple[int, str, str, Values, Values]  # number, CSS classes, name, ID and OOD scores


def roc_figure(evidence: Evidence, ood: str, tpr: float, first: str) -> dict[str, Any]:
    """Draw the ROC curves of all detectors."""
    curves = []
    for number, (name, scored) in enumerate(evidence.scores.items()):
        css = curve_style(number, JOINT if name == first else "")
        curves.append((number, css, name, scored.id_scores, scored.ood_scores[ood]))
    # The first detector is drawn last, on top of the others.
    curves.sort(key=lambda curve: curve[2] == first)
    return _roc_curves(f"ROC curves, {evidence.id_name} against {ood}", curves, tpr)


def joint_roc_figures(evidence: Sequence[Evidence], tpr: float) -> list[dict[str, Any]]:
    """Draw the ROC curves of joint energy on several ID sets together, one figure per OOD set.

    OOD sets with one ID set only have no figure. The evidence has at most one entry per ID set.
    """
    oods = Counter(ood for run in evidence for ood in run.ood_outputs)
    figures = []
    for ood in [ood for ood, n_sets in oods.items() if n_sets > 1]:
        curves: list[_Curve] = []
        for number, run in enumerate(run for run in evidence if ood in run.ood_outputs):
            scores = scores_of(run, JOINT)
            css = curve_style(number, "")
            curves.append((number, css, run.id_name, scores.id_scores, scores.ood_scores[ood]))
        title = f"ROC curves of joint energy on all ID sets against {ood}"
        figures.append({"ood": ood, **_roc_curves(title, curves, tpr)})
    return figures


def _roc_curves(title: str, curves: Sequence[_Curve], tpr: float) -> dict[str, Any]:
    """Draw curves, with a legend by AUROC."""
    chart = roc_axes(title, tpr, height=380)
    legend = []
    for number, css, name, id_scores, ood_scores in curves:
        fpr, kept = roc(id_scores, ood_scores)
        area = f"{100 * auroc(id_scores, ood_scores):.2f}"
        chart.line(fpr, kept, css, curve=number, tip=f"{name}: AUROC {area}")
        legend.append((number, css, name, area))
    legend.sort(key=lambda entry: -float(entry[-1]))
    return {"chart": chart.draw(), "legend": legend}


def density_switch(evidence: Evidence, ood: str, tpr: float, css: str, pair: Pair) -> Switch | None:
    """Draw the score densities of ID and OOD for every detector; two of them are shown."""
    panels: list[Panel] = []
    for number, (name, scored) in enumerate(evidence.scores.items()):
        both = scored.id_scores, scored.ood_scores[ood]
        ends = visible_range(*both)
        if ends is not None:
            chart = _density_chart(name, *both, ends, tpr, css)
            values = Ranking.from_scores(*both).measures(tpr)
            fpr, area = 100 * values["fpr"], 100 * values["auroc"]
            note = f"{fpr:.2f} % of OOD let through, AUROC {area:.2f}."
            if lost := np.count_nonzero(np.concatenate(both) < ends[0]):
                note += f" {lost:,} inputs lie further left, to {short(min(map(np.min, both)))}."
            panels.append(Panel(number, name, chart, note))
    if not panels:
        return None
    keys = {panel.name: panel.key for panel in panels}
    left, right = keys.get(pair[0], panels[0].key), keys.get(pair[1], panels[-1].key)
    return Switch(panels, {"Left": [left], "Right": [right]})


def _density_chart(
    name: str, id_scores: Values, ood_scores: Values, ends: Ends, tpr: float, css: str
) -> Markup:
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


_LABELS_AT_FIRST = 6
_LABELS_DRAWN = 100  # one panel takes about 4 kB of the page
_SMALLEST_ENERGY = 1e-9


def label_switch(evidence: Evidence) -> Switch:
    """Draw the densities of the energies of the most frequent labels; the first six are shown."""
    names, id_outputs = label_names(evidence), evidence.labelled
    has, is_truth = true_or_predicted(id_outputs), id_outputs.labels is not None
    # Without truth all ID inputs count, because the energy itself decides what is predicted.
    counts = has.sum(axis=0)
    by_count = np.argsort(-counts, kind="stable")
    frequent = by_count[:_LABELS_AT_FIRST].tolist()
    drawn = np.sort(by_count[:_LABELS_DRAWN])
    sets = (id_outputs, *evidence.ood_outputs.values())
    # Each has shape (n_samples, n_drawn).
    logs = [
        np.log10(np.maximum(label_energies(values.logits[:, drawn]), _SMALLEST_ENERGY))
        for values in sets
    ]
    low, _ = visible_range(*(values.ravel() for values in logs)) or (-3.0, 1.0)
    # One label may have all the large energies, so the upper end is the overall maximum.
    high = max(float(values.max()) for values in logs) + 0.15
    panels = []
    for place, label in enumerate(drawn.tolist()):
        own = logs[0][has[:, label], place] if is_truth else logs[0][:, place]
        kind = "with this label" if is_truth else "predicted"
        chart = _energy_chart(
            names[label], own, [values[:, place] for values in logs[1:]], (low, high)
        )
        panels.append(Panel(label, names[label], chart, f"{counts[label]:,} ID inputs {kind}"))
    return Switch(panels, {"Label": frequent}, f"the {len(frequent)} most frequent labels")


def _energy_chart(name: str, of_id: Values, of_oods: Sequence[Values], ends: Ends) -> Markup:
    """Draw densities; the values are exponents of ten, and the axis shows the powers."""
    curves = [density(values, *ends, n_points=72) for values in (*of_oods, of_id)]
    top = max(float(heights.max()) for _, heights in curves) or 1.0
    chart = Chart(
        Scale(10.0 ** ends[0], 10.0 ** ends[1], log=True),
        Scale(0.0, 1.06 * top),
        name=f"Densities of the energy of {name}, ID against OOD",
        width=320,
        height=150,
        y_ticks=[],
    )
    styles = [*(set_style(number) for number in range(len(of_oods))), "id"]
    for (grid, heights), css in zip(curves, styles, strict=True):
        chart.area(10.0**grid, heights, f"line {css}")
    return chart.draw()


# --- densities ---

_NEARLY_ALL = (0.003, 0.997)  # of each set lies within a chart of densities
_MOST = (0.05, 0.95)  # of the first set takes at least a quarter of the axis: see `visible_range`


def visible_range(*sets: Values) -> Ends | None:
    """Return the ends of an axis that shows nearly all of each set; None without finite scores.

    It ends earlier if most of the first set would look like a needle beside scores far away.
    """
    finite = [values for each in sets if len(values := each[np.isfinite(each)])]
    if not finite:
        return None
    ends = [np.quantile(values, _NEARLY_ALL) for values in finite]
    low, high = float(np.min(ends)), float(np.max(ends))
    first, last = np.quantile(finite[0], _MOST).tolist()
    if (reach := 3 * (last - first)) > 0:
        low, high = max(low, first - reach), min(high, last + reach)
    if not math.isfinite(high - low):  # scores near the largest float
        return None
    are_equal = high - low <= 1e-12 * max(abs(low), abs(high), 1e-300)
    margin = abs(low) / 10 or 1.0 if are_equal else 0.02 * (high - low)
    return low - margin, high + margin


def density(values: Values, low: float, high: float, n_points: int = 128) -> tuple[Values, Values]:
    """Return a smoothed histogram within [low, high], scaled as a density of all finite values."""
    finite = values[np.isfinite(values)]
    grid = np.linspace(low, high, n_points)
    # Values just outside are counted too, so that the curve does not fall at the edge.
    margin = (high - low) / 4
    near = finite[(finite >= low - margin) & (finite <= high + margin)]
    if not len(near):
        return grid, np.zeros(n_points)
    from scipy.ndimage import gaussian_filter1d

    counts, edges = np.histogram(near, bins=600, range=(low - margin, high + margin))
    step = float(edges[1] - edges[0])
    # The bandwidth of Silverman's rule, with a spread that is robust to outliers; the smoothing is
    # at least as wide as one step of the grid.
    lower, upper = np.quantile(near, [0.25, 0.75])
    spread = min(float(np.std(near)), float(upper - lower) / 1.34) or float(np.std(near))
    width = max(0.9 * spread * len(near) ** -0.2, float(grid[1] - grid[0])) / step
    smooth = gaussian_filter1d(counts / (len(finite) * step), width, mode="constant")
    heights: Values = np.interp(grid, (edges[:-1] + edges[1:]) / 2, smooth)
    return grid, heights
