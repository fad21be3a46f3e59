"""What the figures are made of: panels, and the selects that choose which of them are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nescio import scores
from nescio.benchmark.evidence import Evidence
from nescio.metrics.comparison import Scored
from nescio.report.svg import Markup

Values = NDArray[np.float64]

JOINT = "joint_energy"
MAX = "max_logit"
_LARGEST = 3e38  # stands for an infinite energy
_HUES, _DASHES, _SETS = 8, 4, 6  # how many of each style.css has


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
    """One choice of a select: the keys of the panels that it shows."""

    keys: str
    text: str
    chosen: bool = False


@dataclass(frozen=True)
class Select:
    """A list to choose from, and what it is a choice of."""

    label: str
    options: Sequence[Option]


@dataclass(frozen=True)
class Switch:
    """Panels that were all drawn, of which selects show some."""

    selects: Sequence[Select]
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Legend:
    """One entry of a legend; `curve` is the number that the script highlights by, or -1."""

    css: str
    text: str
    curve: int = -1
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """Charts side by side, with a legend."""

    charts: Sequence[Markup]
    legend: Sequence[Legend]


def curve_style(at: int, name: str) -> str:
    """The CSS classes of a detector's curve: its hue, and a dash once the hues run out."""
    if name == JOINT:
        return "joint"
    return f"c{at % _HUES} d{at // _HUES % _DASHES}"


def set_style(at: int) -> str:
    """The CSS class of an OOD set, the same in every figure."""
    return f"ood{at % _SETS}"


def chooser(label: str, panels: Sequence[Panel], chosen: str) -> Select:
    """A select over panels by name."""
    return Select(
        label, [Option(str(panel.key), panel.name, panel.name == chosen) for panel in panels]
    )


def scored(evidence: Evidence, name: str) -> Scored:
    """A detector's scores; joint_energy and max_logit are computed if the benchmark had none."""
    if name in evidence.scores:
        return evidence.scores[name]
    score = scores.SCORES[name]
    return Scored(
        rowwise(score(evidence.id_outputs.logits)),
        {ood: rowwise(score(outputs.logits)) for ood, outputs in evidence.ood_outputs.items()},
    )


def rowwise(values: NDArray[np.floating]) -> Values:
    """Scores as float64; a row that could not be scored is out, as for a detector that says so."""
    return np.nan_to_num(
        np.asarray(values, dtype=np.float64), nan=-np.inf, posinf=np.inf, neginf=-np.inf
    )


def label_names(evidence: Evidence) -> tuple[str, ...]:
    """The labels' names, or numbers in their place."""
    outputs = evidence.id_outputs
    return outputs.label_names or tuple(f"label {at}" for at in range(outputs.n_labels))


def label_energies(logits: NDArray[np.floating]) -> Values:
    """Label-wise energies as float64; what is not a number counts nothing."""
    energies = np.asarray(scores.label_energy(logits), dtype=np.float64)
    return np.nan_to_num(energies, nan=0.0, posinf=_LARGEST)


def carried_labels(evidence: Evidence) -> tuple[NDArray[np.bool_], bool]:
    """Which labels each ID input has, of shape (n_samples, n_labels), and whether that is truth.

    Without truth they are the labels that the network predicts.
    """
    labels = evidence.id_outputs.labels
    if labels is not None:
        return labels.astype(bool), True
    return np.asarray(evidence.id_outputs.logits) > 0, False


def set_legend(evidence: Evidence, *, carrying: bool = False) -> list[Legend]:
    """ID and the OOD sets, as they look in every figure."""
    own = evidence.id_name
    if carrying and evidence.id_outputs.labels is not None:
        own += ", inputs with the label"
    oods = [Legend(set_style(at), ood) for at, ood in enumerate(evidence.ood_outputs)]
    return [Legend("id", own), *oods]
