"""Which columns of a table are labels, ids, kept or ignored."""

import datetime
import decimal
import json
import sys
from decimal import Decimal

import numpy as np
import pytest

from nescio import JointEnergy, Outputs
from nescio._io.frames import read_frame
from nescio._io.tables import Columns
from nescio._validation import is_frame
from nescio.errors import (
    IgnoredLabelsWarning,
    InputError,
    LabelMismatchError,
    MissingDependencyError,
)

pyarrow = pytest.importorskip("pyarrow")


def made(columns, index=()):
    metadata = {"pandas": json.dumps({"index_columns": index})}
    return pyarrow.table(columns).replace_schema_metadata(metadata)


@pytest.fixture
def logits(rng):
    return {name: rng.normal(size=60) for name in ("cat", "dog", "zebra")}


def roles_of(columns, **said):
    content = read_frame(made(columns), Columns(**said))
    return content["label_names"], content.get("manifest", {}).get("ignored_columns", [])


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("text", "x", "text"),
        ("flag", True, "true or false"),
        ("when", datetime.datetime(2026, 1, 1), "times"),
        ("user_id", 4711, "whole numbers"),
        ("price", decimal.Decimal("1.50"), "decimal numbers"),
        ("note", None, "nothing"),
    ],
)
def test_a_column_without_fractions_is_an_error(logits, name, value, kind):
    columns = logits | {name: [value] * 60}
    with pytest.raises(InputError) as raised:
        roles_of(columns)
    message = str(raised.value)
    assert message.startswith(f"not all columns hold floating-point numbers: {name!r} ({kind}). ")
    assert "--labels (labels=)" in message
    assert f"--ignore {name} (in Python: ignore=[{name!r}])" in message
    assert roles_of(columns, ignore=[name]) == (("cat", "dog", "zebra"), [name])


def test_all_floating_point_columns_are_labels_whatever_they_hold(logits):
    more = {"half": np.zeros(60, np.float16), "price": np.arange(60) / 4, "id2": np.full(60, 1e9)}
    assert roles_of(logits | more) == ((*logits, *more), [])


def test_whole_numbers_are_labels_only_if_they_are_chosen(rng):
    columns = {name: rng.integers(-20, 20, 60) for name in ("cat", "dog")}
    with pytest.raises(InputError, match=r"not all columns hold floating-point.*'\*' takes all"):
        roles_of(columns)
    assert roles_of(columns, labels="*")[0] == ("cat", "dog")
    assert roles_of(columns, of_features=True)[0] == ("cat", "dog")
    with pytest.raises(InputError, match=r"^not all columns hold numbers: 'text'.* Drop those"):
        roles_of(columns | {"text": ["x"] * 60}, of_features=True)


def test_the_message_names_the_option_in_a_form_that_works(logits):
    with pytest.raises(InputError, match=r"--ignore 'a text,\"b, c\"' \(in Python") as raised:
        roles_of(logits | {"a text": ["x"] * 60, "b, c": ["y"] * 60})
    assert "If one holds the ids, pass --id-column." in str(raised.value)
    many = {f"truth {i}": np.arange(60) % 2 for i in range(30)}
    with pytest.raises(InputError, match=r"not all columns .* and 20 more\.") as raised:
        roles_of(logits | many)
    assert "--ignore" not in str(raised.value)


def test_chosen_labels_are_taken_in_order_and_all_others_ignored(logits):
    columns = {"text": ["x"] * 60, **logits, "n": [1] * 60}
    assert roles_of(columns, labels=["zebra", "cat"]) == (("zebra", "cat"), ["text", "dog", "n"])
    assert roles_of(columns, labels="[a-z][a-z]*", ignore="text")[0] == ("cat", "dog", "zebra")
    assert roles_of(columns, labels=["n", "*a*", "c*"])[0] == ("n", "cat", "zebra")
    odd = {"far[v2]": logits["cat"], "far2": logits["dog"]}
    assert roles_of(odd, labels=["far[v2]"])[0] == ("far[v2]",)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"labels": ["cta"]}, "there is no column 'cta' .labels, --labels.. Nearest: cat"),
        ({"labels": ["x*"]}, r"no column 'x\*'.*The columns are 'cat', 'dog'"),
        ({"labels": ["cat", "cat"]}, "labels names 'cat' twice"),
        ({"labels": []}, "at least one column"),
        ({"labels": ["cat", "text"]}, "column 'text' does not hold numbers, but text"),
        ({"labels": ["cat"], "ignore": ["cat"]}, "ignored or kept"),
        ({"keep": ["text"], "ignore": ["t*"]}, "'text' cannot be kept and also be ignored"),
        ({"id_column": "cta"}, "there is no column 'cta' .id_column, --id-column"),
        ({"id_column": "cat", "ignore": "cat"}, "holds the ids, so it cannot be"),
        ({"ignore": "*"}, "no columns of logits"),
        ({"ignore": "txet"}, "Nearest: text"),
    ],
)
def test_mistakes_are_explained(logits, said, reason):
    with pytest.raises(InputError, match=reason):
        roles_of({"id": ["a"] * 60, **logits, "text": ["x"] * 60}, **said)


