"""Case studies: inputs that joint energy and the largest logit judge differently, with pictures."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from nescio.benchmark.evidence import Evidence
from nescio.benchmark.report.curves import Values, find_tau
from nescio.benchmark.report.panels import JOINT, MAX, label_energies, label_names, scored
from nescio.benchmark.report.svg import Markup, short
from nescio.data.images import read_image
from nescio.errors import DatasetError, MissingDependencyError
from nescio.outputs import Outputs

_CASES = 6
_BARS = 6
_PIXELS = 112
_QUALITY = 82
_NUMBER_WIDTH = 34


@dataclass(frozen=True)
class Verdict:
    """One detector's score beside its threshold."""

    detector: str
    score: str
    tau: str
    inside: bool
    right: bool


@dataclass(frozen=True)
class Case:
    """One input: its picture (a data URI, or empty), what was said of it, and its energies."""

    name: str
    picture: str
    labels: str
    verdicts: Sequence[Verdict]
    bars: Markup


@dataclass(frozen=True)
class CaseGroup:
    """Inputs of one set on which one of the two was right and the other wrong."""

    set_name: str
    is_id: bool
    right: str
    wrong: str
    total: int
    n_inputs: int
    cases: Sequence[Case]


def case_groups(evidence: Evidence, tpr: float) -> list[CaseGroup]:
    """OOD sets first, then the ID set; for each, joint energy right, then the largest logit."""
    found = {name: scored(evidence, name) for name in (JOINT, MAX)}
    taus = {name: find_tau(one.id_scores, tpr) for name, one in found.items()}
    if None in taus.values():
        return []
    thresholds = {name: tau for name, tau in taus.items() if tau is not None}
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
            # Ranks among ID scores make the two scores comparable; the sort keeps ties in order.
            apart = np.abs(ranks[right] - ranks[wrong])[rows]
            picked = rows[np.argsort(-apart, kind="stable")[:_CASES]]
            cases = list(gallery.cases(set_name, outputs, picked.tolist(), values, is_id=is_id))
            groups.append(CaseGroup(set_name, is_id, right, wrong, len(rows), len(outputs), cases))
    return groups


def _share_below(id_scores: Values, values: Values) -> Values:
    below: Values = np.searchsorted(np.sort(id_scores), values) / len(id_scores)
    return below


class _Gallery:
    """What all the cases of one ID set are shown against."""

    def __init__(self, evidence: Evidence, taus: dict[str, float], medians: Values) -> None:
        self.evidence, self.taus, self.medians = evidence, taus, medians
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
            carried = ""
            if is_id and outputs.labels is not None:
                carried = ", ".join(self.names[at] for at in np.flatnonzero(outputs.labels[row]))
            root = self.evidence.image_roots.get(set_name)
            yield Case(
                name=name,
                picture="" if root is None or outputs.ids is None else thumbnail(root / name),
                labels=carried,
                verdicts=[
                    _verdict(detector, float(values[detector][row]), tau, is_id=is_id)
                    for detector, tau in self.taus.items()
                ],
                bars=energy_bars(self.names, energy, self.medians),
            )


def _verdict(detector: str, score: float, tau: float, *, is_id: bool) -> Verdict:
    inside = score >= tau
    return Verdict(detector, short(score), short(tau), inside, inside == is_id)


def thumbnail(path: Path) -> str:
    """A small square JPEG as a data URI; empty if there is no such picture or no Pillow."""
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
    """The largest label-wise energies as bars, a mark at each label's median over ID, and the rest.

    The last bar is what the largest logit does not see: the sum over all the other labels.
    """
    top = np.argsort(-energies, kind="stable")[:_BARS].tolist()
    rest = float(energies.sum() - energies[top].sum())
    rows = [(names[at], float(energies[at]), float(medians[at]), "bar joint") for at in top]
    others = len(energies) - len(top)
    if others:
        rows.append(
            ("1 other" if others == 1 else f"{others} others", max(rest, 0.0), -1.0, "bar others")
        )
    longest = max(max(value, median) for _, value, median, _ in rows)
    scale = 92.0 / longest if longest > 1e-30 else 0.0
    parts = []
    for place, (name, value, median, css) in enumerate(rows):
        y = 16 * place
        # The number stands beside its bar, past the mark where that is in the way.
        in_the_way = 0 < scale * (median - value) <= _NUMBER_WIDTH
        beside = scale * (median if in_the_way else value)
        shown = name if len(name) <= 15 else name[:14] + "…"
        parts.append(
            f'<text x="86" y="{y + 11}" text-anchor="end">{escape(shown)}</text>'
            f'<rect class="{css}" x="92" y="{y + 2}" width="{scale * value:.1f}" height="11">'
            f"<title>{escape(name)}: {value:.3g}</title></rect>"
            f'<text x="{96 + beside:.1f}" y="{y + 11}">{value:.2g}</text>'
        )
        if median >= 0:
            at = 92 + scale * median
            parts.append(f'<path class="median" d="M{at:.1f} {y}V{y + 15}"/>')
    said = ", ".join(f"{name} {value:.2g}" for name, value, _, _ in rows)
    return Markup(
        f'<svg class="bars" role="img" viewBox="0 0 220 {16 * len(rows)}" '
        f'aria-label="{escape(f"Label-wise energies: {said}")}">{"".join(parts)}</svg>'
    )
