"""`compare`: detectors side by side, on data of any kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone

from nescio._charts.histogram import roc
from nescio._charts.results import Result, View, by_name, keyed
from nescio._charts.style import curve_style, cut
from nescio._charts.svg import Chart, Markup, Scale, percent
from nescio._io.files import same_file
from nescio._io.frames import read_frame
from nescio._io.tables import Columns
from nescio._validation import is_frame, to_numpy
from nescio.calibration import Scores
from nescio.detectors.base import Detector
from nescio.detectors.combined import AUTO, default_detector
from nescio.detectors.registry import DETECTORS, as_detector, written
from nescio.errors import (
    InputError,
    LabelMismatchError,
    MissingInputError,
    ParameterError,
    ShapeError,
    TooFewSamplesError,
    error_context,
)
from nescio.metrics.evaluation import Evaluation, chance_note, evaluate
from nescio.metrics.measures import AurocDifference, auroc, delong_test
from nescio.outputs import Outputs
from nescio.outputs.files import MAX_ROWS, columns_like, labels_like, read_outputs
from nescio.outputs.outputs import TEXT, from_content

ALL = "all"

_SHOWN_SETS, _ROC_CHARTS, _CURVES = 3, 2, 6
_NOT_GIVEN = {
    "the training data": "it learns from data: pass training outputs (--train).",
    "the held-out data": "it learns from held-out data: pass such outputs (--held-out).",
}


# --- the result -------------------------------------------------------------------------------


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
    sampled: Mapping[str, int] = field(default_factory=dict)
    """The number of rows of each file of which only a random sample was read."""

    def ranked(self, ood: str) -> list[str]:
        """Return the detectors on one OOD set by AUROC, the highest first; ties by their FPR."""
        results = self.results[ood]
        return sorted(results, key=lambda n: (-results[n].auroc.value, results[n].fpr.value))

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
                result = results[name]
                row: dict[str, Any] = {"ood": ood, "detector": name, "rank": rank}
                row |= {"n_id": result.n_id, "n_ood": result.n_ood}
                for measure in ("fpr", "auroc", "aupr"):
                    estimate = result.estimates[measure]
                    row |= {measure: estimate.value}
                    row |= {f"{measure}_low": estimate.low, f"{measure}_high": estimate.high}
                rows.append(row)
        return by_name(rows)

    def best_first(self) -> list[str]:
        """Return the detectors by their mean AUROC over the OOD sets, the highest first."""
        sets = list(self.results.values())
        areas = {
            name: sum(results[name].auroc.value for results in sets) / len(sets) for name in sets[0]
        }
        return sorted(areas, key=lambda name: -areas[name])

    def _view(self) -> View:
        names, shown = self.best_first(), list(self.results)[:_SHOWN_SETS]
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
        notes = [f"{cut(ood, 32)}: {cut(note, 160)}" for ood, note in self.notes.items()]
        notes += [f"left out: {', '.join(self.skipped)}"] if self.skipped else []
        notes += [f"{name}: a sample of {n:,} rows" for name, n in self.sampled.items()]
        detectors = "1 detector" if len(names) == 1 else f"{len(names):,} detectors"
        order = ", highest AUROC first" if len(names) > 1 else ""
        n_id = self.results[shown[0]][names[0]].n_id
        return View(
            f"{detectors} on {n_id:,} ID samples, in per cent{order}",
            f"OOD samples: {', '.join(f'{n:,} {cut(ood, 24)}' for ood, n in sizes.items())}",
            table,
            charts=lambda: [self._roc_chart(ood, drawn) for ood in shown[:_ROC_CHARTS]],
            notes=notes,
        )

    def _roc_chart(self, ood: str, names: Sequence[str]) -> Markup:
        whole = Scale(0.0, 1.0, write=percent)
        chart = Chart(
            whole,
            whole,
            name=f"ROC curves on {ood}",
            width=440,
            height=330,
            x_label=f"{cut(ood, 30)} let through, %",
            y_label="ID kept, %",
        )
        tpr = self.results[ood][names[0]].tpr
        chart.rule(y=tpr, text=f"TPR {percent(tpr)} %")
        for number, name in reversed(list(enumerate(names))):  # the best on top
            scores = self.scores[name]
            fpr, kept = roc(scores.id_scores, scores.ood_scores[ood], n_points=80)
            area = 100 * self.results[ood][name].auroc.value
            chart.line(fpr, kept, curve_style(number, name), tip=f"{name}: AUROC {area:.2f}")
        return chart.draw()

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
            "sampled": dict(self.sampled),
        }


# --- the data ---------------------------------------------------------------------------------


class Sets(NamedTuple):
    """The outputs to compare detectors on: ID, OOD by a short name, and what they learn from."""

    id: Outputs
    ood: dict[str, Outputs]
    train: Outputs | None
    held_out: Outputs | None

    def with_texts(self, column: str) -> Sets:
        """Return the sets with a kept column of ID and OOD as the texts."""

        def texts(outputs: Outputs, name: str) -> Outputs:
            if column not in outputs.kept:  # only of a table is it checked before
                raise InputError(
                    f"{name} has no column {column!r} (--text-column). Pass a table that has it "
                    "(.csv, .parquet or .arrow), or leave out --text-column."
                )
            return replace(outputs, kept={TEXT: outputs.kept[column]})

        ood = {name: texts(data, f"the OOD data {name!r}") for name, data in self.ood.items()}
        return self._replace(id=texts(self.id, "the ID data"), ood=ood)

    def sampled(self) -> dict[str, int]:
        """Return the number of rows of the inputs of which a random sample was read."""
        named = {"ID": self.id, **self.ood, "training": self.train, "held-out": self.held_out}
        return {
            name: data.manifest["sampled_from"]
            for name, data in named.items()
            if data is not None and "sampled_from" in data.manifest
        }


def read_sets(
    id_data: Any,
    ood_data: Any,
    train: Any = None,
    held_out: Any = None,
    *,
    from_probs: bool | None,
    columns: Columns,
    max_rows: int | None = MAX_ROWS,
) -> Sets:
    """Return the outputs. The labels of the ID data are looked for in the other data.

    Of files with more than `max_rows` rows, a random sample is read.
    """
    named = _named_sets(ood_data)
    roles = [("ID data (--id)", id_data), ("training data (--train)", train)]
    roles += [("held-out data (--held-out)", held_out)]
    roles += [("OOD data (--ood)", data) for data in named.values()]
    for (role, data), (other_role, other) in combinations(roles, 2):
        paths = _is_path(data) and _is_path(other)
        same = same_file(data, other) if paths else data is other and data is not None
        if same and role != other_role:
            what = other if paths else f"the same {type(data).__name__}"
            raise ParameterError(
                f"{what} is given as {role} and as {other_role}. Detectors would be tested on data "
                "that they know: pass other samples."
            )
    first = _read(id_data, from_probs, columns, max_rows)

    def read(data: Any, name: str, columns: Columns) -> Outputs:
        if _is_path(data):
            return read_outputs(
                data, from_probs=from_probs, columns=columns, max_rows=max_rows, first=first
            )
        labels = columns_like(columns, first.label_names, "the ID data")
        with error_context(name):
            return labels_like(_read(data, from_probs, labels, max_rows), first, columns)

    ood = {name: read(data, name, columns) for name, data in named.items()}
    unkept = replace(columns, keep=())  # what is learned from is not shown
    learned = (
        None if data is None else read(data, f"the {name} data", unkept)
        for name, data in (("training", train), ("held-out", held_out))
    )
    return Sets(first, ood, *learned)


def _is_path(data: Any) -> bool:
    return isinstance(data, str | Path)


def _named_sets(ood_data: Any) -> dict[str, Any]:
    """Return the OOD sets by name; files are named after themselves, a single array "ood"."""
    paths = [ood_data] if _is_path(ood_data) else ood_data
    if isinstance(ood_data, Mapping):
        named = {str(name): data for name, data in ood_data.items()}
    elif isinstance(paths, list | tuple) and paths and all(map(_is_path, paths)):
        stems = [Path(path).stem for path in paths]
        if len(set(map(str, paths))) != len(paths):
            raise ParameterError("the same OOD file (--ood) was given twice.")
        named = {
            stem if stems.count(stem) == 1 and "*" not in stem else str(path): path
            for stem, path in zip(stems, paths, strict=True)
        }
    elif isinstance(ood_data, list | tuple) and any(
        isinstance(data, Outputs) or len(getattr(data, "shape", ())) == 2 for data in ood_data
    ):
        raise ParameterError(
            "several OOD sets need names: pass a dict, such as {'textures': a, 'objects': b}."
        )
    else:
        named = {"ood": ood_data}
    if not named:
        raise ParameterError("there is no OOD data to compare with: pass at least one set.")
    return named


def _read(data: Any, from_probs: bool | None, columns: Columns, max_rows: int | None) -> Outputs:
    """Return outputs: as they are, from files, from a data frame, or of an array of logits."""
    if isinstance(data, Outputs):
        return data
    if _is_path(data):
        return read_outputs(data, from_probs=from_probs, columns=columns, max_rows=max_rows)
    content = read_frame(data, columns) if is_frame(data) else {"logits": to_numpy(data)}
    return from_content(content, from_probs=bool(from_probs))


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
    n_bootstrap : int
        The number of bootstrap resamples; 0 for no intervals.
    seed : int
        The seed of the resampling.
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
    if AUTO in chosen:
        chosen[AUTO] = default_detector(sets.train, sets.held_out, tpr=tpr).detector
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
        if detector == ALL:
            named |= {name: as_detector(name) for name in DETECTORS}
        elif isinstance(detector, str):
            named[detector] = None if detector == AUTO else as_detector(detector)
        else:
            made = as_detector(detector)
            name = written(made, defaults=False)
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
    from_probs: bool | None = None,
    on_step: Callable[[int], object] = lambda steps: None,
) -> Comparison:
    """Evaluate each detector on each OOD set, on outputs in memory; see `compare`.

    Detectors that learn are cloned. The clones learn from `train`, and those that learn from
    held-out data are calibrated on `held_out`, which must be neither training nor test data.
    Without this data, these detectors are skipped. `train_of` has other outputs for some detectors
    to learn from, by the names in `detectors`. Detectors are also skipped if the outputs lack an
    array that they score from.
    """
    train_of = train_of or {}
    learned = {"the training outputs": train, "the held-out outputs": held_out}
    learned |= {f"the data that {name} learns from": data for name, data in train_of.items()}
    present = {name: outputs for name, outputs in learned.items() if outputs is not None}
    check_same_labels(id_outputs, {**ood_outputs, **present})
    skipped: dict[str, str] = {}
    scores: dict[str, Scored] = {}
    results: dict[str, dict[str, Evaluation]] = {ood: {} for ood in ood_outputs}
    for name, detector in detectors.items():
        sets = id_outputs, ood_outputs, train_of.get(name, train), held_out
        ready = prepared(as_detector(detector), *sets, from_probs)
        if isinstance(ready, str):
            skipped[name] = ready
            on_step(len(ood_outputs))
            continue
        with error_context("the ID data"):
            id_scores = ready.score_samples(id_outputs, from_probs=from_probs)
        by_ood: dict[str, Scores] = {}
        for ood, outputs in ood_outputs.items():
            with error_context(ood):
                by_ood[ood] = ready.score_samples(outputs, from_probs=from_probs)
            results[ood][name] = evaluate(
                id_scores, by_ood[ood], tpr=tpr, n_bootstrap=n_bootstrap, seed=seed
            )
            on_step(1)
        scores[name] = Scored(id_scores, by_ood)
    leads = {ood: find_lead(ood, scores) for ood in results}
    return Comparison(
        results, {ood: lead for ood, lead in leads.items() if lead is not None}, skipped, scores
    )


def check_same_labels(id_outputs: Outputs, other_outputs: Mapping[str, Outputs]) -> None:
    """Raise unless all outputs have the same labels: scores of different labels do not compare."""
    for name, outputs in other_outputs.items():
        if outputs.n_labels != id_outputs.n_labels:
            raise ShapeError(
                f"all outputs must come from the same model, but the ID data has "
                f"{id_outputs.n_labels} labels and {name} has {outputs.n_labels}."
            )
        pairs = zip(id_outputs.label_names or (), outputs.label_names or (), strict=False)
        for label, (ours, theirs) in enumerate(pairs):
            if ours != theirs:
                raise LabelMismatchError(
                    f"all outputs must come from the same model, but the labels of {name} differ "
                    f"from those of the ID data: label {label} is {theirs!r} instead of {ours!r}."
                )


def prepared(
    detector: Detector,
    id_outputs: Outputs,
    ood_outputs: Mapping[str, Outputs],
    train: Outputs | None,
    held_out: Outputs | None,
    from_probs: bool | None,
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
            ready.fit(train, from_probs=from_probs)
        except TooFewSamplesError as error:
            return str(error)
    if detector.learns_from_held_out:
        try:
            ready.calibrate(held_out, from_probs=from_probs)
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
    in_calibration = detector.calibrates_from if detector.learns_from_held_out else ()
    needed: dict[str, tuple[Outputs | None, str, Sequence[str]]] = {
        name: (outputs, "reads", detector.scores_from)
        for name, outputs in {"the ID data": id_outputs, **ood_outputs}.items()
    }
    needed["the training data"] = train, "learns from", detector.learns_from
    needed["the held-out data"] = held_out, "learns from", in_calibration
    for name, (outputs, verb, arrays) in needed.items():
        if not arrays:
            continue
        if outputs is None:
            return _NOT_GIVEN[name]
        for array in arrays:
            if outputs.get(array) is None:
                return f"it {verb} {array}, but {name} has none."
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
        name: round(auroc(scored.id_scores, scored.ood_scores[ood]), 4)
        for name, scored in scores.items()
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
