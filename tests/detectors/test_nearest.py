"""Exact neighbours: the same as all distances in float64, sorted; bit for bit."""

import tracemalloc

import numpy as np
import pytest

import nescio as ns
from nescio import _threads
from nescio.detectors import nearest as searching
from nescio.detectors.nearest import Cells, nearest
from nescio.detectors.spaces import FreeSpace, UnitSpace

K = 20


def plainly(samples, queries, k, own=False):
    """Every distance from the differences, sorted; equal ones by position."""
    samples, queries = samples.astype(np.float64), queries.astype(np.float64)
    distances, positions = [], []
    for row, query in enumerate(queries):
        difference = query - samples
        squares = np.einsum("ij,ij->i", difference, difference)
        if own:
            squares[row] = np.inf
        order = np.argsort(squares, kind="stable")[:k]
        distances.append(np.sqrt(squares[order]))
        positions.append(order)
    return np.array(distances), np.array(positions)


def nasty(rng, n=1500, d=12):
    """Data on which products alone would find other neighbours."""
    base = rng.normal(size=(n, d))
    far = np.where(rng.random((n, d)) < 0.002, 3e38, base)
    return {
        "plain": base,
        "offset": base + 1e7,
        "clusters far apart": base + 1e7 * rng.integers(0, 3, (n, 1)),
        "many scales": base * 10.0 ** rng.integers(-9, 10, (n, 1)),
        "tiny": base * 1e-30,
        "one sample far away": np.vstack([base[1:], np.full((1, d), 1e30)]),
        "the largest float32": far,
        "duplicates": np.repeat(base[:15], n // 15, axis=0),
        "nearly duplicates": np.repeat(base[:15], n // 15, axis=0) + 1e-9 * base,
        "all the same": np.ones((n, d)),
        "ties": rng.integers(0, 2, (n, d)).astype(float),
    }


@pytest.fixture(params=list(nasty(np.random.default_rng(0))))
def samples(request, rng):
    return nasty(rng)[request.param]


def same(found, expected):
    np.testing.assert_array_equal(found.positions, expected[1])
    np.testing.assert_array_equal(found.distances, expected[0])


def test_neighbours_are_exact_on_nasty_data(samples, rng, monkeypatch):
    monkeypatch.setattr(searching, "_CANDIDATES", 100)  # so that all three ways are taken
    space = FreeSpace(samples)
    same(nearest(space, samples[:300], K), plainly(samples, samples[:300], K))
    strange = np.vstack([samples[:20] * 1e3, samples[:20] + 1e-9, rng.normal(size=(20, 12)) * 1e20])
    same(nearest(space, strange, K), plainly(samples, strange, K))


def test_a_sample_is_not_its_own_neighbour(samples):
    some = samples[::3]
    same(nearest(FreeSpace(some), some, K, own=True), plainly(some, some, K, own=True))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_neighbours_of_length_1_are_exact(dtype, rng):
    base = rng.normal(size=(1500, 30))
    for rows in (base, np.repeat(base[:15], 100, axis=0), base[:1] + 1e-4 * base):
        unit = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(dtype)
        same(nearest(UnitSpace(unit), unit[:300], 5), plainly(unit, unit[:300], 5))
        new = unit[:300].astype(np.float64) + 1e-5  # more precise than the samples
        new /= np.linalg.norm(new, axis=1, keepdims=True)
        same(nearest(UnitSpace(unit), new, 5), plainly(unit, new, 5))


@pytest.mark.parametrize("k", [1, 299, 300])
def test_any_number_of_neighbours(k, rng):
    samples, queries = rng.normal(size=(300, 9)), rng.normal(size=(40, 9))
    same(nearest(FreeSpace(samples), queries, k), plainly(samples, queries, k))


@pytest.mark.parametrize("cpus", [1, 3])
@pytest.mark.parametrize(("rows", "work"), [(1, 2**26), (7, 2**12), (256, 2**14)])
def test_neither_batch_nor_blocks_nor_threads_change_a_bit(cpus, rows, work, rng, monkeypatch):
    samples = rng.normal(size=(700, 10))
    space, queries = FreeSpace(samples), samples[:200] + 0.1
    expected = nearest(space, queries, 5)
    alone = [nearest(space, queries[[row]], 5) for row in range(10)]
    np.testing.assert_array_equal(np.vstack([a.distances for a in alone]), expected.distances[:10])
    for name, value in (("_ROWS", rows), ("_WORK", work), ("_CHUNK", work // 32)):
        monkeypatch.setattr(searching, name, value)
    monkeypatch.setattr(_threads, "available_cpus", lambda: cpus)
    same(nearest(space, queries, 5), expected[:2])


def test_only_the_cells_that_are_probed_are_searched(rng):
    samples = rng.normal(size=(900, 6))
    starts = np.array([0, 250, 250, 600, 900])  # one cell is empty
    probed = np.stack([rng.permutation(4)[:3] for _ in range(50)])
    queries = rng.normal(size=(50, 6))
    found = nearest(FreeSpace(samples), queries, 7, cells=Cells(starts, probed))
    for row, cells in enumerate(probed):
        inside = np.concatenate([np.arange(starts[c], starts[c + 1]) for c in sorted(cells)])
        distances, at = plainly(samples[inside], queries[[row]], 7)
        np.testing.assert_array_equal(found.positions[row], inside[at[0]])
        np.testing.assert_array_equal(found.distances[row], distances[0])


def test_memory_is_bounded(rng, monkeypatch):
    # 100,000 samples against 1,000 queries: all products would have 400 MB.
    monkeypatch.setattr(searching, "_WORK", 2**21)
    monkeypatch.setattr(searching, "_CHUNK", 2**16)
    monkeypatch.setattr(_threads, "available_cpus", lambda: 2)
    unit = rng.normal(size=(100_000, 4)).astype(np.float32)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    space, queries = UnitSpace(unit), unit[:1000]
    tracemalloc.start()
    try:
        nearest(space, queries, 5)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * 3 * 2**21  # in each of two threads, three times the products


def test_lof_of_large_logits_in_float64_is_that_of_the_formula(rng):
    train = rng.normal(size=(400, 9)).astype(np.float32) - np.float32(4096)
    new = train[:60] + rng.normal(size=(60, 9)).astype(np.float32)
    found = ns.LocalOutlierFactor(10).fit(train).score_samples(new)
    distances, at = plainly(train, train, 10, own=True)
    reach = distances[:, -1]
    density = 1 / (np.maximum(distances, reach[at]).mean(1) + 1e-10)
    distances, at = plainly(train, new, 10)
    own = 1 / (np.maximum(distances, reach[at]).mean(1) + 1e-10)
    np.testing.assert_allclose(found, -density[at].mean(1) / own, rtol=1e-12)
