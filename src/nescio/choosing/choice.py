"""`choose` ranks detectors on in-distribution data and picks one; `Choice` is its result."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
from scipy import stats
from sklearn.base import clone
from threadpoolctl import threadpool_limits

from nescio._charts.results import Result, View
from nescio._validation import checked_choice, checked_share, checked_whole
from nescio.choosing.folds import Fold, Rows, checked_inputs, label_folds, make_fold
from nescio.detectors import Detector, JointEnergy
from nescio.detectors.registry import as_detector
from nescio.errors import MissingInputError, NescioWarning, ParameterError, counted
from nescio.metrics import mean_average_precision
from nescio.metrics.comparison import Spread, compare_outputs, obstacle
from nescio.outputs import Outputs
from nescio.outputs.sets import Sets

COLUMNS = ("detector", "criterion ↓", "near ↓", "far ↓", "p")

SMALLEST_BASELINE = 0.05
"""An FPR is divided by that of joint energy, or by this if that is lower: one sample more or less
must not decide where joint energy lets almost nothing through."""

Values = tuple[float, ...]

_NEAR = "near"

# Simple detectors come first, because the first of equal detectors is picked.
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
    "combined(detectors=[joint_energy, label_neighbours{layer}, linear_probe{layer}, "
    "out_of_range{layer}])",
    "combined(detectors=[joint_energy, label_neighbours{layer}])",
    "combined(detectors=[joint_energy, knn{layer}])",
    "combined(detectors=[top_k_joint_energy, mahalanobis(normalise=true{and_layer})])",
)


@dataclass(frozen=True)
class Standing:
    """A detector, named as on the command line, and its FPRs, fold by fold.

    The FPR is `near` on samples that carry only left-out labels, and `far` on each far set. The
    criterion is the mean of the near FPR and of the mean far FPR, each divided by joint energy's;
    without far sets, only the near part. The p-value is that of a paired t-test over folds against
    the pick; None for the pick, or with a single fold.
    """

    name: str
    near: Values
    far: Mapping[str, Values]
    criterion: Values = ()
    p_value: float | None = None

    @property
    def mean(self) -> float:
        """The mean of the criterion; lower is better. That of joint energy is 1, or less."""
        return fmean(self.criterion)

    @property
    def mean_far(self) -> Values:
        """The mean FPR over the far sets, by fold."""
        return tuple(np.mean(list(self.far.values()), axis=0).tolist()) if self.far else ()

    def as_dict(self) -> dict[str, Any]:
        """Return the standing as plain data, with means and standard deviations over folds."""
        values = {"criterion": self.criterion, "near": self.near}
        if self.far:
            values["far"] = self.mean_far
        return asdict(self) | {
            "mean": {name: fmean(own) for name, own in values.items()},
            "deviation": {name: Spread.of(own).deviation for name, own in values.items()},
        }


@dataclass(frozen=True)
class FoldFacts:
    """What a fold was made of.

    `n_near` samples carry only left-out labels. If a number of samples was too small, the fold is
    not used. The mAP of the refitted head and of the model itself is on the in-distribution samples
    and for the labels that were not left out; None if no head was refitted.
    """

    left_out: tuple[str, ...]  # the names of labels, or their positions
    n_id: int
    n_near: int
    used: bool
    map_refitted: float | None = None
    map_model: float | None = None


@dataclass(frozen=True, repr=False)
class Choice(Result):
    """The result of `choose`.

    Attributes
    ----------
    pick : str
        The detector to use, with its parameters. `detector` makes it.
    ranking : tuple of Standing
        All detectors that could run, the lowest criterion first.
    baseline : Standing
        Joint energy, which the criterion compares with.
    skipped : mapping of str to str
        Why a detector could not run.
    refit : {"head", "none"}
        Whether the head was trained anew without the left-out labels.
    """

    index_column = "detector"

    pick: str
    ranking: tuple[Standing, ...]
    baseline: Standing
    skipped: Mapping[str, str]
    folds: tuple[FoldFacts, ...]
    refit: str
    tpr: float
    seed: int
    _detectors: Mapping[str, Detector]

    def detector(self, name: str | None = None) -> Detector:
        """Return a new detector: the pick or, by name, another of the ranking."""
        detector: Detector = clone(self._detectors[name or self.pick])
        return detector

    @property
    def fpr_name(self) -> str:
        """The usual name of the FPR at this TPR, such as FPR95."""
        return f"FPR{self.tpr * 100:g}"

    def rows(self) -> list[tuple[str, ...]]:
        """Return the ranking as text, under `COLUMNS`: means ± standard deviations over folds."""
        return [
            (
                standing.name,
                Spread.of(standing.criterion).text(1, 2),
                Spread.of(standing.near).text(digits=1),
                Spread.of(standing.mean_far).text(digits=1) if standing.far else "",
                "" if standing.p_value is None else f"{standing.p_value:.2g}",
            )
            for standing in self.ranking
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the choice as plain data, for JSON."""
        return {
            "pick": self.pick,
            "summary": self.summary(),
            "tpr": self.tpr,
            "refit": self.refit,
            "seed": self.seed,
            "ranking": [standing.as_dict() for standing in self.ranking],
            "baseline": self.baseline.as_dict(),
            "skipped": dict(self.skipped),
            "folds": [asdict(fold) for fold in self.folds],
        }

    def columns(self) -> dict[str, Any]:
        """Return one row per detector: detector, criterion, near, far and p_value (means)."""
        ranking = self.ranking
        return {
            "detector": [standing.name for standing in ranking],
            "criterion": [standing.mean for standing in ranking],
            "near": [fmean(standing.near) for standing in ranking],
            "far": [fmean(standing.mean_far) if standing.far else None for standing in ranking],
            "p_value": [standing.p_value for standing in ranking],
        }

    def _view(self) -> View:
        table = dict(zip(COLUMNS, zip(*self.rows(), strict=True), strict=True))
        return View(*self._sentences(), table, notes=self.notes())

    def summary(self) -> str:
        """Return a few lines: the pick, what the ranking comes from, and how far to trust it."""
        return "\n".join([*self._sentences(), *self.notes()])

    def _sentences(self) -> tuple[str, str]:
        used = sum(fold.used for fold in self.folds)
        far = f" and, for far data, {', '.join(self.baseline.far)}" if self.baseline.far else ""
        return (
            f"Pick: {self.pick}, with a criterion of {self.ranking[0].mean:.2f} "
            f"(joint energy: {self.baseline.mean:.2f}; lower is better).",
            f"The ranking comes from simulated OOD data: labels left out in {counted(used, 'fold')}"
            f"{far}. Its numbers compare detectors; they are not the {self.fpr_name} to expect of "
            "real OOD data.",
        )

    def notes(self) -> list[str]:
        """Return what limits the ranking."""
        pairs = [(f.map_refitted, f.map_model) for f in self.folds if f.map_refitted is not None]
        if pairs:
            refitted, model = np.mean(np.array(pairs, dtype=np.float64), axis=0).tolist()
            notes = [
                f"The refitted heads have an mAP of {100 * refitted:.1f} %, the model itself "
                f"{100 * model:.1f} %. If layers before the head were trained on these labels too, "
                "unknown inputs are harder than left-out labels."
            ]
        else:
            notes = [
                "No head was refitted: the columns of the left-out labels were dropped. This is "
                "the weaker simulation, because the model has learned these labels. The head can "
                "be refitted if there are features."
            ]
        if not self.baseline.far:
            notes.append("No far data: the criterion is the near part only.")
        elif fmean(self.baseline.near) < SMALLEST_BASELINE:
            notes.append(
                "Joint energy flags almost all samples that carry only left-out labels, so they "
                "tell little about unknown inputs. Test on strange data of your own (nescio eval)."
            )
        unused = sum(not fold.used for fold in self.folds)
        if unused:
            notes.append(
                f"{unused} of {len(self.folds)} folds were not used: too few samples carry only "
                "their left-out labels."
            )
        return notes


