"""Inputs that are too large to read as a whole: they are read in blocks of rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from nescio._io.addresses import MANY, find_files
from nescio._io.columns import Columns
from nescio._threads import map_ahead
from nescio.errors import InputError, about
from nescio.outputs import Outputs
from nescio.outputs.streams import Block, OutputsStream, open_stream, where

LARGE = 2**28  # bytes of arrays; less is read as a whole
_COPIES = 3  # of the arrays, that learning and scoring may need at once


@dataclass(frozen=True)
class LargeInput:
    """An input that is read in blocks.

    Attributes
    ----------
    stream : OutputsStream
    head : Outputs
        The first block.
    n_bytes : int
        The size of all arrays, in about.
    change : callable
        What is done with each block, such as to match its labels.
    """

    stream: OutputsStream
    head: Outputs
    n_bytes: int
    change: Callable[[Outputs], Outputs] = lambda outputs: outputs

    @property
    def address(self) -> str:
        """The address, as the user gave it."""
        return self.stream.address

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return self.stream.n_rows

    @property
    def is_large(self) -> bool:
        """Whether it is too large to read as a whole."""
        return self.n_bytes > LARGE

    def blocks(self) -> Iterator[Block]:
        """Give the blocks in order; the next ones are read while one is used."""
        for block in map_ahead(lambda block: block, self.stream.blocks(), workers=1):
            outputs = block.outputs
            with about(where(self.address, block.start, len(outputs), self.n_rows)):
                changed = self.change(outputs)
            yield replace(block, outputs=changed)

    def check_fits(self, why: str) -> None:
        """Raise if there is clearly not enough memory to read the whole input."""
        if not hasattr(os, "sysconf"):  # on Windows
            return
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if _COPIES * self.n_bytes > memory:
            raise InputError(
                f"{self.address} does not fit in memory: {self.n_rows:,} rows need about "
                f"{_COPIES * self.n_bytes / 1e9:,.1f} GB, this machine has {memory / 1e9:,.1f} GB, "
                f"and {why}. Pass fewer rows, or choose a detector that does not need them at once."
            )


def open_blocks(address: str | Path, *, from_probs: bool | None, columns: Columns) -> LargeInput:
    """Open an input to read it in blocks, and read the first one."""
    stream = open_stream(address, columns, from_probs=from_probs)
    head = next(iter(stream.blocks())).outputs
    arrays = (head.logits, head.features, head.labels, *head.arrays.values())
    n_bytes = sum(array.nbytes for array in arrays if array is not None)
    return LargeInput(stream, head, n_bytes * stream.n_rows // len(head))


def may_be_large(address: str | Path) -> bool:
    """Return whether a file is of a kind that is read in blocks.

    NumPy files are memory-mapped, and CSV files are read as a whole.
    """
    return find_files(address).suffix in (*MANY, ".safetensors")


def find_large(
    address: str | Path, *, from_probs: bool | None, columns: Columns
) -> LargeInput | None:
    """Return an input that is too large to read as a whole; None for others."""
    if not may_be_large(address):
        return None
    found = open_blocks(address, from_probs=from_probs, columns=columns)
    return found if found.is_large else None


def check_fits(address: str | Path, *, from_probs: bool | None, columns: Columns) -> None:
    """Raise if training data is clearly too large for memory."""
    found = find_large(address, from_probs=from_probs, columns=columns)
    if found is not None:
        found.check_fits("a detector learns from all of them at once")
