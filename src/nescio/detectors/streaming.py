"""Verdicts on outputs that are read in blocks of rows: files may be larger than memory.

Blocks are read, scored and written at the same time. With `output`, finished parts are kept in a
folder next to it until all are done, so that an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nescio._io.files import temporary_name
from nescio._io.parts import PartFolder, fingerprint
from nescio._io.tables import TableWriter, check_table_target, require
from nescio._threads import available_cpus, map_ahead
from nescio._validation import Array, BoolArray, checked_share
from nescio._version import __version__
from nescio.calibration.calibration import fdr_limit
from nescio.detectors import steps
from nescio.detectors.arrays import Arrays
from nescio.detectors.assessment import COLUMNS, Assessment
from nescio.detectors.base import Detector
from nescio.errors import InputError, about
from nescio.outputs import Outputs
from nescio.outputs.matching import match_labels
from nescio.outputs.streams import Block, OutputsStream, where
from nescio.scores import label_prob

_LOWEST = 20  # rows that are remembered
_WORKERS = min(4, available_cpus())  # each has a block in memory, and scores on all processors
_SHOWN = ("id", "score", "p_value", "in_distribution", "group", "mixed")

Columns = dict[str, Any]
"""The columns of a table of verdicts by name: arrays of NumPy or of pyarrow."""

ScoreBlock = Callable[[Block], Columns]
ScoreEngine = Callable[[ScoreBlock, OutputsStream, int], Iterator[Columns]]
"""Scores the blocks of a stream elsewhere, from a given one on; gives them in order."""


@dataclass(frozen=True)
class Scored:
    """What is known after all rows have been scored.

    Attributes
    ----------
    n_samples, n_flagged : int
    rows : array of int
        The most suspicious rows: those with the lowest p-values, then the lowest scores.
    lowest : Assessment
        The verdicts on them.
    parts : list of dict
        All columns, if they were to be kept in memory.
    """

    n_samples: int
    n_flagged: int
    rows: Array
    lowest: Assessment
    parts: Sequence[Columns] = ()


def score_stream(
    detector: Detector,
    stream: OutputsStream,
    output: str | Path | None = None,
    *,
    key: Mapping[str, Any] | None = None,
    fdr: float | None = None,
    with_labels: bool = False,
    in_memory: bool = False,
    force: bool = False,
    on_rows: Callable[[int], object] = lambda count: None,
    engine: ScoreEngine | None = None,
) -> Scored:
    """Assess every row of a stream and write the verdicts.

    The table has one row per row of the input, in the same order, and the kept columns.

    Parameters
    ----------
    detector : Detector
    stream : OutputsStream
    output : path, optional
        A .parquet, .csv or .jsonl file.
    key : mapping, optional
        What the verdicts depend on besides the input: the detector and the options. Unfinished work
        of another key is not continued; without a key, none is.
    fdr : float, optional
        As for `Detector.assess`. All rows are one batch.
    with_labels : bool
        Whether to add the labels that the model predicts, and their probabilities.
    in_memory : bool
        Whether to return all columns.
    force : bool
        Whether to replace an existing output.
    on_rows : callable
        Is called with the number of rows that are done.
    engine : callable, optional
        Scores elsewhere, such as on a cluster with `nescio.ray.ray_scoring`. By default, the
        threads of this process do.
    """
    if fdr is not None:
        checked_share("fdr", fdr)
    _check_names(stream.kept_names, COLUMNS, "the table of verdicts has a column")
    score = _Scorer(detector, stream, with_labels=with_labels, flag_all=fdr is not None)
    parts: _Memory | _Folder = _Memory(keep=in_memory or (output is not None and fdr is not None))
    if output is not None:
        path = check_table_target(output, force=force)
        if stream.n_blocks > 1 and importlib.util.find_spec("pyarrow"):
            known = key or {"only": temporary_name()}
            parts = _Folder(path, _full_key(stream, known, fdr, with_labels=with_labels))
    with parts.opened():
        tally = _Tally(count_p_values=fdr is not None)
        with _writer(None if fdr is not None else output, force=force) as write:
            for columns in parts.all(stream, score, engine):
                tally.add(columns)
                write(columns)
                on_rows(len(columns["score"]))
        limit = None if fdr is None else tally.limit(fdr)
        if output is not None and limit is not None:
            with _writer(output, force=force) as write:
                for columns in parts.again():
                    write(_limited(columns, limit))
        kept = parts.again() if in_memory else ()
        columns_of_all = [part if limit is None else _limited(part, limit) for part in kept]
    return replace(tally.result(limit), parts=columns_of_all)


def _full_key(
    stream: OutputsStream, key: Mapping[str, Any], fdr: float | None, *, with_labels: bool
) -> dict[str, Any]:
    return {
        **key,
        "input": fingerprint(stream.files),
        "block_rows": stream.block_rows,
        "kept": stream.kept_names,
        "flag_all": fdr is not None,
        "with_labels": with_labels,
        "version": __version__,
    }


@contextmanager
def _writer(output: str | Path | None, *, force: bool) -> Iterator[Callable[[Columns], object]]:
    """Give a function that writes columns to a table; without output, it does nothing."""
    with ExitStack() as stack:
        if output is None:
            yield lambda columns: None
        else:
            yield stack.enter_context(TableWriter(output, force=force)).write


def _check_names(names: Sequence[str], taken: Sequence[str], why: str) -> None:
    """Raise if a kept column has the name of another one in the table of verdicts."""
    clash = next((name for name in names if name in taken), None)
    if clash is not None:
        raise InputError(
            f"the column {clash!r} cannot be kept, because {why} of the same name. Leave it out "
            f"with --ignore {clash}, or rename it."
        )


# --- scoring ----------------------------------------------------------------------------------


class _Scorer:
    """Makes the columns of a table of verdicts from blocks, in any order and in threads.

    With `flag_all`, all rows are flagged: `_limited` says later which of them are.
    """

    def __init__(
        self, detector: Detector, stream: OutputsStream, *, with_labels: bool, flag_all: bool
    ) -> None:
        self._detector = detector
        self._stream = stream
        self._with_labels = with_labels
        self._flag_all = flag_all

    def __call__(self, block: Block) -> Columns:
        outputs, stream = block.outputs, self._stream
        with about(where(stream.address, block.start, stream.block_rows, stream.n_rows)):
            result = self._assessed(outputs, first=not block.number)
        kept = dict(outputs.kept)
        if block.kept is not None:
            names = block.kept.column_names
            kept = dict(zip(names, block.kept.columns, strict=True))
        added = self._predictions(outputs) if self._with_labels else {}
        _check_names(stream.kept_names, tuple(added), "--with-labels adds a column")
        return {**replace(result, ids=outputs.ids, kept={}).columns(), **kept, **added}

    def _assessed(self, outputs: Outputs, *, first: bool) -> Assessment:
        detector = self._detector
        data = outputs if first else self._arrays(outputs)  # only the first block gives warnings
        found = steps.decide(detector, data, None, calibrated=True)
        p_values = detector.calibration_.p_values(found.scores, found.groups)
        inside: BoolArray = np.zeros(len(outputs), np.bool_)
        if not self._flag_all:
            inside = np.asarray(found.scores >= found.threshold)
        return detector._assessed(found, p_values, inside)

    def _arrays(self, outputs: Outputs) -> Arrays:
        """Return the arrays that the detector reads, with its labels in its order."""
        known, reads = getattr(self._detector, "label_names_", None), self._detector.scores_from
        if known is not None and outputs.label_names is not None:
            outputs = match_labels(outputs, known, reads, quiet=True)
        return Arrays({name: outputs.get(name) for name in dict.fromkeys([*reads, "logits"])})

    def _predictions(self, outputs: Outputs) -> Columns:
        """Return the labels that the model predicts, and all probabilities."""
        known = outputs.label_names or getattr(self._detector, "label_names_", None)
        names = known or [str(at) for at in range(outputs.n_labels)]
        predicted = [
            "; ".join(names[at] for at in np.flatnonzero(row).tolist())
            for row in outputs.logits > 0
        ]
        probs = label_prob(outputs.logits)
        return {
            "predicted": np.array(predicted, dtype=object),
            **{f"prob_{name}": probs[:, at] for at, name in enumerate(names)},
        }


# --- parts ------------------------------------------------------------------------------------


class _Memory:
    """Parts that are kept in memory, or not at all."""

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self._parts: list[Columns] = []

    @contextmanager
    def opened(self) -> Iterator[None]:
        yield

    def all(
        self, stream: OutputsStream, score: _Scorer, engine: ScoreEngine | None
    ) -> Iterator[Columns]:
        """Give all parts."""
        here = map_ahead(score, stream.blocks(), _WORKERS)
        for columns in here if engine is None else engine(score, stream, 0):
            if self._keep:
                self._parts.append(columns)
            yield columns

    def again(self) -> Iterator[Columns]:
        """Give all parts once more."""
        return iter(self._parts)


class _Folder(PartFolder):
    """Parts that are files in a folder next to the output."""

    def all(
        self, stream: OutputsStream, score: _Scorer, engine: ScoreEngine | None
    ) -> Iterator[Columns]:
        """Give all parts; compute those that an earlier process has not finished."""

        def compute(block: Block) -> Columns:
            return self._written(block.number, score(block))

        first, self._n_blocks = self.n_done, stream.n_blocks
        done = (as_columns(self.read(number)) for number in range(first))
        new: Iterator[Columns]
        if engine is None:
            new = map_ahead(compute, stream.blocks(first), _WORKERS)
        else:
            new = itertools.starmap(self._written, enumerate(engine(score, stream, first), first))
        yield from itertools.chain(done, new)

    def _written(self, number: int, columns: Columns) -> Columns:
        """Write a part and return it."""
        table = require("pyarrow", "parquet").table(columns)
        self.write(number, table)
        return as_columns(table)

    def again(self) -> Iterator[Columns]:
        """Give all parts once more."""
        return (as_columns(self.read(number)) for number in range(self._n_blocks))


def as_columns(table: Any) -> Columns:
    """Return the columns of a table of pyarrow by name."""
    return dict(zip(table.column_names, table.columns, strict=True))


# --- all rows together ------------------------------------------------------------------------


class _Counts:
    """How often each value occurs, in all parts together."""

    def __init__(self) -> None:
        self.values, self.counts = np.empty(0), np.empty(0, np.int64)

    def add(self, values: Array) -> None:
        new, counts = np.unique(values, return_counts=True)
        both = np.concatenate([self.values, new])
        self.values, at = np.unique(both, return_inverse=True)
        self.counts = np.bincount(
            at, np.concatenate([self.counts, counts]), minlength=len(self.values)
        ).astype(np.int64)

    def upto(self, limit: float) -> int:
        """Return how many values are not larger than a limit."""
        return int(self.counts[self.values <= limit].sum())


class _Tally:
    """What is counted over all parts."""

    def __init__(self, *, count_p_values: bool) -> None:
        self._n_samples = self._n_flagged = 0
        self._p_values = _Counts() if count_p_values else None
        self._unusable = _Counts()  # the p-values of scores of -inf, which are always flagged
        self._rows: Array = np.empty(0, np.int64)
        self._lowest: dict[str, Array] = {}

    def add(self, columns: Columns) -> None:
        """Take a part into account."""
        shown = {name: np.asarray(columns[name]) for name in _SHOWN if name in columns}
        n_rows = len(shown["score"])
        self._n_flagged += n_rows - int(np.count_nonzero(shown["in_distribution"]))
        if self._p_values is not None:
            self._p_values.add(shown["p_value"])
            self._unusable.add(shown["p_value"][np.isneginf(shown["score"])])
        order = _most_suspicious(shown)
        rows = np.concatenate([self._rows, self._n_samples + order])
        some = {name: column[order] for name, column in shown.items()}
        if self._lowest:
            some = {name: np.concatenate([self._lowest[name], some[name]]) for name in some}
        order = _most_suspicious(some)
        self._rows, self._lowest = rows[order], {name: some[name][order] for name in some}
        self._n_samples += n_rows

    def limit(self, fdr: float) -> float:
        """Return the largest p-value that is flagged, to keep the false discovery rate."""
        counts = self._p_values or _Counts()
        return fdr_limit(counts.values, counts.counts, fdr)

    def result(self, limit: float | None) -> Scored:
        lowest, n_flagged = self._lowest, self._n_flagged
        if limit is not None and self._p_values is not None:
            lowest = _limited(lowest, limit)
            n_unusable = int(self._unusable.counts.sum())
            n_flagged = self._p_values.upto(limit) + n_unusable - self._unusable.upto(limit)
        verdicts = Assessment(
            lowest["score"],
            lowest["p_value"],
            lowest["in_distribution"],
            groups=lowest.get("group"),
            ids=lowest.get("id"),
            mixed=lowest.get("mixed"),
        )
        return Scored(self._n_samples, n_flagged, self._rows, verdicts)


def _most_suspicious(columns: Mapping[str, Array]) -> Array:
    """Return the rows with the lowest p-values, then the lowest scores, then the first ones."""
    return np.lexsort((columns["score"], columns["p_value"]))[:_LOWEST]


def _limited(columns: Columns, limit: float) -> Columns:
    """Return columns with the verdicts that a limit of the p-values gives."""
    scores, p_values = (np.asarray(columns[name]) for name in ("score", "p_value"))
    inside = (p_values > limit) & ~np.isneginf(scores)
    verdicts = {"in_distribution": inside}
    if "mixed" in columns:
        verdicts["mixed"] = np.asarray(columns["mixed"]) & ~inside
    return {**columns, **verdicts}
