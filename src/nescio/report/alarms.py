"""False alarms: the in-distribution inputs that are flagged when a share `tpr` is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio._charts.style import JOINT
from nescio._charts.svg import Chart, Markup, Scale, Values, percent_ticks
from nescio.benchmark.evidence import Evidence
from nescio.report.panels import MAX, find_threshold, label_names, scores_of, true_or_predicted

Flags = NDArray[np.bool_]

_MANY = 7  # inputs with this many labels or more form one group
_FEWEST = 10  # labels with fewer inputs are not listed
_SHOWN = 15
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
    """Write how many inputs each detector flags."""
    n = {name: int(of.sum()) for name, of in flags.items()}
    both = int((flags[JOINT] & flags[MAX]).sum())
    total = (
        f"{n[JOINT]:,} of {len(flags[JOINT]):,} inputs are flagged by {JOINT}, "
        f"{n[MAX]:,} by {MAX}, {both:,} by both"
    )
    others = " and ".join(f"{n[name]:,} by {name}" for name in n if name not in (JOINT, MAX))
    return f"{total}; {others}." if others else f"{total}."


def _most_likely(logits: NDArray[np.floating]) -> Flags:
    """Return the label with the largest logit of each input, multi-hot; none without a logit."""
    values = np.nan_to_num(logits, nan=-np.inf)
    top = values.argmax(axis=1)
    found: Flags = (np.arange(values.shape[1]) == top[:, None]) & np.isfinite(values)
    return found


def _by_label(
    names: Sequence[str], has: Flags, flags: dict[str, Flags], enough: Flags
) -> list[dict[str, Any]]:
    """Return how many inputs of each label are flagged, the largest share first."""
    n_inputs = has.sum(axis=0)
    counts = {name: has[of].sum(axis=0) for name, of in flags.items()}
    shares = {name: count / np.maximum(n_inputs, 1) for name, count in counts.items()}
    longest = max(float(share[enough].max(initial=0.0)) for share in shares.values()) or 1.0
    rows: list[dict[str, Any]] = []
    for at in np.flatnonzero(enough).tolist():
        found = {
            name: {
                "flagged": int(counts[name][at]),
                "share": float(shares[name][at]),
                "length": float(shares[name][at]) / longest,  # of the bar, at most 1
            }
            for name in flags
        }
        rows.append({"label": names[at], "n_inputs": int(n_inputs[at]), "by_detector": found})
    rows.sort(key=lambda row: (-row["by_detector"][JOINT]["share"], -row["n_inputs"], row["label"]))
    return rows[:_SHOWN]


def _count_chart(label_counts: NDArray[np.int_], flags: dict[str, Flags], kind: str) -> Markup:
    """Draw bars of the flagged share, one group of bars per number of labels."""
    capped = np.minimum(label_counts, _MANY)
    groups, sizes = np.unique(capped, return_counts=True)
    shares = {name: [float(of[capped == n].mean()) for n in groups] for name, of in flags.items()}
    top = max(max(values) for values in shares.values()) or 0.05
    y = Scale(0.0, min(1.0, 1.1 * top))
    texts = [f"{n}+" if n == _MANY else str(n) for n in groups]
    chart = Chart(
        Scale(0.0, float(len(groups))),
        y,
        name=f"Share of ID inputs flagged, by number of {kind} labels",
        height=290,
        x_label=f"number of {kind} labels (in brackets: number of inputs)",
        y_label="flagged, %",
        x_ticks=[(at + 0.5, f"{text}\n({sizes[at]:,})") for at, text in enumerate(texts)],
        y_ticks=percent_ticks(y),
    )
    slot = chart.width / len(groups)
    room = 0.74 / len(shares)  # of one bar, as a share of the slot
    for place, (name, values) in enumerate(shares.items()):
        for at, share in enumerate(values):
            n_flagged = np.count_nonzero(flags[name][capped == groups[at]])
            tip = (
                f"{name}: {n_flagged:,} of {sizes[at]:,} inputs with {texts[at]} {kind} labels, "
                f"{100 * share:.1f} %"
            )
            left = slot * (at + 0.14 + room * place)
            chart.bar(left, 0.92 * room * slot, share, _STYLES[place], tip=tip)
    return chart.draw()
