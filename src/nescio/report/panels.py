"""The building blocks of the figures: panels, selects and legends, and the data they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nescio import scores
from nescio._charts.style import JOINT, set_style
from nescio._charts.svg import Markup, Values
from nescio.benchmark.evidence import Evidence
from nescio.calibration import empirical_threshold
from nescio.errors import NescioError
from nescio.metrics import auroc
from nescio.metrics.comparison import Scored

LegendEntry = tuple[str, str]  # CSS class and text

MAX = "max_logit"
_LARGEST = 3e38  # replaces an infinite energy


class Panel(NamedTuple):
    """One chart under its name; `key` is its number in the page."""

    key: int
    name: str
    chart: Markup
    note: str


class Option(NamedTuple):
    """One option of a select: the keys of the panels that it shows, separated by spaces."""

    keys: str
    text: str
    chosen: bool


class Switch(NamedTuple):
    """Panels, and the selects (a label and options each) that choose which of them are shown."""

    selects: Mapping[str, Sequence[Option]]
    panels: Sequence[Panel]
    shown: set[int]  # the keys of the panels that are shown at first


def choose_by_name(panels: Sequence[Panel], chosen: Mapping[str, str]) -> Switch:
    """Return a switch with one select per entry of `chosen`: its label and the panel it shows."""
    selects = {
        label: [Option(str(panel.key), panel.name, panel.name == name) for panel in panels]
        for label, name in chosen.items()
    }
    return Switch(selects, panels, {one.key for one in panels if one.name in chosen.values()})


def set_legend(evidence: Evidence, *, with_label: bool = False) -> list[LegendEntry]:
    """Return the legend of the ID set and the OOD sets, which is the same in every figure."""
    own = evidence.id_name
    if with_label and evidence.id_outputs.labels is not None:
        own += ", inputs with the label"
    return [("id", own), *((set_style(at), ood) for at, ood in enumerate(evidence.ood_outputs))]


def scores_of(evidence: Evidence, name: str) -> Scored:
    """Return the scores of a detector; compute a score function that the benchmark did not run."""
    if name in evidence.scores:
        return evidence.scores[name]
    score = scores.SCORES[name]
    return Scored(
        rowwise(score(evidence.id_outputs.logits)),
        {ood: rowwise(score(outputs.logits)) for ood, outputs in evidence.ood_outputs.items()},
    )


def best_detectors(evidence: Evidence, tpr: float) -> dict[str, str]:
    """Return, for each OOD set, the detector with the highest AUROC that has a threshold.

    Of detectors whose AUROC is equal to four decimals, joint energy comes first, then the largest
    logit. An OOD set is left out if no detector has a threshold.
    """
    names = [name for name in (JOINT, MAX) if name in evidence.scores]
    names += [name for name in evidence.scores if name not in names]
    found = {
        name: evidence.scores[name]
        for name in names
        if find_threshold(evidence.scores[name].id_scores, tpr) is not None
    }
    best = {}
    for ood in evidence.ood_outputs if found else ():
        areas = {
            name: round(auroc(one.id_scores, one.ood_scores[ood]), 4) for name, one in found.items()
        }
        best[ood] = max(areas, key=lambda name: areas[name])
    return best


def find_threshold(id_scores: Values, tpr: float) -> float | None:
    """Return the threshold that keeps a share `tpr` of these scores; None if it would be -inf."""
    try:
        return empirical_threshold(id_scores, tpr)
    except NescioError:
        return None


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


def true_or_predicted(evidence: Evidence) -> NDArray[np.bool_]:
    """Return the true labels of each ID input, (n_samples, n_labels); else the predicted ones."""
    labels = evidence.id_outputs.labels
    return evidence.id_outputs.logits > 0 if labels is None else labels.astype(bool)
