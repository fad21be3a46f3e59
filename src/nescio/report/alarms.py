"""False alarms: the in-distribution inputs that are flagged when a share `tpr` is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nescio.benchmark.evidence import Evidence
from nescio.report.curves import Values, find_threshold
from nescio.report.panels import JOINT, MAX, label_names, scores_of, true_or_predicted
from nescio.report.svg import Chart, Markup, Scale, percent_ticks

Flags = NDArray[np.bool_]

_MANY = 7  # inputs with this many labels or more form one group
_FEWEST = 10  # labels with fewer inputs are not listed
_SHOWN = 15
_STYLES = {JOINT: "joint", MAX: "max"}


@dataclass(frozen=True)
class FlaggedShare:
    """How many inputs of a group one detector flags; `length` of the bar is at most 1."""

    flagged: int
    share: float
    length: float
    css: str


@dataclass(frozen=True)
class LabelAlarms:
    """How many of the inputs with one label each of the two detectors flags."""

    label: str
    n_inputs: int
    by_detector: Sequence[FlaggedShare]


@dataclass(frozen=True)
class Alarms:
    """The false alarms of two detectors.

    Attributes
    ----------
    kind, label_kind : str
        Which labels are counted, and by which label inputs are grouped. Both are "true"; without
        truth they are "predicted" and "most likely".
    detectors : sequence of (name, CSS class)
    totals : str
        How many inputs are flagged.
    by_count : Markup
        Chart of the flagged share over the number of labels.
    by_label : sequence of LabelAlarms
        The largest flagged share first.
    left_out : str
        Which labels are not listed.
    """

    kind: str
    label_kind: str
    detectors: Sequence[tuple[str, str]]
    totals: str
    by_count: Markup
    by_label: Sequence[LabelAlarms]
    left_out: str


def flagged(id_scores: Values, tpr: float) -> Flags:
    """Return which ID inputs fall below the threshold that keeps a share `tpr` of them."""
    threshold = find_threshold(id_scores, tpr)
    return np.isneginf(id_scores) if threshold is None else id_scores < threshold


def false_alarms(evidence: Evidence, tpr: float) -> Alarms:
    """Return the inputs flagged by joint energy and by the largest logit, by their labels."""
    has, is_truth = true_or_predicted(evidence)
    flags = {name: flagged(scores_of(evidence, name).id_scores, tpr) for name in (JOINT, MAX)}
    kind = "true" if is_truth else "predicted"
    both = int(np.logical_and(flags[JOINT], flags[MAX]).sum())
    totals = (
        f"{int(flags[JOINT].sum()):,} of {len(has):,} inputs are flagged by {JOINT}, "
        f"{int(flags[MAX].sum()):,} by {MAX}, {both:,} by both."
    )
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
    return Alarms(
        kind=kind,
        label_kind="true" if is_truth else "most likely",
        detectors=[(name, _STYLES[name]) for name in flags],
        totals=totals,
        by_count=_count_chart(has.sum(axis=1), flags, kind),
        by_label=by_label,
        left_out=left_out,
    )


def _most_likely(logits: NDArray[np.floating]) -> Flags:
    """Return the label with the largest logit of each input, multi-hot; none without a logit."""
    values = np.nan_to_num(logits, nan=-np.inf)
    top = values.argmax(axis=1)
    found: Flags = (np.arange(values.shape[1]) == top[:, None]) & np.isfinite(values)
    return found


def _by_label(
    names: Sequence[str], has: Flags, flags: dict[str, Flags], enough: Flags
) -> list[LabelAlarms]:
    rows = []
    shares = {
        name: has[of].sum(axis=0) / np.maximum(has.sum(axis=0), 1) for name, of in flags.items()
    }
    longest = max(float(share[enough].max(initial=0.0)) for share in shares.values()) or 1.0
    for at in np.flatnonzero(enough).tolist():
        found = [
            FlaggedShare(
                int((has[:, at] & of).sum()),
                float(shares[name][at]),
                float(shares[name][at]) / longest,
                _STYLES[name],
            )
            for name, of in flags.items()
        ]
        rows.append(LabelAlarms(names[at], int(has[:, at].sum()), found))
    rows.sort(key=lambda row: (-row.by_detector[0].share, -row.n_inputs, row.label))
    return rows[:_SHOWN]


def _count_chart(label_counts: NDArray[np.int_], flags: dict[str, Flags], kind: str) -> Markup:
    """Draw bars of the flagged share, one group of bars per number of labels."""
    capped = np.minimum(label_counts, _MANY)
    groups = np.unique(capped).tolist()
    shares = {name: [float(of[capped == n].mean()) for n in groups] for name, of in flags.items()}
    top = max(max(values) for values in shares.values()) or 0.05
    y = Scale(0.0, min(1.0, 1.1 * top))
    slots = Scale(0.0, float(len(groups)))
    texts = [f"{n}+" if n == _MANY else str(n) for n in groups]
    chart = Chart(
        slots,
        y,
        name=f"Share of ID inputs flagged, by number of {kind} labels",
        height=290,
        x_label=f"number of {kind} labels (in brackets: number of inputs)",
        y_label="flagged, %",
        x_ticks=[
            (at + 0.5, f"{text}\n({int((capped == groups[at]).sum()):,})")
            for at, text in enumerate(texts)
        ],
        y_ticks=percent_ticks(y),
    )
    slot = chart.width / len(groups)
    for place, (name, values) in enumerate(shares.items()):
        for at, share in enumerate(values):
            members = capped == groups[at]
            tip = (
                f"{name}: {int(flags[name][members].sum()):,} of {int(members.sum()):,} inputs "
                f"with {texts[at]} {kind} labels, {100 * share:.1f} %"
            )
            left = slot * (at + 0.14 + 0.37 * place)
            chart.bar(left, 0.34 * slot, share, _STYLES[name], tip=tip)
    return chart.draw()
