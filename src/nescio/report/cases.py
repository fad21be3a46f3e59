"""Case studies: inputs on which two detectors disagree, with pictures or texts if there are any."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from nescio._charts.style import JOINT
from nescio._charts.svg import BarRow, BarRows, Markup, Values, short
from nescio._io.tables import require
from nescio.benchmark.evidence import Evidence
from nescio.calibration.continuous import continuous_p_values
from nescio.data.images import read_image
from nescio.errors import DatasetError, MissingDependencyError
from nescio.outputs import Outputs
from nescio.outputs.crops import CROPS, N_CROPS, heat_map
from nescio.outputs.outputs import TEXT
from nescio.report.panels import MAX, find_threshold, label_energies, label_names, scores_of

_CASES = 6
_BARS = 6
_PIXELS = 112
_QUALITY = 82
_MOST_OPAQUE = 0.6  # of the heat map; the picture shows through
_TEXT_START, _TEXT_MOST = 280, 5_000  # characters of a text that are shown, and that can be
_IMAGES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff")
_ENERGY_BARS = BarRows(width=250, row=16, start=92, longest=88, n_characters=15)


def case_groups(
    evidence: Evidence, tpr: float, best: Mapping[str, str] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """Return the cases: OOD sets first, then the ID set; joint energy right first.

    `best` is the best detector of each OOD set. If it is neither of the two, the cases on which it
    disagrees with joint energy follow.
    """
    found = {name: scores_of(evidence, name) for name in (JOINT, MAX, *best.values())}
    thresholds: dict[str, float] = {}
    for name, one in found.items():
        threshold = find_threshold(one.id_scores, tpr)
        if threshold is None:
            return []
        thresholds[name] = threshold
    medians = np.median(label_energies(evidence.id_outputs.logits), axis=0)
    lowest = _lowest_crops(evidence.id_outputs)
    groups = []
    for set_name in (*evidence.ood_outputs, evidence.id_name):
        if set_name == evidence.id_name:
            values = {name: one.id_scores for name, one in found.items()}
        else:
            names = dict.fromkeys((JOINT, MAX, best.get(set_name, MAX)))
            values = {name: found[name].ood_scores[set_name] for name in names}
        # Ranks among the ID scores make the scores comparable.
        ranks = {name: _share_below(found[name].id_scores, values[name]) for name in values}
        for other in [name for name in values if name != JOINT]:
            apart = np.abs(ranks[JOINT] - ranks[other])
            for right, wrong in ((JOINT, other), (other, JOINT)):
                pair = _Pair(set_name, right, wrong, values, thresholds, apart)
                groups.append(_group(evidence, pair, medians, lowest))
    return groups


class _Pair(NamedTuple):
    """Two detectors on one set, with the scores and thresholds of all detectors shown."""

    set_name: str
    right: str
    wrong: str
    values: Mapping[str, Values]
    thresholds: Mapping[str, float]
    apart: Values  # how far the two scores are apart


def _group(
    evidence: Evidence, pair: _Pair, medians: Values, lowest: Values | None
) -> dict[str, Any]:
    """Return the inputs of a set on which one detector is right and the other is wrong."""
    is_id = pair.set_name == evidence.id_name
    outputs = evidence.id_outputs if is_id else evidence.ood_outputs[pair.set_name]
    is_in = {name: one >= pair.thresholds[name] for name, one in pair.values.items()}
    rows = np.flatnonzero((is_in[pair.right] == is_id) & (is_in[pair.wrong] != is_id))
    shown = [name for name in pair.values if name in (JOINT, MAX, pair.right, pair.wrong)]
    cases = []
    for row in rows[np.argsort(-pair.apart[rows], kind="stable")[:_CASES]].tolist():
        case = input_case(evidence, pair.set_name, outputs, row, medians, lowest)
        case["verdicts"] = [
            input_verdict(name, float(pair.values[name][row]), pair.thresholds[name], is_id=is_id)
            for name in shown
        ]
        cases.append(case)
    return {
        "set_name": pair.set_name,
        "is_id": is_id,
        "right": pair.right,
        "wrong": pair.wrong,
        "total": len(rows),
        "n_inputs": len(outputs),
        "cases": cases,
    }


def why_no_pictures(evidence: Evidence, groups: Sequence[Mapping[str, Any]]) -> str:
    """Return why no case has a picture; empty if one has, or if nothing is missing."""
    shown = [(group["set_name"], case) for group in groups for case in group["cases"]]
    if not shown or any(case["picture"] for _, case in shown):
        return ""
    roots = {name: evidence.image_roots[name] for name, _ in shown if name in evidence.image_roots}
    if not roots:
        if not any(case["name"].lower().endswith(_IMAGES) for _, case in shown):
            return ""  # the inputs are not images
        return (
            "There are no pictures, because the folders of the images are not named (--images; "
            "--images recorded for the results of your own benchmark)."
        )
    try:
        require("PIL", "report")
    except MissingDependencyError:
        return "There are no pictures, because Pillow is not installed (the extra report)."
    folders = ", ".join(str(root) for root in dict.fromkeys(roots.values()))
    return f"There are no pictures, because no image file of the cases can be read in {folders}."


def _share_below(id_scores: Values, values: Values) -> Values:
    below: Values = np.searchsorted(np.sort(id_scores), values) / len(id_scores)
    return below


def input_case(
    evidence: Evidence,
    set_name: str,
    outputs: Outputs,
    row: int,
    medians: Values | None = None,
    lowest: Values | None = None,
) -> dict[str, Any]:
    """Return one input: its name, its picture (a data URI, or empty) or text, labels and energies.

    The energies are drawn beside their medians over ID; without these, they are left out. `lowest`
    has the joint energies of the lowest crops of ID images, for a heat map over the picture.
    """
    names = label_names(evidence)
    name = f"input {row}" if outputs.ids is None else str(outputs.ids[row])
    root = evidence.image_roots.get(set_name)
    truth = () if outputs.labels is None else np.flatnonzero(outputs.labels[row])
    heat = "" if lowest is None else _heat(outputs[[row]], lowest)
    whole = bool(heat)
    return {
        "name": name,
        "picture": "" if root is None or outputs.ids is None else _picture(root, name, whole=whole),
        "heat": heat,
        "text": shown_text(outputs, row),
        "truth": ", ".join(names[at] for at in truth) if outputs is evidence.id_outputs else "",
        "bars": ""
        if medians is None
        else energy_bars(names, label_energies(outputs.logits[[row]])[0], medians),
    }


def shown_text(outputs: Outputs, row: int) -> dict[str, str] | None:
    """Return the text that an input is: its beginning, and the rest, which is hidden at first."""
    column = outputs.kept.get(TEXT)
    if column is None or not isinstance(column[row], str):
        return None
    text = str(column[row])
    more = len(text) - _TEXT_MOST
    left_out = f" … ({more:,} more characters)" if more > 0 else ""
    start, rest = text[:_TEXT_START], text[_TEXT_START:_TEXT_MOST] + left_out
    return {"start": start or "(an empty text)", "rest": rest}


def input_verdict(detector: str, score: float, threshold: float, *, is_id: bool) -> dict[str, Any]:
    """Return what a detector says about one input, and whether this is right."""
    inside = score >= threshold
    return {
        "detector": detector,
        "score": short(score),
        "threshold": short(threshold),
        "inside": inside,
        "right": inside == is_id,
    }


def _crop_energies(outputs: Outputs) -> Values | None:
    """Return the joint energies of the crops, (n_samples, n_crops); None without crops."""
    crops = outputs.get(CROPS + "logits")
    if crops is None:
        return None
    energies = label_energies(np.asarray(crops).reshape(-1, outputs.n_labels)).sum(1)
    return np.asarray(energies.reshape(len(outputs), N_CROPS))


def _lowest_crops(outputs: Outputs) -> Values | None:
    """Return the joint energy of the lowest crop of each image, ascending; None without crops."""
    energies = _crop_energies(outputs)
    return None if energies is None else np.sort(energies.min(1))


def _heat(outputs: Outputs, lowest: Values) -> Markup:
    """Draw where an image is suspicious; empty without crops."""
    energies = _crop_energies(outputs)
    if energies is None or not np.isfinite(lowest).all():
        return Markup("")
    cells = heat_map(continuous_p_values(lowest, energies[0]))
    rects = [
        f'<rect x="{x}" y="{y}" width="1" height="1" fill-opacity="{_MOST_OPAQUE * heat:.2f}"/>'
        for (y, x), heat in np.ndenumerate(cells)
    ]
    return Markup(f'<svg class="heat" viewBox="0 0 4 4" aria-hidden="true">{"".join(rects)}</svg>')


def _picture(root: Path, name: str, *, whole: bool) -> str:
    """Return the thumbnail of a file; empty for a name that points outside the root.

    Symbolic links in the root are followed, because the owner of the folder made them. The names
    may come from anyone.
    """
    path = Path(os.path.normpath(root / name))
    if "\0" in name or not path.is_relative_to(os.path.normpath(root)):
        return ""
    return thumbnail(path, whole=whole)


def thumbnail(path: Path, *, whole: bool = False) -> str:
    """Return a small square JPEG as a data URI; empty without such a picture or without Pillow.

    It is the middle of the picture or, under a heat map, the whole of it, squashed.
    """
    try:
        image = read_image(path)
    except (DatasetError, MissingDependencyError):
        return ""
    side = min(image.size)
    left, upper = ((length - side) // 2 for length in image.size)
    box = None if whole else (left, upper, left + side, upper + side)
    square = image.resize((_PIXELS, _PIXELS), box=box)
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
