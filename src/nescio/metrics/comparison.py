"""Comparison of several detectors on the same outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from nescio._io.tabular import Tabular, by_name
from nescio.calibration import Scores
from nescio.detectors import steps
from nescio.detectors.base import Detector
from nescio.detectors.naming import as_detector
from nescio.errors import LabelMismatchError, ShapeError, TooFewSamplesError, about
from nescio.metrics.chance import chance_note
from nescio.metrics.delong import AurocDifference, delong_test
from nescio.metrics.evaluation import Estimate, Evaluation, evaluate
from nescio.metrics.measures import auroc
from nescio.outputs import Outputs


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
class Comparison(Tabular):
    """The result of `compare`."""

    results: Mapping[str, Mapping[str, Evaluation]]  # by OOD set and detector
    lead: Mapping[str, Lead]  # by OOD set; without those on which all have the same AUROC
    skipped: Mapping[str, str]  # why a detector could not run on this data
    scores: Mapping[str, Scored]  # by detector: what the results were computed from, if kept

    def ranked(self, ood: str) -> list[str]:
        """Return the detectors on one OOD set by AUROC, the highest first; ties by their FPR."""
        results = self.results[ood]
        return sorted(results, key=lambda n: (-results[n].auroc.value, results[n].fpr.value))

    @property
    def largest_error(self) -> float:
        """How far a value may be from that of all scores; 0 unless they were counted in cells."""
        return max(
            (
                estimate.error
                for results in self.results.values()
                for one in results.values()
                for estimate in (one.fpr, one.auroc, one.aupr)
            ),
            default=0.0,
        )

    @property
    def notes(self) -> dict[str, str]:
        """For each OOD set with an AUROC below 50 %: which detectors, and the usual causes."""
        found = {}
        for ood, results in self.results.items():
            below = [name for name in self.ranked(ood) if results[name].auroc.value < 0.5]
            worse = [name for name in below if results[name].worse_than_chance]
            unsure = [name for name in below if name not in worse]
            found[ood] = chance_note(worse, unsure, len(results))
        return {ood: note for ood, note in found.items() if note}

    def columns(self) -> dict[str, Any]:
        """Return one row per OOD set and detector, the highest AUROC first.

        The columns are ood, detector, rank, n_id, n_ood, and fpr, auroc and aupr with the ends of
        their intervals (fpr_low, fpr_high and so on).
        """
        return by_name(
            [
                {"ood": ood, "detector": name, "rank": rank}
                | {"n_id": results[name].n_id, "n_ood": results[name].n_ood}
                | _measures(results[name])
                for ood, results in self.results.items()
                for rank, name in enumerate(self.ranked(ood), start=1)
            ]
        )

    def __repr__(self) -> str:
        from nescio.metrics.showing import comparison_text

        return comparison_text(self)

    def _repr_html_(self) -> str:
        from nescio.metrics.showing import comparison_card

        return comparison_card(self)

    def plot(self, ax: Any = None, *, ood: str | None = None, **options: Any) -> Any:
        """Draw the ROC curves on one OOD set, by default the first; see `RocDisplay`."""
        from nescio.displays import RocDisplay

        return RocDisplay.from_comparison(self, ood=ood, ax=ax, **options)

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
            "notes": self.notes,
            "skipped": dict(self.skipped),
        }


def _measures(one: Evaluation) -> dict[str, float | None]:
    """Return the measures of the paper with the ends of their intervals."""
    found: dict[str, float | None] = {}
    for name in ("fpr", "auroc", "aupr"):
        estimate: Estimate = getattr(one, name)
        found |= {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    return found


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
    """Evaluate each detector on each OOD set, on outputs in memory; see `compare`.

    Detectors that learn are cloned. The clones learn from `train`, and those that learn from
    held-out data are calibrated on `held_out`, which must be neither training nor test data.
    Without this data, these detectors are skipped. `train_of` has other outputs for some detectors
    to learn from, by the names in `detectors`. Detectors are also skipped if the outputs lack an
    array that they score from. `on_step` is called with the number of finished steps; there is one
    step for each pair of a detector and an OOD set.
    """
    given_too = {"the training outputs": train, "the held-out outputs": held_out}
    others = {name: outputs for name, outputs in given_too.items() if outputs is not None}
    for_some = {f"the data that {name} learns from": one for name, one in (train_of or {}).items()}
    check_same_labels(id_outputs, {**ood_outputs, **others, **for_some})
    skipped: dict[str, str] = {}
    scores: dict[str, Scored] = {}
    results: dict[str, dict[str, Evaluation]] = {ood: {} for ood in ood_outputs}
    for name, given in detectors.items():
        detector = as_detector(given)
        learned_from = (train_of or {}).get(name, train)
        ready = prepared(detector, id_outputs, ood_outputs, learned_from, held_out)
        if isinstance(ready, str):
            skipped[name] = ready
            on_step(len(ood_outputs))
            continue
        with about("the ID data"):
            id_scores = ready.score_samples(id_outputs)
        by_ood: dict[str, Scores] = {}
        for ood, outputs in ood_outputs.items():
            with about(ood):
                by_ood[ood] = ready.score_samples(outputs)
            results[ood][name] = evaluate(
                id_scores, by_ood[ood], tpr=tpr, n_bootstrap=n_bootstrap, seed=seed
            )
            on_step(1)
        scores[name] = Scored(id_scores, by_ood)
    leads = {ood: find_lead(ood, scores) for ood in results}
    lead = {ood: found for ood, found in leads.items() if found is not None}
    return Comparison(results, lead, skipped, scores)


def check_same_labels(id_outputs: Outputs, others: Mapping[str, Outputs]) -> None:
    """Raise unless all outputs have the same labels: scores of different labels do not compare."""
    for name, outputs in others.items():
        if outputs.n_labels != id_outputs.n_labels:
            raise ShapeError(
                f"all outputs must come from the same model, but the ID data has "
                f"{id_outputs.n_labels} labels and {name} has {outputs.n_labels}."
            )
        pairs = zip(id_outputs.label_names or (), outputs.label_names or (), strict=False)
        for at, (ours, theirs) in enumerate(pairs):
            if ours != theirs:
                raise LabelMismatchError(
                    f"all outputs must come from the same model, but the labels of {name} differ "
                    f"from those of the ID data: label {at} is {theirs!r} instead of {ours!r}."
                )


def prepared(
    detector: Detector,
    id_outputs: Outputs,
    ood_outputs: Mapping[str, Outputs],
    train: Outputs | None,
    held_out: Outputs | None,
) -> Detector | str:
    """Return the detector with what it has to learn, or the reason why it cannot run."""
    reason = obstacle(detector, id_outputs, ood_outputs, train, held_out)
    if reason is not None:
        return reason
    if not detector.learned:
        return detector
    ready: Detector = clone(detector)
    if detector.learns_from:
        try:
            # Unlike fit, this does not score the training data: no threshold is needed.
            steps.learn(ready, train, None)
        except TooFewSamplesError as error:
            return str(error)
    if detector.learns_from_held_out:
        try:
            ready.calibrate(held_out)
        except TooFewSamplesError as error:
            return f"{str(error).rstrip('.')} (held-out data)."
    return ready


def obstacle(
    detector: Detector,
    id_outputs: Outputs,
    ood_outputs: Mapping[str, Outputs],
    train: Outputs | None,
    held_out: Outputs | None,
) -> str | None:
    """Return the reason why a detector cannot run on this data, or None if it can."""
    found = [
        missing_input(detector, outputs, name, "reads", detector.scores_from)
        for name, outputs in {"the ID data": id_outputs, **ood_outputs}.items()
    ]
    in_calibration = steps.read_in_calibration(detector) if detector.learns_from_held_out else ()
    for outputs, kind, names, missing in (
        (train, "training", detector.learns_from, "data: pass training outputs (--train)."),
        (held_out, "held-out", in_calibration, "held-out data: pass such outputs (--held-out)."),
    ):
        if names and outputs is None:
            found.append(f"it learns from {missing}")
        elif names and outputs is not None:
            found.append(missing_input(detector, outputs, f"the {kind} data", "learns from", names))
    return next((reason for reason in found if reason is not None), None)


def missing_input(
    detector: Detector, outputs: Outputs, name: str, verb: str, names: Sequence[str]
) -> str | None:
    """Return which array is missing, or that the detector does not accept masked labels."""
    for needed in names:
        if outputs.get(needed) is None:
            return f"it {verb} {needed}, but {name} has none."
    if not detector.accepts_masked and np.isneginf(outputs.logits).any():
        return f"it does not accept masked labels (-inf), but {name} has some."
    return None


def find_lead(ood: str, scores: Mapping[str, Scored]) -> Lead | None:
    """Return the best and the second-best detector by AUROC on one OOD set.

    Detectors whose AUROC is equal to four decimals count as one, because they rank samples alike
    (such as max_logit, max_energy and max_prob). The result is None if no two detectors differ, or
    if the ID or the OOD set has a single sample.
    """
    areas = {
        name: round(auroc(found.id_scores, found.ood_scores[ood]), 4)
        for name, found in scores.items()
    }
    ranked = sorted(areas, key=lambda name: -areas[name])
    second = next((name for name in ranked if areas[name] < areas[ranked[0]]), None)
    if second is None:
        return None
    best = ranked[0]
    a, b = scores[best], scores[second]
    if min(len(a.id_scores), len(a.ood_scores[ood])) < 2:
        return None
    test = delong_test(a.id_scores, a.ood_scores[ood], b.id_scores, b.ood_scores[ood])
    return Lead(best, second, test)
