"""The evidence over time, in a bounded number of points."""

import numpy as np
from hypothesis import given, strategies as st

from nescio.monitor.trace import MAX_POINTS, Trace


@given(st.lists(st.integers(0, 3000), max_size=5))
def test_points_do_not_depend_on_the_blocks(sizes):
    evidence = np.arange(sum(sizes), dtype=float)
    whole, parts, start = Trace(), Trace(), 0
    whole.add(0, evidence)
    for size in sizes:
        parts.add(start, evidence[start : start + size])
        start += size
    assert parts.points() == whole.points()
    assert len(whole.points()) <= MAX_POINTS


def test_points_are_evenly_spaced_and_keep_their_values():
    trace = Trace()
    trace.add(0, np.arange(10_000.0))
    numbers, values = zip(*trace.points(), strict=True)
    assert set(np.diff(numbers)) == {trace.step}
    assert [number - 1 for number in numbers] == list(values)
    assert len(numbers) > MAX_POINTS / 2