# --- the choice ---


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
    energy. The pick has the lowest criterion. All these numbers are of simulated data: they compare
    detectors, and are not what to expect of real out-of-distribution data.

    There is no parameter for out-of-distribution data: a choice made on such data says nothing
    about its results on it, and little about other data.

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
        `nescio.lab.data.CORRUPTIONS`, by its name, such as {"jigsaw": outputs}. Each has one row
        per row of `held_out`, in the same order.
    n_folds : int
        The number of parts that the labels are divided into, at most the number of labels.
    refit : {"auto", "head", "none"}
        "head" trains the head anew on the features, without the left-out labels. "none" drops the
        columns of the left-out labels, which is the weaker simulation, because the model has
        learned them. "auto" is "head" if there are features.
    tpr : float
        The share of in-distribution samples to keep. The FPR is at this TPR.
    seed : int
        Of the folds, of the refitted heads and of the shuffled features.
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
    # Most products are small: on a busy machine, threads that wait for each other take five times
    # as long as one. It also makes the last digits independent of the number of processors.
    with threadpool_limits(1, "blas"):
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
    standings = {}
    for name in (JointEnergy.name, *able):
        by_set = {kind: tuple(fold[name][kind] for fold in measured) for kind in measured[0][name]}
        standings[name] = Standing(name, by_set.pop(_NEAR), by_set)
    baseline = with_criterion(standings[JointEnergy.name], standings[JointEnergy.name])
    ranking = ordered([with_criterion(standings[name], baseline) for name in able])
    pick = ranking[0].name
    return Choice(pick, ranking, baseline, skipped, tuple(facts), refit, tpr, seed, able)


