"""Counting with a table of cells against NumPy's binary search."""

from __future__ import annotations

import numpy as np
import pytest

from nescio.calibration.calibration import Counter

RNG = np.random.default_rng(0)
INFINITE = np.full(20, np.inf)

ORDERED = {
    "normal": RNG.normal(10, 5, 5000),
    "few": RNG.normal(10, 5, 20),
    "skewed": np.exp(RNG.normal(0, 1, 5000)),
    "some ties": np.concatenate([RNG.normal(0, 1, 3000), np.full(100, 0.25)]),
    "rounded": RNG.normal(0, 1, 5000).round(2),
    "infinite": np.concatenate([-INFINITE, RNG.normal(0, 1, 3000), INFINITE]),
    "an outlier": np.append(RNG.normal(0, 1, 3000), 1e300),
    "tiny": RNG.normal(0, 1, 3000) * 1e-290,
    "huge": RNG.normal(0, 1, 3000) * 1e290,
    "far from 0": RNG.normal(0, 1, 3000) + 1e9,
    "mostly tied": np.concatenate([np.full(3000, 3.0), RNG.normal(0, 1, 1000)]),
    "many": RNG.normal(0, 1, 200_000),
}
WITHOUT_A_TABLE = {
    "all tied": np.full(1000, 3.0),
    "none finite": np.concatenate([-INFINITE, INFINITE]),
    "too small to divide by": np.arange(1000) * 5e-324,
    "too wide": np.linspace(-1, 1, 1000) * 1.7e308,
}


def around(ordered: np.ndarray) -> np.ndarray:
    """Return the numbers themselves, their neighbours in floating point, and others."""
    some = np.random.default_rng(1).choice(ordered, 2000)
    with np.errstate(over="ignore", under="ignore"):
        beside = [np.nextafter(some, -np.inf), np.nextafter(some, np.inf), some * 1.5, -some]
    return np.concatenate([some, *beside, np.zeros(1), [-1e308, -3.0, 3.0]])


@pytest.mark.parametrize("name", [*ORDERED, *WITHOUT_A_TABLE])
@pytest.mark.parametrize("odd", [None, np.nan, np.inf, -np.inf, 1e308])
def test_counts_as_a_binary_search_does(name: str, odd: float | None) -> None:
    ordered = np.sort({**ORDERED, **WITHOUT_A_TABLE}[name])
    values = around(ordered)
    if odd is None:
        values = values[np.isfinite(values)]
    else:
        values[::7] = odd
    counter = Counter(ordered)
    expected = np.searchsorted(ordered, values, side="right")
    assert counter.at_or_below(values).tolist() == expected.tolist()
    assert (counter._table is not None) == (name in ORDERED)
    # A few values take the binary search, and give the same.
    assert counter.at_or_below(values[:5]).tolist() == expected[:5].tolist()


def test_takes_any_shape() -> None:
    counter = Counter(np.arange(1000.0))
    values = np.random.default_rng(0).uniform(0, 999, (20, 50))
    assert (counter.at_or_below(values) == np.floor(values) + 1).all()
    assert counter.at_or_below(np.array(3.0)) == 4
