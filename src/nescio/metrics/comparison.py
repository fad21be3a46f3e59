"""Evaluate a detector, and compare several ones side by side on data of any kind."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
from sklearn.base import clone

from nescio._charts.histogram import roc, roc_axes
from nescio._charts.results import Result, View, by_name, keyed, strip
from nescio._charts.svg import Markup, curve_style, cut
from nescio._io.tables import Columns
from nescio._validation import checked_share, checked_whole
from nescio.calibration import Scores
from nescio.detectors.base import Detector
from nescio.detectors.combined import AUTO_DETECTOR, default_detector
from nescio.detectors.inputs import where_from
from nescio.detectors.registry import DETECTORS, as_detector
from nescio.errors import (
    LabelMismatchError,
    MissingInputError,
    NescioWarning,
    ParameterError,
    ShapeError,
    TooFewSamplesError,
    counted,
    error_context,
    label_difference,
    listed,
    warn,
)
from nescio.metrics.by_label import LabelRates, SampleLabels, label_rates, sample_labels
from nescio.metrics.measures import (
    AurocDifference,
    Estimate,
    Ranking,
    auroc,
    delong_test,
    intervals,
)
from nescio.outputs import Outputs
from nescio.outputs.sets import Sets, read_sets

ALL = "all"

_SHOWN_SETS, _ROC_CHARTS, _CURVES = 3, 2, 6
_NOT_GIVEN = {
    "the training data": "it learns from data: pass training outputs (--train).",
    "the held-out data": "it learns from held-out data: pass such outputs (--held-out).",
}
_NEARLY_ALL = 0.8  # of the detectors: then the data is the likely cause, and not the detectors
_SIGN = "(a higher score must mean more in-distribution)"

WORSE = (
    "Worse than chance: OOD samples tend to have higher scores than ID samples. Usual causes: the "
    f"ID and the OOD data are swapped, the logits or the scores have the wrong sign {_SIGN}, or "
    "the detector fails on this data."
)


# --- one detector ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    """A measure over seeds or folds; the values are between 0 and 1, its text is in per cent."""

    mean: float
    deviation: float | None  # the sample standard deviation; None for one value
    n: int  # the number of values

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the mean and the sample standard deviation of some values."""
        deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
        return cls(float(np.mean(values)), deviation, len(values))

    @property
    def printed(self) -> float:
        """The mean in per cent, rounded as printed; equal ones are ranked as equal."""
        return round(100 * self.mean, 2)

    def text(self, unit: float = 100, digits: int = 2) -> str:
        """Write the mean ± the standard deviation, by default in per cent."""
        mean = f"{unit * self.mean:.{digits}f}"
        return mean if self.deviation is None else f"{mean} ± {unit * self.deviation:.{digits}f}"

    def __str__(self) -> str:
        return self.text()


