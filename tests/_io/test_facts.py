"""Facts about a column: those of its blocks together are those of the whole."""

import numpy as np
import pytest

from nescio._io.facts import ColumnFacts

ALWAYS = ("n_rows", "all_nan", "fraction", "nonzero", "low", "high", "whole", "settled")
OF_WHOLE_NUMBERS = ("distinct", "rising", "falling")
OF_POSITIVE_NUMBERS = ("constant", "finite_rising", "finite_falling")


def facts(column, *borders):
    found = ColumnFacts(column.dtype.kind)
    for block in np.split(column, borders):
        found.add(block)
    return found


@pytest.mark.parametrize(
    "column",
    [
        np.arange(300),
        np.arange(300)[::-1].astype(np.int8),
        np.r_[np.arange(150), np.arange(150)],
        np.repeat(np.arange(10), 30),
        np.zeros(300),
        np.full(300, np.nan),
        np.full(300, -np.inf),
        np.r_[np.nan, np.arange(299.0)],
        np.r_[np.arange(150.0), np.full(10, np.nan), np.arange(150.0, 290.0)] / 8,
        np.r_[np.full(200, np.nan), np.full(100, 2.5)],
        np.r_[np.zeros(250), 0.5, np.zeros(49)],
        np.r_[np.full(280, 3.25), 4.5, np.full(19, 3.25)],
        np.random.default_rng(0).uniform(0, 9, 300).astype(np.float16),
    ],
)
def test_blocks_together_are_the_whole_column(column):
    whole = facts(column)
    names = [*ALWAYS, *(OF_WHOLE_NUMBERS if whole.whole else ())]
    names += OF_POSITIVE_NUMBERS if whole.low >= 0 else ()
    for borders in ((64, 128, 200), (1, 2, 299), (0, 150)):
        found = facts(column, *borders)
        for name in names:
            expected = getattr(whole, name)
            assert getattr(found, name) == expected or expected != expected, (name, borders)
        np.testing.assert_array_equal(found.finite_head(), whole.finite_head())


def test_logits_are_settled_and_stay_so():
    logits = np.random.default_rng(0).normal(size=200)
    found = facts(logits)
    assert found.settled
    found.add(np.arange(500.0))
    assert found.settled
    assert (found.whole, found.n_rows) == (False, 700)
    assert not facts(np.abs(logits)).settled
    assert not facts(logits[:50]).settled
