"""Case studies: inputs on which joint energy and the largest logit disagree, with pictures."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nescio.benchmark.evidence import Evidence
from nescio.data.images import read_image
from nescio.errors import DatasetError, MissingDependencyError
from nescio.outputs import Outputs
from nescio.report.curves import Values, find_threshold
from nescio.report.panels import JOINT, MAX, label_energies, label_names, scores_of
from nescio.report.svg import BarRow, BarRows, Markup, short

_CASES = 6
_BARS = 6
_PIXELS = 112
_QUALITY = 82
_ENERGY_BARS = BarRows(width=250, row=16, start=92, longest=88, n_characters=15)


@dataclass(frozen=True)
class CaseVerdict:
    """The score of one detector, its threshold, and whether the verdict is right."""

    detector: str
    score: str
    threshold: str
    inside: bool
    right: bool


@dataclass(frozen=True)
class Case:
    """One input: its picture (a data URI, or empty), the verdicts and the energies."""

    name: str
    picture: str
    truth: str
    verdicts: Sequence[CaseVerdict]
    bars: Markup


@dataclass(frozen=True)
class CaseGroup:
    """Inputs of one set on which one of the two detectors is right and the other wrong."""

    set_name: str
    is_id: bool
    right: str
    wrong: str
    total: int
    n_inputs: int
    cases: Sequence[Case]


def case_groups(evidence: Evidence, tpr: float) -> list[CaseGroup]:
    """Return the cases: OOD sets first, then the ID set; joint energy right first."""
    found = {name: scores_of(evidence, name) for name in (JOINT, MAX)}
    thresholds: dict[str, float] = {}
    for name, one in found.items():
        threshold = find_threshold(one.id_scores, tpr)
        if threshold is None:
            return []
        thresholds[name] = threshold
    medians = np.median(label_energies(evidence.id_outputs.logits), axis=0)
    gallery = _Gallery(evidence, thresholds, medians)
    groups = []
    for set_name, outputs in {
        **evidence.ood_outputs,
        evidence.id_name: evidence.id_outputs,
    }.items():
        is_id = set_name == evidence.id_name
        values = {
            name: one.id_scores if is_id else one.ood_scores[set_name]
            for name, one in found.items()
        }
        ranks = {name: _share_below(found[name].id_scores, values[name]) for name in found}
        for right, wrong in ((JOINT, MAX), (MAX, JOINT)):
            is_in = {name: values[name] >= thresholds[name] for name in found}
            rows = np.flatnonzero((is_in[right] == is_id) & (is_in[wrong] != is_id))
            # Ranks among the ID scores make the two scores comparable.
            apart = np.abs(ranks[right] - ranks[wrong])[rows]
            picked = rows[np.argsort(-apart, kind="stable")[:_CASES]]
            cases = list(gallery.cases(set_name, outputs, picked.tolist(), values, is_id=is_id))
            groups.append(CaseGroup(set_name, is_id, right, wrong, len(rows), len(outputs), cases))
    return groups


def _share_below(id_scores: Values, values: Values) -> Values:
    below: Values = np.searchsorted(np.sort(id_scores), values) / len(id_scores)
    return below


class _Gallery:
    """The data that all cases of one ID set share."""

    def __init__(self, evidence: Evidence, thresholds: dict[str, float], medians: Values) -> None:
        self.evidence, self.thresholds, self.medians = evidence, thresholds, medians
        self.names = label_names(evidence)

    def cases(
        self,
        set_name: str,
        outputs: Outputs,
        rows: Sequence[int],
        values: dict[str, Values],
        *,
        is_id: bool,
    ) -> Iterator[Case]:
        energies = label_energies(outputs.logits[rows])
        for row, energy in zip(rows, energies, strict=True):
            name = f"input {row}" if outputs.ids is None else str(outputs.ids[row])
            truth = ""
            if is_id and outputs.labels is not None:
                truth = ", ".join(self.names[at] for at in np.flatnonzero(outputs.labels[row]))
            root = self.evidence.image_roots.get(set_name)
            yield Case(
                name=name,
                picture="" if root is None or outputs.ids is None else _picture(root, name),
                truth=truth,
                verdicts=[
                    _verdict(detector, float(values[detector][row]), threshold, is_id=is_id)
                    for detector, threshold in self.thresholds.items()
                ],
                bars=energy_bars(self.names, energy, self.medians),
            )


def _verdict(detector: str, score: float, threshold: float, *, is_id: bool) -> CaseVerdict:
    inside = score >= threshold
    return CaseVerdict(detector, short(score), short(threshold), inside, inside == is_id)


def _picture(root: Path, name: str) -> str:
    """Return the thumbnail of a file; empty for a name that points outside the root.

    Symbolic links in the root are followed, because the owner of the folder made them. The names
    may come from anyone.
    """
    path = Path(os.path.normpath(root / name))
    if "\0" in name or not path.is_relative_to(os.path.normpath(root)):
        return ""
    return thumbnail(path)


def thumbnail(path: Path) -> str:
    """Return a small square JPEG as a data URI; empty without such a picture or without Pillow."""
    try:
        image = read_image(path)
    except (DatasetError, MissingDependencyError):
        return ""
    side = min(image.size)
    left, upper = ((length - side) // 2 for length in image.size)
    square = image.resize((_PIXELS, _PIXELS), box=(left, upper, left + side, upper + side))
    stream = io.BytesIO()
    square.save(stream, "JPEG", quality=_QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode("ascii")


def energy_bars(names: Sequence[str], energies: Values, medians: Values) -> Markup:
    """Draw the largest label-wise energies as bars, with a mark at the median of each over ID.

    The last bar is the sum over all the other labels, which the largest logit ignores.
    """
    order = np.argsort(-energies, kind="stable")
    top, rest = order[:_BARS].tolist(), order[_BARS:]
    joint = float(energies.sum())
    shares = energies / joint if joint > 0 else np.zeros(len(energies))
    rows = [
        _bar(names[at], float(energies[at]), float(shares[at]), float(medians[at])) for at in top
    ]
    if len(rest):
        name = "1 other" if len(rest) == 1 else f"{len(rest)} others"
        rows.append(_bar(name, float(energies[rest].sum()), float(shares[rest].sum()), None))
    listed = ", ".join(f"{row.name} {row.text}" for row in rows)
    name = f"Label-wise energies and their shares of the joint energy: {listed}"
    return _ENERGY_BARS.draw(rows, name=name, css="bars")


def _bar(name: str, energy: float, share: float, median: float | None) -> BarRow:
    usual = "" if median is None else f"; median over ID {median:.3g}"
    tip = f"{name}: {energy:.3g}, {100 * share:.3g} % of the joint energy{usual}"
    text = f"{_amount(energy)} · {_percent(share)}"
    return BarRow(name, energy, text, tip, "others" if median is None else "joint", median)


def _amount(energy: float) -> str:
    """Write an energy with few characters."""
    if 0 < energy < 0.001:
        return "<0.001"
    return f"{energy:.0f}" if 100 <= energy < 100_000 else f"{energy:.2g}"


def _percent(share: float) -> str:
    """Write a whole number; a share that is almost 0 or 1 is not written as 0 or 100 %."""
    if 0 < share < 0.005:
        return "<1 %"
    return ">99 %" if 0.995 <= share < 1 else f"{100 * share:.0f} %"
