"""Which columns of a table are labels, ids, kept or ignored."""

import numpy as np
import pytest

from nescio._io.csv_table import CsvTable
from nescio.errors import InputError, LabelMismatchError
from nescio.outputs.columns import Columns


class Made:
    """A table in memory."""

    def __init__(self, columns, index=(), lists=()):
        self.columns = {name: np.asarray(column) for name, column in columns.items()}
        self.names, self.index, self.lists = tuple(columns), tuple(index), frozenset(lists)

    def read(self, numbers, others):
        return {name: self.columns[name] for name in (*numbers, *others)}, {}


@pytest.fixture
def logits(rng):
    return {name: rng.normal(size=60) for name in ("cat", "dog", "zebra")}


def roles_of(columns, **said):
    content = Columns(**said).read(Made(columns))
    return content["label_names"], content.get("manifest", {}).get("ignored_columns", [])


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("text", ["x"] * 60, "text"),
        ("flag", [True, False] * 30, "true or false"),
        ("when", np.arange(60).astype("datetime64[s]"), "times"),
        ("user_id", np.arange(60)[::-1] * 7 % 61, "named like an id"),
        ("photoId", np.zeros(60), "named like an id"),
        ("Unnamed: 0", np.arange(60), "named like an id"),
        ("user_id", [np.nan, *range(59)], "named like an id"),
        ("age", [31, 62, 19] * 20, "only whole numbers, unlike other columns"),
        ("year", [2024.0] * 60, "only whole numbers"),
        ("truth", [0, 1] * 30, "only whole numbers"),
        ("seconds", np.arange(60) + 1.7e9 + 0.25, "too large for logits"),
        ("note", [np.nan] * 60, "empty"),
        ("note", np.array([None] * 60), "empty"),
    ],
)
def test_a_column_that_may_not_be_a_label_is_an_error(logits, name, values, reason):
    with pytest.raises(InputError) as raised:
        roles_of(logits | {name: values})
    message = str(raised.value)
    assert message.startswith("1 column does not look like the logits of a label: ")
    assert f"{name!r} (" in message
    assert reason in message
    assert "--labels (labels=)" in message
    assert f"ignore=[{name!r}]" in message
    assert roles_of(logits | {name: values}, ignore=[name]) == (("cat", "dog", "zebra"), [name])


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("covid", np.arange(60) + 0.5),
        ("photo_id", np.arange(60) - 0.5),  # a label of identity cards, with fractions
        ("masked", [-np.inf] * 60),
        ("never", np.zeros(60)),
        ("some", [np.nan] * 30 + [0.5] * 30),
    ],
)
def test_columns_that_stay_labels(logits, name, values):
    assert roles_of(logits | {name: values}) == (("cat", "dog", "zebra", name), [])


def test_tables_of_whole_numbers_are_quantised_logits(rng):
    columns = {name: rng.integers(-20, 20, 60) for name in ("cat", "dog")}
    assert roles_of(columns)[0] == ("cat", "dog")
    with pytest.raises(InputError, match=r"'user'.*all different"):
        roles_of(columns | {"user": rng.permutation(60) + 5})
    with pytest.raises(InputError, match=r"'step'.*sorted order"):
        roles_of(columns | {"step": np.repeat(np.arange(20), 3)})
    toy = {"cat": [1, 2, 3], "dog": [0.5, 1.0, 2.0]}
    assert roles_of(toy)[0] == ("cat", "dog")


def test_a_scored_table_does_not_hold_logits(logits):
    scored = {"score": np.ones(60) / 3, "p_value": np.ones(60) / 2}
    with pytest.raises(InputError, match=r"'score' .written by nescio score., 'p_value' "):
        roles_of(logits | scored | {"in_distribution": [True] * 60})


