"""Checks of arrays and parameters."""

import numpy as np
import pytest

from nescio._validation import (
    check_matrix,
    check_multi_hot,
    checked_choice,
    checked_share,
    checked_whole,
    looks_like_probabilities,
    to_float,
    to_numpy,
)
from nescio.errors import InputError, ParameterError, ShapeError


@pytest.mark.parametrize("value", [0, 1, -0.1, 2, "half", None, float("nan")])
def test_a_share_lies_between_0_and_1(value):
    assert checked_share("tpr", np.float32(0.5)) == 0.5
    with pytest.raises(ParameterError, match="tpr must lie between 0 and 1"):
        checked_share("tpr", value)


@pytest.mark.parametrize("value", [0, 1.0, "3", True, None])
def test_a_whole_number_is_an_integer(value):
    assert checked_whole("k", np.int64(3), minimum=1) == 3
    with pytest.raises(ParameterError, match="k must be a whole number of at least 1, got"):
        checked_whole("k", value, minimum=1)


def test_a_choice_names_what_is_allowed():
    assert checked_choice("aggregate", "max", ("max", "sum")) == "max"
    with pytest.raises(ParameterError, match="aggregate must be 'max' or 'sum', got 'mean'"):
        checked_choice("aggregate", "mean", ("max", "sum"))


@pytest.mark.parametrize("shape", [(3,), (3, 0), (2, 3, 4), ()])
def test_a_matrix_has_two_dimensions_and_a_column(shape):
    check_matrix(np.zeros((0, 3)))
    with pytest.raises(ShapeError, match=r"logits must have shape \(n_samples, n_labels\)"):
        check_matrix(np.zeros(shape))


def test_one_sample_gets_a_hint():
    with pytest.raises(ShapeError, match=r"features\[None, :\]"):
        check_matrix(np.zeros(3), "features")


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_floats_keep_their_precision(dtype):
    assert to_float(np.zeros(3, dtype)).dtype == dtype


def test_what_is_not_a_number_is_an_error():
    assert to_float(np.array([True, False])).dtype == np.float64
    for values in (np.array(["a"]), np.array([1j]), np.array([None])):
        with pytest.raises(InputError, match="real numbers"):
            to_float(values)
    with pytest.raises(InputError, match="array of numbers"):
        to_numpy([[1.0], [2.0, 3.0]])
    with pytest.raises(InputError, match="masked arrays"):
        to_numpy(np.ma.masked_array([1.0], mask=[True]))


def test_labels_are_0_or_1():
    for good in (np.array([[True, False]]), np.array([[0, 1]]), np.array([[0.0, 1.0]])):
        check_multi_hot(good)
    with pytest.raises(InputError, match="multi-hot"):
        check_multi_hot(np.array([[0, 2]]))


def test_probabilities_are_recognised_from_enough_values(rng):
    probs = rng.random((10, 10))
    assert looks_like_probabilities(probs)
    assert looks_like_probabilities(np.where(probs > 0.9, np.nan, probs))
    assert not looks_like_probabilities(probs[:2, :2])
    assert looks_like_probabilities(probs[:2, :2], at_least=1)
    assert not looks_like_probabilities(probs * 2)
    assert not looks_like_probabilities(probs - 0.01)
    assert not looks_like_probabilities(np.zeros((0, 5)), at_least=0)
