"""Outputs from files: any address as a whole, as a random sample of rows, or in blocks of rows.

There is one reader. What the columns of a table are is decided once, from their names and types. A
whole file is one block; only `nescio score` and `nescio monitor` read several.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nescio._io.files import MANY, Files, as_ids, find_files, same_file
from nescio._io.frames import read_frame
from nescio._io.tables import Columns, TableFiles, content, label_content
from nescio._validation import Array, check_logits, is_frame
from nescio.errors import FileError, InputError, ParameterError, ShapeError, error_context
from nescio.outputs.files import ARRAYS, read_arrays
from nescio.outputs.outputs import Outputs, from_content, match_labels

TEXTS = (".csv", ".tsv", ".jsonl")
TABLES = (*MANY, *TEXTS, *(f"{suffix}.gz" for suffix in TEXTS))
"""The endings of tables."""

READABLE = (*ARRAYS, *TABLES)
"""The endings of files that can be read as outputs."""

ANY_COLUMNS = Columns()

MAX_ROWS = 2**22
"""The most rows that calibration and metrics read; of larger inputs, a random sample is read."""

_MAX_BYTES = 2**31  # of the arrays of a sample

# Few enough bytes that several blocks fit in memory, and enough rows that Python's overhead per
# block does not matter. The borders of blocks depend only on the data.
_BLOCK_BYTES = 1 << 25
_MOST_ROWS = 1 << 16
_FEWEST_ROWS = 1 << 6


@dataclass
class Block:
    """Consecutive rows of an input.

    Attributes
    ----------
    stream : OutputsStream
    start : int
        The number of rows before this block.
    rows : pyarrow.Table or Outputs
        As they were read.
    """

    stream: OutputsStream
    start: int
    rows: Any

    @property
    def place(self) -> str:
        """What an error is about: the input, or some of its rows."""
        return where(self.stream.address, self.start, self.stream.block_rows, self.stream.n_rows)

    @cached_property
    def outputs(self) -> Outputs:
        """The rows as outputs; of Parquet and Arrow files without ids and kept columns."""
        if isinstance(self.rows, Outputs):
            return self.rows
        with error_context(self.place):
            outputs = self.stream.outputs(label_content(self.stream.roles, self.rows))
            if self.stream.n_labels not in (None, outputs.n_labels):
                raise ShapeError(
                    f"the first rows have {self.stream.n_labels} labels, but these have "
                    f"{outputs.n_labels}."
                )
        return outputs

    @property
    def ids(self) -> Any:
        """The ids, as an array or as a column of text of pyarrow; None if there are none."""
        if isinstance(self.rows, Outputs):
            return self.rows.ids
        name = self.stream.roles.ids
        if name is None:
            return None
        column = self.rows.column(name)
        is_text = str(column.type) in ("string", "large_string")
        return column.fill_null("") if is_text else np.array(as_ids(column))

    @property
    def kept(self) -> dict[str, Any]:
        """The kept columns, as arrays or, with their types, as columns of pyarrow."""
        if isinstance(self.rows, Outputs):
            return dict(self.rows.kept)
        return {name: self.rows.column(name) for name in self.stream.roles.kept}

    def with_ids(self) -> Outputs:
        """Return the rows as outputs with their ids."""
        ids = self.ids
        return replace(self.outputs, ids=None if ids is None else np.asarray(ids))

    def take(self, rows: Array) -> Outputs:
        """Return some of the rows as outputs, with ids and kept columns."""
        if isinstance(self.rows, Outputs):
            return self.rows[rows]
        with error_context(self.place):
            return self.stream.outputs(content(self.stream.roles, self.rows.take(rows)))


class OutputsStream:
    """A model's outputs in files, which may be larger than memory, to read as a whole or in blocks.

    Parquet and Arrow files are read block by block, and safetensors and .npy files are mapped into
    memory. Others are read as a whole.

    Parameters
    ----------
    address : str, Path or Files
        A file, a pattern, a folder of Parquet files, or a remote address.
    columns : Columns
        The options for the columns of a table.
    from_probs : bool, optional
        Whether the values are probabilities. If None, values that look like probabilities or
        percentages are rejected.
    verify : bool
        Whether the checksum of a .safetensors file is verified, which reads it once more.

    Attributes
    ----------
    address : str
        As the user gave it.
    n_rows : int
    block_rows, n_blocks : int
        The number of rows of each block but the last, and the number of blocks.
    kept_names : tuple of str
        The columns that are kept.
    ignored : list of str
        The columns that are ignored.
    n_labels, label_names
        Of the first block, once it has been read.
    """

    def __init__(
        self,
        address: str | Path | Files,
        columns: Columns = ANY_COLUMNS,
        *,
        from_probs: bool | None = False,
        verify: bool = True,
    ) -> None:
        files = address if isinstance(address, Files) else find_files(address)
        self.address = files.address
        self.from_probs = from_probs
        self.n_labels: int | None = None
        self.label_names: tuple[str, ...] | None = None
        self.ignored: list[str] = []
        self._table: TableFiles | None = None
        if files.suffix not in READABLE:
            raise FileError(
                f"cannot read {files.address}: the name must end in {', '.join(READABLE)}."
            )
        with error_context(files.address):
            if files.suffix in TABLES:
                self._table = TableFiles(files, columns)
                self.roles = columns.roles(self._table.schema, self._table.folders)
                self.ignored = list(self.roles.ignored)
                self.n_rows, self.kept_names = self._table.n_rows, self.roles.kept
                self._row_bytes = self._table.row_bytes
            else:
                self._whole = self._read_arrays(files, columns, verify)
                self.n_rows, self.kept_names = len(self._whole), tuple(self._whole.kept)
                self._row_bytes = _row_bytes(self._whole)
        self.block_rows = _rows_per_block(self._row_bytes)
        self.n_blocks = math.ceil(self.n_rows / self.block_rows)

    def _read_arrays(self, files: Files, columns: Columns, verify: bool) -> Outputs:
        if columns.id_column or len(columns.ignore) or len(columns.keep) or columns.sep:
            raise InputError(
                "id_column, ignore, keep and sep (--id-column, --ignore, --keep, --sep) are for "
                f"tables: {', '.join(TABLES)} files."
            )
        whole = self.outputs(read_arrays(files, verify=verify))
        if columns.labels is None:
            return whole
        return whole.select_labels(columns.chosen(whole.label_names or ()))

    def outputs(self, arguments: dict[str, Any]) -> Outputs:
        """Make outputs from their arguments, with logits that may be probabilities."""
        return from_content(arguments, from_probs=bool(self.from_probs))

    def blocks(self, first: int = 0, stop: int | None = None) -> Iterator[Block]:
        """Give the blocks in order, from block `first` on, up to block `stop`."""
        if not self.n_rows:
            raise InputError(f"{self.address} has no rows.")
        numbers = range(first, self.n_blocks if stop is None else stop)
        for number, rows in zip(numbers, self._read(first), strict=False):
            block = Block(self, number * self.block_rows, rows)
            if not number:
                self.n_labels, self.label_names = block.outputs.n_labels, block.outputs.label_names
                self._check_logits(block.outputs)
            yield block

    def whole(self, max_rows: int | None = None) -> Outputs:
        """Return all rows, or a random sample of at most `max_rows` rows; see `read_outputs`."""
        if max_rows is not None and self.n_rows * self._row_bytes > _MAX_BYTES:
            row_bytes = _row_bytes(next(self.blocks()).outputs)
            max_rows = min(max_rows, max(1, _MAX_BYTES // max(1, row_bytes)))
        if max_rows is not None and self.n_rows > max_rows:
            return self._sample(max_rows)
        if self._table is None:
            whole = self._whole
        else:
            whole = self.outputs(content(self.roles, self._table.whole(self.roles.read)))
        self._check_logits(whole)
        return whole

    def _read(self, first: int) -> Iterator[Any]:
        if self._table is not None:
            start = first * self.block_rows
            yield from self._table.blocks(self.block_rows, start, self.roles.read)
            return
        for start in range(first * self.block_rows, self.n_rows, self.block_rows):
            yield self._whole[start : start + self.block_rows]

    def _sample(self, n_rows: int) -> Outputs:
        """Return random rows, in their order."""
        rng = np.random.default_rng(0)
        rows = np.sort(rng.choice(self.n_rows, n_rows, replace=False, shuffle=False))
        parts = []
        for block in self.blocks():
            stop = block.start + self.block_rows
            first, last = np.searchsorted(rows, [block.start, stop])
            if last > first:
                parts.append(block.take(rows[first:last] - block.start))
        sample = Outputs.concat(parts)
        manifest = {**sample.manifest, "sampled_from": self.n_rows}
        return replace(sample, manifest=manifest)

    def _check_logits(self, outputs: Outputs) -> None:
        """Raise if these look like probabilities, unless the user said what they are."""
        if self.from_probs is None:
            with error_context(self.address):
                check_logits(outputs.logits)


def read_outputs(
    data: Any,
    *,
    from_probs: bool | None,
    columns: Columns = ANY_COLUMNS,
    max_rows: int | None = None,
    first: Outputs | None = None,
) -> Outputs:
    """Return outputs from an address, a data frame, an array of logits, or as they are.

    What looks like probabilities is rejected unless the user said what it is.

    With `max_rows`, a larger input (or one of more than 2 GiB) is a random sample of its rows, in
    their order. The guarantees of a threshold hold for rows that were chosen without looking at
    them. `manifest["sampled_from"]` is then the number of all rows. With `first`, other outputs of
    the same model, the result has the labels of these.
    """
    wanted = columns
    if first is not None:
        wanted = replace(columns, id_required=False, expected_by="the first data")
        if first.label_names is not None:
            wanted = replace(wanted, labels=None, ignore=(), expected=first.label_names)
    if _is_path(data):
        files = find_files(data)
        if first is not None and files.suffix not in TABLES:  # the options are for the others
            wanted = ANY_COLUMNS
        stream = OutputsStream(files, wanted, from_probs=from_probs)
        if not stream.n_rows:
            raise InputError(f"{stream.address} has no rows.")
        with error_context(stream.address):
            return _labels_like(stream.whole(max_rows), first, columns)
    if isinstance(data, Outputs):
        outputs, unsure = data, from_probs is not False  # they hold logits
    else:
        arguments = read_frame(data, wanted) if is_frame(data) else {"logits": data}
        outputs, unsure = from_content(arguments, from_probs=bool(from_probs)), from_probs is None
    if unsure:
        check_logits(outputs.logits)
    return _labels_like(outputs, first, columns)


def _labels_like(outputs: Outputs, first: Outputs | None, columns: Columns) -> Outputs:
    """Return outputs with the labels of the first data, if both know the names of theirs."""
    names = None if first is None else first.label_names
    if first is None or names is None or outputs.label_names in (None, names):
        return outputs
    if columns.labels is not None:
        return outputs.select_labels(names)
    if set(outputs.label_names or ()) != set(names):  # of another model, which the caller reports
        return outputs
    return match_labels(outputs, names, tuple(first.arrays))


def where(address: str, start: int, size: int, n_rows: int) -> str:
    """Return what an error is about: a file, or some of its rows."""
    if not start:  # row numbers are those of the file
        return address
    last = min(start + size, n_rows) - 1
    return f"{address}, rows {start:,} to {last:,} (counted from 0 in what follows)"


def _row_bytes(outputs: Outputs) -> int:
    arrays = (outputs.logits, outputs.features, outputs.labels, *outputs.arrays.values())
    return sum(array[:1].nbytes for array in arrays if array is not None)


def _rows_per_block(row_bytes: float) -> int:
    """Return how many rows a block has: a power of two."""
    fit = max(_FEWEST_ROWS, _BLOCK_BYTES / max(row_bytes, 1))
    return min(_MOST_ROWS, 1 << math.floor(math.log2(fit)))


# --- the data of a comparison ---------------------------------------------------------------------


class Sets(NamedTuple):
    """The outputs to compare detectors on: ID, OOD by a short name, and what they learn from."""

    id: Outputs
    ood: Mapping[str, Outputs]
    train: Outputs | None
    held_out: Outputs | None

    def sampled(self) -> dict[str, int]:
        """Return the number of rows of the inputs of which a random sample was read."""
        named = {"ID": self.id, **self.ood, "training": self.train, "held-out": self.held_out}
        return {
            name: outputs.manifest["sampled_from"]
            for name, outputs in named.items()
            if outputs is not None and "sampled_from" in outputs.manifest
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
    """Return outputs from data of any kind, with the labels of the ID data.

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

    def read(data: Any, name: str, columns: Columns, first: Outputs | None = None) -> Outputs:
        with nullcontext() if _is_path(data) else error_context(name):
            return read_outputs(
                data, from_probs=from_probs, columns=columns, max_rows=max_rows, first=first
            )

    id_outputs = read(id_data, "the ID data", columns)
    ood = {name: read(data, name, columns, id_outputs) for name, data in named.items()}
    unkept = replace(columns, keep=())  # what is learned from is not shown
    learned = (
        None if data is None else read(data, f"the {name} data", unkept, id_outputs)
        for name, data in (("training", train), ("held-out", held_out))
    )
    return Sets(id_outputs, ood, *learned)


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
