"""Inputs in a report, as cards, and those on which two detectors disagree."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nescio._charts.svg import BarRow, BarRows, Markup, Values, short
from nescio.detectors.verdicts import Verdict
from nescio.errors import DatasetError, MissingDependencyError
from nescio.lab.benchmark.results import Evidence
from nescio.lab.report.figures import Pair, find_threshold, label_energies, label_names, scores_of
from nescio.metrics.comparison import Scored
from nescio.models.images import IMAGE_SUFFIXES, read_image
from nescio.outputs import Outputs
from nescio.outputs.outputs import TEXT

_CASES = 3  # of a group
_BARS = 6
_PIXELS = 112
_QUALITY = 82
_TEXT_START, _TEXT_MOST = 280, 5_000  # characters of a text that are shown, and that can be
_ENERGY_BARS = BarRows(width=250, row=16, start=92, longest=88, n_characters=15)


def case_groups(evidence: Evidence, tpr: float, pair: Pair) -> list[dict[str, Any]]:
    """Return the cases: OOD sets first, then the ID set; the first of the pair right first."""
    scored = {name: scores_of(evidence, name) for name in pair}
    thresholds = {name: find_threshold(own.id_scores, tpr) for name, own in scored.items()}
    if None in thresholds.values():
        return []
    medians = np.median(label_energies(evidence.id_outputs.logits), axis=0)
    return [
        group
        for name in (*evidence.ood_outputs, evidence.id_name)
        for group in _disagreements(evidence, name, scored, thresholds, medians)
    ]


def _disagreements(
    evidence: Evidence,
    set_name: str,
    scored: Mapping[str, Scored],
    thresholds: Mapping[str, Any],
    medians: Values,
) -> list[dict[str, Any]]:
    """Return the inputs of a set on which the first is right and the other wrong, and the reverse.

    Those whose scores are furthest apart come first. Ranks among the ID scores make the scores
    comparable.
    """
    is_id = set_name == evidence.id_name
    outputs = evidence.id_outputs if is_id else evidence.ood_outputs[set_name]
    values = {
        name: own.id_scores if is_id else own.ood_scores[set_name] for name, own in scored.items()
    }
    ranks = {
        name: np.searchsorted(np.sort(scored[name].id_scores), own, "right")
        / len(scored[name].id_scores)
        for name, own in values.items()
    }
    inside = {name: own >= thresholds[name] for name, own in values.items()}
    groups = []
    first, second = values
    apart = np.abs(ranks[first] - ranks[second])
    for right, wrong in ((first, second), (second, first)):
        rows = np.flatnonzero((inside[right] == is_id) & (inside[wrong] != is_id))
        cases = []
        for row in rows[np.argsort(-apart[rows], kind="stable")[:_CASES]].tolist():
            case = input_case(evidence, set_name, outputs, row, medians)
            case["verdicts"] = [
                input_verdict(name, Verdict(own[row], ranks[name][row], inside[name][row]), is_id)
                for name, own in values.items()
            ]
            cases.append(case)
        names = {"set_name": set_name, "is_id": is_id, "right": right, "wrong": wrong}
        counts = {"total": len(rows), "n_inputs": len(outputs)}
        groups.append(names | counts | {"cases": cases})
    return groups


def why_no_pictures(evidence: Evidence, groups: Sequence[Mapping[str, Any]]) -> str:
    """Say what to do if no case has a picture; empty if one has, or if the inputs are no images."""
    cases = [case for group in groups for case in group["cases"]]
    named = any(Path(case["name"]).suffix.lower() in IMAGE_SUFFIXES for case in cases)
    is_expected = named or (cases and evidence.image_roots)
    if not is_expected or any(case["picture"] for case in cases):
        return ""
    folders = ", ".join(dict.fromkeys(map(str, evidence.image_roots.values()))) or "any folder"
    return (
        f"There are no pictures: none can be read in {folders}. Install Pillow, and name the "
        "folders of the images (--images; --images recorded for results of your own benchmark)."
    )


def input_case(
    evidence: Evidence, set_name: str, outputs: Outputs, row: int, medians: Values | None = None
) -> dict[str, Any]:
    """Return one input: name, picture (a data URI) or text, labels and, with medians, energies."""
    names = label_names(evidence)
    name = input_name(outputs, row)
    root = evidence.image_roots.get(set_name)
    truth, bars = "", ""
    if outputs is evidence.id_outputs and outputs.labels is not None:
        truth = ", ".join(names[label] for label in np.flatnonzero(outputs.labels[row]))
    if medians is not None:
        bars = energy_bars(names, label_energies(outputs.logits[[row]])[0], medians)
    return {
        "name": name,
        "picture": "" if root is None or outputs.ids is None else _picture(root, name),
        "text": _shown_text(outputs, row),
        "truth": truth,
        "predicted": "",
        "bars": bars,
        "why": [],
    }


def input_name(outputs: Outputs, row: int) -> str:
    """Return the id of an input, or its place."""
    return f"input {row}" if outputs.ids is None else str(outputs.ids[row])


def _shown_text(outputs: Outputs, row: int) -> dict[str, str] | None:
    """Return the text that an input is: its beginning, and the rest, which is hidden at first."""
    column = outputs.kept.get(TEXT)
    if column is None or not isinstance(column[row], str):
        return None
    text = str(column[row])
    more = len(text) - _TEXT_MOST
    left_out = f" … ({more:,} more characters)" if more > 0 else ""
    start, rest = text[:_TEXT_START], text[_TEXT_START:_TEXT_MOST] + left_out
    return {"start": start or "(an empty text)", "rest": rest}


def input_verdict(
    detector: str, verdict: Verdict, is_id: bool | None, lowest: float = 0.0
) -> dict[str, Any]:
    """Return a verdict in words, and whether it is right; no p-value is below `lowest`."""
    score, p_value, inside = verdict
    wrong, strange = "false alarm" if is_id else "missed", "stranger than all"
    right = "right\N{NO-BREAK SPACE}verdict" if inside == is_id else wrong
    if p_value > 0:
        strange = f"as strange as {strangeness(p_value, lowest)}"
    if p_value >= 0.1:
        strange = f"{strangeness(p_value)} are as strange"
    return {
        "detector": detector,
        "strange": strange,
        "score": short(score),
        "inside": inside,
        "right": "" if is_id is None else right,
    }


def strangeness(p_value: float, lowest: float = 0.0) -> str:
    """Return a p-value in words: how many ordinary inputs are as strange, or at most how many."""
    if p_value >= 0.1:
        return f"{100 * p_value:.0f} in 100"
    return f"1 in {float(f'{1 / p_value:.2g}'):,.0f}{' or rarer' if p_value <= lowest else ''}"


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
    """Return the middle of a picture as a small square data URI; empty without it or Pillow."""
    try:
        image = read_image(path)
    except (DatasetError, MissingDependencyError):
        return ""
    side = min(image.size)
    left, upper = ((length - side) // 2 for length in image.size)
    box = (left, upper, left + side, upper + side)
    square = image.resize((_PIXELS, _PIXELS), box=box)
    stream = io.BytesIO()
    square.save(stream, "JPEG", quality=_QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode("ascii")


def energy_bars(names: Sequence[str], energies: Values, medians: Values) -> Markup:
    """Draw the largest label-wise energies, each with its median over ID, then their rest."""
    order = np.argsort(-energies, kind="stable")
    top, rest = order[:_BARS].tolist(), order[_BARS:]
    joint = float(energies.sum())
    shares = energies / joint if joint > 0 else np.zeros(len(energies))
    rows = [
        _bar(names[label], float(energies[label]), float(shares[label]), float(medians[label]))
        for label in top
    ]
    if len(rest):
        name = "1 other" if len(rest) == 1 else f"{len(rest)} others"
        rows.append(_bar(name, float(energies[rest].sum()), float(shares[rest].sum()), None))
    listed = ", ".join(f"{row.name} {row.text}" for row in rows)
    name = f"Label-wise energies and their shares of the joint energy: {listed}"
    return _ENERGY_BARS.draw(rows, name=name)


def _bar(name: str, energy: float, share: float, median: float | None) -> BarRow:
    usual = "" if median is None else f"; median over ID {median:.3g}"
    tip = f"{name}: {energy:.3g}, {100 * share:.3g} % of the joint energy{usual}"
    amount = f"{energy:.0f}" if 100 <= energy < 100_000 else f"{energy:.2g}"
    percent = ">99 %" if 0.995 <= share < 1 else f"{100 * share:.0f} %"
    # What is almost 0 is not written as 0.
    amount = "<0.001" if 0 < energy < 0.001 else amount
    percent = "<1 %" if 0 < share < 0.005 else percent
    css = "others" if median is None else "joint"
    return BarRow(name, energy, f"{amount} · {percent}", tip, css, median)
