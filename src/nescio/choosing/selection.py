"""`choose`: rank detectors on in-distribution data, and pick one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nescio._validation import checked_choice, checked_share, checked_whole
from nescio.choosing.choice import Choice, FoldFacts, Standing, ordered, with_criterion
from nescio.choosing.folds import Fold, Rows, checked_inputs, label_folds, make_fold
from nescio.detectors import Detector, JointEnergy
from nescio.detectors.registry import as_detector, written
from nescio.errors import MissingInputError, NescioWarning, ParameterError
from nescio.metrics import mean_average_precision
from nescio.metrics.comparison import compare_outputs, obstacle
from nescio.outputs import Outputs
from nescio.outputs.reading import Sets

_BASELINE = "the baseline of the criterion"  # no detector can have this name
_NEAR = "near"

_OF_LOGITS = (
    "joint_energy",
    "top_k_joint_energy(k=20)",
    "top_k_joint_energy",
    "max_logit",
    "top_k_prob",
)
_OF_FEATURES = (
    "knn{layer}",
    "label_neighbours{layer}",
    "linear_probe{layer}",
    "mahalanobis(normalise=true{and_layer})",
    "relative_mahalanobis{layer}",
    "vim{layer}",
    "nnguide{layer}",
    "combined(detectors=[joint_energy, label_neighbours{layer}, linear_probe{layer}])",
    "combined(detectors=[joint_energy, label_neighbours{layer}])",
    "combined(detectors=[joint_energy, knn{layer}], rule=fisher)",
    "combined(detectors=[top_k_joint_energy, mahalanobis(normalise=true{and_layer})], rule=fisher)",
)


def choose(
    train: Outputs,
    held_out: Outputs,
    *,
    detectors: Sequence[Any] | None = None,
    far: Mapping[str, Outputs] | None = None,
    n_folds: int = 5,
    refit: str = "auto",
    tpr: float = 0.95,
    seed: int = 0,
    on_fold: Callable[[int], object] = lambda n: None,
) -> Choice:
    """Rank detectors by in-distribution data alone, and pick one.

    The labels are divided into folds. In each fold the labels of one part are left out: the head is
    trained anew without them, and the samples that carry only these labels stand for unknown
    inputs that are near. Features that are shuffled over the samples stand for unknown inputs that
    are far. The criterion is the mean of two ratios, near and far: the FPR divided by that of joint
    energy. The pick has the lowest criterion.

    There is no parameter for out-of-distribution data. A choice that was made on such data says
    nothing about its results on it, and little about other data.

    Parameters
    ----------
    train : Outputs
        Outputs for training data, with `labels`, and with `features` to refit the head.
    held_out : Outputs
        Outputs of the same model for in-distribution data that it was not trained on, with the same
        arrays.
    detectors : sequence of detectors or of their names, optional
        What to rank. By default a list of detectors of logits and, for each layer that the outputs
        have, of features.
    far : mapping of str to Outputs, optional
        Further far sets: outputs for the held-out images after a corruption of
        `nescio.lab.data.corrupt`, by its name, such as {"jigsaw": outputs}. Each has one row per
        row of `held_out`, in the same order.
    n_folds : int
        The number of parts that the labels are divided into, at most the number of labels.
    refit : {"auto", "head", "none"}
        "head" trains the head anew on the features, without the left-out labels. "none" drops the
        columns of the left-out labels, which is the weaker estimate, because the model has learned
        them. "auto" is "head" if there are features.
    tpr : float
        The share of in-distribution samples to keep. The FPR is at this TPR.
    seed : int
        The seed of the folds, of the refitted heads and of the shuffled features.
    on_fold : callable
        Called with 1 after each fold.

    Examples
    --------
    >>> from nescio.checks import make_outputs
    >>> train, held_out = make_outputs(900), make_outputs(600, seed=1)
    >>> choice = choose(train, held_out, detectors=["joint_energy", "relative_mahalanobis"])
    >>> choice.pick
    'relative_mahalanobis'
    >>> detector = choice.detector().fit(train).calibrate(held_out)
    """
    checked_share("tpr", tpr)
    checked_whole("n_folds", n_folds, minimum=2)
    checked_whole("seed", seed, minimum=0)
    checked_choice("refit", refit, ("auto", "head", "none"))
    if refit == "auto":
        refit = "none" if train.features is None or held_out.features is None else "head"
    refitted = refit == "head"
    named = _named(detectors, train, held_out)
    skipped = _obstacles(named, train, held_out)
    train, held_out, far = checked_inputs(train, held_out, far or {}, refit=refitted)
    able = {name: detector for name, detector in named.items() if name not in skipped}
    facts, measured = [], []
    for i, rows in enumerate(label_folds(train, held_out, n_folds, seed, refit=refitted)):
        fold = None
        if rows.usable:
            rng = np.random.default_rng([seed, 1, i])
            fold = make_fold(train, held_out, far, rows, rng, refit=refitted)
            measured.append(_measured(able, fold, tpr, skipped))
        facts.append(_facts(held_out, rows, fold if refitted else None))
        on_fold(1)
    able = {name: detector for name, detector in able.items() if name not in skipped}
    if not able:
        name, reason = next(iter(skipped.items()))
        raise MissingInputError(f"{name} cannot be ranked: {reason}")
    standings = []
    for name in (_BASELINE, *able):
        by_set = {kind: tuple(fold[name][kind] for fold in measured) for kind in measured[0][name]}
        standings.append(Standing(name, by_set.pop(_NEAR), by_set))
    baseline, *standings = (with_criterion(standing, standings[0]) for standing in standings)
    ranking = ordered(standings)
    return Choice(
        ranking[0].name,
        ranking,
        replace(baseline, name=JointEnergy.name),
        skipped,
        tuple(facts),
        refit,
        tpr,
        seed,
        able,
    )


def default_candidates(layers: Sequence[str]) -> list[str]:
    """Return the detectors of logits, and those of features once for each layer.

    Simple ones come first: of equal ones, the first is picked.

    Examples
    --------
    >>> default_candidates([])[:2]
    ['joint_energy', 'top_k_joint_energy(k=20)']
    >>> default_candidates(["features", "input"])[16:18]
    ['knn(layer=input)', 'label_neighbours(layer=input)']
    """
    names = list(_OF_LOGITS)
    for layer in layers:
        only, more = ("", "") if layer == "features" else (f"(layer={layer})", f", layer={layer}")
        names += [text.format(layer=only, and_layer=more) for text in _OF_FEATURES]
    return names


def _named(
    detectors: Sequence[Any] | None, train: Outputs, held_out: Outputs
) -> dict[str, Detector]:
    """Return the detectors to rank by their names; those that are the same only once."""
    if detectors is None:
        layers = [name for name in train.layers if name in held_out.layers]
        if train.features is not None and held_out.features is not None:
            layers.insert(0, "features")
        detectors = default_candidates(layers)
    if isinstance(detectors, str | Detector) or not len(detectors):
        raise ParameterError(
            "detectors must be a list of at least one detector, such as ['joint_energy', 'knn'], "
            f"got {detectors!r}."
        )
    return {written(detector, defaults=False): detector for detector in map(as_detector, detectors)}


def _obstacles(
    detectors: Mapping[str, Detector], train: Outputs, held_out: Outputs
) -> dict[str, str]:
    """Return why some detectors cannot run on the outputs, or not on those of the folds."""
    reasons = {}
    for name, detector in detectors.items():
        reason = obstacle(detector, Sets(held_out, {}, train, held_out))
        reads = {*detector.scores_from, *detector.learns_from, *detector.learns_from_held_out}
        unclear = sorted((reads & set(held_out.arrays)) - set(held_out.layers))
        if reason is None and unclear and unclear[0].startswith(("odin_", "mahalanobis_")):
            reason = (
                f"it reads {unclear[0]}, outputs for perturbed inputs, which cannot be made anew "
                "without the left-out labels."
            )
        elif reason is None and unclear:
            reason = (
                f"it reads {unclear[0]}, which may depend on the left-out labels. If it is a layer "
                f"before the head, say so: Outputs(..., manifest={{'layers': [{unclear[0]!r}]}})."
            )
        if reason is not None:
            reasons[name] = reason
    return reasons


def _measured(
    detectors: Mapping[str, Detector], fold: Fold, tpr: float, skipped: dict[str, str]
) -> dict[str, dict[str, float]]:
    """Return the FPR of each detector on each set of a fold; add those that cannot run."""
    with warnings.catch_warnings():
        # Labels without samples, or fewer than k labels: the folds are not the user's data.
        warnings.simplefilter("ignore", NescioWarning)
        comparison = compare_outputs(
            {_BASELINE: JointEnergy(), **detectors},
            fold.id,
            {_NEAR: fold.near, **fold.far},
            train=fold.train,
            held_out=fold.reference,
            tpr=tpr,
            n_bootstrap=0,
        )
    skipped.update(comparison.skipped)
    return {
        name: {kind: results[name].fpr.value for kind, results in comparison.results.items()}
        for name in comparison.scores
    }


def _facts(held_out: Outputs, rows: Rows, fold: Fold | None) -> FoldFacts:
    """Describe a fold; with the mAP of its head if one was refitted."""
    left_out = np.setdiff1d(np.arange(held_out.n_labels), rows.kept).tolist()
    names = held_out.label_names
    precisions: tuple[float, ...] = ()
    if fold is not None:
        own = held_out[rows.id].select_labels(rows.kept.tolist())
        precisions = tuple(
            mean_average_precision(own.labels, logits) for logits in (fold.id.logits, own.logits)
        )
    return FoldFacts(
        tuple(str(label) if names is None else names[label] for label in left_out),
        len(rows.id),
        rows.n_near,
        rows.usable,
        *precisions,
    )
