"""Case studies: inputs that joint energy and the largest logit judge differently, with pictures."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from nescio.benchmark.evidence import Evidence
from nescio.data.images import read_image
from nescio.errors import DatasetError, MissingDependencyError
from nescio.outputs import Outputs
from nescio.report.curves import Values, find_tau
from nescio.report.panels import JOINT, MAX, label_energies, label_names, scored
from nescio.report.svg import Markup, short

_CASES = 6
_BARS = 6
_PIXELS = 112
_QUALITY = 82
# The bars' picture, in its own pixels: names end where bars begin, and numbers follow the bars.
_WIDTH, _BARS_FROM, _LONGEST_BAR, _NUMBER_WIDTH = 250, 92, 88, 66


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
                picture="" if root is None or outputs.ids is None else _picture(root, name),
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


def _picture(root: Path, name: str) -> str:
    """A file's thumbnail; empty for a name that leads out of the root.

    Links in the root are followed: its owner made them, but anyone may have named the files.
    """
    path = Path(os.path.normpath(root / name))
    if "\0" in name or not path.is_relative_to(os.path.normpath(root)):
        return ""
    return thumbnail(path)


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


@dataclass(frozen=True)
class _Bar:
    """One bar: its energy, its share of the joint energy, and the median to mark, if any."""

    name: str
    energy: float
    share: float
    median: float | None
    css: str

    @property
    def number(self) -> str:
        return f"{_amount(self.energy)} · {_per_cent(self.share)}"


def energy_bars(names: Sequence[str], energies: Values, medians: Values) -> Markup:
    """The largest label-wise energies as bars, a mark at each label's median over ID, and the rest.

    The last bar is what the largest logit does not see: the sum over all the other labels.
    """
    order = np.argsort(-energies, kind="stable")
    top, rest = order[:_BARS].tolist(), order[_BARS:]
    joint = float(energies.sum())
    shares = energies / joint if joint > 0 else np.zeros(len(energies))
    bars = [
        _Bar(names[at], float(energies[at]), float(shares[at]), float(medians[at]), "bar joint")
        for at in top
    ]
    if len(rest):
        name = "1 other" if len(rest) == 1 else f"{len(rest)} others"
        energy, share = float(energies[rest].sum()), float(shares[rest].sum())
        bars.append(_Bar(name, energy, share, None, "bar others"))
    longest = max(max(bar.energy, bar.median or 0.0) for bar in bars)
    scale = _LONGEST_BAR / longest if longest > 1e-30 else 0.0
    drawn = "".join(_draw_bar(bar, 16 * place, scale) for place, bar in enumerate(bars))
    said = ", ".join(f"{bar.name} {bar.number}" for bar in bars)
    said = f"Label-wise energies and their shares of the joint energy: {said}"
    return Markup(
        f'<svg class="bars" role="img" viewBox="0 0 {_WIDTH} {16 * len(bars)}" '
        f'aria-label="{escape(said)}">{drawn}</svg>'
    )


def _draw_bar(bar: _Bar, y: int, scale: float) -> str:
    length = scale * bar.energy
    mark = -1.0 if bar.median is None else scale * bar.median
    # The number stands beside its bar, past the mark where that is in the way.
    beside = mark if 0 < mark - length <= _NUMBER_WIDTH else length
    shown = bar.name if len(bar.name) <= 15 else bar.name[:14] + "…"
    usual = "" if bar.median is None else f"; median over ID {bar.median:.3g}"
    tip = f"{bar.name}: {bar.energy:.3g}, {100 * bar.share:.3g} % of the joint energy{usual}"
    drawn = (
        f'<text x="{_BARS_FROM - 6}" y="{y + 11}" text-anchor="end">{escape(shown)}</text>'
        f'<rect class="{bar.css}" x="{_BARS_FROM}" y="{y + 2}" width="{length:.1f}" height="11">'
        f"<title>{escape(tip)}</title></rect>"
        f'<text x="{_BARS_FROM + 4 + beside:.1f}" y="{y + 11}">{escape(bar.number)}</text>'
    )
    if bar.median is None:
        return drawn
    return drawn + f'<path class="median" d="M{_BARS_FROM + mark:.1f} {y}V{y + 15}"/>'


def _amount(energy: float) -> str:
    """An energy in few characters."""
    if 0 < energy < 0.001:
        return "<0.001"
    return f"{energy:.0f}" if 100 <= energy < 100_000 else f"{energy:.2g}"


def _per_cent(share: float) -> str:
    """A whole number; what is not quite nothing or all does not look like it."""
    if 0 < share < 0.005:
        return "<1 %"
    return ">99 %" if 0.995 <= share < 1 else f"{100 * share:.0f} %"