@dataclass(frozen=True, repr=False)
class Evaluation(Result):
    """The result of `evaluate`. Values are shares from 0 to 1; printed text is in per cent.

    Attributes
    ----------
    fpr, auroc, aupr : Estimate
        The measures of the paper, with ID as the positive side.
    aupr_at_ratio : Estimate
        `aupr` at a ratio of `id_to_ood` ID samples per OOD sample.
    fpr_ood_positive, aupr_ood_positive : Estimate
        The measures of the other convention, with OOD as the positive side.
    """

    index_column = "measure"

    fpr: Estimate
    auroc: Estimate
    aupr: Estimate
    aupr_at_ratio: Estimate
    fpr_ood_positive: Estimate
    aupr_ood_positive: Estimate
    n_id: int
    n_ood: int
    tpr: float
    id_to_ood: float
    confidence: float

    @property
    def fpr_name(self) -> str:
        """The usual name of the FPR at this TPR, such as FPR95."""
        return f"FPR{self.tpr * 100:g}"

    @property
    def worse_than_chance(self) -> bool:
        """Whether the AUROC and its interval are below 50 %, and not just by chance.

        Equal distributions of ID and OOD scores would give such an AUROC in fewer than 2.5 % of
        cases (Mann-Whitney test).
        """
        highest = self.auroc.value if self.auroc.high is None else self.auroc.high
        error = math.sqrt((self.n_id + self.n_ood + 1) / (12 * self.n_id * self.n_ood))
        return highest < 0.5 and self.auroc.value < 0.5 - 1.96 * error

    def as_dict(self) -> dict[str, Any]:
        """Return the evaluation as plain numbers, for JSON."""
        return asdict(self)

    @property
    def estimates(self) -> dict[str, Estimate]:
        """The measures by their attribute."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Estimate)}

    def columns(self) -> dict[str, Any]:
        """Return one row per measure: measure (its attribute), value, low and high."""
        return by_name(
            [{"measure": name, **asdict(estimate)} for name, estimate in self.estimates.items()]
        )

    def _view(self) -> View:
        estimates = self.estimates.values()
        drawn = [strip(estimate.value, estimate.low, estimate.high) for estimate in estimates]
        titles = [
            self.fpr_name,
            "AUROC",
            "AUPR",
            f"AUPR at {self.id_to_ood:g}:1",
            f"{self.fpr_name}, OOD positive",
            "AUPR, OOD positive",
        ]
        head = f"{self.n_id:,} ID against {self.n_ood:,} OOD, per cent"
        if self.auroc.low is not None:
            head += f" [{self.confidence * 100:g} % interval]"
        table: dict[str, Sequence[str]]
        table = {"measure": titles, "value": list(map(str, estimates)), "0 to 100 %": drawn}
        note, _ = chance_note({"": [self]})
        return View(head, table=table, notes=[note] if note else [])


def evaluate(
    id_scores: Any,
    ood_scores: Any,
    *,
    tpr: float = 0.95,
    id_to_ood: float = 1.0,
    n_bootstrap: int = 1000,
    confidence: float = 0.95,
    seed: int | np.random.Generator = 0,
) -> Evaluation:
    """Compute the FPR at a TPR, AUROC and AUPR of one detector, with bootstrap intervals.

    Parameters
    ----------
    id_scores, ood_scores : array of shape (n_samples,)
        Scores of ID and OOD samples. Higher means more in-distribution.
    tpr : float
        The share of ID samples to keep. The FPR is computed at this TPR.
    id_to_ood : float
        The ratio of ID to OOD samples for `aupr_at_ratio`.
    n_bootstrap : int
        The number of bootstrap resamples; 0 for no intervals. ID and OOD samples are resampled
        separately, with more than a million in total by bin. No interval is computed if either
        set has a single sample.
    confidence : float
        That of the intervals. An interval always contains its estimate.
    seed : int or Generator
        The seed of the resampling.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> print(evaluate(rng.normal(2, 1, 500), rng.normal(0, 1, 400), n_bootstrap=200))
    500 ID against 400 OOD, per cent [95 % interval]
    measure                             value
    FPR95                28.00 [25.00, 47.25]
    AUROC                92.87 [91.16, 94.20]
    AUPR                 94.38 [93.07, 95.71]
    AUPR at 1:1          93.23 [91.67, 94.83]
    FPR95, OOD positive  30.40 [25.80, 47.29]
    AUPR, OOD positive   89.99 [86.29, 92.48]
    """
    confidence = checked_share("confidence", confidence)
    n_bootstrap = checked_whole("n_bootstrap", n_bootstrap, minimum=0)
    ranking = Ranking.from_scores(id_scores, ood_scores)
    values = ranking.measures(tpr, id_to_ood)
    ends: dict[str, tuple[float, float]] = {}
    if n_bootstrap and min(ranking.n_id, ranking.n_ood) > 1:
        rng = np.random.default_rng(seed)
        ends = intervals(ranking, values, tpr, id_to_ood, n_bootstrap, confidence, rng)
    return Evaluation(
        **{name: Estimate(value, *ends.get(name, ())) for name, value in values.items()},
        n_id=ranking.n_id,
        n_ood=ranking.n_ood,
        tpr=tpr,
        id_to_ood=id_to_ood,
        confidence=confidence,
    )


def chance_note(evaluations: Mapping[str, Sequence[Evaluation]]) -> tuple[str, bool]:
    """Return a note on detectors that are always worse than chance, and if the data is to blame."""
    n = len(evaluations)
    worse = [name for name, own in evaluations.items() if all(e.worse_than_chance for e in own)]
    if not worse:
        return "", False
    if n == 1:
        return WORSE, True
    if len(worse) < _NEARLY_ALL * n:
        named = listed([cut(name, 32) for name in worse], quoted=False)
        return (
            f"Worse than chance (AUROC below 50): {named}. These fail on this data, or "
            f"their scores have the wrong sign {_SIGN}.",
            False,
        )
    who = "all" if len(worse) == n else f"{len(worse)} of"
    return (
        f"Worse than chance (AUROC below 50): {who} {n} detectors. The likely cause: the ID and "
        f"the OOD data are swapped, the logits have the wrong sign {_SIGN}, or the model is more "
        "confident on the OOD data.",
        True,
    )


# --- the result of a comparison -------------------------------------------------------------------


@dataclass(frozen=True)
class Scored:
    """The scores of one detector for the ID data and for each OOD set."""

    id_scores: Scores
    ood_scores: Mapping[str, Scores]


@dataclass(frozen=True)
class Lead:
    """The two detectors with the highest AUROC, and DeLong's test between them."""

    best: str
    second: str
    test: AurocDifference


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """The result of `compare`."""

    results: Mapping[str, Mapping[str, Evaluation]]  # by OOD set and detector
    lead: Mapping[str, Lead]  # by OOD set; without those on which all have the same AUROC
    skipped: Mapping[str, str]  # why a detector could not run on this data
    scores: Mapping[str, Scored]  # by detector: what the results were computed from
    labels: SampleLabels  # of the ID samples
    label_names: Sequence[str] | None
    sampled: Mapping[str, int] = field(default_factory=dict)
    """The number of rows of each file of which only a random sample was read."""

    def by_label(self, detector: str, ood: str | None = None) -> LabelRates:
        """Return the false alarms of a detector by label and, with an OOD set, the FPR.

        The labels are the true ones or, if the ID data has none, the most likely one of each
        sample. The threshold keeps `tpr` of the ID data.
        """
        scored = self.scores[detector]
        return label_rates(
            scored.id_scores,
            self.labels.has,
            None if ood is None else scored.ood_scores[ood],
            tpr=next(iter(self.results.values()))[detector].tpr,
            label_names=self.label_names,
        )

    def ranked(self, ood: str) -> list[str]:
        """Return the detectors on one OOD set by AUROC, the highest first; ties by their FPR."""
        results = self.results[ood]
        return sorted(results, key=lambda n: (-results[n].auroc.value, results[n].fpr.value))

    @property
    def best(self) -> str:
        """The detector with the highest mean AUROC over the OOD sets."""
        return self._by_mean_auroc()[0]

    def _by_mean_auroc(self) -> list[str]:
        sets = list(self.results.values())
        areas = {name: sum(results[name].auroc.value for results in sets) for name in sets[0]}
        return sorted(areas, key=lambda name: -areas[name])

    @property
    def notes(self) -> dict[str, str]:
        """For each OOD set with an AUROC below 50 %: which detectors, and the usual causes."""
        notes = {
            ood: chance_note({name: [results[name]] for name in self.ranked(ood)})[0]
            for ood, results in self.results.items()
        }
        return {ood: note for ood, note in notes.items() if note}

    def columns(self) -> dict[str, Any]:
        """Return one row per OOD set and detector, the highest AUROC first.

        The columns are ood, detector, rank, n_id, n_ood, and fpr, auroc and aupr with the ends of
        their intervals (fpr_low, fpr_high and so on).
        """
        rows: list[dict[str, Any]] = []
        for ood, results in self.results.items():
            for rank, name in enumerate(self.ranked(ood), start=1):
                evaluation = results[name]
                row: dict[str, Any] = {"ood": ood, "detector": name, "rank": rank}
                row |= {"n_id": evaluation.n_id, "n_ood": evaluation.n_ood}
                for measure in ("fpr", "auroc", "aupr"):
                    estimate = evaluation.estimates[measure]
                    row |= {measure: estimate.value}
                    row |= {f"{measure}_low": estimate.low, f"{measure}_high": estimate.high}
                rows.append(row)
        return by_name(rows)

    def _view(self) -> View:
        shown, names = list(self.results)[:_SHOWN_SETS], self._by_mean_auroc()
        drawn = names[:_CURVES]
        styles = {name: curve_style(number, name) for number, name in enumerate(drawn)}
        short = {name: cut(name, 32) for name in names}
        table: dict[str, Sequence[str]] = {
            "detector": [
                keyed(short[name], styles[name]) if name in styles else short[name]
                for name in names
            ]
        }
        for ood in shown:
            results = [self.results[ood][name] for name in names]
            blank = " " * len(table)  # two columns of one set: its name stands above the first
            table[f"{ood}\n{results[0].fpr_name} ↓"] = [f"{100 * r.fpr.value:.2f}" for r in results]
            table[f"{blank}\nAUROC ↑"] = [f"{100 * r.auroc.value:.2f}" for r in results]
        sizes = {ood: next(iter(results.values())).n_ood for ood, results in self.results.items()}
        notes = [f"{cut(ood, 32)}: {note}" for ood, note in self.notes.items()]
        rates = self.by_label(names[0])
        notes += [f"{cut(names[0], 32)}: {rates.summary()}"] if rates.suffering else []
        notes += [f"left out: {line}" for line in left_out(self.skipped)]
        notes += [f"{name}: a sample of {n:,} rows" for name, n in self.sampled.items()]
        order = ", highest AUROC first" if len(names) > 1 else ""
        n_id = self.results[shown[0]][names[0]].n_id
        return View(
            f"{counted(len(names), 'detector')} on {n_id:,} ID samples, in per cent{order}",
            f"OOD samples: {', '.join(f'{n:,} {cut(ood, 24)}' for ood, n in sizes.items())}",
            table,
            charts=lambda: [self._roc_chart(ood, drawn) for ood in shown[:_ROC_CHARTS]],
            notes=notes,
        )

    def _roc_chart(self, ood: str, names: Sequence[str]) -> Markup:
        tpr, x_label = self.results[ood][names[0]].tpr, f"{cut(ood, 30)} let through, %"
        chart = roc_axes(f"ROC curves on {ood}", tpr, height=330, x_label=x_label)
        for number, name in reversed(list(enumerate(names))):  # the best on top
            scores = self.scores[name]
            fpr, kept = roc(scores.id_scores, scores.ood_scores[ood], n_points=80)
            area = 100 * self.results[ood][name].auroc.value
            chart.line(fpr, kept, curve_style(number, name), tip=f"{name}: AUROC {area:.2f}")
        return chart.draw()

    def plot(self, ax: Any = None, *, ood: str | None = None) -> Any:
        """Draw the ROC curves on one OOD set, by default the first; see `RocDisplay`."""
        from nescio.displays import RocDisplay

        return RocDisplay.from_comparison(self, ood=ood, ax=ax)

    def as_dict(self) -> dict[str, Any]:
        """Return the results as plain data, for JSON: of each OOD set, the best detector first."""
        return {
            "results": [
                {
                    "ood": ood,
                    "detector": name,
                    "rank": rank,
                    "worse_than_chance": results[name].worse_than_chance,
                    **results[name].as_dict(),
                }
                for ood, results in self.results.items()
                for rank, name in enumerate(self.ranked(ood), start=1)
            ],
            "lead": {ood: asdict(lead) for ood, lead in self.lead.items()},
            "by_label": {
                ood: {name: self.by_label(name, ood).as_dict() for name in results}
                for ood, results in self.results.items()
            },
            "notes": self.notes,
            "skipped": dict(self.skipped),
            "sampled": dict(self.sampled),
        }