def _named(
    detectors: Sequence[Any] | None, train: Outputs, held_out: Outputs
) -> dict[str, Detector]:
    """Return the detectors to rank by their names; those that are the same only once."""
    if detectors is None:
        layers = [name for name in train.layers if name in held_out.layers]
        if train.features is not None and held_out.features is not None:
            layers.insert(0, "features")
        names = list(_OF_LOGITS)
        for layer in layers:
            only = "" if layer == "features" else f"(layer={layer})"
            more = "" if layer == "features" else f", layer={layer}"
            names += [text.format(layer=only, and_layer=more) for text in _OF_FEATURES]
        detectors = names
    if isinstance(detectors, str | Detector) or not len(detectors):
        raise ParameterError(
            "detectors must be a list of at least one detector, such as ['joint_energy', 'knn'], "
            f"got {detectors!r}."
        )
    return {detector.text(defaults=False): detector for detector in map(as_detector, detectors)}


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
            {JointEnergy.name: JointEnergy(), **detectors},
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
    named = tuple(str(label) if names is None else names[label] for label in left_out)
    return FoldFacts(named, len(rows.id), rows.n_near, rows.usable, *precisions)


def with_criterion(standing: Standing, baseline: Standing) -> Standing:
    """Return the standing with its criterion, relative to the FPRs of the baseline."""
    parts = [np.array(standing.near) / max(fmean(baseline.near), SMALLEST_BASELINE)]
    if standing.far:
        parts.append(np.array(standing.mean_far) / max(fmean(baseline.mean_far), SMALLEST_BASELINE))
    return replace(standing, criterion=tuple(np.mean(parts, axis=0).tolist()))


def ordered(standings: Sequence[Standing]) -> tuple[Standing, ...]:
    """Return the standings, the best first, with p-values against it; ties keep their order."""
    best, *rest = sorted(standings, key=lambda standing: standing.mean)
    tested = [
        replace(standing, p_value=paired_p_value(standing.criterion, best.criterion))
        for standing in rest
    ]
    return (best, *tested)


def paired_p_value(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the p-value of a paired t-test over folds, which share samples: an approximation."""
    differences = np.subtract(a, b)
    if len(differences) < 2:
        return None
    if np.ptp(differences) <= 1e-12:  # the t-test would divide by 0
        return 1.0 if abs(differences[0]) <= 1e-12 else 0.0
    return float(stats.ttest_1samp(differences, 0.0).pvalue)
