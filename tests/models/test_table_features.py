"""Features for detectors from the columns of a table."""

from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import nescio as ns
from nescio.errors import IgnoredColumnsWarning, InputError
from nescio.models.table_features import TableFeatures, in_units


def test_the_features_of_a_table():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    x = pandas.DataFrame(rng.normal(5, 3, (300, 5)), columns=list("abcde"))
    x["id"] = [f"r{row}" for row in range(len(x))]
    x["when"] = pandas.date_range("2026-01-01", periods=len(x), freq="h")
    x["kind"] = pandas.Categorical(np.where(x["a"] > 5, "red", "blue"))
    x.loc[::20, "b"] = np.nan
    features = TableFeatures().fit(x).transform(x)
    # 5 numbers, whether each is missing, ids (all of them rare), 2 kinds or rare, and a constant
    assert features.shape == (len(x), 5 + 5 + 1 + 3 + 1)
    numbers = x[list("acde")].to_numpy()
    np.testing.assert_allclose(
        features[:, [0, 2, 3, 4]], (numbers - numbers.mean(0)) / numbers.std(0)
    )
    gaps = x["b"].isna().to_numpy()
    np.testing.assert_array_equal(features[:, 6], gaps)
    assert (features[gaps, 1] == 0).all()
    np.testing.assert_array_equal(features[:, 10], 1)
    np.testing.assert_array_equal(features[:, 11:13].sum(1), 1)
    np.testing.assert_array_equal(features[:, 13], 0)
    np.testing.assert_allclose(features[:, 14], np.sqrt(7))


def test_a_frame_of_polars_or_pyarrow_gives_what_one_of_pandas_gives():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    rng = np.random.default_rng(0)
    table = pandas.DataFrame(rng.normal(5, 3, (300, 2)), columns=["age", "size"])
    table["town"] = rng.choice(["Bonn", "Rome"], 300)
    table.loc[::20, "size"] = np.nan
    fitted = TableFeatures().fit(table)
    for other in (polars.from_pandas(table), polars.from_pandas(table).to_arrow()):
        np.testing.assert_array_equal(fitted.transform(other), fitted.transform(table))
        assert TableFeatures().fit(other).names_ == fitted.names_
    encoded = ColumnTransformer([("town", OneHotEncoder(), ["town"])])
    labels = table[["age"]].to_numpy() > [4, 6]
    model = make_pipeline(encoded, MultiOutputClassifier(LogisticRegression())).fit(table, labels)
    kept = [
        ns.wrap(model).fit(frame[:200], labels[:200]).outputs(frame[200:]).features
        for frame in (table, polars.from_pandas(table))
    ]
    np.testing.assert_array_equal(*kept)


def test_columns_of_0_and_1_and_columns_without_numbers_stay():
    x = np.array([[0, 5.0, np.nan, 7.0], [1, 6.0, np.nan, 7.0], [0, 7.0, np.nan, 7.0]])
    features = TableFeatures().fit(x).transform(x)
    np.testing.assert_array_equal(features[:, 0], x[:, 0])
    np.testing.assert_array_equal(features[:, [2, 3]], 0)
    np.testing.assert_array_equal(features[:, 6], 1)
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InputError, match="infinity in 1 rows"):
        TableFeatures().fit(pandas.DataFrame({"a": [1.0, np.inf, 3.0]}))


def test_a_column_that_is_mostly_small_counts_by_its_logarithm(rng):
    incomes, sizes = np.exp(rng.normal(10, 1, 500)), rng.normal(170, 8, 500)
    visits = rng.negative_binomial(1, 0.25, 500).astype(float)
    x = np.stack([incomes, sizes, visits], axis=1)
    features = TableFeatures().fit(x)
    # Counts have zeros, which are close to 1; from incomes without any, 0 is far.
    np.testing.assert_allclose(features.bends_, [np.median(incomes) / 1000, 0, 1])

    def moved(*row):
        known = features.transform(x)[:, :3]
        row = features.transform([row])[0, :3]
        return (row - known.min(0)) / np.ptp(known, axis=0)

    usual = moved(20_000, 170, 2)
    assert ((usual > 0) & (usual < 1)).all()
    low, _, few = moved(0, 160, 0)
    assert low < -0.4  # of the values as they are, it is -0.003
    assert few == 0
    negative = moved(-np.median(incomes) / 1000, 160, -1)
    assert negative[0] < low - 0.1
    assert negative[2] == pytest.approx(-0.3, abs=0.05)
    known = in_units(features.units(), features.transform(x))
    np.testing.assert_allclose(known, x, rtol=1e-11)
    assert (known[:, 2] == visits).all()  # 3, not 3.0000000000000004


def test_numbers_are_shown_without_the_digits_of_float32():
    ages = np.arange(18.0, 90.0)[:, None]
    features = TableFeatures().fit(ages)
    single = features.transform(ages).astype(np.float32)
    assert in_units(features.units(), single)[:, 0].tolist() == ages[:, 0].tolist()


def test_columns_are_found_by_name_if_the_pipeline_finds_them_so(rng):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(rng.normal(size=(400, 3)), columns=list("abc"))
    y = np.stack([table["a"] > 0, table["b"] > 0], axis=1)
    read = ColumnTransformer([("read", StandardScaler(), list("abc"))])
    model = make_pipeline(read, MultiOutputClassifier(LogisticRegression()))
    guarded = ns.wrap(model.fit(table[:200], y[:200])).fit(table[:200], y[:200])
    guarded = guarded.calibrate(table[200:])
    others = guarded(table[list("cba")].assign(more=1))
    np.testing.assert_array_equal(others.assessment.scores, guarded(table).assessment.scores)


