"""Data frames of pandas, polars and pyarrow."""

import datetime
import sys
from decimal import Decimal

import numpy as np
import pytest

from nescio import JointEnergy, Outputs
from nescio._validation import is_frame
from nescio.errors import InputError, MissingDependencyError

pandas = pytest.importorskip("pandas")


WHEN = datetime.datetime(2026, 1, 2, 3, 4)


def frames(columns):
    """Give the same columns in every kind of frame."""
    yield pandas.DataFrame(columns)
    yield pandas.DataFrame(columns).convert_dtypes()
    yield pytest.importorskip("polars").DataFrame(columns)
    yield pytest.importorskip("pyarrow").table(columns)


def test_every_kind_of_frame_gives_the_same_outputs():
    columns = {
        "id": ["a", "b", "c"],
        "cat": [0.5, None, -2.0],
        "dog": [1.0, 2.5, 3.5],
        "text": ["x", None, "z"],
        "when": [WHEN, WHEN, None],
        "n": [3, 4, None],
    }
    for frame in frames(columns):
        assert is_frame(frame)
        with pytest.raises(InputError, match=r"'text' .(large_)?string., 'when' .timestamp"):
            Outputs.from_frame(frame, ignore="n")
        outputs = Outputs.from_frame(frame, ignore=["n"], keep=["text", "when"])
        np.testing.assert_array_equal(outputs.logits, [[0.5, 1], [np.nan, 2.5], [-2, 3.5]])
        assert outputs.label_names == ("cat", "dog")
        assert outputs.ids.tolist() == ["a", "b", "c"]
        assert outputs.kept["text"].tolist() == ["x", None, "z"]
        assert outputs.kept["when"][0] == np.datetime64(WHEN)
        assert outputs.manifest == {"ignored_columns": ["n"]}
        assert outputs[1:].kept["text"].tolist() == [None, "z"]
        assert Outputs.from_frame(frame, id_column="n", labels="cat").ids.tolist() == ["3", "4", ""]


def test_the_index_of_a_pandas_frame_is_the_ids():
    frame = pandas.DataFrame({"cat": [0.5, 1.5, 2.5], "dog": [3.5, 4.5, 5.5]})
    assert Outputs.from_frame(frame).ids is None
    assert Outputs.from_frame(frame[::-1]).ids.tolist() == ["2", "1", "0"]
    named = frame.set_axis(pandas.Index(["x", "y", "z"], name="path"))
    assert Outputs.from_frame(named).ids.tolist() == ["x", "y", "z"]
    assert Outputs.from_frame(named, id_column="path").ids.tolist() == ["x", "y", "z"]
    assert Outputs.from_frame(named.assign(id=[7, 8, 9])).ids.tolist() == ["7", "8", "9"]
    both = frame.set_index(pandas.MultiIndex.from_tuples([(0, 1), (0, 2), (1, 1)]))
    assert Outputs.from_frame(both).ids is None


def test_odd_columns():
    frame = pandas.DataFrame(np.arange(6.0).reshape(3, 2) + 0.5)
    assert Outputs.from_frame(frame).label_names is None
    frame = pandas.DataFrame({"a": [Decimal("0.5"), None], "b": np.array([1.5, 2], dtype=object)})
    chosen = Outputs.from_frame(frame, labels="*")
    np.testing.assert_array_equal(chosen.logits, [[0.5, 1.5], [np.nan, 2]])
    zoned = pandas.Series([WHEN, None]).dt.tz_localize("UTC")
    kept = Outputs.from_frame(frame.assign(t=zoned), labels=["b"], keep="t").kept
    assert kept["t"][0].startswith("2026-01-02 03:04:00")
    assert kept["t"][1] is None
    odd = pandas.DataFrame({"a": [0.5, 1.5], "b": [1, "x"]})  # pyarrow has no type for it
    assert Outputs.from_frame(odd, keep="b").kept["b"].tolist() == ["1", "x"]
    for made in frames({"logits": [[0.5, 1.5], [2.5, 3.5]], "text": ["x", "y"]}):
        outputs = Outputs.from_frame(made, keep="text")
        assert outputs.logits.tolist() == [[0.5, 1.5], [2.5, 3.5]]
        assert outputs.kept["text"].tolist() == ["x", "y"]
    ragged = pandas.DataFrame({"logits": [[0.5, 1.5], [2.5]]})
    with pytest.raises(InputError, match="lengths from 1 to 2"):
        Outputs.from_frame(ragged)


