"""Inputs in a report: where two detectors disagree, false alarms, and the first of each set."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio._charts.svg import JOINT, BarRow, BarRows, Chart, Markup, Scale, Values, percent, short
from nescio.detectors import Detector
from nescio.errors import DatasetError, MissingDependencyError
from nescio.lab.benchmark.results import Evidence
from nescio.lab.benchmark.tables import Table
from nescio.lab.report.figures import (
    MAX,
    Flags,
    find_threshold,
    label_energies,
    label_names,
    scores_of,
    true_or_predicted,
)
from nescio.metrics.comparison import Scored
from nescio.models.images import read_image
from nescio.outputs import Outputs
from nescio.outputs.outputs import TEXT

_CASES = 6  # of a group
_FIRST_INPUTS = 6  # of a set, in the introduction
_BARS = 6
_PIXELS = 112
_QUALITY = 82
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
    scored = {name: scores_of(evidence, name) for name in (JOINT, MAX, *best.values())}
    thresholds = {
        name: threshold
        for name, own in scored.items()
        if (threshold := find_threshold(own.id_scores, tpr)) is not None
    }
    if len(thresholds) < len(scored):
        return []
    medians = np.median(label_energies(evidence.id_outputs.logits), axis=0)
    groups = []
    for ood in evidence.ood_outputs:
        of_set = {name: scored[name] for name in (JOINT, MAX, best.get(ood, MAX))}
        groups += _disagreements(evidence, ood, of_set, thresholds, medians)
    return groups + _disagreements(evidence, evidence.id_name, scored, thresholds, medians)


def _disagreements(
    evidence: Evidence,
    set_name: str,
    scored: Mapping[str, Scored],
    thresholds: Mapping[str, float],
    medians: Values,
) -> list[dict[str, Any]]:
    """Return the inputs of a set on which joint energy is right and another wrong, and the reverse.

    Those whose scores are furthest apart come first. Ranks among the ID scores make the scores
    comparable.
    """
    is_id = set_name == evidence.id_name
    outputs = evidence.id_outputs if is_id else evidence.ood_outputs[set_name]
    values = {
        name: own.id_scores if is_id else own.ood_scores[set_name] for name, own in scored.items()
    }
    ranks = {
        name: np.searchsorted(np.sort(scored[name].id_scores), own) / len(scored[name].id_scores)
        for name, own in values.items()
    }
    is_right = {name: (own >= thresholds[name]) == is_id for name, own in values.items()}
    groups = []
    for other in [name for name in values if name != JOINT]:
        apart = np.abs(ranks[JOINT] - ranks[other])
        shown = {name: own for name, own in values.items() if name in (JOINT, MAX, other)}
        for right, wrong in ((JOINT, other), (other, JOINT)):
            rows = np.flatnonzero(is_right[right] & ~is_right[wrong])
            cases = []
            for row in rows[np.argsort(-apart[rows], kind="stable")[:_CASES]].tolist():
                case = input_case(evidence, set_name, outputs, row, medians)
                case["verdicts"] = [
                    input_verdict(name, float(own[row]), thresholds[name], is_id=is_id)
                    for name, own in shown.items()
                ]
                cases.append(case)
            names = {"set_name": set_name, "is_id": is_id, "right": right, "wrong": wrong}
            counts = {"total": len(rows), "n_inputs": len(outputs)}
            groups.append(names | counts | {"cases": cases})
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
        return (
            "There are no pictures, because the folders of the images are not named (--images; "
            "--images recorded for the results of your own benchmark)."
        )
    folders = ", ".join(str(root) for root in dict.fromkeys(roots.values()))
    return (
        f"There are no pictures, because no image file of the cases can be read in {folders}, or "
        "because Pillow is not installed (the extra report)."
    )


def input_case(
    evidence: Evidence,
    set_name: str,
    outputs: Outputs,
    row: int,
    medians: Values | None = None,
) -> dict[str, Any]:
    """Return one input: its name, its picture (a data URI, or empty) or text, labels and energies.

    The energies are drawn beside their medians over ID; without these, they are left out.
    """
    names = label_names(evidence)
    name = f"input {row}" if outputs.ids is None else str(outputs.ids[row])
    root = evidence.image_roots.get(set_name)
    case = {
        "name": name,
        "picture": "" if root is None or outputs.ids is None else _picture(root, name),
        "text": _shown_text(outputs, row),
        "truth": "",
        "bars": "",
    }
    if outputs is evidence.id_outputs and outputs.labels is not None:
        case["truth"] = ", ".join(names[label] for label in np.flatnonzero(outputs.labels[row]))
    if medians is not None:
        case["bars"] = energy_bars(names, label_energies(outputs.logits[[row]])[0], medians)
    return case


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
    """Draw the largest label-wise energies as bars, with a mark at the median of each over ID.

    The last bar is the sum over all the other labels, which the largest logit ignores.
    """
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


# --- false alarms ---------------------------------------------------------------------------------

_MANY = 7  # inputs with this many labels or more form one group
_FEWEST = 10  # labels with fewer inputs are not listed
_LABELS_SHOWN = 15
_STYLES = ("joint", "max", "c0", "c4", "c6")  # of the detectors, in their order


def flagged(id_scores: Values, tpr: float) -> Flags:
    """Return which ID inputs fall below the threshold that keeps a share `tpr` of them."""
    threshold = find_threshold(id_scores, tpr)
    return np.isneginf(id_scores) if threshold is None else id_scores < threshold


def false_alarms(evidence: Evidence, tpr: float, best: Sequence[str] = ()) -> dict[str, Any]:
    """Return the inputs flagged by joint energy, the largest logit and `best`, by their labels."""
    has, is_truth = true_or_predicted(evidence), evidence.id_outputs.labels is not None
    names = list(dict.fromkeys((JOINT, MAX, *best)))[: len(_STYLES)]
    flags = {name: flagged(scores_of(evidence, name).id_scores, tpr) for name in names}
    kind = "true" if is_truth else "predicted"
    # Inputs without a predicted label are flagged most often. So without truth each input counts
    # for its most likely label.
    grouped = has if is_truth else _most_likely(evidence.id_outputs.logits)
    counts = grouped.sum(axis=0)
    fewest = min(_FEWEST, int(counts.max(initial=0)) or 1)
    enough = counts >= fewest
    by_label = _by_label(label_names(evidence), grouped, flags, enough)
    hidden = int(enough.sum()) - len(by_label)
    left_out = f"{hidden} more labels have a smaller share. " if hidden > 0 else ""
    if not enough.all():
        few = "without inputs" if fewest == 1 else f"with fewer than {fewest} inputs"
        left_out += f"Labels {few} are not listed."
    return {
        "kind": kind,  # which labels are counted
        "label_kind": "true" if is_truth else "most likely",  # by which label inputs are grouped
        "styles": dict(zip(names, _STYLES, strict=False)),
        "totals": _totals(flags),
        "by_count": _count_chart(has.sum(axis=1), flags, kind),
        "by_label": by_label,
        "left_out": left_out,
    }


def _totals(flags: dict[str, Flags]) -> str:
    """Write how many inputs each detector flags, and how many the first two both flag."""
    first, second, *more = flags
    n = {name: np.count_nonzero(of) for name, of in flags.items()}
    both = np.count_nonzero(flags[first] & flags[second])
    total = (
        f"{n[first]:,} of {len(flags[first]):,} inputs are flagged by {first}, "
        f"{n[second]:,} by {second}, {both:,} by both"
    )
    rest = " and ".join(f"{n[name]:,} by {name}" for name in more)
    return f"{total}; {rest}." if rest else f"{total}."


def _most_likely(logits: NDArray[np.floating]) -> Flags:
    """Return the label with the largest logit of each input, multi-hot; none without a logit."""
    values = np.nan_to_num(logits, nan=-np.inf)
    top = values.argmax(axis=1)
    is_top: Flags = (np.arange(values.shape[1]) == top[:, None]) & np.isfinite(values)
    return is_top


def _by_label(
    names: Sequence[str], has: Flags, flags: dict[str, Flags], enough: Flags
) -> list[dict[str, Any]]:
    """Return how many inputs of each label are flagged, by the share of the first detector."""
    n_inputs = has.sum(axis=0)
    counts = {name: has[of].sum(axis=0) for name, of in flags.items()}
    shares = {name: count / np.maximum(n_inputs, 1) for name, count in counts.items()}
    longest = max(float(share[enough].max(initial=0.0)) for share in shares.values()) or 1.0
    rows: list[dict[str, Any]] = []
    for label in np.flatnonzero(enough).tolist():
        by_detector = {
            name: {
                "flagged": int(counts[name][label]),
                "share": float(shares[name][label]),
                "length": float(shares[name][label]) / longest,  # of the bar, at most 1
            }
            for name in flags
        }
        rows.append(
            {"label": names[label], "n_inputs": int(n_inputs[label]), "by_detector": by_detector}
        )
    first = next(iter(flags))
    rows.sort(key=lambda row: (-row["by_detector"][first]["share"], -row["n_inputs"], row["label"]))
    return rows[:_LABELS_SHOWN]


def _count_chart(label_counts: NDArray[np.int_], flags: dict[str, Flags], kind: str) -> Markup:
    """Draw bars of the flagged share, one group of bars per number of labels."""
    capped = np.minimum(label_counts, _MANY)
    groups, sizes = np.unique(capped, return_counts=True)
    shares = {name: [float(of[capped == n].mean()) for n in groups] for name, of in flags.items()}
    top = max(max(values) for values in shares.values()) or 0.05
    texts = [f"{n}+" if n == _MANY else str(n) for n in groups]
    chart = Chart(
        Scale(0.0, float(len(groups))),
        Scale(0.0, min(1.0, 1.1 * top), write=percent),
        name=f"Share of ID inputs flagged, by number of {kind} labels",
        height=290,
        x_label=f"number of {kind} labels (in brackets: number of inputs)",
        y_label="flagged, %",
        x_ticks=[(group + 0.5, f"{text}\n({sizes[group]:,})") for group, text in enumerate(texts)],
    )
    slot = chart.width / len(groups)
    room = 0.74 / len(shares)  # of one bar, as a share of the slot
    for place, (name, values) in enumerate(shares.items()):
        for group, share in enumerate(values):
            n_flagged = np.count_nonzero(flags[name][capped == groups[group]])
            tip = (
                f"{name}: {n_flagged:,} of {sizes[group]:,} inputs with {texts[group]} {kind} "
                f"labels, {100 * share:.1f} %"
            )
            left = slot * (group + 0.14 + room * place)
            chart.bar(left, 0.92 * room * slot, share, _STYLES[place], tip=tip)
    return chart.draw()


# --- the first inputs of each set -----------------------------------------------------------------


@dataclass(frozen=True)
class Introduction:
    """What a report begins with.

    Attributes
    ----------
    sentences : sequence of str
    table : Table
    detector : Detector
        A calibrated detector, whose verdicts are shown.
    """

    sentences: Sequence[str]
    table: Table
    detector: Detector


def introduced(introduction: Introduction, evidence: Evidence) -> dict[str, Any]:
    """Return what the template reads: the sentences, the table, and the first inputs of each set.

    The inputs are the first ones, so that they are not chosen by their verdicts.
    """
    detector, labels = introduction.detector, label_names(evidence)
    sets = []
    for name, outputs in {evidence.id_name: evidence.id_outputs, **evidence.ood_outputs}.items():
        is_id = outputs is evidence.id_outputs
        verdicts = detector.assess(outputs, from_probs=False)
        cases = []
        for row in range(min(_FIRST_INPUTS, len(outputs))):
            case = input_case(evidence, name, outputs, row)
            predicted = np.flatnonzero(outputs.logits[row] > 0)
            case["predicted"] = ", ".join(labels[label] for label in predicted) or "nothing"
            score = float(verdicts.scores[row])
            case["verdicts"] = [input_verdict(detector.name, score, detector.offset_, is_id=is_id)]
            cases.append(case)
        counts = {"n_inputs": len(outputs), "n_flagged": len(verdicts.flagged)}
        sets.append({"name": name, "is_id": is_id, **counts, "cases": cases})
    checked = detector.self_check(evidence.id_outputs, from_probs=False)
    return {
        "sentences": introduction.sentences,
        "table": introduction.table,
        "sets": sets,
        "self_check": {"table": checked.drawn(), "text": checked.summary()},
    }