# --- the comparison ---------------------------------------------------------------------------


def compare(
    id_data: Any,
    ood_data: Any,
    detectors: Any = ALL,
    *,
    train: Any = None,
    held_out: Any = None,
    tpr: float = 0.95,
    n_bootstrap: int = 1000,
    seed: int = 0,
    from_probs: bool | None = None,
    id_column: str | None = None,
    labels: Sequence[str] | str | None = None,
    ignore: Sequence[str] | str = (),
    on_step: Callable[[int], object] = lambda steps: None,
) -> Comparison:
    """Compare detectors on in-distribution data and one or several out-of-distribution sets.

    This is `nescio eval` in Python. Data is an array of logits, `Outputs`, a data frame, or the
    path of a file that `Outputs.load` reads. Of files with more than 4,194,304 rows, or more than
    2 GiB, a random sample of the rows is read; `sampled` of the result says so.

    Parameters
    ----------
    id_data
        In-distribution test data, not used in training.
    ood_data
        One out-of-distribution set; several of them by name, as a dict; or a list of paths.
    detectors : "all", name, Detector, sequence or mapping
        Names such as "joint_energy" and "top_k_joint_energy(k=5)", "auto" for the default, and
        detectors. A mapping has names of your own. Detectors that cannot run on this data are in
        `skipped`, with the reason.
    train, held_out : optional
        What the detectors that learn from training data, or from held-out data, learn from.
        Held-out data must be neither training nor test data.
    tpr : float
        The share of in-distribution samples to keep. The FPR is at this TPR.
    n_bootstrap, seed : int
        The number of bootstrap resamples, 0 for no intervals; and their seed.
    from_probs : bool, optional
        Whether the data holds probabilities, which are converted. `Outputs` always hold logits.
    id_column, labels, ignore
        The columns of tables, as `Outputs.load` takes them.
    on_step : callable
        Called with the number of finished steps: one for each pair of a detector and an OOD set.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> known, strange = rng.normal(2, 2, (200, 5)), rng.normal(-2, 1, (100, 5))
    >>> compare(known, {"strange": strange}, ["joint_energy", "max_logit"], n_bootstrap=0)
    2 detectors on 200 ID samples, in per cent, highest AUROC first
    OOD samples: 100 strange
                  strange
    detector      FPR95 ↓  AUROC ↑
    joint_energy     0.00    99.99
    max_logit        0.00    99.97
    """
    chosen = _named_detectors(detectors)
    columns = Columns(id_column, labels, ignore)
    sets = read_sets(id_data, ood_data, train, held_out, from_probs=from_probs, columns=columns)
    if AUTO_DETECTOR in chosen:
        chosen[AUTO_DETECTOR] = default_detector(sets.train, sets.held_out, tpr=tpr).detector
    comparison = compare_outputs(
        chosen,
        sets.id,
        sets.ood,
        train=sets.train,
        held_out=sets.held_out,
        tpr=tpr,
        n_bootstrap=n_bootstrap,
        seed=seed,
        on_step=on_step,
    )
    for name, scored in comparison.scores.items():
        calibration = getattr(chosen[name], "calibration_", None)
        if calibration is not None and (known := calibration.known(scored.id_scores)):
            warn(f"{name}: {known}", NescioWarning)
        if calibration is not None and calibration.by is not None:
            warn(f"{name}: scores are compared, without its thresholds by group.", NescioWarning)
    if not any(comparison.results.values()):
        name, reason = next(iter(comparison.skipped.items()))
        raise MissingInputError(f"{name} cannot be evaluated: {reason}")
    return replace(comparison, sampled=sets.sampled())


