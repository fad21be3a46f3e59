"""False alarms: which in-distribution inputs are flagged when a share `tpr` is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nescio.benchmark.evidence import Evidence
from nescio.report.curves import Values, find_tau
from nescio.report.panels import JOINT, MAX, carried_labels, label_names, scored
from nescio.report.svg import Chart, Markup, Scale, percent_ticks

Flags = NDArray[np.bool_]

_MANY = 7  # inputs of this many labels or more are one group
_FEWEST = 10  # a share of fewer inputs than this says little
_SHOWN = 15
_STYLES = {JOINT: "joint", MAX: "max"}


@dataclass(frozen=True)
class FlaggedShare:
    """How many inputs of a group one detector flags; `length` is that of its bar, up to 1."""

    flagged: int
    share: float
    length: float
    css: str


@dataclass(frozen=True)
class LabelAlarms:
    """How many of the inputs with one label are flagged, by each of the two detectors."""

    label: str
    n_inputs: int
    by_detector: Sequence[FlaggedShare]


@dataclass(frozen=True)
class Alarms:
    """What the page says of false alarms.

    Attributes
    ----------
    kind, label_kind : str
        Which labels were counted, and by which one inputs are grouped: "true", or without truth
        "predicted" and "likeliest".
    detectors : sequence of (name, CSS class)
    totals : str
        How many are flagged.
    by_count : Markup
        The share flagged over the number of labels.
    by_label : sequence of LabelAlarms
        Most often flagged first.
    left_out : str
        Which labels are not there.
    """

    kind: str
    label_kind: str
    detectors: Sequence[tuple[str, str]]
    totals: str
    by_count: Markup
    by_label: Sequence[LabelAlarms]
    left_out: str


def flagged(id_scores: Values, tpr: float) -> Flags:
    """Which ID inputs fall below the threshold that keeps a share `tpr` of them."""
    tau = find_tau(id_scores, tpr)
    return np.isneginf(id_scores) if tau is None else id_scores < tau


def false_alarms(evidence: Evidence, tpr: float) -> Alarms:
    """The inputs flagged by joint energy and by the largest logit, by what they show."""
    has, is_truth = carried_labels(evidence)
    flags = {name: flagged(scored(evidence, name).id_scores, tpr) for name in (JOINT, MAX)}
    kind = "true" if is_truth else "predicted"
    both = int(np.logical_and(flags[JOINT], flags[MAX]).sum())
    totals = (
        f"{int(flags[JOINT].sum()):,} of {len(has):,} inputs are flagged by {JOINT}, "
        f"{int(flags[MAX].sum()):,} by {MAX}, {both:,} by both."
    )
    # An input that the network predicts nothing for is the one most often flagged: without truth
    # it is counted to its likeliest label.
    grouped = has if is_truth else _likeliest(evidence.id_outputs.logits)
    counts = grouped.sum(axis=0)
    fewest = min(_FEWEST, int(counts.max(initial=0)) or 1)
    enough = counts >= fewest
    by_label = _by_label(label_names(evidence), grouped, flags, enough)
    hidden = int(enough.sum()) - len(by_label)
    left_out = f"{hidden} more labels are flagged less often. " if hidden > 0 else ""
    if not enough.all():
        few = "without inputs" if fewest == 1 else f"of fewer than {fewest} inputs"
        left_out += f"Labels {few} are not listed."
    return Alarms(
        kind=kind,
        label_kind="true" if is_truth else "likeliest",
        detectors=[(name, _STYLES[name]) for name in flags],
        totals=totals,
        by_count=_count_chart(has.sum(axis=1), flags, kind),
        by_label=by_label,
        left_out=left_out,
    )


def _likeliest(logits: NDArray[np.floating]) -> Flags:
    """The largest logit's label of each input, multi-hot; of none where nothing was scored."""
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


def _count_chart(n_carried: NDArray[np.int_], flags: dict[str, Flags], kind: str) -> Markup:
    """Bars of the share flagged, one group for each number of labels."""
    capped = np.minimum(n_carried, _MANY)
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
        x_label=f"number of {kind} labels (and of inputs that have so many)",
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