def test_what_is_not_a_frame_is_explained(monkeypatch):
    with pytest.raises(InputError, match="expected a data frame of pandas, polars or pyarrow"):
        Outputs.from_frame([[1.0]])
    twice = pandas.DataFrame([[0.5, 1.5]], columns=["cat", "cat"])
    with pytest.raises(InputError, match="two columns of the same name, 'cat'"):
        Outputs.from_frame(twice)
    levels = pandas.DataFrame([[0.5]], columns=pandas.MultiIndex.from_tuples([("a", "b")]))
    with pytest.raises(InputError, match="several levels"):
        Outputs.from_frame(levels)
    lazy = pytest.importorskip("polars").LazyFrame({"cat": [0.5]})
    for read in (Outputs.from_frame, Outputs, JointEnergy().score_samples):
        with pytest.raises(InputError, match=r"pass frame.collect\(\)"):
            read(lazy)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r"pip install \'\.\[files\]\'"):
        Outputs.from_frame(twice)


def test_arrays_are_not_frames(monkeypatch):
    assert not is_frame(np.zeros((2, 2)))
    assert not is_frame([[1.0]])
    for name in ("pandas", "polars", "pyarrow"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert not is_frame(np.zeros((2, 2)))


def test_ids_and_kept_columns_are_exact_and_nulls_stay_nulls():
    large = [2**53 + 1, None, 2**53 + 5]
    zoned = [WHEN.replace(tzinfo=datetime.UTC), None, None]
    columns = {"cat": [0.5, 1.5, 2.5], "t": zoned}
    polars, pyarrow = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    for frame in (
        pandas.DataFrame(columns).assign(n=pandas.array(large, "Int64")),
        polars.DataFrame(columns).with_columns(n=polars.Series(large)),
        pyarrow.table({**columns, "n": large}),
    ):
        outputs = Outputs.from_frame(frame, id_column="n", keep="t")
        assert outputs.ids.tolist() == ["9007199254740993", "", "9007199254740997"]
        assert outputs.kept["t"][0].startswith("2026-01-02 03:04:00")
        assert outputs.kept["t"].tolist()[1:] == [None, None]
        kept_time = outputs.kept["t"][0]
        outputs = Outputs.from_frame(frame, id_column="t", keep="n")
        assert outputs.ids.tolist() == [kept_time, "", ""]
        assert outputs.kept["n"].tolist() == large
    daily = pandas.DataFrame({"cat": [0.5, 1.5]}, pandas.date_range("2024-01-01", periods=2))
    for unit in ("s", "ns"):
        ids = Outputs.from_frame(daily.set_axis(daily.index.as_unit(unit))).ids
        assert ids[1].startswith("2024-01-02T00:00:00")


def test_advice_on_options_is_given_only_with_options():
    frame = pandas.DataFrame(np.zeros((30, 2)), columns=["a", "b"])
    detector = JointEnergy()
    with pytest.raises(InputError, match=r"ignore=\['note'\]\..* Outputs.from_frame") as raised:
        detector.calibrate(frame.assign(note="x"))
    assert "--" not in str(raised.value)
    with pytest.raises(InputError, match=r"pass frame.collect\(\)\.$"):
        detector.calibrate(pytest.importorskip("polars").DataFrame(frame.to_dict("list")).lazy())
    with pytest.raises(InputError, match=r"Rename one of them\.$"):
        detector.calibrate(frame.set_axis(["a", "a"], axis=1))
    with pytest.raises(InputError, match=r"'a' \(bool\)") as raised:
        detector.calibrate(frame > 0)
    assert "ignore=" not in str(raised.value)  # nothing would be left