def _named_detectors(detectors: Any) -> dict[str, Any]:
    """Return detectors by name: those of a mapping, or as they are written; None for "auto"."""
    named: dict[str, Any] = {}
    if isinstance(detectors, Mapping):
        named = {str(name): as_detector(detector) for name, detector in detectors.items()}
        detectors = []
    for detector in detectors if isinstance(detectors, list | tuple) else [detectors]:
        if isinstance(detector, str) and detector == ALL:
            named |= {name: as_detector(name) for name in DETECTORS}
        elif isinstance(detector, str):
            named[detector] = None if detector == AUTO_DETECTOR else as_detector(detector)
        else:
            made = as_detector(detector)
            name = made.text(defaults=False)
            if named.get(name, made) is not made:
                raise ParameterError(
                    f"two detectors are named {name}: pass a dict with names of your own."
                )
            named[name] = made
    if not named:
        raise ParameterError("there is no detector to compare: pass at least one.")
    return named


def compare_outputs(
    detectors: Mapping[str, Detector],
    id_outputs: Outputs,
    ood_outputs: Mapping[str, Outputs],
    *,
    train: Outputs | None = None,
    train_of: Mapping[str, Outputs] | None = None,
    held_out: Outputs | None = None,
    tpr: float = 0.95,
    n_bootstrap: int = 1000,
    seed: int = 0,
    on_step: Callable[[int], object] = lambda steps: None,
) -> Comparison:
    """Evaluate each detector on each OOD set; see `compare`. The outputs must hold logits.

    Calibrated detectors are used as they are, clones of others learn. `train_of` has other outputs
    for some of them to learn from, by the names in `detectors`.
    """
    train_of = train_of or {}
    learned = {"the training outputs": train, "the held-out outputs": held_out}
    learned |= {f"the data that {name} learns from": data for name, data in train_of.items()}
    check_same_labels(id_outputs, {**ood_outputs, **learned})
    skipped: dict[str, str] = {}
    scores: dict[str, Scored] = {}
    results: dict[str, dict[str, Evaluation]] = {ood: {} for ood in ood_outputs}
    for name, detector in detectors.items():
        sets = Sets(id_outputs, ood_outputs, train_of.get(name, train), held_out)
        ready = _prepared(detector, sets)
        if isinstance(ready, str):
            skipped[name] = ready
            on_step(len(ood_outputs))
            continue
        with error_context("the ID data"):
            id_scores = ready.score_samples(id_outputs, from_probs=False)
        by_ood: dict[str, Scores] = {}
        for ood, outputs in ood_outputs.items():
            with error_context(ood):
                by_ood[ood] = ready.score_samples(outputs, from_probs=False)
            results[ood][name] = evaluate(
                id_scores, by_ood[ood], tpr=tpr, n_bootstrap=n_bootstrap, seed=seed
            )
            on_step(1)
        scores[name] = Scored(id_scores, by_ood)
    leads = {ood: lead for ood in results if (lead := find_lead(ood, scores)) is not None}
    labels = sample_labels(id_outputs)
    return Comparison(results, leads, skipped, scores, labels, id_outputs.label_names)