def test_the_message_names_the_option_in_a_form_that_works(logits):
    with pytest.raises(InputError, match=r"--ignore 'a text,\"b, c\"' \(in Python") as raised:
        roles_of(logits | {"a text": ["x"] * 60, "b, c": ["y"] * 60})
    assert "If one of them holds the ids, pass --id-column." in str(raised.value)
    many = {f"truth {i}": np.arange(60) % 2 for i in range(30)}
    with pytest.raises(InputError, match=r"30 columns do not .* and 20 more. To choose") as raised:
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
        ({"labels": ["cta"]}, "there is no column 'cta' .labels, --labels.. Did you mean 'cat'"),
        ({"labels": ["x*"]}, r"no column 'x\*'.*The columns are 'cat', 'dog'"),
        ({"labels": ["cat", "cat"]}, "labels names 'cat' twice"),
        ({"labels": []}, "at least one column"),
        ({"labels": ["cat", "text"]}, "column 'text' does not hold numbers, but text"),
        ({"labels": ["cat"], "ignore": ["cat"]}, "ignored or kept"),
        ({"keep": ["text"], "ignore": ["t*"]}, "'text' cannot be kept and also be ignored"),
        ({"id_column": "cta"}, "there is no column 'cta' .id_column, --id-column"),
        ({"id_column": "cat", "ignore": "cat"}, "holds the ids, so it cannot be"),
        ({"ignore": "*"}, "no columns of logits"),
        ({"ignore": "txet"}, "Did you mean 'text'"),
    ],
)
def test_mistakes_are_explained(logits, said, reason):
    with pytest.raises(InputError, match=reason):
        roles_of({"id": ["a"] * 60, **logits, "text": ["x"] * 60}, **said)


def test_ids_come_from_a_column_or_the_index(logits):
    def ids(columns, index=(), **said):
        return Columns(**said).read(Made(columns, index)).get("ids")

    named = {"ID": np.arange(60) + 5, **logits}
    assert ids(named)[:2] == ["5", "6"]
    assert ids({"path": ["p"] * 60, **logits}, id_column="path")[0] == "p"
    assert ids({"at": np.arange(60)[::-1], **logits}, index=["at"])[0] == "59"
    assert ids({"at": np.arange(60), **logits}, index=["at"]) is None
    assert ids({"n": [np.nan, *range(59)], **logits}, id_column="n")[:2] == ["", "0"]
    levels = {"a": np.arange(60), "b": np.arange(60), **logits}
    assert ids(levels, index=["a", "b"]) is None
    assert ids(levels, index=["a", "b"], id_column="b")[1] == "1"
    with pytest.raises(InputError, match="'id'"):
        ids({"ID": [1] * 60, "id": [2] * 60, **logits})
    assert ids({"id": [0.5] * 60, **logits}, labels=["id", "cat"]) is None


def test_the_labels_of_a_detector_are_looked_for_by_name(logits):
    columns = {"text": ["x"] * 60, **logits}
    assert roles_of(columns, expected=("zebra", "cat")) == (("zebra", "cat"), ["text", "dog"])
    with pytest.raises(
        LabelMismatchError, match=r"1 of 2 labels are missing: 'lion'. Other columns: 'text', 'dog'"
    ):
        roles_of(columns, expected=("lion", "cat"))
    numbered = {str(at): column for at, column in enumerate(logits.values())}
    assert roles_of(numbered, expected=("lion", "cat", "fish"))[0] is None
    lists = Made({"logits": np.ones((60, 2)) / 3, "text": ["x"] * 60}, lists=["logits"])
    content = Columns(expected=("lion", "cat")).read(lists)
    assert content["logits"].shape == (60, 2)
    assert content["manifest"] == {"ignored_columns": ["text"]}


def test_columns_of_lists(rng):
    lists = {"a": rng.normal(size=(60, 2)), "features": rng.normal(size=(60, 4))}
    table = Made(lists | {"text": ["x"] * 60}, lists=lists)
    with pytest.raises(InputError, match="no column of lists named logits; there are 'a', 'feat"):
        Columns().read(table)
    assert Columns(labels="a").read(table)["logits"].shape == (60, 2)
    with pytest.raises(InputError, match="no column of lists named logits"):
        Columns(labels=["a", "features"]).read(table)
    with pytest.raises(InputError, match="holds lists and cannot be kept"):
        Columns(keep="a").read(table)


def test_a_chosen_label_with_text_names_the_line(tmp_path):
    (tmp_path / "x.csv").write_text("cat,dog\n1,2\n3,two\n")
    with pytest.raises(InputError, match="column 'dog', line 3: 'two' is not a number"):
        Columns(labels="dog").read(CsvTable(tmp_path / "x.csv"))
    assert Columns(labels="cat").read(CsvTable(tmp_path / "x.csv"))["logits"].tolist() == [[1], [3]]
