"""The building blocks of the figures: panels, selects and legends, and the data they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nescio import scores
from nescio.benchmark.evidence import Evidence
from nescio.metrics.comparison import Scored
from nescio.report.svg import Markup

Values = NDArray[np.float64]

JOINT = "joint_energy"
MAX = "max_logit"
_LARGEST = 3e38  # replaces an infinite energy
_HUES, _DASHES, _SETS = 8, 4, 6  # the number of each in charts.css


@dataclass(frozen=True)
class Panel:
    """One chart under its name."""

    key: int
    name: str
    chart: Markup
    note: str = ""
    shown: bool = True


@dataclass(frozen=True)
class Option:
    """One option of a select: the keys of the panels that it shows."""

    keys: str
    text: str
    chosen: bool = False


@dataclass(frozen=True)
class Select:
    """A list of options with a label."""

    label: str
    options: Sequence[Option]


@dataclass(frozen=True)
class Switch:
    """A set of panels, and the selects that choose which of them are shown."""

    selects: Sequence[Select]
    panels: Sequence[Panel]


@dataclass(frozen=True)
class LegendEntry:
    """One entry of a legend; `curve` is the number that the script highlights by, or -1."""

    css: str
    text: str
    curve: int = -1
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """Charts side by side, with a legend."""

    charts: Sequence[Markup]
    legend: Sequence[LegendEntry]


def choose_by_name(panels: Sequence[Panel], chosen: Mapping[str, str]) -> Switch:
    """Return a switch with one select per entry of `chosen`: its label and the panel it shows."""
    selects = [
        Select(label, [Option(str(panel.key), panel.name, panel.name == name) for panel in panels])
        for label, name in chosen.items()
    ]
    shown = set(chosen.values())
    return Switch(selects, [replace(panel, shown=panel.name in shown) for panel in panels])


def curve_style(at: int, name: str) -> str:
    """Return the CSS classes of the curve of a detector: a hue, and a dash once all are used."""
    if name == JOINT:
        return "joint"
    return f"c{at % _HUES} d{at // _HUES % _DASHES}"


def set_style(at: int) -> str:
    """Return the CSS class of an OOD set, which is the same in every figure."""
    return f"ood{at % _SETS}"


def set_legend(evidence: Evidence, *, with_label: bool = False) -> list[LegendEntry]:
    """Return the legend of the ID set and the OOD sets, which is the same in every figure."""
    own = evidence.id_name
    if with_label and evidence.id_outputs.labels is not None:
        own += ", inputs with the label"
    oods = [LegendEntry(set_style(at), ood) for at, ood in enumerate(evidence.ood_outputs)]
    return [LegendEntry("id", own), *oods]


def scores_of(evidence: Evidence, name: str) -> Scored:
    """Return the scores of a detector; compute a score function that the benchmark did not run."""
    if name in evidence.scores:
        return evidence.scores[name]
    score = scores.SCORES[name]
    return Scored(
        rowwise(score(evidence.id_outputs.logits)),
        {ood: rowwise(score(outputs.logits)) for ood, outputs in evidence.ood_outputs.items()},
    )


def rowwise(values: NDArray[np.floating]) -> Values:
    """Return scores as float64, with -inf (out-of-distribution) in place of NaN."""
    return np.nan_to_num(
        np.asarray(values, dtype=np.float64), nan=-np.inf, posinf=np.inf, neginf=-np.inf
    )


def label_names(evidence: Evidence) -> tuple[str, ...]:
    """Return the names of the labels, or numbers if there are none."""
    outputs = evidence.id_outputs
    return outputs.label_names or tuple(f"label {at}" for at in range(outputs.n_labels))


def label_energies(logits: NDArray[np.floating]) -> Values:
    """Return label-wise energies as float64, with 0 in place of NaN."""
    energies = np.asarray(scores.label_energy(logits), dtype=np.float64)
    return np.nan_to_num(energies, nan=0.0, posinf=_LARGEST)


def true_or_predicted(evidence: Evidence) -> tuple[NDArray[np.bool_], bool]:
    """Return the labels of each ID input, (n_samples, n_labels), and whether they are the truth.

    Without truth they are the labels that the network predicts.
    """
    labels = evidence.id_outputs.labels
    if labels is not None:
        return labels.astype(bool), True
    return np.asarray(evidence.id_outputs.logits) > 0, False
