"""Features for detectors from the columns of a table."""

import numpy as np
import pytest

from nescio.errors import InputError
from nescio.sklearn import TableFeatures


def test_the_features_of_a_table():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    x = pandas.DataFrame(rng.normal(5, 3, (300, 5)), columns=list("abcde"))
    x["id"] = [f"r{row}" for row in range(len(x))]
    x["when"] = pandas.date_range("2026-01-01", periods=len(x), freq="h")
    x["kind"] = pandas.Categorical(np.where(x["a"] > 5, "red", "blue"))
    x.loc[::20, "b"] = np.nan
    found = TableFeatures().fit(x).transform(x)
    # 5 numbers, whether each is missing, ids (all of them rare), 2 kinds and a constant
    assert found.shape == (len(x), 5 + 5 + 1 + 2 + 1)
    numbers = x[list("acde")].to_numpy()
    np.testing.assert_allclose(found[:, [0, 2, 3, 4]], (numbers - numbers.mean(0)) / numbers.std(0))
    gaps = x["b"].isna().to_numpy()
    np.testing.assert_array_equal(found[:, 6], gaps)
    assert (found[gaps, 1] == 0).all()
    np.testing.assert_array_equal(found[:, 10], 1)
    np.testing.assert_array_equal(found[:, 11:13].sum(1), 1)
    np.testing.assert_allclose(found[:, 13], np.sqrt(7))


def test_columns_of_0_and_1_and_columns_without_numbers_stay():
    x = np.array([[0, 5.0, np.nan, 7.0], [1, 6.0, np.nan, 7.0], [0, 7.0, np.nan, 7.0]])
    found = TableFeatures().fit(x).transform(x)
    np.testing.assert_array_equal(found[:, 0], x[:, 0])
    np.testing.assert_array_equal(found[:, [2, 3]], 0)
    np.testing.assert_array_equal(found[:, 6], 1)


def test_an_unknown_word_is_no_error():
    pandas = pytest.importorskip("pandas")
    features = TableFeatures().fit(pandas.DataFrame({"kind": ["x", "y", None] * 50}))
    found = features.transform(pandas.DataFrame({"kind": ["x", "z", None]}))
    np.testing.assert_array_equal(found[:, :3], [[0, 1, 0], [0, 0, 0], [1, 0, 0]])


def test_times_are_left_out():
    pandas = pytest.importorskip("pandas")
    days = pandas.to_timedelta(np.arange(10), unit="D")
    table = pandas.DataFrame({"a": range(10), "when": pandas.Timestamp("2026-01-01") + days})
    assert TableFeatures().fit_transform(table.assign(lasted=days)).shape == (10, 3)


def test_an_infinite_number_is_refused():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InputError, match="infinity in 1 rows"):
        TableFeatures().fit(pandas.DataFrame({"a": [1.0, np.inf, 3.0]}))


def test_a_frame_after_an_array_and_an_array_after_a_frame():
    pandas = pytest.importorskip("pandas")
    x = np.random.default_rng(0).normal(size=(20, 2))
    frame = pandas.DataFrame(x, columns=["a", "b"])
    for first, second in ((x, frame), (frame, x)):
        features = TableFeatures().fit(first)
        expected = features.transform(first)
        with pytest.warns(UserWarning, match="feature names"):
            np.testing.assert_array_equal(features.transform(second), expected)
