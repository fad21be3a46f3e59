"""Outputs in blocks of rows: files that may be larger than memory.

The same rules hold as for whole files. What the columns are is decided once. Whether their content
is doubtful is checked on the first block, and on all rows at the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from nescio._io.addresses import MANY, Files
from nescio._io.arrow import ArrowFiles, ArrowTable
from nescio._io.columns import Columns, Reading
from nescio._validation import FloatArray, is_percentage
from nescio.errors import InputError, ShapeError, about
from nescio.outputs.files import (
    TensorRows,
    check_no_table,
    from_content,
    load_outputs,
    readable_files,
    with_chosen,
)
from nescio.outputs.outputs import Outputs

# Few enough bytes that several blocks fit in memory, and enough rows that Python's overhead per
# block does not matter. The borders of blocks depend only on the data.
_BLOCK_BYTES = 1 << 25
_MOST_ROWS = 1 << 16
_FEWEST_ROWS = 1 << 6
_HEAD_ROWS = 1 << 8  # of all columns, also of those that are left out
_ENOUGH_TO_TELL = 50  # as for whole files


@dataclass(frozen=True)
class Block:
    """Consecutive rows of an input.

    Attributes
    ----------
    number : int
        The blocks are counted from 0.
    start : int
        The number of rows before this block.
    outputs : Outputs
        The rows. Kept columns of .csv and .safetensors files are in `outputs.kept`.
    kept : pyarrow.Table or None
        The kept columns of Parquet and Arrow files, with their types.
    """

    number: int
    start: int
    outputs: Outputs
    kept: Any = None


class _Source(Protocol):
    """Where blocks come from."""

    n_rows: int
    block_rows: int
    kept_names: tuple[str, ...]

    def blocks(self, first: int) -> Iterator[tuple[Outputs, Any]]:
        """Give the rows and the kept columns of Arrow, from block `first` on."""

    def check(self) -> None:
        """Raise if the rows that were read are doubtful."""

    @property
    def settled(self) -> bool:
        """Whether no later row can be doubtful."""


class OutputsStream:
    """A model's outputs in files that may be larger than memory, read in blocks of rows.

    Make one with `open_stream`.

    Attributes
    ----------
    address : str
        As the user gave it.
    n_rows : int
    block_rows : int
        The number of rows of each block but the last.
    n_blocks : int
    kept_names : tuple of str
        The columns that are kept.
    n_labels, label_names, ignored
        Of the first block, once it has been read: the number of labels, their names or None, and
        the columns that are ignored.
    """

    def __init__(self, files: Files, source: _Source, *, from_probs: bool | None) -> None:
        self.files = files
        self.address = files.address
        self.n_rows = source.n_rows
        self.block_rows = source.block_rows
        self.n_blocks = math.ceil(self.n_rows / self.block_rows)
        self.kept_names = source.kept_names
        self.n_labels = 0
        self.label_names: tuple[str, ...] | None = None
        self.ignored: list[str] = []
        self._source = source
        self._from_probs = from_probs

    def blocks(self, first: int = 0) -> Iterator[Block]:
        """Give the blocks in order, from block `first` on.

        The last step raises an error if all rows together are doubtful: read to the end before you
        use the result. Earlier blocks are read too, but not given, as far as these checks need
        them.
        """
        if not self.n_rows:
            raise InputError(f"{self.address} has no rows.")
        values = _Range(self.address, self._from_probs)
        for number, outputs, kept in self._read(first, values):
            with self._about(number):
                values.add(outputs.logits)
                self._check_labels(number, outputs)
            if number in (0, self.n_blocks - 1):
                with about(self.address):
                    self._source.check()
                values.check()
            if number >= first:
                yield Block(number, number * self.block_rows, outputs, kept)

    def some(self, first: int, stop: int) -> Iterator[Block]:
        """Give the blocks from `first` to `stop`, once `blocks` has made the checks of all rows."""
        for number, (outputs, kept) in zip(
            range(first, stop), self._source.blocks(first), strict=False
        ):
            with self._about(number):
                self._check_labels(number, outputs)
            yield Block(number, number * self.block_rows, outputs, kept)

    def _check_labels(self, number: int, outputs: Outputs) -> None:
        """Remember the labels of the first block; raise if others have not as many."""
        if not number:
            self.n_labels, self.label_names = outputs.n_labels, outputs.label_names
            self.ignored = outputs.manifest.get("ignored_columns", [])
        if outputs.n_labels != self.n_labels:
            raise ShapeError(
                f"the first rows have {self.n_labels} labels, but these have {outputs.n_labels}."
            )

    def _read(self, first: int, values: _Range) -> Iterator[tuple[int, Outputs, Any]]:
        """Give the first block, then those from `first` on, or all if the checks need them."""
        number, blocks = 0, self._source.blocks(0)
        while number < self.n_blocks:
            with self._about(number):
                outputs, kept = next(blocks)
            yield number, outputs, kept
            number += 1
            if number == 1 < first and values.settled and self._source.settled:
                number, blocks = first, self._source.blocks(first)

    @contextmanager
    def _about(self, number: int) -> Iterator[None]:
        with about(where(self.address, number * self.block_rows, self.block_rows, self.n_rows)):
            yield


def where(address: str, start: int, size: int, n_rows: int) -> str:
    """Return what an error is about: a file, or some of its rows."""
    if not start:  # row numbers are those of the file
        return address
    last = min(start + size, n_rows) - 1
    return f"{address}, rows {start:,} to {last:,} (counted from 0 in what follows)"


def open_stream(
    address: str | Path,
    columns: Columns | None = None,
    *,
    from_probs: bool | None = False,
    verify: bool = True,
) -> OutputsStream:
    """Open outputs to read them in blocks: any address that `load_outputs` reads.

    Parquet, Arrow and safetensors files are never read as a whole. Others are.

    Parameters
    ----------
    address : str or Path
        A file, a pattern, a folder of Parquet files, or a remote address.
    columns : Columns, optional
        What is known about the columns of a table.
    from_probs : bool, optional
        Whether the values are probabilities. If None, values that look like probabilities or
        percentages are rejected.
    verify : bool
        Whether the checksum of a .safetensors file is verified, which reads it once more.
    """
    columns = columns or Columns()
    files = readable_files(address)
    source: _Source
    if files.suffix in MANY:
        with about(address):
            source = _ArrowSource(ArrowFiles(files), columns, from_probs=bool(from_probs))
    elif files.suffix == ".safetensors":
        with about(address):
            check_no_table(columns)
            source = _TensorSource(files, columns, from_probs=bool(from_probs), verify=verify)
    else:
        whole = load_outputs(address, columns, from_probs=bool(from_probs))
        source = _WholeSource(whole)
    return OutputsStream(files, source, from_probs=from_probs)


def _rows_per_block(row_bytes: float) -> int:
    """Return how many rows a block has: a power of two."""
    fit = max(_FEWEST_ROWS, _BLOCK_BYTES / max(row_bytes, 1))
    return min(_MOST_ROWS, 1 << math.floor(math.log2(fit)))


class _ArrowSource:
    """Parquet or Arrow files."""

    def __init__(self, files: ArrowFiles, columns: Columns, *, from_probs: bool) -> None:
        self._files = files
        self._from_probs = from_probs
        self.n_rows = files.n_rows
        head = next(files.blocks(_HEAD_ROWS), None)
        head = head or ArrowTable(files.empty(), files.files.address)
        self._columns, self._head = columns, head
        self.roles = columns.roles(head)
        self.kept_names = self.roles.kept
        read = head.table.select(self.roles.read)
        self.block_rows = _rows_per_block(read.nbytes / max(1, len(read)))
        self._start()

    def _start(self) -> None:
        self._reading = Reading(self._columns, self._head)
        self._reading.roles = self.roles._replace(kept=())

    def blocks(self, first: int) -> Iterator[tuple[Outputs, Any]]:
        if not first:
            self._start()
        start = first * self.block_rows
        for table in self._files.blocks(self.block_rows, start, self.roles.read):
            content = self._reading.content(table, start)
            start += len(table.table)
            kept = table.table.select(self.roles.kept)
            yield from_content(content, from_probs=self._from_probs), kept

    def check(self) -> None:
        self._reading.check()

    @property
    def settled(self) -> bool:
        return self._reading.settled


class _TensorSource:
    """A .safetensors file."""

    def __init__(self, files: Files, columns: Columns, *, from_probs: bool, verify: bool) -> None:
        self._files = files
        self._columns = columns
        self._from_probs = from_probs
        with files.open(files.paths[0]) as stream:
            rows = TensorRows(stream, files.address, verify=verify)
        self.n_rows = rows.n_rows
        self.kept_names = rows.kept_names
        self.block_rows = _rows_per_block(rows.row_bytes)
        self.settled = True

    def blocks(self, first: int) -> Iterator[tuple[Outputs, Any]]:
        with self._files.open(self._files.paths[0]) as stream:
            rows = TensorRows(stream, self._files.address, verify=False)
            for start in range(first * self.block_rows, self.n_rows, self.block_rows):
                content = rows.content(start, min(start + self.block_rows, self.n_rows))
                outputs = from_content(content, from_probs=self._from_probs)
                yield with_chosen(outputs, self._columns), None

    def check(self) -> None:
        """Nothing is doubtful: the arrays have names."""


class _WholeSource:
    """Outputs in memory, of files that are read as a whole."""

    def __init__(self, outputs: Outputs) -> None:
        self._outputs = outputs
        self.n_rows = len(outputs)
        self.kept_names = tuple(outputs.kept)
        self.block_rows = _rows_per_block(outputs.logits[:1].nbytes)
        self.settled = True

    def blocks(self, first: int) -> Iterator[tuple[Outputs, Any]]:
        for start in range(first * self.block_rows, self.n_rows, self.block_rows):
            yield self._outputs[start : start + self.block_rows], None

    def check(self) -> None:
        """The file has been checked."""


@dataclass
class _Range:
    """The smallest and the largest value, to see whether these are logits."""

    address: str
    from_probs: bool | None
    n_values: int = field(default=0, init=False)
    low: float = field(default=math.nan, init=False)
    high: float = field(default=math.nan, init=False)

    @property
    def settled(self) -> bool:
        """Whether these are logits, whatever else follows."""
        return self.from_probs is not None or self.low < 0

    def add(self, values: FloatArray) -> None:
        """Take some values into account."""
        self.n_values += values.size
        for part in (values[:1], values):
            if self.settled or not part.size:
                return
            self.low = float(np.fmin(self.low, np.fmin.reduce(part, axis=None)))
            self.high = float(np.fmax(self.high, np.fmax.reduce(part, axis=None)))

    def check(self) -> None:
        """Raise if these look like probabilities or percentages."""
        if not self.settled and self.low >= 0:
            refuse_probabilities(self.address, self.high, self.n_values)


def refuse_probabilities(path: object, largest: float, n_values: int) -> None:
    """Raise if values from 0 to `largest` look like probabilities or percentages."""
    if largest <= 1:
        raise InputError(
            f"{path}: every value lies within [0, 1]. These look like probabilities, but logits "
            "are expected. Pass --from-probs if they are probabilities, --from-logits if not."
        )
    if is_percentage(largest) and n_values >= _ENOUGH_TO_TELL:
        raise InputError(
            f"{path}: no value is negative, and the largest is {largest:g}. These look like "
            "percentages, but logits are expected, which are negative for absent labels. If they "
            "are percentages, divide them by 100 and pass --from-probs. If they are logits, pass "
            "--from-logits."
        )
