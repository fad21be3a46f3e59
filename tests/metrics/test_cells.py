import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from nescio.calibration import TIE_TOLERANCE
from nescio.errors import InputError
from nescio.metrics.cells import CELL_BITS, Cells, ScoreCells

# Few values, so that ties are common; all signs, zeros and infinities.
VALUES = st.sampled_from(
    [-np.inf, -2.5, -1.0, -0.0, 0.0, 5e-324, 1e-3, 1.0, 1.0 + 2e-6, 7.0, np.inf]
)
SCORES = hnp.arrays(float, st.integers(0, 40), elements=VALUES | st.floats(allow_nan=False))


def counted(parts, **limits):
    found = ScoreCells(**limits)
    for part in parts:
        found.add(part)
    return found


def same(first, second):
    return first.bits == second.bits and all(
        np.array_equal(getattr(first, name), getattr(second, name))
        for name in ("low", "high", "counts")
    )


@settings(max_examples=50)
@given(st.lists(SCORES, min_size=1, max_size=4), st.integers(0, 30), st.integers(1, 8))
def test_neither_the_order_nor_the_split_nor_a_merge_changes_the_cells(parts, max_exact, max_cells):
    limits = {"max_exact": max_exact, "max_cells": max_cells}
    scores = np.concatenate(parts)
    expected = counted([scores], **limits)
    if not len(scores):
        return
    assert same(counted(parts, **limits).cells, expected.cells)
    assert same(counted([scores[::-1]], **limits).cells, expected.cells)
    merged = ScoreCells(**limits)
    for part in parts:
        merged.merge(counted([part], **limits))
    assert same(merged.cells, expected.cells)
    assert merged.n_samples == len(scores) == expected.cells.counts.sum()
    if merged.exact:  # the parts of a merge may be counted before the whole would be
        assert np.array_equal(merged.scores, scores)


@settings(max_examples=50)
@given(SCORES.filter(len))
def test_a_cell_has_its_lowest_and_highest_score_and_is_as_wide_as_a_tie(scores):
    cells = Cells.of(scores, CELL_BITS)
    assert (cells.low <= cells.high).all()
    assert (cells.high[:-1] < cells.low[1:]).all()
    assert {*cells.low.tolist(), *cells.high.tolist()} <= {*scores.tolist()}
    for low, high, count in zip(cells.low, cells.high, cells.counts, strict=True):
        assert np.count_nonzero((low <= scores) & (scores <= high)) == count
        if np.isfinite(low) and min(abs(low), abs(high)) > 1e-300:  # a subnormal has fewer bits
            assert high - low <= TIE_TOLERANCE * max(abs(low), abs(high))


def test_infinities_zeros_and_thousands_of_ties_have_cells_of_their_own():
    ties = np.repeat([-np.inf, -3.0, 0.0, 3.0, np.inf], 5_000)
    cells = counted(np.array_split(ties, 7), max_exact=10).cells
    assert cells.low.tolist() == cells.high.tolist() == [-np.inf, -3.0, 0.0, 3.0, np.inf]
    assert cells.counts.tolist() == [5_000] * 5
    assert Cells.of(np.array([-0.0, 0.0]), CELL_BITS).counts.tolist() == [2]


def test_memory_is_bounded_by_wider_cells(rng):
    scores = rng.normal(size=40_000) * 10.0 ** rng.integers(-9, 9, 40_000)
    found = counted(np.array_split(scores, 11), max_exact=1_000, max_cells=500)
    cells = found.cells
    assert len(cells.low) <= 500
    assert cells.bits < CELL_BITS
    assert cells.counts.sum() == 40_000
    # Not wider than needed: one bit more would be too many cells.
    assert len(Cells.of(scores, cells.bits + 1).low) > 500


def test_few_scores_are_kept_as_they_are(rng):
    parts = [rng.normal(size=n) for n in (5, 0, 3)]
    found = counted(parts, max_exact=8)
    expected = np.concatenate(parts)
    parts[0][:] = 99.0  # the block of a stream is used again for the next one
    assert found.exact
    assert np.array_equal(found.scores, expected)
    found.add([1.0])
    assert not found.exact
    with pytest.raises(ValueError, match="not kept"):
        _ = found.scores


def test_nan_is_an_error():
    with pytest.raises(InputError, match="NaN"):
        ScoreCells().add([1.0, np.nan])


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_the_numbers_of_cells_ascend_with_the_scores(seed):
    bits = np.random.default_rng(seed).integers(0, 2**64, 500, dtype=np.uint64).view(np.float64)
    ordered = np.sort(bits[~np.isnan(bits)])
    for kept in (0, 7, CELL_BITS, 52):
        numbers = Cells(ordered, ordered, np.ones(len(ordered), np.int64), kept).numbers()
        assert (np.diff(numbers) >= 0).all()
