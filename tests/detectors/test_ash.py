"""ASH-S: the numbers of the definition, one sample at a time."""

import numpy as np
import pytest

import nescio as ns
from fixtures.rectified import plain_energy, relu_outputs


@pytest.mark.parametrize(("percentile", "n_kept"), [(90, 2), (85.0, 3), (50, 10), (99, 1)])
def test_the_largest_inputs_are_kept_and_scaled(percentile, n_kept):
    new = relu_outputs(30, seed=1)
    expected = []
    for row in new.features:
        order = np.argsort(row)
        pruned = row.copy()
        pruned[order[:-n_kept]] = 0
        pruned *= np.exp(row.sum() / pruned.sum())
        expected.append(plain_energy(pruned, new.head.weight, new.head.bias))
    np.testing.assert_allclose(ns.ASH(percentile).score_samples(new), expected, rtol=1e-12)


def test_every_input_has_a_finite_score():
    """Zeros, negative values, and a flat row, whose two sums differ most."""
    rows = np.stack([np.zeros(2000), np.full(2000, -1.0), np.arange(2000) * 1e-9 + 1.0])
    head = ns.Head(np.ones((3, 2000)), np.zeros(3))
    outputs = ns.Outputs(rows @ head.weight.T, rows.astype(np.float32), head=head)
    for kind in (ns.ASH, ns.Scale):
        scores = kind(99.95).score_samples(outputs)
        assert np.isfinite(scores).all()
        assert scores[0] == pytest.approx(3 * np.log(2))
        assert scores[0] > scores[1]
