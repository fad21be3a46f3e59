"""What one calibrated detector says about inputs: how many it flags, which ones, and why."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from nescio._charts.svg import JOINT, Chart, Markup, Scale, Values, percent
from nescio._io.tables import GROUP
from nescio.calibration import CUSTOM
from nescio.detectors import Detector
from nescio.detectors.combined import default_detector
from nescio.detectors.verdicts import Assessment
from nescio.errors import DefaultDetectorWarning, TooFewSamplesError
from nescio.lab.benchmark.results import Evidence
from nescio.lab.report.cases import input_case, input_verdict, why_no_pictures
from nescio.lab.report.figures import (
    MAX,
    Flags,
    Pair,
    find_threshold,
    label_names,
    scores_of,
    true_or_predicted,
)
from nescio.metrics.by_label import FREQUENCIES, LabelRates, Rate, label_rates, sample_labels
from nescio.monitor import Monitor
from nescio.monitor.report import ADVICE, CHANGES
from nescio.outputs import Outputs
from nescio.outputs.sets import Sets

_SUSPICIOUS = 6  # inputs
_FIRST_INPUTS = 3  # of a set
_MOST = 20_000  # inputs that are compared with the calibration data: more change hardly anything
_BINS = 20  # of p-values
_SAID = 0.1  # of the evidence: a part with less is not named
_MANY = 7  # inputs with this many labels or more form one group
_LABELS_SHOWN = 12
_GROUPS_SHOWN = 30
_STYLES = ("joint", "max", "c0", "c4", "c6")  # of the detectors, in their order
_PARTS = {  # the parts of the default, in words
    "joint_energy": "no label is as strong as usual",
    "top_k_joint_energy": "no label is as strong as usual",
    "label_neighbours": "unlike the training samples that have its labels",
    "linear_probe": "its features speak for no label",
    "out_of_range": "values out of their usual range",
}


# --- the detector ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chosen:
    """The detector that a report is about."""

    name: str  # in tables and figures
    detector: Detector  # after `calibrate`
    context: Sequence[str] = ()  # sentences to begin with
    origin: Sequence[str] = ()  # sentences on how it was chosen and calibrated
    manifest: Mapping[str, Any] = field(default_factory=dict)  # what the page was made from
    is_half: bool = False  # whether the other half of the inputs calibrated it

    @property
    def pair(self) -> Pair:
        """It, and joint energy, which it is compared with."""
        return self.name, MAX if self.detector.name == JOINT else JOINT


def choose_default(sets: Sets, nonfinite: str) -> tuple[Chosen, Sets]:
    """Return the default detector, calibrated on the held-out data or on half of the ID data.

    The sets that are returned have this half as held-out data, and only the other half as ID data.
    """
    context = []
    if sets.held_out is None:
        rows = np.random.default_rng(0).permutation(len(sets.id))
        half, rest = np.sort(rows[: len(rows) // 2]), np.sort(rows[len(rows) // 2 :])
        context = [
            f"This page is about a random half of the inputs ({len(rest):,}). The other half "
            f"({len(half):,}) calibrated the detector. The two are alike, so about as many are "
            "flagged as promised, and no change can be seen. To compare these inputs with earlier "
            "ones, pass those (--held-out), or a detector that was calibrated on them (--detector)."
        ]
        sets = sets._replace(id=sets.id[rest], held_out=sets.id[half])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DefaultDetectorWarning)  # the page says the reason
        detector, reason = default_detector(sets.train, sets.held_out, nonfinite=nonfinite)
    if detector.learns_from:
        detector.fit(sets.train, from_probs=False)
    try:
        detector.calibrate(sets.held_out, from_probs=False)
    except TooFewSamplesError as error:
        raise TooFewSamplesError(
            f"{error} The default detector is calibrated on --held-out or, without it, on half of "
            "the rows of --id: pass more rows, or a calibrated detector (--detector)."
        ) from error
    name, is_half = f"default ({detector.name})", bool(context)
    return Chosen(name, detector, context, [reason], is_half=is_half), sets


# --- the verdicts ---------------------------------------------------------------------------------


class Promise(NamedTuple):
    """How many inputs are flagged, how many were promised, and whether the inputs have changed."""

    n_inputs: int
    n_flagged: int
    usual: float  # the share of ordinary inputs that is flagged
    low: float  # the shares that chance explains
    high: float
    n_calibration: int
    kind: str | None  # of the change, as `Change.kind`

    @classmethod
    def of(cls, detector: Detector, verdicts: Assessment) -> Promise:
        """Compare verdicts with the calibration of their detector, all of them as one window.

        The order of the rows of a file means nothing, so they are shuffled.
        """
        monitor = Monitor(detector, window=_MOST + 1)
        monitor.update(verdicts[np.random.default_rng(0).permutation(len(verdicts))[:_MOST]])
        [window] = monitor.windows
        shares = (monitor.expected_share, window.low / window.n, window.high / window.n)
        kind = None if monitor.change is None else monitor.change.kind
        n_calibration = detector.calibration_.n_samples
        return cls(len(verdicts), len(verdicts.flagged), *shares, n_calibration, kind)

    @property
    def share(self) -> float:
        """The share that is flagged."""
        return self.n_flagged / self.n_inputs

    @property
    def comparison(self) -> str:
        """Whether this is more or fewer than promised."""
        if self.low <= self.share <= self.high:
            return "as promised"
        return "more than promised" if self.share > self.high else "fewer than promised"

    def text(self) -> str:
        """Say what was promised, what chance adds, and how the result compares."""
        return (
            f"About {_percent(self.usual)} of ordinary inputs are flagged although nothing is "
            "wrong with them: the price of finding the others. How many exactly depends on chance: "
            f"with {self.n_calibration:,} calibration inputs, {_percent(self.low)} to "
            f"{_percent(self.high)} of {self.n_inputs:,} ordinary ones (99.7 % probability). So "
            f"{_percent(self.share)} is {self.comparison}."
        )

    def change(self) -> str:
        """Say how the inputs differ from the calibration data; empty if they do not."""
        if self.kind is not None:
            return f"They {CHANGES[self.kind]}."
        agrees = self.comparison == "as promised"
        return "" if agrees else f"The flagged ones are {self.comparison}."


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def describe_verdicts(chosen: Chosen, evidence: Evidence) -> dict[str, Any]:
    """Return what the template reads: verdicts on each set, and the most suspicious ID inputs."""
    detector, outputs = chosen.detector, evidence.id_outputs
    groups = _groups(detector, outputs)
    verdicts = detector.assess(outputs, groups=groups, from_probs=False)
    promise = Promise.of(detector, verdicts)
    shown = np.lexsort((verdicts.scores, verdicts.p_values))[:_SUSPICIOUS]
    suspicious = [
        _case(chosen, evidence, evidence.id_name, verdicts, row)
        | {"why": _why(detector, outputs[[row]])}
        for row in shown.tolist()
    ]
    cases = [{"set_name": evidence.id_name, "cases": suspicious}]
    flags = {chosen.name: ~verdicts.in_distribution}
    if evidence.ood_outputs:  # in a comparison, the second detector flags as many
        second, kept = chosen.pair[1], float(verdicts.in_distribution.mean())
        flags[second] = flagged(scores_of(evidence, second).id_scores, kept)
    checked = detector.self_check(outputs, groups=groups, from_probs=False)
    return {
        "chosen": chosen,
        "id_name": evidence.id_name,
        "promise": promise,
        "change": promise.change(),
        "advice": ADVICE,
        "suspicious": suspicious,
        "why_no_pictures": why_no_pictures(evidence, cases),
        "scores": Markup("".join(verdicts._charts())),
        "p_values": _p_value_chart(verdicts.p_values, promise.usual),
        "sets": _first_inputs(chosen, evidence) if evidence.ood_outputs else [],
        "alarms": false_alarms(evidence, flags, detector.tpr),
        "self_check": {"table": checked.drawn(), "text": checked.summary()},
    }


def _groups(detector: Detector, outputs: Outputs) -> Any:
    """Return the groups of the inputs, if the detector was calibrated by groups of the user."""
    return outputs.kept.get(GROUP) if detector.calibration_.by == CUSTOM else None


def _case(
    chosen: Chosen, evidence: Evidence, set_name: str, verdicts: Assessment, row: int
) -> dict[str, Any]:
    """Return one input with its verdict; whether this is right is known if there are OOD sets."""
    outputs = evidence.ood_outputs.get(set_name, evidence.id_outputs)
    case = input_case(evidence, set_name, outputs, row)
    names = label_names(evidence)
    predicted = np.flatnonzero(outputs.logits[row] > 0)
    if GROUP in outputs.kept:
        case["name"] += f", group {outputs.kept[GROUP][row] or '(no name)'}"
    case["predicted"] = ", ".join(names[label] for label in predicted) or "nothing"
    is_id = outputs is evidence.id_outputs if evidence.ood_outputs else None
    case["verdicts"] = [input_verdict(chosen.name, *verdicts[row], is_id)]
    return case


def _first_inputs(chosen: Chosen, evidence: Evidence) -> list[dict[str, Any]]:
    """Return the first inputs of each set, which are not chosen by their verdicts."""
    sets = []
    for name, outputs in {evidence.id_name: evidence.id_outputs, **evidence.ood_outputs}.items():
        groups = _groups(chosen.detector, outputs)
        verdicts = chosen.detector.assess(outputs, groups=groups, from_probs=False)
        cases = [
            _case(chosen, evidence, name, verdicts, row)
            for row in range(min(_FIRST_INPUTS, len(outputs)))
        ]
        counts = {"n_inputs": len(outputs), "n_flagged": len(verdicts.flagged)}
        sets.append(
            {"name": name, "is_id": outputs is evidence.id_outputs, **counts, "cases": cases}
        )
    return sets


def _why(detector: Detector, sample: Outputs) -> list[str]:
    """Return the reasons against an input, in words; the strongest first."""
    if not detector.explains:
        return []
    reason = detector.explain(sample, groups=_groups(detector, sample), from_probs=False)[0]
    if not reason.parts or math.isnan(reason.parts[0].p_value):
        return [reason.summary()]
    texts = []
    for part in reason.parts:
        if part.share >= _SAID:
            words = _PARTS.get(part.detector.partition("(")[0], part.detector)
            detail = "" if part.reason is None else f" {part.reason.summary()}"
            texts.append(f"{part.share:.0%} of the evidence: {words}.{detail}")
    return texts


def _p_value_chart(p_values: Values, usual: float) -> Markup:
    """Draw how many inputs are how strange; all bars are equally high if nothing has changed."""
    counts, edges = np.histogram(p_values, bins=_BINS, range=(0.0, 1.0))
    shares = counts / len(p_values)
    chart = Chart(
        Scale(0.0, 1.0, write=percent),
        Scale(0.0, 1.15 * max(2 / _BINS, float(shares.max())), write=percent),
        name="Histogram of the p-values",
        height=190,
        x_label="p-value: % of ordinary inputs that are as strange",
        y_label="inputs, %",
    )
    width = chart.width / _BINS
    for place, share in enumerate(shares.tolist()):
        css = "out" if edges[place] + 1e-9 < usual else "in"
        tip = f"{counts[place]:,} inputs with p-values up to {edges[place + 1]:.2f}"
        chart.bar(width * place + 1, width - 2, share, css, tip=tip)
    chart.rule(y=1 / _BINS)
    return chart.draw()


# --- who is flagged -------------------------------------------------------------------------------


def flagged(id_scores: Values, tpr: float) -> Flags:
    """Return which ID inputs fall below the threshold that keeps a share `tpr` of them."""
    threshold = find_threshold(id_scores, tpr)
    return np.isneginf(id_scores) if threshold is None else id_scores < threshold


def false_alarms(evidence: Evidence, flags: Mapping[str, Flags], tpr: float) -> dict[str, Any]:
    """Return the flagged inputs by label and by number of labels, and the FPR of the first one.

    The labels that are surely flagged often come first: those with the highest lower end.
    """
    flags = dict(list(flags.items())[: len(_STYLES)])
    labels, names = sample_labels(evidence.id_outputs), label_names(evidence)
    columns = _rate_columns(evidence, flags, labels.has, names, tpr)
    first = columns[0]
    surest = sorted(first.labels, key=lambda rate: -(rate.false_alarms.low or 0.0))
    by_label = _rate_rows(columns, [rate.name for rate in surest[:_LABELS_SHOWN]])
    thirds = [list(row) for row in zip(*(column.by_frequency for column in columns), strict=True)]
    counts = np.minimum(true_or_predicted(evidence).sum(axis=1), _MANY)
    numbers = np.unique(counts)
    written = [f"{n} or more" if n == _MANY else str(n) for n in numbers]
    by_number = _rate_columns(evidence, flags, counts[:, None] == numbers, written, tpr)
    by_count = _rate_rows(by_number, written)
    kind, often = "predicted" if evidence.id_outputs.labels is None else "true", ""
    if by_number[0].suffering:
        which = " or ".join(by_number[0].suffering)
        often = f" Inputs with {which} {kind} labels are flagged more often than all inputs."
    by_group = _by_group(evidence, flags, tpr)
    drawn = [rate for row in by_label + by_count + by_group for rate in row[: len(flags)]]
    n_flagged = [f"{np.count_nonzero(of):,} by {name}" for name, of in flags.items()]
    return {
        "kind": kind,
        "label_kind": labels.kind,  # by which label inputs are grouped
        "styles": dict(zip(flags, _STYLES, strict=False)),
        "fprs": [f"FPR{percent(tpr)} {ood}" for ood in evidence.ood_outputs],
        "totals": f"Flagged of {len(labels.has):,} inputs: {', '.join(n_flagged)}.",
        "suffering": first.summary() + often,
        "by_group": by_group,
        "by_count": by_count,
        "by_label": by_label,
        "by_frequency": thirds if len(names) > len(FREQUENCIES) else [],
        "n_hidden": len(first.labels) - len(by_label),
        "longest": max(rate.false_alarms.value for rate in drawn) or 1.0,
    }


def _by_group(evidence: Evidence, flags: Mapping[str, Flags], tpr: float) -> list[list[Rate]]:
    """Return the rates of the user's groups, the most flagged first; nothing without groups."""
    groups = evidence.id_outputs.kept.get(GROUP)
    if groups is None:
        return []
    names = np.unique(groups)
    columns = _rate_columns(evidence, flags, groups[:, None] == names, names.tolist(), tpr)
    return _rate_rows(columns, [rate.name for rate in columns[0].labels[:_GROUPS_SHOWN]])


def _rate_columns(
    evidence: Evidence, flags: Mapping[str, Flags], has: Flags, names: Sequence[str], tpr: float
) -> list[LabelRates]:
    """Return the rates of each detector, then those of the first one against each OOD set."""
    columns = [
        label_rates(np.where(of, -1.0, 0.0), has, threshold=0.0, label_names=names)
        for of in flags.values()
    ]
    for ood in evidence.ood_outputs:
        scored = scores_of(evidence, next(iter(flags)))
        against = scored.ood_scores[ood]
        columns.append(label_rates(scored.id_scores, has, against, tpr=tpr, label_names=names))
    return columns


def _rate_rows(columns: Sequence[LabelRates], names: Sequence[str]) -> list[list[Rate]]:
    by_name = [{rate.name: rate for rate in column.labels} for column in columns]
    return [[rates[name] for rates in by_name] for name in names]
