"""Which columns of a table are labels, ids, kept or ignored."""

import datetime
import decimal
import io
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from nescio._io.files import Files, find_files
from nescio._io.frames import read_frame
from nescio._io.tables import Columns
from nescio._io.text_tables import read_text
from nescio.errors import (
    FileFormatError,
    IgnoredLabelsWarning,
    InputError,
    LabelMismatchError,
    ShapeError,
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
        ("text", "x", "string"),
        ("flag", True, "bool"),
        ("when", datetime.datetime(2026, 1, 1), "timestamp[us]"),
        ("user_id", 4711, "int64"),
        ("price", decimal.Decimal("1.50"), "decimal128(3, 2)"),
        ("note", None, "null"),
    ],
)
def test_a_column_without_fractions_is_an_error(logits, name, value, kind):
    columns = logits | {name: [value] * 60}
    with pytest.raises(InputError) as raised:
        roles_of(columns)
    message = str(raised.value)
    assert message.startswith(f"not all columns hold floating-point numbers: {name!r} ({kind}). ")
    assert "labels=..." in message
    assert f"ignore=[{name!r}]" in message
    assert "--" not in message  # it is a data frame
    assert roles_of(columns, ignore=[name]) == (("cat", "dog", "zebra"), [name])


def test_all_floating_point_columns_are_labels_whatever_they_hold(logits):
    more = {"half": np.zeros(60, np.float16), "price": np.arange(60) / 4, "id2": np.full(60, 1e9)}
    assert roles_of(logits | more) == ((*logits, *more), [])


def test_whole_numbers_are_labels_only_if_they_are_chosen(rng):
    columns = {name: rng.integers(-20, 20, 60) for name in ("cat", "dog")}
    with pytest.raises(InputError, match=r"not all columns hold floating-point.*'\*' for all"):
        roles_of(columns)
    assert roles_of(columns, labels="*")[0] == ("cat", "dog")
    assert roles_of(columns, of_features=True)[0] == ("cat", "dog")
    with pytest.raises(InputError, match=r"^not all columns hold numbers: 'text'.* Drop those"):
        roles_of(columns | {"text": ["x"] * 60}, of_features=True)


def test_the_message_names_the_option_in_a_form_that_works(logits):
    table = pyarrow.table(logits | {"a text": ["x"] * 60, "b, c": ["y"] * 60})
    with pytest.raises(InputError, match=r"ignore=\['a text', 'b, c'\] \(--ignore '") as raised:
        Columns().roles(table.schema)
    assert """(--ignore 'a text,"b, c"')""" in str(raised.value)
    assert "id_column=... (--id-column) that of the ids." in str(raised.value)
    many = {f"truth {i}": np.arange(60) % 2 for i in range(30)}
    with pytest.raises(InputError, match=r"not all columns .* and 20 more\. To leave") as raised:
        roles_of(logits | many)
    assert "pass ignore=['truth *']. Otherwise" in str(raised.value)
    assert "'*'" not in str(raised.value)  # all columns are never right here
    assert roles_of(logits | many, ignore=["truth *"])[0] == ("cat", "dog", "zebra")
    more = {f"n{i}": np.arange(60) for i in range(11)}
    with pytest.raises(InputError, match=r"pass their names, or patterns, as ignore="):
        roles_of(logits | more)
    with pytest.raises(InputError, match=r"ignore=\['truth_a', 'truth_b'\]"):
        roles_of({"truth_0": logits["cat"], "truth_a": [1] * 60, "truth_b": [0] * 60})


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
        ({"labels": ["cta"]}, r"there is no column 'cta'\. Did you mean .cat"),
        ({"labels": ["x*"]}, r"no column 'x\*'.*The columns are 'cat', 'dog'"),
        ({"labels": ["cat", "cat"]}, "labels names 'cat' twice"),
        ({"labels": []}, "at least one column"),
        (
            {"labels": ["cat", "text"]},
            "'text' does not hold numbers, but has the type string",
        ),
        ({"labels": ["cat"], "ignore": ["cat"]}, "'cat' has 2 roles"),
        ({"keep": ["text"], "ignore": ["t*"]}, "'text' has 2 roles: a column holds ids"),
        ({"id_column": "cta"}, r"there is no column 'cta'\. Did you mean"),
        ({"id_column": "cat", "ignore": "cat"}, "'cat' has 2 roles"),
        ({"ignore": "*"}, "no columns of logits"),
        ({"ignore": "txet"}, "Did you mean .text"),
        ({"id_column": "ID"}, "Did you mean 'id'"),
        ({"ignore": "ctxz"}, "The columns are 'id', 'cat'"),
    ],
)
def test_mistakes_are_explained(logits, said, reason):
    with pytest.raises(InputError, match=reason):
        roles_of({"id": ["a"] * 60, **logits, "text": ["x"] * 60}, **said)


def test_verdicts_are_no_outputs(logits):
    verdicts = {"id": ["a"] * 60, "score": logits["cat"], "p_value": logits["dog"]}
    verdicts |= {"in_distribution": [True] * 60, "group": ["x"] * 60}
    known = {"expected": ["cat", "dog"]}
    for said in ({}, {"ignore": ["in_distribution", "group"]}, {"ignore": ["score"]}, known):
        with pytest.raises(
            InputError, match=r"table of verdicts \(score, p_value, in_distrib.*\): pass"
        ):
            roles_of(verdicts, **said)
    both = verdicts | logits
    with pytest.warns(IgnoredLabelsWarning, match="'score', 'p_value', 'zebra'"):
        assert roles_of(both, expected=["cat", "dog"])[0] == ("cat", "dog")
    assert roles_of(both, labels=["cat", "zebra"])[0] == ("cat", "zebra")
    features = {"score": logits["cat"], "p_value": logits["dog"]}  # of genes
    assert roles_of(features, of_features=True)[0] == ("score", "p_value")


