"""Detectors side by side on the same outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from nescio.calibration import Scores
from nescio.detectors.base import Detector
from nescio.errors import LabelMismatchError, ShapeError, about
from nescio.metrics.evaluation import AurocDifference, Evaluation, auroc, delong_test, evaluate
from nescio.outputs import Outputs


@dataclass(frozen=True)
class Scored:
    """One detector's scores of the ID data and of each OOD set."""

    id_scores: Scores
    ood_scores: Mapping[str, Scores]


@dataclass(frozen=True)
class Lead:
    """The two detectors of highest AUROC, and DeLong's test between them."""

    best: str
    second: str
    test: AurocDifference


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Attributes
    ----------
    results : mapping of OOD set to mapping of detector to Evaluation
    lead : mapping of OOD set to Lead
        Only where at least two detectors differ.
    skipped : mapping of detector to str
        The detectors that could not run on this data, and why.
    scores : mapping of detector to Scored
        What the results were computed from.
    """

    results: Mapping[str, Mapping[str, Evaluation]]
    lead: Mapping[str, Lead]
    skipped: Mapping[str, str]
    scores: Mapping[str, Scored]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "results": [
                {"ood": ood, "detector": name, **result.as_dict()}
                for ood, results in self.results.items()
                for name, result in results.items()
            ],
            "lead": {ood: asdict(lead) for ood, lead in self.lead.items()},
            "skipped": dict(self.skipped),
        }


def compare(
    detectors: Mapping[str, Detector],
    id_outputs: Outputs,
    ood_outputs: Mapping[str, Outputs],
    *,
    train: Outputs | None = None,
    tpr: float = 0.95,
    n_bootstrap: int = 1000,
    seed: int = 0,
    on_step: Callable[[int], object] = lambda steps: None,
) -> Comparison:
    """Evaluate each detector against each OOD set.

    Parameters
    ----------
    detectors : mapping of name to Detector
        Not changed: those that learn are cloned and fitted on `train`.
    id_outputs : Outputs
        In-distribution test data.
    ood_outputs : mapping of name to Outputs
    train : Outputs, optional
        In-distribution training data for the detectors that learn. Without it they are skipped, as
        are detectors that read features where there are none.
    tpr, n_bootstrap, seed
        As for `evaluate`.
    on_step : callable
        Called with the number of steps just done, of one for each detector and OOD set.
    """
    _check_same_labels(id_outputs, ood_outputs, train)
    skipped: dict[str, str] = {}
    scores: dict[str, Scored] = {}
    results: dict[str, dict[str, Evaluation]] = {ood: {} for ood in ood_outputs}
    for name, detector in detectors.items():
        reason = _obstacle(detector, id_outputs, ood_outputs, train)
        if reason is not None:
            skipped[name] = reason
            on_step(len(ood_outputs))
            continue
        ready = clone(detector).fit(train) if detector.learned else detector
        id_scores = _scores(ready, "the ID data", id_outputs)
        by_ood = {ood: _scores(ready, ood, data) for ood, data in ood_outputs.items()}
        scores[name] = Scored(id_scores, by_ood)
        for ood, ood_scores in by_ood.items():
            results[ood][name] = evaluate(
                id_scores, ood_scores, tpr=tpr, n_bootstrap=n_bootstrap, seed=seed
            )
            on_step(1)
    leads = {ood: find_lead(ood, scores) for ood in results}
    lead = {ood: found for ood, found in leads.items() if found is not None}
    return Comparison(results, lead, skipped, scores)


def _check_same_labels(
    id_outputs: Outputs, ood_outputs: Mapping[str, Outputs], train: Outputs | None
) -> None:
    """Raise unless all outputs can be of one model: a sum over other labels means nothing."""
    others = dict(ood_outputs) if train is None else {**ood_outputs, "the training outputs": train}
    for name, outputs in others.items():
        if outputs.n_labels != id_outputs.n_labels:
            raise ShapeError(
                f"the ID data has {id_outputs.n_labels} labels, {name} has {outputs.n_labels}. All "
                "outputs must be of one model."
            )
        pairs = zip(id_outputs.label_names or (), outputs.label_names or (), strict=False)
        for at, (ours, theirs) in enumerate(pairs):
            if ours != theirs:
                raise LabelMismatchError(
                    f"{name} has other labels than the ID data: label {at} is {theirs!r}, not "
                    f"{ours!r}. All outputs must be of one model."
                )


def _scores(detector: Detector, name: str, outputs: Outputs) -> Scores:
    with about(name):
        return detector.score_samples(outputs)


def _obstacle(
    detector: Detector,
    id_outputs: Outputs,
    ood_outputs: Mapping[str, Outputs],
    train: Outputs | None,
) -> str | None:
    """Why a detector cannot run on this data, or None."""
    given = {"the ID data": id_outputs, **ood_outputs}
    for name, outputs in given.items():
        for reads in detector.scores_from:
            if outputs.get(reads) is None:
                return f"it reads {reads}, and there are none in {name}."
    if train is not None:
        given["the training outputs"] = train
    for name, outputs in given.items():
        if not detector.accepts_masked and np.isneginf(outputs.logits).any():
            return f"it takes no masked labels (-inf), and there are some in {name}."
    if not detector.learned:
        return None
    if train is None:
        return "it learns from data: give training outputs (--train)."
    for needed in detector.learns_from:
        if train.get(needed) is None:
            return f"it learns from {needed}, and there are none in the training outputs."
    return None


def find_lead(ood: str, scores: Mapping[str, Scored]) -> Lead | None:
    """The best and the second best by AUROC; None if there are none, or a single input a side.

    Detectors that rank alike (max_logit, max_energy, max_prob) are one: those of the same AUROC to
    four decimals.
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
