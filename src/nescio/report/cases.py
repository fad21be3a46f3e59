"""Case studies: inputs on which two detectors disagree, with pictures if there are any."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from nescio._io.tables import require
from nescio.benchmark.evidence import Evidence
from nescio.data.images import read_image
from nescio.errors import DatasetError, MissingDependencyError
from nescio.outputs import Outputs
from nescio.report.curves import find_threshold
from nescio.report.panels import JOINT, MAX, label_energies, label_names, scores_of
from nescio.report.svg import BarRow, BarRows, Markup, Values, short

_CASES = 6
_BARS = 6
_PIXELS = 112
_QUALITY = 82
_IMAGES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff")
_ENERGY_BARS = BarRows(width=250, row=16, start=92, longest=88, n_characters=15)


def case_groups(
    evidence: Evidence, tpr: float, best: Mapping[str, str] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """Return the cases: OOD sets first, then the ID set; joint energy right first.

    `best` is the best detector of each OOD set. If it is neither of the two, the cases on which it
    disagrees with joint energy follow.
    """
    sets = {**evidence.ood_outputs, evidence.id_name: evidence.id_outputs}
    found = {name: scores_of(evidence, name) for name in (JOINT, MAX, *best.values())}
    thresholds: dict[str, float] = {}
    for name, one in found.items():
        threshold = find_threshold(one.id_scores, tpr)
        if threshold is None:
            return []
        thresholds[name] = threshold
    medians = np.median(label_energies(evidence.id_outputs.logits), axis=0)
    groups = []
    for set_name, outputs in sets.items():
        is_id = set_name == evidence.id_name
        names = list(found) if is_id else list(dict.fromkeys((JOINT, MAX, best.get(set_name, MAX))))
        values = {
            name: found[name].id_scores if is_id else found[name].ood_scores[set_name]
            for name in names
        }
        is_in = {name: values[name] >= thresholds[name] for name in names}
        # Ranks among the ID scores make the scores comparable.
        ranks = {name: _share_below(found[name].id_scores, values[name]) for name in names}
        pairs = [pair for name in names[1:] for pair in ((JOINT, name), (name, JOINT))]
        for right, wrong in pairs:
            rows = np.flatnonzero((is_in[right] == is_id) & (is_in[wrong] != is_id))
            apart = np.abs(ranks[right] - ranks[wrong])[rows]
            picked = rows[np.argsort(-apart, kind="stable")[:_CASES]].tolist()
            cases = []
            for row in picked:
                case = _case(evidence, set_name, outputs, row, medians)
                case["verdicts"] = [
                    _verdict(name, float(values[name][row]), thresholds[name], is_id=is_id)
                    for name in names
                    if name in (JOINT, MAX, right, wrong)
                ]
                cases.append(case)
            groups.append(
                {
                    "set_name": set_name,
                    "is_id": is_id,
                    "right": right,
                    "wrong": wrong,
                    "total": len(rows),
                    "n_inputs": len(outputs),
                    "cases": cases,
                }
            )
    return groups


def why_no_pictures(evidence: Evidence, groups: Sequence[Mapping[str, Any]]) -> str:
    """Return why no case has a picture; empty if one has, or if nothing is missing."""
    shown = [(group["set_name"], case) for group in groups for case in group["cases"]]
    if not shown or any(case["picture"] for _, case in shown):
        return ""
    roots = {name: evidence.image_roots[name] for name, _ in shown if name in evidence.image_roots}
    if not roots:
        if not any(case["name"].lower().endswith(_IMAGES) for _, case in shown):
            return ""  # the inputs are not images
        return "There are no pictures, because the folders of the images are not known (--images)."
    try:
        require("PIL", "report")
    except MissingDependencyError:
        return "There are no pictures, because Pillow is not installed (nescio[report])."
    folders = ", ".join(str(root) for root in dict.fromkeys(roots.values()))
    return f"There are no pictures, because no image file of the cases can be read in {folders}."


def _share_below(id_scores: Values, values: Values) -> Values:
    below: Values = np.searchsorted(np.sort(id_scores), values) / len(id_scores)
    return below


def _case(
    evidence: Evidence, set_name: str, outputs: Outputs, row: int, medians: Values
) -> dict[str, Any]:
    """Return one input: its name, its picture (a data URI, or empty), its labels and energies."""
    names = label_names(evidence)
    name = f"input {row}" if outputs.ids is None else str(outputs.ids[row])
    root = evidence.image_roots.get(set_name)
    truth = () if outputs.labels is None else np.flatnonzero(outputs.labels[row])
    return {
        "name": name,
        "picture": "" if root is None or outputs.ids is None else _picture(root, name),
        "truth": ", ".join(names[at] for at in truth) if outputs is evidence.id_outputs else "",
        "bars": energy_bars(names, label_energies(outputs.logits[[row]])[0], medians),
    }


def _verdict(detector: str, score: float, threshold: float, *, is_id: bool) -> dict[str, Any]:
    inside = score >= threshold
    return {
        "detector": detector,
        "score": short(score),
        "threshold": short(threshold),
        "inside": inside,
        "right": inside == is_id,
    }


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