def check_same_labels(id_outputs: Outputs, other_outputs: Mapping[str, Outputs | None]) -> None:
    """Raise unless all outputs have the same labels: scores of different labels do not compare."""
    for name, outputs in other_outputs.items():
        if outputs is None:
            continue
        if outputs.n_labels != id_outputs.n_labels:
            raise ShapeError(
                f"all outputs must come from the same model, but the ID data has "
                f"{id_outputs.n_labels} labels and {name} has {outputs.n_labels}."
            )
        ours, theirs = id_outputs.label_names, outputs.label_names
        if ours and theirs and ours != theirs:
            raise LabelMismatchError(f"{name}: {label_difference(ours, theirs, 'the ID data')}")


def _prepared(detector: Detector, sets: Sets) -> Detector | str:
    """Return the detector with what it has to learn, or the reason why it cannot run."""
    if hasattr(detector, "calibration_"):
        return detector
    reason = obstacle(detector, sets)
    if reason is not None:
        return reason
    if not detector.learned:
        return detector
    ready: Detector = clone(detector)
    try:
        if detector.learns_from:
            ready.fit(sets.train, from_probs=False)
        if detector.learns_from_held_out:
            ready.calibrate(sets.held_out, from_probs=False)
    except TooFewSamplesError as error:
        return str(error)
    return ready