def test_columns_that_no_truth_belongs_to_are_named(logits):
    others = {f"n{number}": logits["cat"] for number in range(4)}
    columns = logits | others | {"latency_ms": logits["dog"], "labels": [[0, 1, 0]] * 60}
    shown = r"8 labels \(cat, dog, zebra, n0, n1, \.\.\., n3, latency_ms\) were read\. Leave out"
    with pytest.raises(ShapeError, match=f"'labels' have 3 entries, but {shown}"):
        read_frame(made(columns), Columns())
    rest = Columns(ignore=["n?", "latency_ms"])
    assert read_frame(made(columns), rest)["labels"].shape == (60, 3)


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


def test_missing_ids_are_empty(logits):
    def ids(column):
        return read_frame(made({"n": column, **logits}), Columns("n"))["ids"][:3]

    assert ids([1.0, np.inf, None, *map(float, range(57))]) == ["1", "inf", ""]
    assert ids([None] * 60) == ["", "", ""]
    times = np.array(["2024-01-01", "NaT", *["2024-01-02"] * 58], dtype="datetime64[ns]")
    assert ids(times)[:2] == ["2024-01-01T00:00:00.000000000", ""]


def test_the_labels_of_a_detector_are_looked_for_by_name(logits):
    columns = {"text": ["x"] * 60, "n": [1] * 60, **logits}
    with pytest.warns(
        IgnoredLabelsWarning, match="ignored 1 column that the detector was not made for: 'dog'"
    ):
        roles = roles_of(columns, expected=("zebra", "cat"))
    assert roles == (("zebra", "cat"), ["text", "n", "dog"])
    assert roles_of(columns, expected=("zebra", "cat"), ignore="dog")[0] == ("zebra", "cat")
    with pytest.raises(
        LabelMismatchError, match=r"data 3\)\. Missing: 'lion'\. Not .* detector: 'dog', 'zebra'"
    ):
        roles_of(columns, expected=("lion", "cat"))
    numbered = {str(number): column for number, column in enumerate(logits.values())}
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


def test_lists_beside_columns_of_numbers_are_features_truth_and_arrays(logits, rng):
    features, truth = rng.normal(size=(60, 8)).tolist(), [[0, 1, 0]] * 60
    lists = {"features": features, "labels": truth, "layer": features, "tags": [["x"]] * 60}
    columns = {**logits, **lists, "text": ["x"] * 60}
    rest = {"ignore": ["text", "tags"]}
    for said in (
        rest,
        {"labels": list(logits)},
        {"expected": list(logits)},
        rest | {"labels": "*"},
    ):
        content = read_frame(made(columns), Columns(**said))
        assert content["label_names"] == ("cat", "dog", "zebra")
        assert content["features"].shape == content["arrays"]["layer"].shape == (60, 8)
        assert content["labels"].tolist() == truth
        assert content["manifest"]["ignored_columns"] == ["tags", "text"]
    with pytest.raises(InputError, match=r"'tags' .list<.*, 'text' .string"):
        read_frame(made(columns), Columns())
    with pytest.raises(LabelMismatchError, match=r"Missing: 'Cat'\..* Rename 'cat' to 'Cat'\?"):
        read_frame(made(columns), Columns(expected=("Cat", "dog", "zebra")))
    turned = read_frame(made(columns), Columns(expected=["zebra", "dog", "cat"]))
    assert turned["labels"].tolist() == [[0, 1, 0]] * 60
    turned = read_frame(made(columns), Columns(labels=["dog", "zebra", "cat"]))
    assert turned["labels"].tolist() == [[1, 0, 0]] * 60  # in the order of the table before
    of_list = read_frame(made(columns), Columns(labels="layer"))
    assert of_list["logits"].shape == of_list["features"].shape == (60, 8)
    named = read_frame(made({"logits": features, **logits, "labels": truth}), Columns())
    assert (named["logits"].shape, named["labels"].shape) == ((60, 8), (60, 3))
    chosen = read_frame(made({"logits": features, **logits}), Columns(labels=["dog"]))
    assert (chosen["logits"].shape, chosen["arrays"]) == ((60, 1), {})


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


# --- text files ---


def test_no_thread_of_pyarrow_holds_memory_of_python():
    """To release it while the interpreter exits, a thread would abort the process."""
    data = b"a,b\n" + b"1.5,x\n" * 500
    held = sys.getrefcount(data)
    remote = SimpleNamespace(open=lambda *_, **__: io.BytesIO(data))
    files = Files("x.csv", ("x.csv",), remote)
    for _ in range(100):
        assert len(read_text(files, Columns())) == 500
        assert sys.getrefcount(data) == held


def test_one_json_array_is_not_json_lines(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('[{"a": 1.5},\n {"a": 2.5}]')
    with pytest.raises(FileFormatError, match="it holds one array"):
        read_text(find_files(path), Columns())
