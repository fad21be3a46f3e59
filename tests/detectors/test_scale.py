"""SCALE: the numbers of the definition, one sample at a time."""

import numpy as np
import pytest

import nescio as ns
from fixtures.rectified import plain_energy, relu_outputs


@pytest.mark.parametrize(("percentile", "n_large"), [(85, 3), (50, 10)])
def test_all_inputs_are_scaled_by_one_factor_per_sample(percentile, n_large):
    new = relu_outputs(30, seed=1)
    expected = [
        plain_energy(
            row * np.exp(row.sum() / np.sort(row)[-n_large:].sum()),
            new.head.weight,
            new.head.bias,
        )
        for row in new.features
    ]
    np.testing.assert_allclose(ns.Scale(percentile).score_samples(new), expected, rtol=1e-12)