def test_ids_come_from_a_column_or_the_index(logits):
    def ids(columns, index=(), **said):
        return read_frame(made(columns, index), Columns(**said)).get("ids")

    assert ids({"ID": np.arange(60) + 5, **logits})[:2] == ["5", "6"]
    assert ids({"path": ["p"] * 60, **logits}, id_column="path")[0] == "p"
    assert ids({"at": np.arange(60)[::-1], **logits}, index=["at"])[0] == "59"
    levels = {"a": np.arange(60), "b": np.arange(60), **logits}
    assert ids(levels, index=["a", "b"]) is None
    assert ids(levels, index=["a", "b"], id_column="b")[1] == "1"
    assert ids({"id": [0.5] * 60, **logits}, labels=["id", "cat"]) is None


def test_ids_are_exact_and_missing_ones_are_empty(logits):
    def ids(column, **said):
        columns = Columns(**{"id_column": "n", **said})
        return read_frame(made({"n": column, **logits}), columns)["ids"][:3]

    large = [2**53 + 1, None, 2**53 + 3, *range(57)]
    assert ids(large) == ["9007199254740993", "", "9007199254740995"]
    assert ids([1.0, np.inf, None, *map(float, range(57))]) == ["1", "inf", ""]
    assert ids([None] * 60) == ["", "", ""]
    times = np.array(["2024-01-01", "NaT", *["2024-01-02"] * 58], dtype="datetime64[ns]")
    assert ids(times)[:2] == ["2024-01-01T00:00:00.000000000", ""]
    kept = read_frame(made({"n": large, **logits}), Columns(keep="n"))["kept"]["n"]
    assert kept[:3].tolist() == [2**53 + 1, None, 2**53 + 3]


def test_the_labels_of_a_detector_are_looked_for_by_name(logits):
    columns = {"text": ["x"] * 60, "n": [1] * 60, **logits}
    with pytest.warns(
        IgnoredLabelsWarning, match="ignored 1 column that the detector was not made for: 'dog'"
    ):
        found = roles_of(columns, expected=("zebra", "cat"))
    assert found == (("zebra", "cat"), ["text", "n", "dog"])
    assert roles_of(columns, expected=("zebra", "cat"), ignore="dog")[0] == ("zebra", "cat")
    with pytest.raises(
        LabelMismatchError, match=r"Missing: 'lion'\. Not known to the detector: 'text', 'n', 'dog'"
    ):
        roles_of(columns, expected=("lion", "cat"))
    numbered = {str(at): column for at, column in enumerate(logits.values())}
    assert roles_of(numbered, expected=("lion", "cat", "fish"))[0] is None
    lists = made({"logits": [[1 / 3] * 2] * 60, "text": ["x"] * 60})
    content = read_frame(lists, Columns(expected=("lion", "cat")))
    assert content["logits"].shape == (60, 2)
    assert content["manifest"] == {"ignored_columns": ["text"]}


def test_columns_of_lists(rng):
    lists = {"a": rng.normal(size=(60, 2)).tolist(), "features": rng.normal(size=(60, 4)).tolist()}
    table = made(lists | {"text": ["x"] * 60})
    with pytest.raises(InputError, match="no column of lists named logits; there are 'a', 'feat"):
        read_frame(table, Columns())
    assert read_frame(table, Columns(labels="a"))["logits"].shape == (60, 2)
    with pytest.raises(InputError, match="no column of lists named logits"):
        read_frame(table, Columns(labels=["a", "features"]))
    with pytest.raises(InputError, match="holds lists and cannot be kept"):
        read_frame(table, Columns(keep="a"))


def test_lists_do_not_replace_columns_of_numbers(logits, rng):
    embedding = rng.normal(size=(60, 8)).tolist()
    columns = {**logits, "embedding": embedding, "text": ["x"] * 60}
    reason = "lists of 'embedding', or in the columns 'cat', 'dog', 'zebra'. Choose"
    for said in ({}, {"expected": ("lion", "fox")}):
        with pytest.raises(InputError, match=reason):
            read_frame(made(columns), Columns(**said))
    for said, width in (
        ({"labels": "embedding"}, 8),
        ({"ignore": ["embedding", "text"]}, 3),
        ({"ignore": [*logits]}, 8),
    ):
        assert read_frame(made(columns), Columns(**said))["logits"].shape == (60, width)
    assert read_frame(made({"logits": embedding, **logits}), Columns())["logits"].shape == (60, 8)


def test_numbers_are_names_unless_they_only_count_the_columns(logits):
    def renamed(*names):
        return dict(zip(names, logits.values(), strict=True))

    for names in ("012", "123"):
        assert roles_of(renamed(*names))[0] is None
    assert roles_of(renamed("17", "3", "44"))[0] == ("17", "3", "44")
    expected = ("3", "44", "17")
    assert roles_of(renamed("17", "3", "44"), expected=expected)[0] == expected
    with pytest.raises(LabelMismatchError, match=r"Missing: 'lion', 'cat', 'fish'\. Not .*'7'"):
        roles_of(renamed("7", "5", "3"), expected=("lion", "cat", "fish"))
    for names in ("201", "321"):
        with pytest.raises(InputError, match="numbered, but not in order: "):
            roles_of(renamed(*names))
        assert roles_of(renamed(*names), labels=[*names])[0] == tuple(names)


# --- data frames of pandas, polars and pyarrow ---


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
        with pytest.raises(InputError, match=r"'text' .text., 'when' .times."):
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
    for given in (Outputs.from_frame, Outputs, JointEnergy().score_samples):
        with pytest.raises(InputError, match=r"pass frame.collect\(\)"):
            given(lazy)
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
