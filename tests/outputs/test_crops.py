"""Where crops lie: the rows of an image and its crops, and the heat map."""

import numpy as np
import pytest

from nescio.errors import ShapeError
from nescio.outputs.crops import N_CROPS, heat_map, join_crops, views


def test_rows_of_images_are_followed_by_those_of_their_crops(rng):
    whole, by_crop = rng.normal(size=(4, 3)), rng.normal(size=(N_CROPS, 4, 3))
    rows = views(whole, join_crops(by_crop), "logits").reshape(4, 1 + N_CROPS, 3)
    assert np.array_equal(rows[:, 0], whole)
    assert np.array_equal(rows[:, 1:], by_crop.swapaxes(0, 1))
    with pytest.raises(ShapeError, match="crops_logits must have the 3 columns of logits"):
        views(whole, np.zeros((4, 26)), "logits")


def test_a_place_has_the_mean_heat_of_the_crops_that_cover_it():
    p_values = np.ones((3, 3))
    p_values[0, 0] = p_values[2, 1] = 1e-9  # lower than 0.01, which is full heat already
    expected = np.zeros((4, 4))
    expected[:2, :2] += np.outer([1, 0.5], [1, 0.5])
    expected[2:, 1:3] += np.outer([0.5, 1], [0.5, 0.5])
    np.testing.assert_allclose(heat_map(p_values.ravel()), expected)
    np.testing.assert_allclose(heat_map([0.1] * 9), np.full((4, 4), 0.5))
    assert heat_map([0.0] * 9).min() == 1  # a row that could not be scored
