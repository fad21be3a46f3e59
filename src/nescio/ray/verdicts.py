"""Verdicts on batches of a table, for Ray Data, Spark or a plain loop."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np

from nescio._io.arrow import ArrowTable
from nescio._io.columns import Columns, Table, matching_names
from nescio._io.frames import FrameTable
from nescio._io.tables import require
from nescio._validation import Array, is_percentage, largest_of_non_negative
from nescio.calibration import CUSTOM
from nescio.detectors import Detector, load
from nescio.detectors.assessment import Assessment
from nescio.detectors.steps import NotCalibratedError
from nescio.errors import InputError
from nescio.outputs import quiet_about_probabilities
from nescio.outputs.crops import N_CROPS
from nescio.outputs.files import from_content


class Verdicts:
    """Adds score, p_value and in_distribution to batches of a table.

    A detector that was calibrated by label count adds group too, and the detector "mixed" adds
    mixed and crop_1 to crop_9. A batch is a data frame of pandas, a table of pyarrow or a mapping
    of names to arrays, and the result is of the same kind, with all columns of the batch. Ray is
    not needed.

    Parameters
    ----------
    detector : path or Detector
        The path must be readable where the object is made. With Ray Data, give the class and its
        arguments, and each actor loads the file once: `dataset.map_batches(Verdicts,
        fn_constructor_kwargs={"detector": path}, compute=ActorPoolStrategy(size=4))`. An object of
        this class carries its detector along, to Spark's workers for example.
    labels, ignore, id_column : optional
        What the columns are, as for `Outputs.from_frame`. A detector that knows its labels takes
        the columns with these names.
    keep : sequence of str, or str, optional
        The columns of the batch to return, by name or pattern. The default is all.
    nonfinite : {"raise", "out"}, optional
        Rows with NaN or infinity raise an error, or count as out. The default is the detector's.
    from_probs : bool, optional
        Whether the values are probabilities, which are converted to logits. By default, logits are
        expected, and a batch that looks like probabilities or percentages is an error.

    Examples
    --------
    >>> import nescio as ns
    >>> detector = ns.JointEnergy().calibrate(np.random.default_rng(0).normal(-2, 3, (200, 4)))
    >>> batch = {"id": np.array([7, 8]), "logits": np.array([[3.0, -1, 2, -4], [-9, -9, -8, -9]])}
    >>> list(Verdicts(detector)(batch))
    ['id', 'logits', 'score', 'p_value', 'in_distribution']
    >>> Verdicts(detector)(batch)["in_distribution"]
    array([ True, False])
    """

    def __init__(
        self,
        detector: str | Path | Detector,
        *,
        labels: Sequence[str] | str | None = None,
        ignore: Sequence[str] | str = (),
        id_column: str | None = None,
        keep: Sequence[str] | str | None = None,
        nonfinite: str | None = None,
        from_probs: bool | None = None,
    ) -> None:
        if not isinstance(detector, str | Path | Detector):
            raise InputError(
                "detector must be the path of a saved detector, or a detector; got a "
                f"{type(detector).__name__}."
            )
        self.detector = detector if isinstance(detector, Detector) else load(detector)
        calibration = getattr(self.detector, "calibration_", None)
        if calibration is None:
            raise NotCalibratedError(
                f"{self.detector.name} is not calibrated, so it has no threshold: call "
                "calibrate(held_out) first."
            )
        if calibration.by == CUSTOM:
            raise InputError(
                "the detector was calibrated by your own groups, which Verdicts does not know. Use "
                "detector.assess(..., groups=...)."
            )
        if nonfinite is not None:  # the caller's own detector stays as it is
            self.detector = copy(self.detector).set_params(nonfinite=nonfinite)
        expected = getattr(self.detector, "label_names_", None)
        self.columns = Columns(id_column, labels, ignore, expected=expected)
        self.keep = keep
        self.from_probs = from_probs

    def __call__(self, batch: Any) -> Any:
        """Return the batch with verdicts."""
        names, n_rows = _shape(batch)
        if n_rows:
            content = self.columns.read(_table(batch))
            outputs = from_content(content, from_probs=bool(self.from_probs))
            if self.from_probs is None:
                _refuse_probabilities(outputs.logits)
            with quiet_about_probabilities(outputs):
                found = self.detector.assess(outputs)
        else:
            found = _none(self.detector)
        added = {name: column for name, column in found.columns().items() if name != "id"}
        kept = names if self.keep is None else matching_names(self.keep, names, "keep")
        taken = next((name for name in added if name in kept), None)
        if taken is not None:
            raise InputError(
                f"the batch has a column {taken!r} already, which the verdicts have too. Rename "
                "it, or leave it out with keep=..."
            )
        return _with_columns(batch, kept, added)

    def over(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Give each of several batches with verdicts: the function for Spark's `mapInPandas`."""
        return map(self, batches)


