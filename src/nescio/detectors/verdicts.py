"""The verdict on each sample: of a batch in memory, or as a table written block by block.

A table is written under a temporary name and renamed at the end: a run that fails or is killed
leaves nothing under the name of the output.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from nescio._charts.histogram import Batch
from nescio._charts.results import Result, View, shown_rows, word
from nescio._charts.svg import Markup, end_of
from nescio._io.files import TableWriter, write_table
from nescio._threads import available_cpus, map_ahead
from nescio._validation import Array, BoolArray, checked_rows, checked_share
from nescio.calibration import Calibration
from nescio.calibration.calibration import fdr_limit
from nescio.detectors.inputs import Arrays
from nescio.errors import InputError, error_context
from nescio.outputs import Outputs
from nescio.outputs.files import Block, OutputsStream
from nescio.outputs.outputs import join_columns, join_indexes, match_labels
from nescio.scores import label_prob

if TYPE_CHECKING:
    from nescio.detectors.base import Detector

COLUMNS = ("id", "score", "p_value", "in_distribution", "group")
"""The columns that a table of verdicts may have."""


class Verdict(NamedTuple):
    """The score, the p-value and the verdict of one sample."""

    score: float
    p_value: float
    in_distribution: bool


@dataclass(frozen=True, eq=False, repr=False)
class Assessment(Result):
    """Scores, p-values and verdicts, one row per sample.

    Attributes
    ----------
    scores : array of shape (n_samples,)
        Higher means more in-distribution.
    p_values : array of shape (n_samples,)
        How often an in-distribution sample scores as low or lower; small means suspicious.
    in_distribution : array of bool of shape (n_samples,)
        The verdict.
    groups : array of str of shape (n_samples,) or None
        The group whose threshold was used, if calibrated by group.
    ids : array of str of shape (n_samples,) or None
        The ids of the samples, if the outputs had any.
    kept : mapping of str to array of shape (n_samples,)
        The columns of the user's table that were passed on; see `Outputs.from_frame`.
    calibration : Calibration or None
        What the scores were compared with, for figures. None if it is not known, or if the verdicts
        were made with `fdr` instead of a threshold.
    index : pandas index or None
        The index of the pandas frame that the samples came from, for `to_pandas`.
    """

    index_column = "id"

    scores: NDArray[np.float64]
    p_values: NDArray[np.float64]
    in_distribution: BoolArray
    groups: NDArray[np.str_] | None = None
    ids: NDArray[np.str_] | None = None
    kept: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    calibration: Calibration | None = None
    index: Any = None

    def __post_init__(self) -> None:
        _check_names(self.kept, COLUMNS, "the table of verdicts has a column")

    @classmethod
    def concat(cls, parts: Sequence[Assessment]) -> Assessment:
        """Join the assessments of several batches by one detector."""
        if not parts:
            raise InputError("there are no assessments to join.")
        columns = [part._verdicts() for part in parts]
        if any(column.keys() != columns[0].keys() for column in columns):
            raise InputError("all assessments to join must have ids and groups, or none.")
        joined = {name: np.concatenate([part[name] for part in columns]) for name in columns[0]}
        same = list({id(part.calibration): part.calibration for part in parts}.values())
        return cls(
            joined["score"],
            joined["p_value"],
            joined["in_distribution"],
            groups=joined.get("group"),
            ids=joined.get("id"),
            kept=join_columns([part.kept for part in parts]),
            calibration=same[0] if len(same) == 1 else None,
            index=join_indexes([part.index for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.scores)

    @overload
    def __getitem__(self, rows: int) -> Verdict: ...
    @overload
    def __getitem__(self, rows: slice | Sequence[int] | NDArray[Any]) -> Assessment: ...
    def __getitem__(self, rows: Any) -> Verdict | Assessment:
        """Return the verdict of one row, or the assessment of several (slice, indices or mask)."""
        chosen = checked_rows(rows, len(self))
        if isinstance(rows, int | np.integer):
            columns = (self.scores, self.p_values, self.in_distribution)
            return Verdict(*(column[chosen].item() for column in columns))
        names = ("scores", "p_values", "in_distribution", "groups", "ids", "index")
        known = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        some = {name: column[chosen] for name, column in known.items()}
        return replace(self, **some, kept={name: c[chosen] for name, c in self.kept.items()})

    def __iter__(self) -> Iterator[Verdict]:
        columns = (self.scores, self.p_values, self.in_distribution)
        return map(Verdict, *(column.tolist() for column in columns))

    @property
    def flagged(self) -> NDArray[np.intp]:
        """The positions of the samples that should not be trusted, from 0: for `.iloc`."""
        return np.flatnonzero(~self.in_distribution)

    @property
    def verdicts(self) -> NDArray[np.str_]:
        """The verdicts as words: in or OUT."""
        return np.where(self.in_distribution, "in", "OUT")

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the table: id, score, p_value, in_distribution, group and the kept columns.

        id and group are left out if they are not known.
        """
        return {**self._verdicts(), **self.kept}

    def _verdicts(self) -> dict[str, NDArray[Any]]:
        columns = (self.ids, self.scores, self.p_values, self.in_distribution, self.groups)
        named = zip(COLUMNS, columns, strict=True)
        return {name: column for name, column in named if column is not None}

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the table as .parquet, .csv or .jsonl, atomically."""
        write_table(path, self.columns(), force=force)

    def summary(self) -> str:
        """Return one line: how many samples were assessed, and how many flagged."""
        return f"{len(self):,} assessed, {len(self.flagged):,} flagged"

    def _view(self) -> View:
        rows = shown_rows(self.in_distribution)
        names = rows if self.ids is None else self.ids[rows]
        return View(
            self.summary(),
            table={
                "sample": [end_of(str(name), 24) for name in names],
                "score": [f"{self.scores[row]:.5g}" for row in rows],
                "p_value": [f"{self.p_values[row]:.4f}" for row in rows],
                "verdict": [
                    word(str(self.verdicts[row]), "in" if self.in_distribution[row] else "out")
                    for row in rows
                ],
                **({} if self.groups is None else {"group": self.groups[rows].tolist()}),
            },
            n_rows=len(self),
            charts=self._charts,
        )

    def _charts(self) -> list[Markup]:
        if self.calibration is None or not len(self):
            return []
        return [self.calibration.chart(Batch(self.scores, ~self.in_distribution))]


# --- tables that may be larger than memory ---

_N_LOWEST = 20  # the most suspicious rows that are remembered
_WORKERS = min(4, available_cpus())  # each has a block in memory, and scores on all processors

VerdictColumns = dict[str, Any]
"""The columns of a table of verdicts by name: arrays of NumPy or of pyarrow."""

ScoreBlock = Callable[[Block], VerdictColumns]
ScoreEngine = Callable[[ScoreBlock, OutputsStream], Iterator[VerdictColumns]]
"""Scores the blocks of a stream elsewhere, and gives them in order."""


@dataclass(frozen=True)
class StreamResult:
    """The result of scoring all rows of a stream."""

    n_samples: int
    n_flagged: int
    n_nonfinite: int  # rows with NaN or infinity, which are flagged
    lowest: VerdictColumns  # the most suspicious rows: row, the verdicts and the user's groups
    parts: Sequence[VerdictColumns]  # all columns, if they were to be kept in memory


def score_stream(
    detector: Detector,
    stream: OutputsStream,
    output: str | Path | None = None,
    *,
    fdr: float | None = None,
    with_labels: bool = False,
    in_memory: bool = False,
    force: bool = False,
    on_rows: Callable[[int], object] = lambda count: None,
    engine: ScoreEngine | None = None,
) -> StreamResult:
    """Assess every row of a stream and write the verdicts.

    The table has one row per row of the input, in the same order, and the kept columns;
    `with_labels` adds the labels that the model predicts, and all probabilities. `in_memory`
    returns all columns. With `fdr`, all rows are one batch, so that they are scored twice: the
    first time to find the p-value up to which rows are flagged. `on_rows` is called with the number
    of rows that are done. By default, the threads of this process are the `engine`.
    """
    writer = None if output is None else TableWriter(output, force=force)
    _check_names(stream.kept_names, COLUMNS, "the table of verdicts has a column")
    run = engine or (lambda score, stream: map_ahead(score, stream.blocks(), _WORKERS))
    limit = None
    if fdr is not None:
        checked_share("fdr", fdr)
        limit = _fdr_limit(run(_Scorer(detector), stream), fdr)
    score = _Scorer(detector, with_labels=with_labels, limit=limit)
    n_samples = n_flagged = n_nonfinite = 0
    suspicious, parts, known = [], [], set[str]()
    with writer or nullcontext():
        for columns in run(score, stream):
            if writer is not None:
                writer.write(columns)
            if in_memory:
                parts.append(columns)
            rows = suspicion_order(detector.calibration_, columns)[:_N_LOWEST]
            names = (*COLUMNS, stream.group_column)
            taken = {name: columns[name].take(rows) for name in names if name in columns}
            suspicious.append({"row": n_samples + rows, **taken})
            n_rows = len(columns["score"])
            n_nonfinite += int(np.count_nonzero(np.isneginf(np.asarray(columns["score"]))))
            n_flagged += n_rows - int(np.count_nonzero(columns["in_distribution"]))
            n_samples += n_rows
            known.update(np.unique(columns.get("group", ())).tolist())
            on_rows(n_rows)
        detector.calibration_.check_any_group(known)
    lowest = {
        name: np.concatenate([np.asarray(block[name]) for block in suspicious])
        for name in suspicious[0]
    }
    order = suspicion_order(detector.calibration_, lowest)[:_N_LOWEST]
    lowest = {name: column[order] for name, column in lowest.items()}
    return StreamResult(n_samples, n_flagged, n_nonfinite, lowest, parts)


def _fdr_limit(blocks: Iterable[VerdictColumns], fdr: float) -> float:
    """Return the largest p-value to flag, for the p-values of all blocks together."""
    counted = [np.unique(np.asarray(columns["p_value"]), return_counts=True) for columns in blocks]
    values, positions = np.unique(
        np.concatenate([values for values, _ in counted]), return_inverse=True
    )
    counts = np.bincount(positions, np.concatenate([counts for _, counts in counted]))
    return fdr_limit(values, counts, fdr)


def suspicion_order(calibration: Calibration, columns: Mapping[str, Any]) -> Array:
    """Return the rows of a table of verdicts, the most suspicious first.

    Flagged rows come first, then small p-values. Only among equal p-values, such as the smallest
    one, is the distance to the threshold compared: the scores of groups differ in scale.
    """
    distances = columns["score"] - calibration.threshold_of(columns.get("group"))
    keys = (distances, columns["p_value"], columns["in_distribution"])
    return np.lexsort([np.asarray(key) for key in keys])


def _check_names(names: Iterable[str], taken: Container[str], why: str) -> None:
    """Raise if a kept column has the name of another one in the table of verdicts."""
    clash = next((name for name in names if name in taken), None)
    if clash is not None:
        raise InputError(
            f"the column {clash!r} cannot be kept, because {why} of the same name. Rename it or, "
            f"unless it holds the groups, leave it out with --ignore {clash}."
        )


@dataclass(frozen=True)
class _Scorer:
    """Makes the columns of a table of verdicts from blocks, in any order and in threads.

    With `limit`, the rows with a p-value up to this are flagged, instead of those below the
    threshold. The pass that found the limit has already given all warnings.
    """

    detector: Detector
    with_labels: bool = False
    limit: float | None = None

    def __call__(self, block: Block) -> VerdictColumns:
        outputs = block.outputs
        warns = block.start == 0 and self.limit is None
        with error_context(block.place):
            data = outputs if warns else self._arrays(outputs)
            verdicts = self.detector.assess(data, groups=block.groups, from_probs=False)
        if self.limit is not None:
            inside = (verdicts.p_values > self.limit) & ~np.isneginf(verdicts.scores)
            verdicts = replace(verdicts, in_distribution=inside)
        added = self._predictions(outputs) if self.with_labels else {}
        _check_names(block.kept, added, "--with-labels adds a column")
        ids = {} if block.ids is None else {"id": block.ids}
        return {**ids, **replace(verdicts, ids=None, kept={}).columns(), **block.kept, **added}

    def _arrays(self, outputs: Outputs) -> Arrays:
        """Return the arrays that the detector reads, with its labels in its order."""
        names, reads = getattr(self.detector, "label_names_", None), self.detector.scores_from
        if names is not None and outputs.label_names is not None:
            outputs = match_labels(outputs, names, reads, quiet=True)
        return Arrays({name: outputs.get(name) for name in dict.fromkeys([*reads, "logits"])})

    def _predictions(self, outputs: Outputs) -> VerdictColumns:
        """Return the labels that the model predicts, and all probabilities."""
        names = outputs.label_names or getattr(self.detector, "label_names_", None)
        names = names or [str(label) for label in range(outputs.n_labels)]
        predicted = [
            "; ".join(names[label] for label in np.flatnonzero(row).tolist())
            for row in outputs.logits > 0
        ]
        probs = label_prob(outputs.logits)
        return {
            "predicted": np.array(predicted, dtype=object),
            **{f"prob_{name}": probs[:, label] for label, name in enumerate(names)},
        }
