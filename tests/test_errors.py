"""The tree of errors and warnings."""

import inspect
import warnings

import pytest

from nescio import errors
from nescio.errors import (
    InputError,
    NescioError,
    NescioWarning,
    ProbabilitiesError,
    ShapeError,
    label_difference,
)


def test_every_error_and_warning_says_what_it_is():
    kinds = [
        kind
        for kind in vars(errors).values()
        if inspect.isclass(kind) and issubclass(kind, NescioError | NescioWarning)
    ]
    assert len(kinds) > 10
    for kind in kinds:
        assert kind.__doc__


def test_an_error_names_the_data_that_it_is_about():
    with (
        pytest.raises(ShapeError, match=r"^val\.npy: two columns$"),
        errors.error_context("val.npy"),
    ):
        raise ShapeError("two columns")
    with (
        pytest.raises(
            ProbabilitiesError, match=r"^val.npy: within 0 and 1. Pass logits.$"
        ) as caught,
        errors.error_context("val.npy"),
    ):
        raise ProbabilitiesError("within 0 and 1.", "Pass logits.")
    assert caught.value.reason == "val.npy: within 0 and 1."
    with pytest.raises(OSError, match=r"^disk$"), errors.error_context("val.npy"):
        raise OSError("disk")
    assert issubclass(InputError, ValueError)


@pytest.mark.parametrize(
    ("missing", "extra", "renames"),
    [("Cat", "cat", True), ("birds", "bird", True), ("hypertension", "person", False)],
)
def test_a_label_that_is_alike_may_be_the_missing_one(missing, extra, renames):
    text = label_difference(["dog", missing], ["dog", extra])
    assert (f"Rename {extra!r} to {missing!r}?" in text) is renames


def test_a_warning_points_to_the_callers_line():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        errors.warn("look", NescioWarning)
    assert caught[0].filename == __file__