def _shape(batch: Any) -> tuple[tuple[str, ...], int]:
    """Return the names of the columns and the number of rows of a batch."""
    if isinstance(batch, Mapping):
        lengths = {len(column) for column in batch.values()}
        if len(lengths) != 1:
            raise InputError(
                "the columns of a batch must have the same number of rows, got "
                f"{sorted(lengths) or 'no columns'}."
            )
        return tuple(batch), lengths.pop()
    if hasattr(batch, "column_names"):
        return tuple(batch.column_names), len(batch)
    if hasattr(batch, "columns"):
        return tuple(map(str, batch.columns)), len(batch)
    raise InputError(
        "a batch must be a data frame of pandas, a table of pyarrow or a mapping of names to "
        f"arrays, got {type(batch).__name__}."
    )


def _table(batch: Any) -> Table:
    if isinstance(batch, Mapping):
        return _ArrayTable(batch)
    if hasattr(batch, "column_names"):
        return ArrowTable(_with_lists(batch), "the batch")
    return FrameTable(batch)


def _with_lists(table: Any) -> Any:
    """Return a table of pyarrow with vectors as lists, as Ray stores matrices, and no images."""
    pyarrow = require("pyarrow", "parquet")
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = column.type
        if not isinstance(kind, pyarrow.BaseExtensionType):
            columns[name] = column
        elif len(getattr(kind, "shape", None) or ()) == 1:
            chunks = [chunk.storage for chunk in column.chunks]
            columns[name] = pyarrow.chunked_array(chunks, kind.storage_type)
    return pyarrow.table(columns)


class _ArrayTable:
    """A mapping of names to arrays, as Ray Data's batches are. Images are left out."""

    def __init__(self, batch: Mapping[str, Any]) -> None:
        arrays = {name: np.asarray(column) for name, column in batch.items()}
        self._arrays = {name: array for name, array in arrays.items() if array.ndim <= 2}
        self.names = tuple(self._arrays)
        self.index: tuple[str, ...] = ()
        self.partitions: frozenset[str] = frozenset()
        self.lists = frozenset(name for name, array in self._arrays.items() if _is_lists(array))

    def read(
        self, numbers: Collection[str], others: Collection[str]
    ) -> tuple[dict[str, Array], dict[str, str]]:
        """Return columns by name. The second result is always empty."""
        return {name: self._arrays[name] for name in (*numbers, *others)}, {}


def _is_lists(array: Array) -> bool:
    first = array[0] if len(array) and array.dtype == object else None
    return array.ndim == 2 or isinstance(first, list | tuple | np.ndarray)


def _refuse_probabilities(logits: Array) -> None:
    largest = largest_of_non_negative(logits)
    if largest is not None and (largest <= 1 or is_percentage(largest)):
        raise InputError(
            f"no value of the batch is negative, and the largest is {largest:g}. These look like "
            "probabilities or percentages, but logits are expected. Pass from_probs=True if they "
            "are probabilities (divide percentages by 100), from_probs=False if they are logits."
        )


def _none(detector: Detector) -> Assessment:
    """Return the verdicts on no rows, with the same columns as on some."""
    empty = np.empty(0)
    groups = None if detector.calibration_.by is None else np.empty(0, "U1")
    mixed, crops = None, None
    if detector.name == "mixed":
        mixed, crops = np.empty(0, bool), np.empty((0, N_CROPS))
    return Assessment(empty, empty, np.empty(0, bool), groups, mixed=mixed, crops=crops)


def _with_columns(batch: Any, kept: Sequence[str], added: Mapping[str, Array]) -> Any:
    if isinstance(batch, Mapping):
        return {**{name: batch[name] for name in kept}, **added}
    if hasattr(batch, "column_names"):
        pyarrow = require("pyarrow", "parquet")
        result = batch.select(list(kept))
        for name, column in added.items():
            values = pyarrow.array(column, pyarrow.string() if column.dtype.kind == "U" else None)
            result = result.append_column(name, values)
        return result
    names = {str(name): name for name in batch.columns}
    plain = {n: c.astype(object) if c.dtype.kind == "U" else c for n, c in added.items()}
    return batch[[names[name] for name in kept]].assign(**plain)