def obstacle(detector: Detector, sets: Sets) -> str | None:
    """Return the reason why a detector cannot run on this data, or None if it can."""
    in_calibration = detector.calibrates_from if detector.learns_from_held_out else ()
    needed: dict[str, tuple[Outputs | None, str, Sequence[str]]] = {
        name: (outputs, "reads", detector.scores_from)
        for name, outputs in {"the ID data": sets.id, **sets.ood}.items()
    }
    needed["the training data"] = sets.train, "learns from", detector.learns_from
    needed["the held-out data"] = sets.held_out, "learns from", in_calibration
    for name, (outputs, verb, arrays) in needed.items():
        if not arrays:
            continue
        if outputs is None:
            return _NOT_GIVEN[name]
        for array in arrays:
            if outputs.get(array) is None:
                return f"it {verb} {array}, but {name} has none. {where_from(array)}"
        if not detector.accepts_masked and np.isneginf(outputs.logits).any():
            return f"it does not accept masked labels (-inf), but {name} has some."
    return None


def left_out(skipped: Mapping[str, str]) -> list[str]:
    """Say which detectors were left out, in one line for each reason."""
    lines = []
    for reason in dict.fromkeys(skipped.values()):
        names = [name for name in skipped if skipped[name] == reason]
        who = f"{len(names)} detectors ({', '.join(names)})" if len(names) > 1 else names[0]
        lines.append(f"{who}: {re.sub('^it ', 'each ', reason) if len(names) > 1 else reason}")
    return lines


def find_lead(ood: str, scores: Mapping[str, Scored]) -> Lead | None:
    """Return the best and the second-best detector by AUROC on one OOD set, if there are two.

    Detectors whose AUROC is equal to four decimals count as one, because they rank samples alike
    (such as max_logit, max_energy and max_prob).
    """
    areas = {
        name: round(auroc(scored.id_scores, scored.ood_scores[ood]), 4)
        for name, scored in scores.items()
    }
    ranked = sorted(areas, key=lambda name: -areas[name])
    second = next((name for name in ranked if areas[name] < areas[ranked[0]]), None)
    if second is None:
        return None
    a, b = scores[ranked[0]], scores[second]
    if min(len(a.id_scores), len(a.ood_scores[ood])) < 2:
        return None
    test = delong_test(a.id_scores, a.ood_scores[ood], b.id_scores, b.ood_scores[ood])
    return Lead(ranked[0], second, test)
