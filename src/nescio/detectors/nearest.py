"""The nearest of many samples, exactly: products choose candidates, float64 differences decide.

The product of a query a with a sample b tells their distance, as |a - b|^2 = |a|^2 - 2 s with the
similarity s = a b - |b|^2 / 2. BLAS computes it fast, but rounds. The error has a bound, so every
sample that may belong to the k nearest becomes a candidate. Distances to these few are computed
from the differences in float64, and ties are decided by position. So neither the block nor the
batch that a query is in, nor the order in which a processor adds, changes the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nescio._threads import in_threads
from nescio._validation import Array, BoolArray, FloatArray
from nescio.detectors.spaces import Space

Indices = NDArray[np.int64]
Float64s = NDArray[np.float64]

_ROWS = 256  # queries at a time: with fewer, BLAS is slower
_WORK = 2**25  # bytes of products at a time, in each thread
_MOST_THREADS = 4
_CHUNK = 2**20  # elements of differences at a time
_LARGEST_GROUP = 64
_CANDIDATES = 1024  # with more of them, and four per neighbour, a query is searched more precisely


class Found(NamedTuple):
    """The nearest samples of each query, nearest first: distances and positions."""

    distances: Float64s
    positions: Indices


class Cells(NamedTuple):
    """Which parts of the samples to search: cell c is from starts[c] up to starts[c + 1]."""

    starts: Indices
    probed: Indices  # (n_queries, n_probes)


def nearest(
    space: Space, queries: FloatArray, k: int, *, own: bool = False, cells: Cells | None = None
) -> Found:
    """Return the k nearest samples of each query.

    Memory is bounded, whatever the sizes: apart from the result, about 100 MB in each of at most
    four threads. A third of it is for products, the rest for what is chosen of them.

    Parameters
    ----------
    space : Space
        The samples.
    queries : array of shape (n_queries, n_columns)
    k : int
        At most the number of samples, those of a query's cells and, with `own`, without itself.
    own : bool
        Whether the queries are the samples: then a sample is not its own neighbour.
    cells : Cells, optional
        Search only these parts of the samples.
    """
    found = Found(np.empty((len(queries), k)), np.empty((len(queries), k), np.int64))

    def run(rows: slice) -> None:
        search = _Search(
            space,
            queries[rows],
            k,
            np.arange(rows.start, rows.stop) if own else None,
            None if cells is None else Cells(cells.starts, cells.probed[rows]),
        )
        found.distances[rows], found.positions[rows] = search.found()

    # With cells, few of the rows meet in each.
    n_rows = _ROWS if cells is None else 4 * _ROWS
    many_cells = cells is not None and len(queries) > 1
    in_threads(run, list(_blocks(len(queries), n_rows)), _MOST_THREADS, small=many_cells)
    return found


class _Search:
    """The search for one block of queries."""

    def __init__(
        self,
        space: Space,
        queries: FloatArray,
        k: int,
        own: Indices | None,
        cells: Cells | None,
    ) -> None:
        self.space, self.queries, self.k, self.own, self.cells = space, queries, k, own, cells
        self.moved = space.moved(queries)
        self.norms = space.norms(self.moved)
        self.result = Found(np.empty((len(queries), k)), np.empty((len(queries), k), np.int64))

    def found(self) -> Found:
        pending = np.arange(len(self.queries))
        for dtype in self.space.precisions:
            pairs, many = self._candidates(pending, dtype)
            self._settle(pending[~many], pairs)
            pending = pending[many]
            if not len(pending):
                break
        for row in pending.tolist():  # thousands of samples at the same distance, up to rounding
            self._compare_with_all(row)
        return self.result

    def _candidates(self, rows: Indices, dtype: Any) -> tuple[_Pairs, BoolArray]:
        """Return pairs that hold the k nearest for sure, and which of the rows have too many."""
        n_wanted = self.k + (self.own is not None)
        choice = _Choice(self.space, self.norms[rows], n_wanted, dtype)
        inside = np.where(choice.many[:, None], 0.0, self.moved[rows]).astype(dtype)
        width = max(1, _WORK // (inside.itemsize * len(rows)))
        for at, columns in self._parts(rows, width):
            choice.see(inside[at], self.space.columns(columns, dtype), at, columns.start)
        pairs, many = choice.chosen()
        return _Pairs(rows[pairs.row], pairs.column, pairs.value), many

    def _parts(self, rows: Indices, width: int) -> Iterator[tuple[Any, slice]]:
        """Give which of the rows are compared with which samples."""
        if self.cells is None:
            for columns in _blocks(len(self.space.samples), width):
                yield slice(None), columns
            return
        starts, probed = self.cells.starts, self.cells.probed[rows]
        order = np.argsort(probed, axis=None, kind="stable")
        found, first = np.unique(probed.reshape(-1)[order], return_index=True)
        for cell, at in zip(found, np.split(order // probed.shape[1], first[1:]), strict=True):
            for columns in _blocks(starts[cell + 1] - starts[cell], width):
                yield at, slice(columns.start + starts[cell], columns.stop + starts[cell])

    def _settle(self, rows: Indices, pairs: _Pairs) -> None:
        """Compute the distances of the pairs; keep the nearest, of equal ones the first."""
        row, column, _ = pairs
        if self.own is not None:
            others = column != self.own[row]
            row, column = row[others], column[others]
        squares = np.empty(len(row))
        for block in _blocks(len(row), max(1, _CHUNK // self.queries.shape[1])):
            difference = self.queries[row[block]].astype(np.float64, copy=False)
            difference -= self.space.samples[column[block]]
            squares[block] = np.einsum("ij,ij->i", difference, difference)
        order = np.lexsort((column, squares, row))
        first = np.searchsorted(row[order], rows)
        chosen = order[first[:, None] + np.arange(self.k)]
        self.result.distances[rows] = np.sqrt(squares[chosen])
        self.result.positions[rows] = column[chosen]

    def _compare_with_all(self, row: int) -> None:
        """Compute all distances of one query; stop early at k that are 0."""
        query = self.queries[row].astype(np.float64)
        squares, column = np.empty(0), np.empty(0, np.int64)
        for _, part in self._parts(np.array([row]), max(1, _CHUNK // len(query))):
            at = np.arange(part.start, part.stop)
            if self.own is not None:
                at = at[at != self.own[row]]
            difference = query - self.space.samples[at]
            here = np.einsum("ij,ij->i", difference, difference)
            squares, column = np.concatenate([squares, here]), np.concatenate([column, at])
            order = np.lexsort((column, squares))[: self.k]
            squares, column = squares[order], column[order]
            if self.cells is None and len(squares) == self.k and squares[-1] == 0:
                break  # parts come in order, so none that follows is before these
        self.result.distances[row], self.result.positions[row] = np.sqrt(squares), column


class _Pairs(NamedTuple):
    """Rows, columns and products of candidates."""

    row: Indices
    column: Indices
    value: FloatArray


class _Choice:
    """Chooses candidates of products, one block of samples after another."""

    def __init__(self, space: Space, norms: Float64s, n_wanted: int, dtype: Any) -> None:
        self.space, self.norms, self.n_wanted, self.dtype = space, norms, n_wanted, dtype
        self.most = _CANDIDATES + 4 * n_wanted
        self.many = norms > space.longest_query(dtype)
        self.lower = np.full(len(norms), -np.inf)  # of the k-th largest similarity
        self.work = np.empty(0, dtype)
        self.parts: list[_Pairs] = []

    def see(self, inside: FloatArray, samples: FloatArray, rows: Any, start: int) -> None:
        """Multiply some rows with some samples and keep what may belong to the k nearest."""
        size = len(samples)
        # The largest of each group: k groups have k samples that are at least the k-th of these.
        group = int(np.clip(np.sqrt(size / self.n_wanted), 1, _LARGEST_GROUP))
        n_groups = -(-size // group)
        shape = (len(inside), n_groups * group)
        if self.work.size < shape[0] * shape[1]:
            self.work = np.empty(shape[0] * shape[1], self.dtype)
        products = self.work[: shape[0] * shape[1]].reshape(shape)
        products[:, size:] = -np.inf
        np.matmul(inside, samples.T, out=products[:, :size])
        tops = products.reshape(len(inside), group, n_groups).max(1)
        if n_groups >= self.n_wanted:
            at = n_groups - self.n_wanted
            self._raise(rows, np.partition(tops, at, axis=1)[:, at])
        bar = self._bar(rows)
        passed = tops >= bar[:, None]
        here = np.arange(len(self.norms))[rows]
        self.many[here[passed.sum(1) > self.most]] = True
        passed[self.many[here]] = False
        for row, column, value in _at_least(products, passed, bar, group):
            self.parts.append(_Pairs(here[row], column + start, value))

    def _raise(self, rows: Any, kth: FloatArray) -> None:
        """Raise the lower bound, by a product that k samples reach."""
        wide = kth.astype(np.float64)
        least = wide - self.space.error(wide, self.norms[rows], self.dtype)
        self.lower[rows] = np.maximum(self.lower[rows], least)

    def _bar(self, rows: Any = slice(None)) -> FloatArray:
        """Return what the product of a sample is at least if its similarity reaches the bound."""
        lower = self.lower[rows]
        bar = lower - self.space.error(lower, self.norms[rows], self.dtype)
        with np.errstate(over="ignore"):  # -inf, which every product reaches
            return np.asarray(np.nextafter(bar.astype(self.dtype), -np.inf, dtype=self.dtype))

    def chosen(self) -> tuple[_Pairs, BoolArray]:
        """Return the candidates, and which rows have too many and therefore none."""
        row, column, value = map(np.concatenate, zip(*self.parts, strict=True))
        order = np.lexsort((-value, row))
        row, column, value = row[order], column[order], value[order]
        counts = np.bincount(row, minlength=len(self.norms))
        enough = np.flatnonzero(counts >= self.n_wanted)
        first = np.cumsum(counts) - counts
        self._raise(enough, value[first[enough] + self.n_wanted - 1])
        kept = value >= self._bar()[row]
        self.many |= np.bincount(row[kept], minlength=len(self.norms)) > self.most
        kept &= ~self.many[row]
        return _Pairs(row[kept], column[kept], value[kept]), self.many


def _at_least(
    products: FloatArray, passed: BoolArray, bar: FloatArray, group: int
) -> Iterator[tuple[Array, Array, Array]]:
    """Give rows, columns and values of products that reach the bar, from groups that have some."""
    n_groups = passed.shape[1]
    flat = products.reshape(-1)
    rows, groups = np.nonzero(passed)
    for block in _blocks(max(1, len(rows)), _CHUNK // group):
        row = rows[block]
        columns = groups[block][:, None] + n_groups * np.arange(group)
        values = flat.take(columns + (row * products.shape[1])[:, None])
        pair, at = np.nonzero(values >= bar[row][:, None])
        yield row[pair], columns[pair, at], values[pair, at]


def _blocks(n: int, size: int) -> Iterator[slice]:
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))