def test_a_rare_word_does_not_hide_a_new_one(rng):
    pandas = pytest.importorskip("pandas")
    cities = rng.choice(["Oslo", "Paris", "Turku"], 1000, p=[0.6, 0.394, 0.006])
    table = pandas.DataFrame({"x": rng.normal(size=1000), "city": cities})
    table["note"] = [f"note {row}" for row in range(1000)]  # each row has its own
    features = TableFeatures().fit(table)
    new = table[:4].assign(city=["Oslo", "Turku", "Tokyo", None], note="another note")
    transformed = features.transform(new)
    np.testing.assert_array_equal(transformed[:, 4], [0, 1, 8, 8])  # after x, if missing, 2 cities
    np.testing.assert_array_equal(transformed[:, 5], 1)
    low, high = features.transform(table).min(0), features.transform(table).max(0)
    shown = features.shown(new, SimpleNamespace(features=transformed, low=low, high=high))
    assert [row[4] for row in shown["values"]] == [None, None, "Tokyo", "missing"]


def test_an_unknown_word_has_a_column():
    pandas = pytest.importorskip("pandas")
    features = TableFeatures().fit(pandas.DataFrame({"kind": ["x", "y", None] * 50}))
    transformed = features.transform(pandas.DataFrame({"kind": ["x", "z", None]}))
    expected = [[0, 1, 0, 0], [0, 0, 0, 8], [1, 0, 0, 0]]  # all in fit are known words
    np.testing.assert_array_equal(transformed[:, :4], expected)
    ids = TableFeatures().fit(pandas.DataFrame({"kind": [f"r{row}" for row in range(150)]}))
    np.testing.assert_array_equal(ids.transform(pandas.DataFrame({"kind": ["z"]}))[0, 0], 1)
    missing = TableFeatures().fit([[1.0, np.nan], [3.0, 2.0]]).transform([[np.nan, np.nan]])
    np.testing.assert_array_equal(missing[0, :4], [0, 0, 8, 1])


def test_a_frame_after_an_array_and_an_array_after_a_frame():
    pandas = pytest.importorskip("pandas")
    x = np.random.default_rng(0).normal(size=(20, 2))
    frame = pandas.DataFrame(x, columns=["a", "b"])
    for first, second in ((x, frame), (frame, x)):
        features = TableFeatures().fit(first)
        expected = features.transform(first)
        with pytest.warns(UserWarning, match="feature names"):
            np.testing.assert_array_equal(features.transform(second), expected)


def test_whole_numbers_that_are_all_different_are_ids():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 9, (60, 2))
    x = np.column_stack([numbers[:, 0], np.arange(60), numbers[:, 1]])
    for inputs, name in ((x, "1"), (pandas.DataFrame(x, columns=["a", "id", "b"]), "'id'")):
        with pytest.warns(IgnoredColumnsWarning, match=f"columns {name} hold .* to float"):
            features = TableFeatures().fit(inputs)
        expected = TableFeatures().fit_transform(numbers)
        np.testing.assert_array_equal(features.transform(inputs), expected)
    with pytest.warns(UserWarning, match="feature names"):
        np.testing.assert_array_equal(features.transform(x), expected)
    assert TableFeatures().fit_transform(x.astype(float)).shape == (60, 3 + 3 + 1)
    assert TableFeatures().fit_transform(x[:50]).shape == (50, 3 + 3 + 1)
    some = pandas.DataFrame({"id": pandas.array([None, *range(59)], dtype="Int64")})
    with pytest.warns(IgnoredColumnsWarning):
        assert TableFeatures().fit_transform(some).shape == (60, 1)


def test_other_ordinary_columns():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    table = pandas.DataFrame(
        {
            "when": pandas.date_range("2026-01-01", periods=60, tz="UTC"),
            "month": pandas.period_range("2020-01", periods=60, freq="M"),
            "lasted": pandas.to_timedelta(np.arange(60), unit="D"),
            "constant": 7,
            "yes": pandas.array([True, False, None] * 20, dtype="boolean"),
            "missing": np.nan,
            "none": pandas.Series([None] * 60, dtype=object),
            "number": rng.normal(size=60),
        }
    )
    features = TableFeatures().fit_transform(table)
    assert features.shape == (60, 4 + 4 + 2 + 1)  # without the times
    np.testing.assert_array_equal(features[:3, :3], [[0, 1, 0], [0, 0, 0], [0, 0, 0]])
    np.testing.assert_array_equal(features[:3, 4:7], [[0, 0, 1], [0, 0, 1], [0, 1, 1]])
    np.testing.assert_array_equal(features[:, 8], 1)


def test_a_word_that_is_a_number_may_come_as_another_type():
    pandas = pytest.importorskip("pandas")
    fitted = pandas.DataFrame({"c": pandas.Categorical([1, 2] * 50)})
    features = TableFeatures().fit(fitted)
    expected = features.transform(fitted[:2])
    assert expected[:, :2].tolist() == [[1, 0], [0, 1]]
    for values in ([1.0, 2.0], ["1", "2"], np.array([1, 2], "f4"), pandas.Categorical([1.0, 2.0])):
        transformed = features.transform(pandas.DataFrame({"c": values}))
        np.testing.assert_array_equal(transformed, expected)
    half = features.transform(pandas.DataFrame({"c": [1.5, np.nan]}))
    np.testing.assert_array_equal(half[:, :2], 0)
