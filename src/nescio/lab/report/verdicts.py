"""What one calibrated detector says about inputs: how many it flags, which ones, and why."""

from __future__ import annotations

import math
import shlex
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from nescio._charts.svg import JOINT, Chart, Markup, Scale, Values, percent
from nescio._io.tables import GROUP
from nescio.calibration import CUSTOM
from nescio.calibration.calibration import ALL
from nescio.detectors import Detector
from nescio.detectors.combined import default_detector
from nescio.detectors.verdicts import Assessment, suspicion_order
from nescio.errors import (
    DefaultDetectorWarning,
    GroupWarning,
    TooFewSamplesError,
    counted,
    listed,
)
from nescio.explain import Reason
from nescio.lab.benchmark.results import Evidence
from nescio.lab.report.cases import (
    input_case,
    input_name,
    input_verdict,
    strangeness,
    why_no_pictures,
)
from nescio.lab.report.figures import MAX, Pair, label_names, true_or_predicted
from nescio.metrics.by_label import label_rates, sample_labels
from nescio.monitor import Monitor
from nescio.monitor.report import ADVICE, CHANGES, FEW, group_sentence, nonfinite_text
from nescio.outputs import Outputs
from nescio.outputs.sets import Sets

_SUSPICIOUS = 6  # inputs
_LISTED = 100  # flagged inputs
_FIRST_INPUTS = 3  # of a set
_BINS = 20  # of p-values
_SAID = 0.1  # of the evidence: a part with less is not named
_MANY = 7  # inputs with this many labels or more form one group
_LABELS_SHOWN, _LABELS_NAMED = 12, 5
_GROUPS_SHOWN = 30
_UNUSABLE = "NaN or infinity"
_SAID_IN_DETAIL = ("Out of the usual range: ", "No single value is unusual.", _UNUSABLE)
_PARTS = {  # the parts of the default, in words
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

    def assess(self, outputs: Outputs) -> Assessment:
        """Return its verdicts, by the groups of the inputs if it was calibrated by them."""
        groups = _groups(self.detector, outputs)
        return self.detector.assess(outputs, groups=groups, from_probs=False)

    def headline(self, outputs: Outputs) -> str:
        """Say in one line what the page says first."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GroupWarning)  # the page has given it
            verdicts = self.assess(outputs)
        promise = Promise.of(self.detector, verdicts)
        answer = promise.answer(self.is_half)
        return (
            f"{_percent(promise.share)} of {promise.inputs} flagged: "
            f"{promise.comparison} (about {_percent(promise.usual)}). "
            f"Like the calibration data? {answer}"
            f"{f': {promise.known}' if promise.known else '.'} {promise.change()}".strip()
        )


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
        default = default_detector(sets.train, sets.held_out, nonfinite=nonfinite)
    detector = default.detector
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
    return Chosen(name, detector, context, [default.reason], is_half=is_half), sets


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
    known: str  # says that these are calibration inputs; empty if they are not
    groups: str = ""  # says which groups have changed
    unusable: str = ""  # says how many inputs have NaN or infinity: they count as flagged
    changed: Sequence[str] = ()  # the names of the groups that have changed

    @classmethod
    def of(cls, detector: Detector, verdicts: Assessment) -> Promise:
        """Compare verdicts with the calibration of their detector, all of them as one window."""
        monitor = Monitor(detector, window=len(verdicts) + 10)
        monitor.update(verdicts)
        [window] = monitor.windows
        shares = (monitor.expected_share, window.low / window.n, window.high / window.n)
        # The order of the rows of a file means nothing, so an alarm would not either.
        kind = None if monitor.difference is None else monitor.difference.kind
        numbers = (len(verdicts), len(verdicts.flagged), *shares, detector.calibration_.n_samples)
        known = detector.calibration_.known(verdicts.scores)
        said = group_sentence(monitor), nonfinite_text(monitor)
        return cls(*numbers, kind, known, *said, [*monitor.changed_groups])

    @property
    def share(self) -> float:
        """The share that is flagged."""
        return self.n_flagged / self.n_inputs

    @property
    def inputs(self) -> str:
        """The number of inputs, and of those among the flagged that cannot be used."""
        return counted(self.n_inputs, "input") + (self.unusable and f" ({self.unusable})")

    @property
    def comparison(self) -> str:
        """Whether this is more or fewer than promised."""
        if self.low <= self.share <= self.high:
            if self.kind or self.groups:
                return "as promised in number, but the inputs have changed"
            return "as promised" if self.n_inputs >= FEW else "too few to compare"
        return "more than promised" if self.share > self.high else "fewer than promised"

    def compared(self) -> str:
        """Say whether the flagged inputs are as many as promised."""
        chance = f", by chance {_percent(self.low)} to {_percent(self.high)}"
        return (
            f"{self.comparison}: about {_percent(self.usual)} of ordinary inputs are flagged "
            f"although nothing is wrong with them{chance * (self.n_inputs >= FEW)}"
        )

    def change(self) -> str:
        """Say how the inputs differ from the calibration data; empty if they do not."""
        said = "" if self.kind is None else f"They {CHANGES[self.kind]}."
        if not said and self.comparison.endswith("than promised"):
            said = f"The flagged ones are {self.comparison}."
        return f"{said} {self.groups}".strip()

    def answer(self, is_half: bool) -> str:
        """Say whether the inputs are like the calibration data, in a word or two."""
        if self.known:
            return "Not tested"
        if self.change():
            return "No"
        if self.n_inputs < FEW:
            return "Too few to tell"
        return "Not tested" if is_half else "Yes"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def describe_verdicts(chosen: Chosen, evidence: Evidence) -> dict[str, Any]:
    """Return what the template reads: verdicts on each set, and the most suspicious ID inputs."""
    detector, outputs = chosen.detector, evidence.id_outputs
    verdicts = chosen.assess(outputs)
    detector.calibration_.check_any_group(verdicts.groups)
    promise = Promise.of(detector, verdicts)
    order = _order(detector, verdicts, promise.changed)
    flagged: list[int] = order[~verdicts.in_distribution[order]][:_LISTED].tolist()
    above = verdicts.scores - detector.calibration_.threshold_of(verdicts.groups)
    # Those of the verdicts: `assess` has warned of groups that were not calibrated.
    groups = verdicts.groups if detector.calibration_.by == CUSTOM else None
    # Nothing speaks against an input that is not flagged.
    reasons = dict(zip(flagged, _reasons(detector, outputs, groups, flagged), strict=True))
    main = {whys[0].words for whys in reasons.values() if whys}
    shared = main.pop() if len(main) == 1 and len(flagged) > 1 else ""
    doubt = "" if promise.change() else "possibly a false alarm"
    suspicious = [
        _case(chosen, evidence, evidence.id_name, verdicts, row, doubt)
        | {"why": [why.text(shared) for why in reasons.get(row, [])]}
        for row in order[:_SUSPICIOUS].tolist()
    ]
    rows = [
        {
            "name": input_name(outputs, row),
            "p_value": verdicts.p_values[row],
            "strange": strangeness(verdicts.p_values[row], _lowest(detector, verdicts, row)),
            "group": _group(verdicts, outputs, row),
            "reason": whys[0].words if whys else "",
        }
        for row, whys in reasons.items()
    ]
    cases = [{"set_name": evidence.id_name, "cases": suspicious}]
    sets = _first_inputs(chosen, evidence, doubt) if evidence.ood_outputs else []
    own = _groups(detector, outputs)
    return {
        "chosen": chosen,
        "id_name": evidence.id_name,
        "promise": promise,
        "answer": promise.answer(chosen.is_half),
        "change": promise.change(),
        "advice": ADVICE,
        "suspicious": suspicious,
        "shared_reason": shared,
        "flagged": rows,
        "command": _command(chosen.manifest),
        "uncalibrated": "" if own is None else detector.calibration_.without_threshold(own),
        "why_no_pictures": why_no_pictures(evidence, cases),
        "p_values": _p_value_chart(verdicts.p_values, promise.usual),
        "sets": sets,
        "at_own": {each["name"]: {chosen.name: each["at_own"]} for each in sets},
        "by_label": flagged_by_label(evidence, above),
        # On inputs that are few or not ordinary, it would say more about them than of the detector.
        "self_check": None
        if promise.n_inputs < FEW or promise.change()
        else detector.self_check(outputs, groups=groups, from_probs=False),
    }


def _order(detector: Detector, verdicts: Assessment, changed: Sequence[str]) -> Any:
    """Return the inputs in the order in which to look at them, the most suspicious first.

    Those of changed groups come first, each group in turn: the p-values of a small group cannot be
    as low as those of a large one.
    """
    order = suspicion_order(detector.calibration_, verdicts.columns())
    place = np.full(len(order), np.inf)  # in its group, if this has changed
    for name in changed:
        rows = order[np.asarray(verdicts.groups)[order] == name]
        place[rows] = np.arange(len(rows))
    # Elsewhere, what cannot be used needs no look: it comes after the other flagged inputs.
    unusable = np.isneginf(verdicts.scores) & np.isinf(place)
    return order[np.lexsort([key[order] for key in (unusable, verdicts.in_distribution, place)])]


def _command(manifest: Mapping[str, Any]) -> str:
    """Return the command that writes the verdicts, or saves their detector; empty if not known."""
    files = {kind: shlex.quote(str(path)) for kind, path in manifest.get("files", {}).items()}
    train = f"--train {files['train']}" if "train" in files else ""
    words = ["nescio calibrate", files.get("held_out", "HELD_OUT"), train, "-o detector.nescio"]
    if "detector" in files:
        words = ["nescio score", files["detector"], files["id"], "-o verdicts.csv"]
    return " ".join(filter(None, [*words, manifest.get("options")])) if files else ""


def _groups(detector: Detector, outputs: Outputs) -> Any:
    """Return the groups of the inputs, if the detector was calibrated by groups of the user."""
    return outputs.kept.get(GROUP) if detector.calibration_.by == CUSTOM else None


def _group(verdicts: Assessment, outputs: Outputs, row: int) -> str:
    """Return the name that the user gave to the group of an input; empty without groups."""
    if GROUP not in outputs.kept:
        return ""
    unknown = verdicts.groups is not None and verdicts.groups[row] == ALL
    return f"{outputs.kept[GROUP][row] or '(no name)'}{' (not calibrated)' if unknown else ''}"


def _lowest(detector: Detector, verdicts: Assessment, row: int) -> float:
    """Return the lowest p-value that an input can have, which depends on its group."""
    groups = None if verdicts.groups is None else verdicts.groups[[row]]
    return float(detector.calibration_.p_values(np.array([-np.inf]), groups)[0])


def _case(
    chosen: Chosen, evidence: Evidence, set_name: str, verdicts: Assessment, row: int, doubt: str
) -> dict[str, Any]:
    """Return one input with its verdict; if there are OOD sets, with whether this is right.

    A flagged ID input is in `doubt`: a false alarm, unless the inputs have changed.
    """
    outputs = evidence.ood_outputs.get(set_name, evidence.id_outputs)
    case = input_case(evidence, set_name, outputs, row)
    names = label_names(evidence)
    predicted = np.flatnonzero(outputs.logits[row] > 0)
    if group := _group(verdicts, outputs, row):
        case["name"] += f", group {group}"
    case["predicted"] = ", ".join(names[label] for label in predicted) or "nothing"
    is_id = outputs is evidence.id_outputs if evidence.ood_outputs else None
    verdict = input_verdict("", verdicts[row], is_id, _lowest(chosen.detector, verdicts, row))
    if is_id and not (doubt and verdict["inside"]):
        verdict["right"] = doubt
    case["verdicts"] = [verdict]
    return case


def _first_inputs(chosen: Chosen, evidence: Evidence, doubt: str) -> list[dict[str, Any]]:
    """Return the first inputs of each set, which are not chosen by their verdicts."""
    sets = []
    for name, outputs in {evidence.id_name: evidence.id_outputs, **evidence.ood_outputs}.items():
        verdicts = chosen.assess(outputs)
        rows = range(min(_FIRST_INPUTS, len(outputs)))
        cases = [_case(chosen, evidence, name, verdicts, row, doubt) for row in rows]
        through = _percent(verdicts.in_distribution.mean())
        sets.append(
            {
                "name": name,
                "is_id": outputs is evidence.id_outputs,
                "n_inputs": len(outputs),
                "n_flagged": len(verdicts.flagged),
                "at_own": f"at its own threshold: {through} through",
                "cases": cases,
            }
        )
    return sets


class Why(NamedTuple):
    """One reason against an input: in a few words, and in detail."""

    words: str
    detail: str = ""
    share: float | None = None  # of the evidence, if there are several reasons

    def text(self, known: str) -> str:
        """Write it as a sentence, without the words that the page has said already."""
        said = self.words == known or self.detail.startswith(_SAID_IN_DETAIL)
        text = self.detail if said and self.detail else f"{self.words}. {self.detail}".strip()
        if self.share is not None:
            return f"{100 * self.share:.0f} % of the evidence: {text}"
        return text[:1].upper() + text[1:]


def _reasons(
    detector: Detector, outputs: Outputs, groups: Any, rows: Sequence[int]
) -> list[list[Why]]:
    """Return for each of these inputs the reasons against it, the strongest first."""
    if not detector.explains or not rows:
        return [[]] * len(rows)
    samples, own = outputs[rows], None if groups is None else groups[rows]
    explained = detector.explain(samples, groups=own, from_probs=False)
    predicts = np.any(samples.logits > 0, axis=1).tolist()
    return [_whys(*pair) for pair in zip(explained, predicts, strict=True)]


def _whys(reason: Reason, predicts: bool) -> list[Why]:
    if not reason.parts:
        return [Why(_words(reason.detector, reason, predicts), reason.summary())]
    if math.isnan(reason.parts[0].p_value):
        return [Why(_UNUSABLE, reason.summary())]
    telling = [part for part in reason.parts if part.share >= _SAID]
    return [
        Why(
            _words(part.detector, part.reason, predicts),
            "" if part.reason is None else part.reason.summary(),
            part.share if len(telling) > 1 else None,
        )
        for part in telling
    ]


def _words(detector: str, reason: Reason | None, predicts: bool) -> str:
    """Say in a few words what a detector finds strange."""
    if reason is not None and reason.ranges:
        together = reason.ranges[0].column == "distance to the mean"
        return "its values together are unusual" if together else "values out of their usual range"
    if reason is not None and reason.labels:
        top = reason.labels[0]
        if math.isnan(top.term):
            return _UNUSABLE
        if not predicts:
            return "no label is predicted with confidence"
        weak = "no label is" if top.term < top.rank_median else "all labels together are not"
        return f"{weak} as strong as usual"
    name = detector.partition("(")[0]
    return _PARTS.get(name, name)


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


def flagged_by_label(evidence: Evidence, above: Values) -> dict[str, Any]:
    """Return tables of the flagged inputs: by label, group and number of labels.

    `above` is how far scores are above their thresholds. Labels that are surely flagged often come
    first: those with the highest lower end. Of the numbers of labels none is named: ordinary inputs
    with few of them score lower.
    """
    labels = sample_labels(evidence.id_outputs)
    counts = true_or_predicted(evidence.id_outputs).sum(axis=1)
    rates = partial(label_rates, above, threshold=0.0)
    by_label = rates(labels.has, label_names=label_names(evidence))
    surest = sorted(by_label.labels, key=lambda rate: -(rate.false_alarms.low or 0.0))
    tables = {"Label": surest[:_LABELS_SHOWN]}
    groups = evidence.id_outputs.kept.get(GROUP)
    if groups is not None:  # of the user, the most flagged first
        names = np.unique(groups)
        named = [name or "(no name)" for name in names.tolist()]
        by_group = rates(groups[:, None] == names, label_names=named)
        tables["Group"] = list(by_group.labels[:_GROUPS_SHOWN])
    counts = np.minimum(counts, _MANY)
    numbers = np.unique(counts)
    written = [f"{n} or more" if n == _MANY else str(n) for n in numbers]
    by_count = rates(counts[:, None] == numbers, label_names=written)
    tables["Number of labels"] = sorted(by_count.labels, key=lambda rate: written.index(rate.name))
    kind, text = "predicted" if evidence.id_outputs.labels is None else "true", by_label.summary()
    if by_label.suffering:
        which = listed(by_label.suffering, _LABELS_NAMED, quoted=False)
        text = f"Flagged more often than the others, by {labels.kind} label: {which}."
    return {
        "kind": kind,
        "label_kind": labels.kind,  # by which label inputs are grouped
        "text": text,
        "tables": tables,
        "n_hidden": len(surest) - len(tables["Label"]),
        "longest": max(rate.false_alarms.value for shown in tables.values() for rate in shown) or 1,
    }
