"""The histogram of calibration scores: its range, its axis, and other scores on it."""

import numpy as np
import pytest

from nescio._charts.histogram import Batch, Histogram, HistogramChart


def test_shares_of_other_scores_count_all_of_them(rng):
    histogram = Histogram.of(rng.normal(size=500), [0.0])
    shares = histogram.shares(np.array([-1e9, 0.0, np.nan, 1e9]))
    assert shares.sum() == pytest.approx(1)
    assert (shares[0], shares[-1]) == (0.5, 0.25)


def test_energies_have_a_logarithmic_axis(rng):
    energies = 10 ** rng.normal(0, 1, 500)
    histogram = Histogram.of(energies, [0.05])
    assert histogram.log
    steps = histogram.edges[1:] / histogram.edges[:-1]
    np.testing.assert_allclose(steps, steps[0])
    assert histogram.counts.sum() == 500
    for scores, threshold in ((energies, -0.1), (energies - 10, 0.05), (energies + 50, 50.0)):
        assert not Histogram.of(scores, [threshold]).log


def test_negative_scores_have_that_axis_in_a_mirror(rng):
    scores = 10 ** rng.normal(0, 1, 500)
    positive, negative = Histogram.of(scores, [0.05]), Histogram.of(-scores, [-20.0])
    assert negative.log
    mirrored = Histogram.of(scores, [20.0])
    np.testing.assert_allclose(negative.edges, -mirrored.edges[::-1])
    np.testing.assert_array_equal(negative.counts, mirrored.counts[::-1])
    assert negative.counts.sum() == positive.counts.sum() == 500
    assert negative.scale.place(negative.edges, 60.0) == pytest.approx(np.arange(61.0))


def test_other_scores_widen_the_range_but_not_without_limit(rng):
    scores = rng.normal(size=500)
    alone = Histogram.of(scores, [0.0]).edges
    width = alone[-1] - alone[0]
    near = Histogram.of(scores, [0.0], [rng.normal(-4, 0.1, 50)]).edges
    assert near[0] < -4.2 < -4 < alone[0]
    assert near[-1] == alone[-1]
    far = Histogram.of(scores, [0.0], [np.array([-1e9, -np.inf])]).edges
    assert far[0] == pytest.approx(alone[0] - width)
    np.testing.assert_array_equal(Histogram.of(scores, [0.0], [np.array([np.nan])]).edges, alone)


def test_few_scores_are_lines_and_many_an_outline(rng):
    histogram = Histogram.of(rng.normal(size=500), [-1.5])

    def drawn(n):
        scores = np.linspace(-2, 2, n)
        batch = Batch(scores, scores < -1.5)
        return HistogramChart(histogram, [-1.5], name="a chart", batch=batch).draw()

    assert drawn(5).count('class="line plain"') == 4
    assert drawn(5).count('class="line out"') == 1
    assert drawn(31).count('class="line') == 1
    assert "threshold −1.5" in drawn(5)
